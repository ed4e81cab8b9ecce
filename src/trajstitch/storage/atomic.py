"""Write files and folders whole or not at all: into a temporary folder beside the target, then rename."""

import ctypes
import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import mkdtemp

from trajstitch.errors import InputError
from trajstitch.storage.locks import try_lock
from trajstitch.storage.stopping import publishing, unfinished

PREFIX = ".trajstitch-"
"""Start of the names of temporary folders and locks."""
LOCK = "lock"
"""The file in a temporary folder that is locked while its owner lives."""
NEW = 3600
"""Seconds after which a folder that holds nothing yet is not just about to be locked, but left by a killed process."""
NAME_BYTES = 255
"""The longest name of a file on usual file systems."""
NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EACCES)
"""Errors of file systems that can't wait for the disk, some for folders alone."""
NO_REPLACE, EXCHANGE = 1, 2
"""Ways to rename in one step that only Linux has."""

_told: ContextVar[Callable[[Path, Path], None] | None] = ContextVar("told", default=None)


def require_free(target: Path, *, force: bool, folder: bool = False) -> None:
    """Raise unless `target` may be written: it doesn't exist (or `force` is set) and its parent folder is writable.

    With `folder`, the target is a folder and may replace one. A file never replaces a folder, even with `force`.
    """
    parent = _require_free(target, force=force, folder=folder)
    try:  # permissions don't tell everything: a file system may be read-only, full or no real one
        Path(mkdtemp(prefix=PREFIX, dir=parent)).rmdir()
    except OSError as error:
        raise _as_input_error(error, target) from error
    if len(os.fsencode(target.name)) > NAME_BYTES:
        raise InputError(f"{target}: its name is longer than {NAME_BYTES} bytes: choose another name")


def _require_free(target: Path, *, force: bool, folder: bool) -> Path:
    """Raise if `target` can be seen not to be writable; return the folder above it that exists."""
    _put_back(target)
    try:
        taken, is_folder, is_file = target.exists(), target.is_dir(), target.is_file()
    except OSError as error:
        raise _as_input_error(error, target) from error
    if taken and not (is_folder or is_file):
        raise InputError(f"{target} is a device or a pipe, which is never replaced: choose another name")
    if taken and is_folder != folder:
        raise InputError(f"{target} is a {'folder' if is_folder else 'file'}: choose another name")
    if taken and not force:
        raise InputError(f"{target} exists already: choose another name, or overwrite it with `force=True`")
    parent = target.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{target}: {parent} is a file, not a folder: choose another place")
    if not os.access(parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise InputError(f"{target}: no permission to write into {parent}: choose another place")
    return parent


@contextmanager
def telling(tell: Callable[[Path, Path], None]) -> Iterator[None]:
    """Call `tell` with each file or folder written within, as it is on the disk, and its target, which it isn't yet.

    So a job can record what it is about to put there: if it is killed in between, it recognises its own work.
    """
    before = _told.set(tell)
    try:
        yield
    finally:
        _told.reset(before)


@contextmanager
def replacing(target: Path, *, force: bool, folder: bool = False) -> Iterator[Path]:
    """Yield a path to write a file (or `folder`) to; it is renamed to `target` if the block ends without an error.

    The path is in a hidden temporary folder beside the target, which is always removed. If the block fails, parent
    folders that were created for it are removed too. What a killed process left behind is removed by the next write
    to the same parent folder.
    """
    _require_free(target, force=force, folder=folder)
    parent = target.absolute().parent
    made = [missing for missing in (parent, *parent.parents) if not missing.exists()]
    lock = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(parent)
        workspace = parent / f"{PREFIX}{secrets.token_hex(4)}"
        with unfinished(workspace, made):
            workspace.mkdir(0o700)
            with suppress(OSError):  # a file system without locks
                lock = try_lock(workspace / LOCK)
            fresh = workspace / "new" / target.name
            fresh.parent.mkdir()
            yield fresh
            _to_disk(fresh)
            if (tell := _told.get()) is not None:
                _told.set(None)  # not for what it writes itself
                tell(fresh, target)
                _told.set(tell)
            with publishing:
                _take_place(fresh, target, workspace, force=force)
        holders, made = (parent, *(folder_made.parent for folder_made in made)), []
        try:
            for holder in holders:
                _to_disk(holder, inside=False)
        except OSError as error:
            raise InputError(
                f"{target}: is written, but may be lost if the power fails ({error.strerror or error}): check the disk"
            ) from error
    except OSError as error:
        raise _as_input_error(error, target) from error
    finally:
        if lock is not None:
            lock.release()
        for folder_made in made:
            with suppress(OSError):
                folder_made.rmdir()


def _take_place(fresh: Path, target: Path, workspace: Path, *, force: bool) -> None:
    if not force:
        try:
            _rename_to_nothing(fresh, target)
        except FileExistsError as error:
            raise InputError(
                f"{target}: another job wrote it meanwhile, and it is left as it is: choose another name, or overwrite "
                "it with `force=True`"
            ) from error
        return
    while True:  # another job may put something there, or take it away, at any moment
        try:
            _rename_to_nothing(fresh, target)
        except FileExistsError:
            with suppress(FileNotFoundError):
                _replace(fresh, target, workspace)
                return
        else:
            return


def _replace(fresh: Path, target: Path, workspace: Path) -> None:
    """Rename to where something is; raise FileNotFoundError if it was just taken away."""
    if not target.is_dir():
        fresh.replace(target)
        return
    if _rename(fresh, target, EXCHANGE):
        return
    # This takes two steps. If we are killed in between, `_put_back` puts the old one back.
    replaced = workspace / "replaced" / target.name
    replaced.parent.mkdir(exist_ok=True)
    try:
        target.rename(replaced)
        fresh.rename(target)
    except BaseException:  # Ctrl-C too
        if replaced.exists() and not target.exists():
            replaced.rename(target)
        raise


def _rename_to_nothing(fresh: Path, target: Path) -> None:
    """Rename in one step, or raise FileExistsError if there is something at `target`."""
    if _rename(fresh, target, NO_REPLACE):
        return
    if target.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    fresh.rename(target)


def _rename(fresh: Path, target: Path, how: int) -> bool:
    """Rename in one step in a way that only Linux has; return whether this system and file system have it."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # neither Linux nor its C library
        return False
    here = -100
    if rename(here, os.fsencode(fresh), here, os.fsencode(target), how) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code), str(target))


def _to_disk(path: Path, *, inside: bool = True) -> None:
    """Wait until a file, or a folder and what is inside, is on the disk, so that it survives if the power fails."""
    for one in (path, *(path.rglob("*") if inside and path.is_dir() else ())):
        try:
            handle = os.open(one, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno not in NO_SYNC:
                raise


def _remove_stale(parent: Path) -> None:
    """Remove what killed processes left: temporary folders that nobody has locked."""
    for left in parent.glob(f"{PREFIX}*"):
        if not left.is_dir() or left.is_symlink():
            continue
        with suppress(OSError):
            # Its owner makes `new` once it has the lock. Before that we would take the lock from it.
            if not (left / "new").exists() and time.time() - left.stat().st_mtime < NEW:
                continue
            lock = try_lock(left / LOCK)
            if lock is None:
                continue
            for replaced in left.glob("replaced/*"):
                if not (parent / replaced.name).exists():
                    replaced.rename(parent / replaced.name)
            shutil.rmtree(left, ignore_errors=True)
            lock.release()


def _put_back(target: Path) -> None:
    """Put a folder back that a killed process had moved away to replace it."""
    with suppress(OSError):
        if not target.exists() and any(target.absolute().parent.glob(f"{PREFIX}*/replaced/{glob.escape(target.name)}")):
            _remove_stale(target.absolute().parent)


def _as_input_error(error: OSError, target: Path) -> InputError:
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return InputError(f"{target}: the disk is full; nothing was written: free some space or choose another place")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"{target}: no permission to write there: choose another place")
    return InputError(f"{target}: can't be written ({error.strerror or error}); nothing was written")
