"""Kills: a job that is killed at any file event and started again leaves the same files as one that nothing disturbed.

A case is a number: it says which job, and before which of its file events it is killed. Events are what Python does to
files in the job's folder: making folders, opening for writing, waiting for the disk, renaming, removing. `python -m
soak.kills FIRST COUNT` tries cases and prints a line of JSON for each. Jobs are forked, so the process must not have
computed anything with JAX.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from safetensors import safe_open

import trajstitch
from soak import jobs
from soak.jobs import JOBS
from trajstitch.storage import atomic

SECONDS = 300
"""Seconds after which a job counts as hung."""
TIMED = ("started", "measured", "seconds", "peak_bytes", "trajstitch_checksum")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: int
    job: str
    event: str
    """What the job was killed before."""
    verdict: str
    """`same` or `failed`."""
    detail: str = ""
    seconds: float = 0.0


class _Events:
    """Counts what this process does to files in a folder, and kills it before one of these events."""

    def __init__(self, folder: Path, kill_before: int | None, log: Path) -> None:
        self.folder, self.kill_before, self.log = str(folder), kill_before, log
        self.seen: list[str] = []
        self.handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        sys.addaudithook(self.hook)
        fsync, rename = os.fsync, atomic._rename

        def synced(handle: int) -> None:
            self.event("fsync", str(Path(f"/proc/self/fd/{handle}").readlink()))
            fsync(handle)

        def renamed(fresh: Path, target: Path, how: int) -> bool:
            self.event("renameat2", str(target))
            return rename(fresh, target, how)

        os.fsync, atomic._rename = synced, renamed

    def hook(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            path, mode, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and (set(mode or "") & set("wax+") or (flags or 0) & WRITES):
                self.event("open", os.fspath(path))
        elif name in ("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.truncate", "os.chmod"):
            path = arguments[1 if name == "os.rename" else 0]
            if not isinstance(path, int):  # a file without a name
                self.event(name, os.fspath(path))

    def event(self, name: str, path: str | bytes) -> None:
        path = str(Path(self.folder) / os.fsdecode(path))
        if not path.startswith(self.folder):
            return
        if len(self.seen) == self.kill_before:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(f"{name} {re.sub('trajstitch-[a-z0-9_]{8}', 'trajstitch-*', path[len(self.folder) + 1 :])}")
        os.write(self.handle, (self.seen[-1] + "\n").encode())


def in_child(work: Callable[[], int], output: Path) -> int:
    """Run this in a process of its own; return its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    stop = time.monotonic() + SECONDS
    while time.monotonic() < stop:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM


@cache
def _home() -> Path:
    return Path(mkdtemp(prefix="kills-"))


@cache
def _undisturbed(name: str) -> tuple[list[str], dict[str, str]]:
    """Return a job's file events, and what it leaves."""
    code, events, found, said = _work(name, None)
    if code != 0:
        raise RuntimeError(f"{name} ends with {code}: {said}")
    return events, found


@cache
def _prepared(name: str) -> Path:
    """Return a folder with what a job starts from, made once."""
    home = _home()
    inputs, said = home / "inputs", home / "said"
    if not inputs.exists() and in_child(lambda: jobs.write_inputs(inputs), said):
        raise RuntimeError(said.read_text())
    before = JOBS[name].before
    if before is None:
        return inputs
    folder = home / "before" / name
    shutil.copytree(inputs, folder)
    if code := in_child(lambda: jobs.enter(folder, before, home / "compiled"), said):
        raise RuntimeError(f"{name} can't be prepared ({code}): {said.read_text()}")
    return folder


def _work(name: str, kill_before: int | None) -> tuple[int, list[str], dict[str, str], str]:
    """Do a job in a fresh folder; if it is killed, do it again. Return its code, its first events and its files."""
    home = _home()
    folder, said, log = home / "work", home / "said", home / "events"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_prepared(name), folder)

    def work() -> int:
        _Events(folder, kill_before, log)
        return jobs.enter(folder, JOBS[name].command, home / "compiled")

    code = in_child(work, said)
    events = log.read_text().splitlines()
    if code == -signal.SIGKILL:
        code = in_child(lambda: jobs.enter(folder, JOBS[name].command, home / "compiled"), said)
    return code, events, files_in(folder), said.read_text()


def files_in(folder: Path) -> dict[str, str]:
    """Return the checksum of every file, without what is another each time: times and durations."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        timed = path.name in ("seconds.json", "report.html") or name.startswith("pages/table1.")
        if path.is_file() and ".trajstitch-" not in name and (not timed or path.suffix in (".csv", ".tex")):
            found[name] = hashlib.sha256(_plain(path)).hexdigest()
    return found


def _plain(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_untimed(json.loads(content)), sort_keys=True).encode()
    if path.parent.name == "policies":  # of an experiment, which tells how long they were trained
        with safe_open(path, "np") as file:
            told = {name: _untimed(json.loads(text)) for name, text in file.metadata().items() if name == "config"}
            tensors = {name: file.get_tensor(name).tobytes().hex() for name in file.keys()}  # noqa: SIM118
        return json.dumps([told, tensors], sort_keys=True).encode()
    if path.name.endswith("card.md"):
        return re.sub(rb"started [^ \n]*", b"", content)
    return content


def _untimed(stored: Any) -> Any:
    """Return stored facts without times, durations, memory, and the checksums that cover them."""
    if isinstance(stored, dict):
        return {name: _untimed(value) for name, value in stored.items() if name not in TIMED}
    return [_untimed(value) for value in stored] if isinstance(stored, list) else stored


def attempt(case: int) -> Outcome:
    """Kill a job before one of its file events, do it again, and compare what it leaves."""
    name = list(JOBS)[case % len(JOBS)]
    events, _ = _undisturbed(name)
    return _killed_at(name, int(np.random.default_rng((18, case)).integers(len(events))), case)


def attempt_before(name: str, event: str, case: int) -> Outcome:
    """The same for a job and the last of its events of this name."""
    events, _ = _undisturbed(name)
    return _killed_at(name, len(events) - 1 - events[::-1].index(event), case)


def _killed_at(name: str, at: int, case: int) -> Outcome:
    start = time.monotonic()
    events, right = _undisturbed(name)
    code, seen, found, said = _work(name, at)
    event = events[at] if len(seen) <= at else seen[at]
    verdict, detail = "same", ""
    if len(seen) > at:
        verdict, detail = "failed", f"was not killed: {code}, {said}"
    elif code != 0 and not (code == 2 and "exists already" in said):
        verdict, detail = "failed", f"ends with {code} the second time: {said}"
    elif found != right:
        other = sorted(name for name in {**found, **right} if found.get(name) != right.get(name))
        verdict, detail = "failed", f"other files: {', '.join(other)}"
    return Outcome(case, name, event, verdict, detail[-2000:], round(time.monotonic() - start, 2))


def main() -> None:
    """Try cases, named by FIRST COUNT, or by a job and the event that it is killed before, several times."""
    words = sys.argv[1:]
    try:
        if words[0].isdecimal():
            found = map(attempt, range(int(words[0]), int(words[0]) + int(words[1])))
        else:
            found = map(attempt_before, words[::2], words[1::2], range(len(words)))
        for outcome in found:
            print(json.dumps(asdict(outcome)), flush=True)
    finally:
        shutil.rmtree(_home(), ignore_errors=True)


assert trajstitch  # imported before the first fork, so that every child has it


if __name__ == "__main__":
    main()
