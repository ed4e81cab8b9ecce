"""Locks on files: they die with the process that holds them, and hold across containers that share a disk."""

import errno
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajstitch.errors import InputError

if TYPE_CHECKING:
    from filelock import FileLock


@dataclass
class _Held:
    """A lock of this process."""

    lock: "FileLock"
    file: os.stat_result
    """Which file it is on: another may have its path by now."""
    thread: threading.Thread
    """The thread that locked it first."""
    holders: int = 0
    """The number of objects that hold it."""


PATIENCE = 60.0
"""Seconds that a job waits for its turn."""

_held: dict[Path, _Held] = {}
"""The locks of this process by their file."""
_changing = threading.RLock()


def try_lock(path: Path) -> "FileLock | None":
    """Return a lock that is held until it is released or the process ends; None if another process holds it.

    Raises OSError where the file system has no locks.
    """
    from filelock import FileLock, Timeout  # not where policies are deployed

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, "no locks") from error
    return lock


def hold(path: Path, holder: Any, what: str) -> None:
    """Lock a file for as long as `holder` is alive; raise if another process, or another thread of this one, holds it.

    `what` names in the error what is locked. Objects of one thread may hold the same lock, and so may those of threads
    that follow one another. A lock on a file that is gone counts no more.
    """
    path = path.resolve()
    with _changing:
        found = _held.get(path)
        if found is not None and lost(path):
            found = None
        if found is None:
            try:
                lock = try_lock(path)
            except OSError as error:
                from trajstitch.progress import logger  # shows progress bars, which a deployed policy doesn't have

                logger.warning(f"{what}: can't be locked here ({error.strerror or error}): let no other job use it")
                return
            if lock is None:
                raise InputError(f"{what} is in use{_owner(path)}: wait until it is done, or choose another `run`")
            me = {"process": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            with suppress(OSError):  # on a full disk nobody learns who holds it, but it is held
                path.write_text(json.dumps(me) + "\n")
            found = _held[path] = _Held(lock, path.stat(), threading.current_thread())
        elif found.thread is not threading.current_thread() and found.thread.is_alive():
            raise InputError(
                f"{what} is in use by another thread of this process: wait until it is done, or choose another `run`"
            )
        found.thread = threading.current_thread()
        found.holders += 1
        weakref.finalize(holder, _let_go, path, found)


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until no other job has its turn in a folder, and have it within.

    A file system without locks, or a job that keeps its turn for too long, is no reason to wait.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        stop = time.monotonic() + PATIENCE
        while not _locked(handle) and time.monotonic() < stop:
            time.sleep(0.005)
        yield
    finally:
        os.close(handle)  # which unlocks it


def _locked(handle: int) -> bool:
    """Return whether a folder is locked now, or can't be."""
    try:
        import fcntl  # no Windows

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def lost(path: Path) -> bool:
    """Return whether this process locked a file that is no longer there, or is another one now."""
    held = _held.get(path.resolve())
    try:
        return held is not None and not os.path.samestat(held.file, path.stat())
    except OSError:
        return True


def _let_go(path: Path, held: _Held) -> None:
    """Release a lock that nothing holds any more."""
    with _changing:
        held.holders -= 1
        if not held.holders:
            held.lock.release()
            if _held.get(path) is held:
                del _held[path]


def _owner(path: Path) -> str:
    """Return who holds a lock, as text."""
    try:
        facts = json.loads(path.read_text())
        return f" by process {int(facts['process'])} on {facts['host']} since {facts['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return " by another process"
