"""Stopping a job in the middle: nothing half-made stays behind, and what is said tells how to go on.

Ctrl-C raises KeyboardInterrupt, but only between two instructions of Python: not while a compiled program, a neighbour
search or a library that reads a file is at work. The command line then ends the process without waiting for them
(`cli/interrupts.py`). What it needs for that is noted here: temporary folders to remove, and what to say.
"""

import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger("trajstitch")  # by name: this is imported before anything that takes time
asked = threading.Event()
"""Set once somebody has asked this process to stop."""
publishing = threading.RLock()
"""Held while a finished file takes its place, and for ever once the process ends without waiting."""
_unfinished: dict[Path, Sequence[Path]] = {}
_advice: list[str] = []


@contextmanager
def unfinished(workspace: Path, made: Sequence[Path]) -> Iterator[None]:
    """Remove a temporary folder after the block; and the folders `made` for its result if the process ends within."""
    _unfinished[workspace] = made
    try:
        yield
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
        if not workspace.exists():  # else it was interrupted, and `abandon` removes it
            _unfinished.pop(workspace, None)


@contextmanager
def resumable(advice: str, level: int = logging.INFO) -> Iterator[None]:
    """Say how to go on if the job is stopped within the block."""
    _advice.append(advice)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if advice in _advice:
            logger.log(level, advice)
        raise
    finally:
        with suppress(ValueError):
            _advice.remove(advice)


def abandon() -> list[str]:
    """Give up all unfinished work, for good: from now on no file takes its place. Return how to go on.

    Only for a process that ends right after.
    """
    publishing.acquire(timeout=0.5)
    for workspace, made in list(_unfinished.items()):
        shutil.rmtree(workspace, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
    return list(_advice)
