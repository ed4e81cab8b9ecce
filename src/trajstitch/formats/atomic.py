"""Writing that happens whole or not at all: a temporary sibling that takes the target's name at the end."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from trajstitch.errors import InputError

PREFIX = ".trajstitch-"


def require_free(target: Path, *, force: bool) -> None:
    """Raise unless `target` may be written: it isn't there (or is forced), and its folder can be written to."""
    if target.exists() and not force:
        raise InputError(f"{target} exists already: choose another name, or overwrite it with --force")
    parent = target.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{target}: no permission to write into {parent}")


@contextmanager
def replacing(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a path to write a file or folder to; it becomes `target` when the block ends without an error.

    The path lies in a hidden temporary folder beside the target, which is removed whatever happens. What a killed
    process left there goes with the next write beside it.
    """
    require_free(target, force=force)
    parent = target.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(parent)
        workspace = Path(mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    except OSError as error:
        raise _as_input_error(error, target) from error
    try:
        fresh = workspace / target.name
        yield fresh
        if target.is_dir():
            target.rename(workspace / "replaced")
        fresh.replace(target)
    except OSError as error:
        raise _as_input_error(error, target) from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*-*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _as_input_error(error: OSError, target: Path) -> Exception:
    text = str(error)
    number = error.errno or next(
        (
            code
            for code in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EROFS)
            if f"errno = {code}" in text
        ),
        None,
    )
    if number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return InputError(f"{target}: the disk is full; nothing was written: free some space or choose another place")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"{target}: no permission to write there")
    return error
