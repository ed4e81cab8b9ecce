"""HDF5 files: every way in which one can't be read or written, as one clear error."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py

from trajstitch.errors import InputError
from trajstitch.formats.files import require_readable

CHUNK_CACHE = 16 << 20
"""Bytes a dataset: reading compressed data in blocks then unpacks no chunk twice."""

LARGEST_METADATA_CACHE = 4 << 20
"""Bytes. With HDF5's own 32 MB, a file of many short episodes takes three times its size in memory, and longer."""


@contextmanager
def reading(path: Path, source: str) -> Iterator[h5py.File]:
    """Open a file to read only; `source` names it in errors."""
    require_readable(path)
    try:
        file = h5py.File(path, "r", locking="best-effort", rdcc_nbytes=CHUNK_CACHE)
    except OSError as error:
        if path.stat().st_size == 0:
            raise InputError(f"{source}: the file is empty: copy or download it again") from error
        if "truncated" in str(error):
            raise InputError(f"{source}: the file is cut short: copy or download it again") from error
        raise InputError(f"{source}: is not an HDF5 file ({path.name}): check that it is the right one") from error
    try:
        with file:
            _limit_metadata_cache(file)
            yield file
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("(")[2].rstrip(")") or str(error)
        raise InputError(f"{source}: the file is damaged ({reason}): copy or download it again") from error


@contextmanager
def writing(path: Path) -> Iterator[h5py.File]:
    """Create a file. What HDF5 can't write raises an OSError with its number, whatever HDF5 itself made of it."""
    file = h5py.File(path, "w", track_order=True)
    try:
        _limit_metadata_cache(file)
        yield file
        file.close()
    except BaseException as error:
        _abandon(file, path)
        number = re.search(r"errno = (\d+)", str(error))
        if number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise


def _limit_metadata_cache(file: h5py.File) -> None:
    settings = file.id.get_mdc_config()
    settings.max_size = LARGEST_METADATA_CACHE
    file.id.set_mdc_config(settings)


def _abandon(file: h5py.File, path: Path) -> None:
    """Close a file that won't be used. HDF5 insists on writing what it holds, for which emptying the file makes room;
    if that fails too, the file's handle is left to the end of the process, as h5py would print a traceback."""
    with suppress(OSError):
        os.truncate(path, 0)
    try:
        file.close()
    except (OSError, RuntimeError, ValueError):
        file.id.locked = True
