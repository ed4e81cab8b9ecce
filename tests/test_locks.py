"""Two jobs at once: in one run's folder, and at one target."""

import gc
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trajstitch.errors import InputError
from trajstitch.storage import atomic
from trajstitch.storage.atomic import PREFIX, replacing
from trajstitch.storage.locks import try_lock
from trajstitch.storage.runs import LOCK, Run

HOLD = """
    import sys
    from pathlib import Path
    from trajstitch.storage.runs import Run
    run = Run.start(Path(sys.argv[1]), "stitch", {"seed": 1})
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_run_that_another_process_works_in_is_refused_and_its_owner_named(tmp_path: Path) -> None:
    folder, pipe = tmp_path / "run", subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(HOLD), str(folder)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(InputError, match=rf"is in use by process {other.pid} on .* since .*: wait until"):
            Run.start(folder, "stitch", {"seed": 1}, resume=True)
        other.kill()
    assert Run.start(folder, "stitch", {"seed": 1}, resume=True).config == {"seed": 1}


def test_a_run_is_free_again_when_its_job_is_done(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", "stitch", {})
    again = Run.start(tmp_path / "run", "stitch", {}, resume=True)  # the same process may
    del run
    gc.collect()
    assert try_lock(tmp_path / "run" / LOCK) is None
    del again
    gc.collect()
    lock = try_lock(tmp_path / "run" / LOCK)
    assert lock is not None
    lock.release()


def test_a_run_whose_folder_was_removed_is_started_again_while_the_old_one_lives(tmp_path: Path) -> None:
    """An interactive session keeps what a stopped job held, by the exception that stopped it."""
    old = Run.start(tmp_path / "run", "stitch", {})
    shutil.rmtree(tmp_path / "run")
    run = Run.start(tmp_path / "run", "stitch", {}, resume=True)
    run.log(step=1)
    del old
    gc.collect()
    run.require_there()
    assert try_lock(tmp_path / "run" / LOCK) is None


def test_a_run_that_another_thread_works_in_is_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        run = other.submit(Run.start, tmp_path / "run", "train", {}).result()
        with pytest.raises(InputError, match="is in use by another thread of this process"):
            Run.start(tmp_path / "run", "train", {}, resume=True)
    assert Run.start(tmp_path / "run", "train", {}, resume=True).facts == run.facts  # that thread has ended


def test_nothing_is_put_into_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    for resume in (False, True):
        with pytest.raises(InputError):
            Run.start(tmp_path, "stitch", {}, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("folder", [False, True])
def test_what_another_job_wrote_meanwhile_is_not_replaced(tmp_path: Path, folder: bool) -> None:
    target = tmp_path / "data"

    def write(path: Path, text: str) -> None:
        if folder:
            path.mkdir()
            path = path / "inside"
        path.write_text(text)

    def race() -> None:
        with replacing(target, force=False, folder=folder) as fresh:
            write(fresh, "ours")
            write(target, "theirs")

    with pytest.raises(InputError, match="another job wrote it meanwhile"):
        race()
    assert (target / "inside" if folder else target).read_text() == "theirs"
    with replacing(target, force=True, folder=folder) as fresh:
        write(fresh, "ours")
    assert (target / "inside" if folder else target).read_text() == "ours"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_live_workspace_is_never_taken_for_a_stale_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner may be in another container, with a process id that means nothing here."""
    monkeypatch.setattr(atomic, "NEW", 0)
    with replacing(tmp_path / "first", force=False) as fresh:
        fresh.write_text("1")
        with replacing(tmp_path / "second", force=False) as other:
            other.write_text("2")
        assert fresh.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_workspace_is_left_alone_until_its_owner_has_locked_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = atomic.try_lock

    def meanwhile(path: Path) -> Any:
        path.touch()
        monkeypatch.setattr(atomic, "try_lock", take)
        with replacing(tmp_path / "second", force=False) as other:
            other.write_text("2")
        assert path.exists()
        return take(path)

    monkeypatch.setattr(atomic, "try_lock", meanwhile)
    with replacing(tmp_path / "first", force=False) as fresh:
        fresh.write_text("1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_workspace_without_an_owner_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f"{PREFIX}elsewhere-17-abc"
    (left / "replaced").mkdir(parents=True)
    (left / "replaced" / "old").write_text("kept")
    monkeypatch.setattr(atomic, "NEW", 0)
    with replacing(tmp_path / "new", force=False) as fresh:
        fresh.write_text("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_data_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = atomic.os.fsync, atomic._take_place

    def synced(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").resolve().name
        events.append(f"{name} on disk")
        fsync(handle)

    def renamed(*arguments: Path, force: bool) -> None:
        events.append("renamed")
        rename(*arguments, force=force)

    monkeypatch.setattr(atomic.os, "fsync", synced)
    monkeypatch.setattr(atomic, "_take_place", renamed)
    with replacing(tmp_path / "data", force=False) as fresh:
        fresh.write_text("1")
    assert events == ["data on disk", "renamed", f"{tmp_path.name} on disk"]


@pytest.mark.parametrize("link", [False, True])
def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path, link: bool) -> None:
    """Whoever works as root could take away what all others need, such as /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    target = tmp_path / ("link" if link else "pipe")
    with pytest.raises(InputError, match="is a device or a pipe"), replacing(target, force=True) as fresh:
        fresh.write_text("1")
    with pytest.raises(InputError, match="is a device or a pipe"):
        atomic.require_free(target, force=True)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
