"""Open HDF5 files to read or write, with one clear error for every way in which that can fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import h5py

from trajstitch.errors import InputError
from trajstitch.formats.files import require_readable

CHUNK_CACHE = 16 << 20
"""Bytes per dataset: reading compressed data in blocks then unpacks no chunk twice."""

LARGEST_METADATA_CACHE = 4 << 20
"""Bytes. With HDF5's default of 32 MB, a file of many short episodes needs three times its size in memory, and more
time."""


@contextmanager
def reading(path: Path, source: str) -> Iterator[h5py.File]:
    """Open a file read-only; `source` names it in errors."""
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


class Output(h5py.File):
    """A file that is being written: call `check` from time to time."""

    disk: "_Disk"

    def check(self) -> None:
        """Raise if something couldn't be written."""
        self.disk.check()


@contextmanager
def writing(path: Path) -> Iterator[Output]:
    """Create a file. If the disk is full or fails, the system's OSError is raised here or by `check`."""
    with _Disk(path, "w+") as disk:
        try:
            with Output(disk, "w", track_order=True) as file:
                file.disk = disk
                _limit_metadata_cache(file)
                yield file
        except Exception:
            disk.check()
            raise
        disk.check()


class _Disk(FileIO):
    """A file object that never fails for HDF5: it keeps the first error and drops everything written after it.

    If a write fails inside HDF5, it never closes the file, prints tracebacks, and crashes later.
    """

    error: OSError | None = None

    def write(self, content: Any, /) -> int:
        left = memoryview(content).cast("B")
        size = len(left)
        while left and self.error is None:
            try:
                left = left[super().write(left) :]
            except OSError as error:
                self.error = error
        return size

    def truncate(self, size: int | None = None, /) -> int:
        if self.error is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self.error = error
        return 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def _limit_metadata_cache(file: h5py.File) -> None:
    settings = file.id.get_mdc_config()
    settings.max_size = LARGEST_METADATA_CACHE
    file.id.set_mdc_config(settings)
