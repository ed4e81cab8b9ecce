"""Rot: what has changed on the disk since we wrote it is noticed, and never used in silence."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from gymnasium.spaces import Box

import trajstitch
from point import collect
from soak.flips import READ, attempt
from soak.samples import logged, stitched
from trajstitch import BC, cli
from trajstitch.errors import InputError
from trajstitch.formats import load, require_free, save
from trajstitch.formats.seal import require_unchanged_text, sealing_text
from trajstitch.policies.policy import load_policies
from trajstitch.policies.train import train_run
from trajstitch.storage.checksums import BLOCK, KEY, checksum
from trajstitch.storage.runs import Run
from trajstitch.storage.tensors import read_tensors, save_tensors

FLIPS = 40
"""Flipped bits in each kind of file."""


@pytest.mark.parametrize("kind", READ)
def test_a_flipped_bit_is_noticed_or_changes_nothing(kind):
    first = list(READ).index(kind)
    outcomes = [attempt(case) for case in range(first, FLIPS * len(READ), len(READ))]
    assert {one.kind for one in outcomes} == {kind}
    assert "refused" in {one.verdict for one in outcomes}
    assert [one for one in outcomes if one.verdict == "failed"] == []


def flip_a_value(path: Path) -> None:
    """Flip a bit in the middle of the file, where the numbers are."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_every_bit_of_an_array_counts():
    array = np.zeros(3 * BLOCK + 5, np.uint8)
    before = checksum(array)
    for at in (0, BLOCK - 1, BLOCK, 2 * BLOCK, len(array) - 1):
        array[at] = 1
        assert checksum(array) != before
        array[at] = 0
    assert checksum(array.reshape(-1, 1)) != before
    assert checksum(array.view(np.int8)) != before


def test_tensors_of_another_place_are_refused(tmp_path):
    first, second = (Run.start(tmp_path / name, "test", {"seed": seed}) for seed, name in enumerate("ab"))
    for run in (first, second):
        run.write_tensors("models", {"weight": np.ones(3)})
        run.write_json("passes", [1])
    for name in ("models.safetensors", "passes.json"):
        shutil.copy(first.path(name), second.path(name))
    with pytest.raises(InputError, match="belongs to another run"):
        second.read_tensors("models")
    with pytest.raises(InputError, match="belongs to another job"):
        second.read_json("passes", list)
    shutil.copy(first.path("models.safetensors"), first.path("state.safetensors"))
    with pytest.raises(InputError, match="another place in this one"):
        first.read_tensors("state")


def test_the_same_tensors_make_the_same_bytes(tmp_path):
    facts = {name: f"é {name}\n\x01" for name in "abcdefgh"}
    for number in range(4):
        save_tensors({"w": np.ones(3), "v": np.ones(2, np.float32)}, tmp_path / f"{number}.safetensors", facts)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert read_tensors(tmp_path / "0.safetensors")[1] == facts


def test_files_without_a_checksum_are_read_as_they_are(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weight": np.ones(3)}, tmp_path / "theirs.safetensors", {"note": "by hand"})
    assert read_tensors(tmp_path / "theirs.safetensors")[1] == {"note": "by hand"}
    save_tensors({"weight": np.ones(3)}, tmp_path / "ours.safetensors", {"note": "ours"})
    assert read_tensors(tmp_path / "ours.safetensors")[1] == {"note": "ours"}


def test_damaged_line_of_metrics_is_left_out_and_told(tmp_path, caplog):
    run = Run.start(tmp_path / "run", "test", {})
    run.log(step=1, loss=0.5)
    run.log(step=2, loss=0.25)
    path = run.path("metrics.jsonl")
    path.write_text(path.read_text().replace("0.25", "0.35"))
    assert run.metrics() == [{"step": 1, "loss": 0.5}]
    assert "1 damaged lines are left out" in caplog.text


# Data files


URIS = ("npz:{}/log.npz", "d4rl:{}/log.hdf5", "table:{}/log.parquet", "minari:my/log-v0")


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("data", [logged(), stitched()], ids=["logged", "stitched"])
def test_checksums_go_through_every_format_and_leave_no_trace(uri, data, tmp_path):
    uri = uri.format(tmp_path)
    save(data, uri)
    found = load(uri)
    assert found.fingerprint == data.fingerprint
    assert not [name for name in found.metadata.extra if "checksum" in name or "content" in name]
    for number, target in enumerate(URIS):
        copy = target.format(tmp_path).replace("log", f"log{number}")
        save(found, copy)
        assert load(copy).fingerprint == data.fingerprint


def test_data_changed_on_purpose_is_loaded_if_the_user_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(logged(), "npz:log.npz")
    with np.load("log.npz") as file:
        arrays = dict(file)
    arrays["rewards"][0] += 1
    import zipfile

    with zipfile.ZipFile("log.npz") as archive:
        comment = archive.comment
    np.savez("log.npz", **arrays)
    with zipfile.ZipFile("log.npz", "a") as archive:
        archive.comment = comment
    assert cli.run(["inspect", "npz:log.npz"]) == 2
    error = capsys.readouterr().err
    assert "has changed since trajstitch wrote it" in error
    assert "--allow-changed" in error
    assert cli.run(["convert", "npz:log.npz", "npz:again.npz", "--allow-changed"]) == 0
    assert load("npz:again.npz").rewards[0] == logged().rewards[0] + 1


def test_edited_csv_is_refused_with_how_to_accept_it(tmp_path):
    path = tmp_path / "log.csv"
    save(logged(), f"table:{path}")
    beside = tmp_path / "log.csv.sha256"
    assert beside.read_text().endswith("  log.csv\n")
    assert len(load(f"table:{path}")) == 3
    path.write_text(path.read_text().replace("true", "false", 1))
    with pytest.raises(InputError, match=r"remove .*log\.csv\.sha256, or load it with `allow_changed=True`"):
        load(f"table:{path}")
    assert not load(f"table:{path}", allow_changed=True).terminated.any()
    beside.unlink()
    assert not load(f"table:{path}").terminated.any()
    save(logged(), f"table:{path}", force=True)
    assert load(f"table:{path}").terminated.any()


def test_checksum_beside_a_csv_is_what_sha256sum_writes(tmp_path):
    import hashlib

    path = tmp_path / "log.csv"
    save(logged(), f"table:{path}")
    known, name = (tmp_path / "log.csv.sha256").read_text().split()
    assert (known, name) == (hashlib.sha256(path.read_bytes()).hexdigest(), "log.csv")


def test_a_csv_that_could_not_be_replaced_keeps_its_checksum(tmp_path, monkeypatch):
    from trajstitch.storage import atomic

    path = tmp_path / "log.csv"
    save(logged(), f"table:{path}")
    before = (tmp_path / "log.csv.sha256").read_text()
    take_place = atomic._take_place

    def fail(fresh: Path, target: Path, *others: Path, force: bool) -> None:
        if target == path:
            raise OSError(5, "Input/output error")
        take_place(fresh, target, *others, force=force)

    monkeypatch.setattr(atomic, "_take_place", fail)
    with pytest.raises(InputError, match="can't be written"):
        save(stitched(), f"table:{path}", force=True)
    assert (tmp_path / "log.csv.sha256").read_text() == before
    assert load(f"table:{path}").steps == 12


def test_the_checksum_of_the_job_that_came_first_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("trajstitch.storage.locks.PATIENCE", 0)  # as where there are no locks
    path = tmp_path / "log.csv"
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("ours")
    theirs.write_text("theirs")
    with sealing_text(path) as seal_theirs:
        with sealing_text(path) as seal_ours:
            seal_theirs(theirs)
            seal_ours(ours)
            shutil.copy(ours, path)
        seal = (tmp_path / "log.csv.sha256").read_text()
    assert (tmp_path / "log.csv.sha256").read_text() == seal
    require_unchanged_text(path, "log")
    assert seal.count("\n") == 1


def test_jobs_that_replace_one_text_file_leave_the_checksum_of_the_one_that_stays(tmp_path):
    """The last word of the first must not come after the file of the second."""
    path, order = tmp_path / "log.csv", []
    path.write_text("old")

    def replace_by(text: str, begun: Event, may_end: Event) -> None:
        fresh = tmp_path / text
        fresh.write_text(text)
        with sealing_text(path) as seal:
            seal(fresh)
            begun.set()
            may_end.wait(10)
            fresh.rename(path)
            order.append(text)

    first, may_end, second, at_once = Event(), Event(), Event(), Event()
    at_once.set()
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(replace_by, "first", first, may_end)]
        first.wait(10)
        jobs.append(pool.submit(replace_by, "second", second, at_once))
        assert not second.wait(0.2)
        may_end.set()
        for job in jobs:
            job.result()
    assert order == ["first", "second"]
    require_unchanged_text(path, "log")
    assert (tmp_path / "log.csv.sha256").read_text().count("\n") == 1


def test_a_file_of_others_in_the_place_of_a_checksum_is_left_alone(tmp_path):
    uri, beside = f"table:{tmp_path}/log.csv", tmp_path / "log.csv.sha256"
    for mine in ("", "my notes\n", f"{'0' * 64}  another.csv\n"):
        beside.write_text(mine)
        for write in (lambda: require_free(uri, force=False), lambda: save(logged(), uri)):
            with pytest.raises(InputError, match=r"log.csv.sha256 exists already, and is no checksum of log.csv"):
                write()
        assert beside.read_text() == mine
    save(logged(), uri, force=True)
    assert load(uri).steps == 12


def test_minari_itself_loads_sets_with_checksums(tmp_path):
    import minari

    save(logged(), "minari:my/log-v0")
    assert minari.load_dataset("my/log-v0").total_steps == 12


# Trainings


def test_an_empty_or_swapped_last_checkpoint_is_not_taken_for_trained(tmp_path):
    data = collect(episodes=4, length=10)
    small = BC(steps=20, hidden=(8,))
    ours = train_run(data, small, tmp_path / "ours", 1)
    last = ours.path("checkpoints/000000020.safetensors")
    content = last.read_bytes()
    for empty in (b"", content[: len(content) // 2]):
        last.write_bytes(empty)
        with pytest.raises(InputError, match=r"000000020.safetensors.*(remove it|again)"):
            train_run(data, small, ours.folder, 1, resume=True)
    theirs = train_run(data[:3], small, tmp_path / "theirs", 1)
    shutil.copy(theirs.path("checkpoints/000000020.safetensors"), last)
    with pytest.raises(InputError, match="made by another run, with fingerprint"):
        load_policies(ours.folder)
    best = train_run(data, small, tmp_path / "best", 1, top=0.5)
    shutil.copy(best.path("checkpoints/000000020.safetensors"), last)
    with pytest.raises(InputError, match=r"made by another run, with top = 0.5, not 1.0"):
        load_policies(ours.folder)
    last.write_bytes(content)
    shutil.copy(last, ours.path("checkpoints/000000030.safetensors"))
    with pytest.raises(InputError, match="made after 20 steps"):
        load_policies(ours.folder)


def test_resuming_notices_other_action_bounds_and_versions(tmp_path, caplog):
    data, small = collect(episodes=4, length=10), BC(steps=20, hidden=(8,))
    data = replace(data, metadata=replace(data.metadata, action_space=Box(-1, 1, (data.action_size,))))
    run = train_run(data, small, tmp_path / "run", 1)
    wider = replace(data, metadata=replace(data.metadata, action_space=Box(-2, 2, (data.action_size,))))
    with pytest.raises(InputError, match="was started with action_bounds = "):
        train_run(wider, small, run.folder, 1, resume=True)
    stored = json.loads((run.folder / "run.json").read_text())
    del stored[KEY]
    stored["versions"]["jax"] = "0.0.1"
    (run.folder / "run.json").write_text(json.dumps(stored))
    train_run(data, small, run.folder, 1, resume=True)
    assert "was started with jax 0.0.1, now " in caplog.text


def test_a_swapped_target_is_not_reported_as_saved(tmp_path, monkeypatch, capsys):
    from test_stitching import SMALL
    from trajstitch.stitching import config

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(config.PRESETS, "quick", SMALL)
    trajstitch.save(collect(episodes=30, length=20), "npz:log.npz")
    stitch = ["stitch", "npz:log.npz", "npz:better.npz", "--preset", "quick", "--run", "run", "--resume"]
    assert cli.run(stitch) == 0
    assert cli.run(stitch) == 0
    shutil.copy("log.npz", "better.npz")
    capsys.readouterr()
    assert cli.run(stitch) == 2
    assert "is not what run has written there" in capsys.readouterr().err
    assert cli.run([*stitch, "--force"]) == 0
    capsys.readouterr()
    shutil.copy("log.npz", "run/result.npz")
    Path("better.npz").unlink()
    assert cli.run(stitch) == 2
    assert "it is another result than this run's" in capsys.readouterr().err
