"""Locks on files: they die with the process that holds them, and hold across containers that share a disk."""

import errno
import json
import os
import socket
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajstitch.errors import InputError

if TYPE_CHECKING:
    from filelock import FileLock

_held: "dict[Path, tuple[FileLock, int, os.stat_result]]" = {}
"""The locks of this process by their file, each with the number of objects that hold it, and which file it is."""


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
    """Lock a file for as long as `holder` is alive; raise if another process holds it.

    `what` names in the error what is locked. Objects of one process may hold the same lock.
    """
    path = path.resolve()
    if path not in _held:
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
        _held[path] = lock, 0, path.stat()
    lock, holders, file = _held[path]
    _held[path] = lock, holders + 1, file
    weakref.finalize(holder, _let_go, path)


def lost(path: Path) -> bool:
    """Return whether this process locked a file that is no longer there, or is another one now."""
    held = _held.get(path.resolve())
    try:
        return held is not None and not os.path.samestat(held[2], path.stat())
    except OSError:
        return True


def _let_go(path: Path) -> None:
    """Release a lock that nothing holds any more."""
    lock, holders, file = _held.pop(path)
    if holders > 1:
        _held[path] = lock, holders - 1, file
    else:
        lock.release()


def _owner(path: Path) -> str:
    """Return who holds a lock, as text."""
    try:
        facts = json.loads(path.read_text())
        return f" by process {int(facts['process'])} on {facts['host']} since {facts['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return " by another process"
