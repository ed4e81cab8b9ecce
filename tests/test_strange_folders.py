"""Folders of strangers and folders that go away: links, pipes, named sources, removed runs, failing disks."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from point import collect
from soak.samples import logged, stitched
from trajstitch import cli
from trajstitch.benchmark import sources
from trajstitch.benchmark.sources import load_original
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.errors import InputError, JobError
from trajstitch.formats import load, save
from trajstitch.policies import train as training
from trajstitch.policies.policy import load_policy
from trajstitch.storage import atomic
from trajstitch.storage.atomic import PREFIX, replacing
from trajstitch.storage.runs import LOCK, Run

# Links and pipes


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", LOCK, "stitching-0/passes.json", "data.json"])
def test_a_link_out_of_a_run_is_never_followed(name, tmp_path):
    run, outside = Run.start(tmp_path / "run", "train", {}), tmp_path / "outside"
    if name == "checkpoints":
        outside.mkdir()
    else:
        outside.write_text("mine")
    place = run.path(name)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(outside)
    folder = run.folder
    del run
    for attempt in (lambda: Run.open(folder), lambda: Run.start(folder, "train", {}, resume=True)):
        with pytest.raises(InputError, match="is a link out of the run's folder, which is never followed"):
            attempt()
    assert outside.is_dir() or outside.read_text() == "mine"


def test_a_link_within_a_run_and_a_link_to_a_run_are_fine(tmp_path):
    Run.start(tmp_path / "run", "train", {}).write_json("data", {"a": 1})
    (tmp_path / "run" / "copy.json").symlink_to("data.json")
    (tmp_path / "latest").symlink_to("run")
    assert Run.open(tmp_path / "latest").read_json("data") == {"a": 1}


def test_a_run_that_is_forced_anew_writes_nothing_through_links(tmp_path):
    run, outside = Run.start(tmp_path / "run", "train", {}), tmp_path / "outside"
    outside.write_text("mine")
    folder = run.folder
    del run
    (folder / LOCK).unlink(missing_ok=True)
    (folder / LOCK).symlink_to(outside)
    with pytest.raises(InputError, match="is a link out of the run's folder"):
        Run.start(folder, "train", {}, force=True)
    assert outside.read_text() == "mine"


def test_pipes_and_devices_are_refused_unread(tmp_path):
    os.mkfifo(tmp_path / "log.npz")
    for uri in (f"npz:{tmp_path}/log.npz", "npz:/dev/zero", f"table:{tmp_path}/log.npz", "d4rl:/dev/zero"):
        with pytest.raises(InputError, match="is a device or a pipe, not a file"):
            load(uri)
    run = Run.start(tmp_path / "run", "train", {})
    os.mkfifo(run.path("scores.json"))
    with pytest.raises(InputError, match="is neither a file nor a folder"):
        Run.open(run.folder)


def test_policies_of_a_stranger_s_folder_are_files_in_it(tmp_path):
    """Before, who loaded them waited for the writer of a pipe for ever."""
    pipe, folder = tmp_path / "pipe.safetensors", tmp_path / "run" / "checkpoints"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a folder, a device or a pipe, not a file"):
        load_policy(pipe)
    folder.mkdir(parents=True)
    (folder / "000000001.safetensors").symlink_to(pipe)
    with pytest.raises(InputError, match="is a link out of the run's folder, which is never followed"):
        load_policy(folder.parent)
    (folder / "000000001.safetensors").unlink()
    os.mkfifo(folder / "000000001.safetensors")
    with pytest.raises(InputError, match="is neither a file nor a folder"):
        load_policy(folder.parent)


# Sources that a file names


@pytest.mark.parametrize("begun", [False, True], ids=["not there", "of which a download was interrupted"])
@pytest.mark.parametrize("source", ["minari:mujoco/hopper/medium-v0", "hopper/medium-replay"])
def test_nothing_is_fetched_because_a_file_names_it(source, begun, tmp_path, minari_store, monkeypatch):
    if begun:
        (minari_store / sources.resolve(source).removeprefix("minari:") / "data").mkdir(parents=True)
    monkeypatch.setattr("trajstitch.formats.minari._download", lambda name: pytest.fail(f"downloads {name}"))
    monkeypatch.setattr(sources, "_collect_once", lambda name: pytest.fail(f"collects {name}"))
    data = stitched()
    record = StitchRecord.of(data.metadata)
    assert record is not None
    named = replace(record, source={"source": source, "columns": None, "fingerprint": "0"})
    data = replace(data, metadata=named.added_to(data.metadata))
    with pytest.raises(InputError, match=f"is not fetched only because a file names it: `trajstitch inspect {source}`"):
        load_original(data)
    run = Run.start(tmp_path / "run", "stitch", {"source": source, "fingerprint": "0", "transitions": 1})
    with pytest.raises(InputError, match="is not fetched only because a file names it"):
        sources.reload_source(run)


# Folders that go away


def test_a_job_whose_folder_is_removed_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(collect(episodes=4, length=10), "npz:log.npz")
    deploy = training.deploy

    def remove_first(*arguments):
        shutil.rmtree("clone")
        return deploy(*arguments)

    monkeypatch.setattr(training, "deploy", remove_first)
    command = ["train", "bc", "npz:log.npz", "--steps", "20", "--seeds", "1", "--hidden", "8", "--run", "clone"]
    assert cli.run(command) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "error: clone was removed while the job was working in it: start it again"
    assert not any("Traceback" in line for line in said)
    assert not Path("clone").exists()


def test_a_job_never_writes_into_the_folder_of_another(tmp_path):
    run = Run.start(tmp_path / "run", "train", {})
    shutil.rmtree(run.folder)
    code = "import sys; from pathlib import Path; from trajstitch.storage.runs import Run; "
    code += "Run.start(Path(sys.argv[1]), 'train', {'mine': 1}).write_json('data', {})"
    subprocess.run([sys.executable, "-c", code, str(run.folder)], check=True)
    for write in (lambda: run.log(step=1), lambda: run.write_json("scores", {}), lambda: run.drop_metrics_after(1)):
        with pytest.raises(JobError, match="was removed while the job was working in it"):
            write()
    assert sorted(path.name for path in run.folder.iterdir()) == [LOCK, "data.json", "run.json"]


# Disks


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_data_that_the_disk_refuses_is_not_published(number, tmp_path, monkeypatch):
    save(logged(), f"npz:{tmp_path}/log.npz")
    before = (tmp_path / "log.npz").read_bytes()

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.os, "fsync", fail)
    for uri in (f"npz:{tmp_path}/log.npz", f"d4rl:{tmp_path}/log.hdf5", "minari:my/log-v0"):
        with pytest.raises(InputError, match=r"can't be written|the disk is full"):
            save(stitched(), uri, force=True)
    assert (tmp_path / "log.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["log.npz"]


@pytest.mark.parametrize("uri", ["npz:{}/new/log.npz", "table:{}/log.csv", "table:{}/log.parquet", "minari:my/log-v0"])
def test_everything_is_on_the_disk_before_it_has_its_name(uri, tmp_path, monkeypatch):
    events: list[tuple[str, str]] = []
    fsync, take_place = os.fsync, atomic._take_place

    def synced(handle: int) -> None:
        events.append(("on disk", str(Path(f"/proc/self/fd/{handle}").readlink())))
        fsync(handle)

    def named(fresh: Path, target: Path, *others: Path, force: bool) -> None:
        files = [fresh, *fresh.rglob("*")]
        assert {("on disk", str(one)) for one in files} <= set(events)
        events.append(("named", str(target.absolute())))
        take_place(fresh, target, *others, force=force)

    monkeypatch.setattr(atomic.os, "fsync", synced)
    monkeypatch.setattr(atomic, "_take_place", named)
    save(logged(), uri.format(tmp_path))
    targets = [path for event, path in events if event == "named"]
    assert targets
    for target in targets:  # then so is its name
        after = events[events.index(("named", target)) :]
        assert ("on disk", str(Path(target).parent)) in after


# Containers


HOLD = """
    import sys, socket
    from pathlib import Path
    from trajstitch.storage.atomic import replacing
    with replacing(Path(sys.argv[1]), force=False) as fresh:
        fresh.write_text("theirs")
        print("ready", flush=True)
        sys.stdin.readline()
"""


def test_a_live_workspace_in_another_container_is_left_alone(tmp_path, monkeypatch):
    """The other process has the same host name and a small process id, as in a container of its own."""
    monkeypatch.setattr(atomic, "NEW", 0)
    apart = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        apart = []  # not allowed here: then at least another process
    pipe = subprocess.PIPE
    command = [*apart, sys.executable, "-c", textwrap.dedent(HOLD), str(tmp_path / "theirs")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with replacing(tmp_path / "ours", force=False) as fresh:
            fresh.write_text("ours")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.wait() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
    left = tmp_path / f"{PREFIX}dead"
    left.mkdir()
    (left / atomic.LOCK).touch()
    with replacing(tmp_path / "third", force=False) as fresh:
        fresh.write_text("")
    assert not left.exists()


RACE = """
    import sys
    import numpy as np
    from soak.samples import logged
    from trajstitch.errors import InputError
    from trajstitch.formats import save
    data = logged()[np.arange(int(sys.argv[2]))]
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        save(data, sys.argv[1])
    except InputError as error:
        print(error)
        sys.exit(2)
"""


@pytest.mark.parametrize("uri", ["table:{}/log.csv", "minari:my/log-v0"])
def test_of_writers_of_one_new_target_exactly_one_wins(uri, tmp_path):
    uri, pipe = uri.format(tmp_path), subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(RACE), uri]
    writers = [
        subprocess.Popen([*command, str(episodes)], stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parent)
        for episodes in (1, 2, 3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    codes = []
    for writer in writers:
        writer.communicate()
        codes.append(writer.returncode)
    assert sorted(codes) == [0, 2, 2]
    assert len(load(uri)) == codes.index(0) + 1
