"""Write files and folders whole or not at all: into a temporary folder beside the target, then rename."""

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from trajstitch.errors import InputError

PREFIX = ".trajstitch-"


def require_free(target: Path, *, force: bool, folder: bool = False) -> None:
    """Raise unless `target` may be written: it doesn't exist (or `force` is set) and its parent folder is writable.

    With `folder`, the target is a folder and may replace one. A file never replaces a folder, even with `force`.
    """
    try:
        taken, is_folder = target.exists(), target.is_dir()
    except OSError as error:
        raise _as_input_error(error, target) from error
    if taken and is_folder != folder:
        raise InputError(f"{target} is already a {'folder' if is_folder else 'file'}: choose another name")
    if taken and not force:
        raise InputError(f"{target} exists already: choose another name, or overwrite it with `force=True`")
    parent = target.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{target}: {parent} is a file, not a folder: choose another place")
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InputError(f"{target}: no permission to write into {parent}: choose another place")


@contextmanager
def replacing(target: Path, *, force: bool, folder: bool = False) -> Iterator[Path]:
    """Yield a path to write a file (or `folder`) to; it is renamed to `target` if the block ends without an error.

    The path is in a hidden temporary folder beside the target, which is always removed. If the block fails, parent
    folders that were created for it are removed too. What a killed process left behind is removed by the next write
    to the same parent folder.
    """
    require_free(target, force=force, folder=folder)
    parent = target.absolute().parent
    made = [missing for missing in (parent, *parent.parents) if not missing.exists()]
    workspace = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(parent)
        workspace = Path(mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=parent))
        fresh = workspace / target.name
        yield fresh
        _take_place(fresh, target, workspace)
        made = []
    except OSError as error:
        raise _as_input_error(error, target) from error
    finally:
        if workspace is not None:
            shutil.rmtree(workspace, ignore_errors=True)
        for folder_made in made:
            with suppress(OSError):
                folder_made.rmdir()


def _take_place(fresh: Path, target: Path, workspace: Path) -> None:
    if not target.is_dir():
        fresh.replace(target)
        return
    # A folder can't be replaced in one step. If we are killed in between, `_remove_stale` puts the old one back.
    replaced = workspace / "replaced" / target.name
    replaced.parent.mkdir()
    target.rename(replaced)
    try:
        fresh.rename(target)
    except OSError:
        replaced.rename(target)
        raise


def _prefix() -> str:
    """Start of a workspace's name: it holds the machine, since folders may be shared, and then the process id."""
    return f"{PREFIX}{socket.gethostname()}-"


def _remove_stale(parent: Path) -> None:
    for left in parent.glob(f"{_prefix()}*-*"):
        owner = left.name.removeprefix(_prefix()).partition("-")[0]
        if not owner.isdigit() or _alive(int(owner)):
            continue
        for replaced in left.glob("replaced/*"):
            if not (parent / replaced.name).exists():
                replaced.rename(parent / replaced.name)
        shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _as_input_error(error: OSError, target: Path) -> InputError:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return InputError(f"{target}: the disk is full; nothing was written: free some space or choose another place")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"{target}: no permission to write there: choose another place")
    return InputError(f"{target}: can't be written ({error.strerror or error}); nothing was written")
