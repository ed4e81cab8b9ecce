"""Open HDF5 files to read or write, with one clear error for every way in which that can fail."""

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5l, h5p  # pyright: ignore[reportAttributeAccessIssue]

from trajstitch.errors import InputError
from trajstitch.formats.files import library, require_readable
from trajstitch.formats.limits import Budget

CHUNK_CACHE = 16 << 20
"""Bytes per dataset: reading compressed data in blocks then unpacks no chunk twice."""

LARGEST_METADATA_CACHE = 4 << 20
"""Bytes. With HDF5's default of 32 MB, a file of many short episodes needs three times its size in memory, and more
time."""


SMALLEST_READ = 1 << 10
"""Bytes of data that reading a chunk costs as much time as, at least."""

SMALLEST_DATASET = 64 << 10
"""Bytes of data that opening a dataset or a group costs as much time as, at least."""

DEEPEST = 100
"""Groups within groups: HDF5 visits them by recursion, which ends the process at some ten thousand."""


@contextmanager
def reading(path: Path, source: str, *, allow_large: bool = False) -> Iterator["Reader"]:
    """Open a file read-only; `source` names it in errors."""
    require_readable(path)
    try:
        file = h5py.File(path, "r", locking="best-effort", rdcc_nbytes=CHUNK_CACHE)
    except Exception as error:  # h5py's own errors are of many types
        if path.stat().st_size == 0:
            raise InputError(f"{source}: the file is empty: copy or download it again") from error
        if "truncated" in str(error):
            raise InputError(f"{source}: the file is cut short: copy or download it again") from error
        raise InputError(f"{source}: is not an HDF5 file ({path.name}): check that it is the right one") from error
    try:
        with library(f"{source}: the file"):
            _limit_metadata_cache(file)
            _require_no_way_out(file, source)
        yield Reader(file, source, Budget(path, source, allow_large=allow_large))
    finally:
        with suppress(Exception):
            file.close()


def _require_no_way_out(file: h5py.File, source: str) -> None:
    """Raise if any link leads out of the file: reading it would read a file that the user didn't name."""

    def refused(name: bytes, info: h5l.LinkInfo) -> bytes | None:
        if info.type not in (h5l.TYPE_HARD, h5l.TYPE_SOFT):
            return name
        return name if name.count(b"/") > DEEPEST else None

    name = file.id.links.visit(refused, info=True)
    if name is not None and name.count(b"/") > DEEPEST:
        raise InputError(
            f"{source}: holds groups within groups, more than {DEEPEST} deep, as damaged and hostile files do: copy "
            "the data into another file"
        )
    if name is not None:
        raise InputError(
            f"{source}: {name.decode(errors='replace')} is a link to another file, which is never followed: copy the "
            "data into this file"
        )


def require_own_storage(dataset: h5d.DatasetID, where: str) -> h5p.PropDCID:
    """Raise if a dataset's data is in other files; return its creation properties."""
    properties = dataset.get_create_plist()
    layout = properties.get_layout()
    if layout == h5d.VIRTUAL:
        raise InputError(f"{where} is a virtual dataset of other files, which are never read: copy the data into it")
    if layout == h5d.CONTIGUOUS and properties.get_external_count():
        raise InputError(f"{where} is stored in another file, which is never read: copy the data into this one")
    return properties


def size_of_chunk(properties: h5p.PropDCID, itemsize: int) -> int:
    """Return the bytes of a chunk as it is unpacked, 0 if there are no chunks."""
    if properties.get_layout() != h5d.CHUNKED:
        return 0
    return math.prod(map(int, properties.get_chunk())) * itemsize


class Reader:
    """An open file, as our code sees it: every error is an InputError, and nothing outside the file is read."""

    def __init__(self, file: h5py.File, source: str, budget: Budget) -> None:
        self.file, self.source, self.budget = file, source, budget
        self._opened: dict[str, Stored | None] = {}

    def __contains__(self, key: str) -> bool:
        with library(f"{self.source}: {key}"):
            return key in self.file

    def names(self, key: str = "/") -> list[str]:
        """Return the names in a group; none if it is no group."""
        with library(f"{self.source}: {key}"):
            found = self.file.get(key)
            return [str(name) for name in found] if isinstance(found, h5py.Group) else []

    def attributes(self, key: str) -> list[str]:
        """Return the names of a group's attributes."""
        with library(f"{self.source}: {key}"):
            found = self.file.get(key)
            return [str(name) for name in found.attrs] if isinstance(found, h5py.Group) else []

    def dataset(self, key: str) -> "Stored | None":
        """Return a dataset; None if there is none of this name."""
        if key not in self._opened:
            self.budget.take(SMALLEST_DATASET)
            with library(f"{self.source}: {key}"):
                found = self.file.get(key)
                self._opened[key] = Stored(found, f"{self.source}: {key}") if isinstance(found, h5py.Dataset) else None
        return self._opened[key]

    def take(self, stored: "Stored") -> None:
        """Take the size of a dataset from the budget, once."""
        if not stored.taken:
            self.budget.take(stored.cost)
            stored.taken = True

    def text(self, stored: "Stored") -> str:
        """Return a scalar text; what is no UTF-8 in it is replaced."""
        return stored.text(self.budget)


class Stored:
    """A dataset in a file: its shape and dtype, and its rows, as those of an array."""

    def __init__(self, dataset: h5py.Dataset, where: str) -> None:
        self.where, self.taken = where, False
        properties = require_own_storage(dataset.id, where)
        if dataset.shape is None:
            raise InputError(f"{where} is empty (a null dataspace): copy or download the file again")
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype = dataset.dtype
        self.is_text = h5py.check_string_dtype(dataset.dtype) is not None
        self._dataset = dataset
        self._whole: np.ndarray | None = None
        chunk = size_of_chunk(properties, self.dtype.itemsize)
        # Rows of a chunk that the cache can't hold are read together, so that no chunk is unpacked twice.
        self._at_once = chunk > CHUNK_CACHE
        chunks = math.prod(-(-size // side) for size, side in zip(self.shape, dataset.chunks or (), strict=False))
        self.cost = max(math.prod(self.shape) * self.dtype.itemsize, chunk, SMALLEST_READ * chunks if chunk else 0)
        """Bytes of memory, or of data that takes as long to read."""

    def __getitem__(self, part: Any) -> Any:
        with library(self.where):
            if self._whole is None and self._at_once:
                self._whole = np.asarray(self._dataset[()])
            return self._dataset[part] if self._whole is None else self._whole[part]

    def text(self, budget: Budget) -> str:
        """Return a scalar text; how much of it is in the file is known only now, and taken from the budget."""
        with library(self.where):
            found = h5py.check_string_dtype(self.dtype)
            content = _text_in_heap(self._dataset, budget) if found.length is None else bytes(self._dataset[()])
        return content.rstrip(b"\0").decode("utf-8", errors="replace")


def _text_in_heap(dataset: h5py.Dataset, budget: Budget) -> bytes:
    """Return a scalar text of variable length, which HDF5 keeps in a heap of the file.

    HDF5 itself reads a damaged heap for ever, so it is read here: HDF5's file format specification, III.E.
    """
    offset, file = dataset.id.get_offset(), dataset.file
    properties = file.id.get_create_plist()
    if offset is None or properties.get_sizes() != (8, 8):
        raise ValueError("a text that is stored in an unusual way")
    with Path(file.filename).open("rb") as raw:

        def read(at: int, size: int) -> bytes:
            raw.seek(at)
            return raw.read(size)

        length, heap, number = struct.unpack("<IQI", read(offset, 16))
        heap += properties.get_userblock()
        mark, whole = struct.unpack("<4s4xQ", read(heap, 16))
        if mark != b"GCOL":
            raise ValueError("a text whose heap is not there")
        at, end = 16, min(whole, Path(file.filename).stat().st_size - heap)
        budget.take(end)
        content = read(heap, end)
        while at + 16 <= end:
            index, size = struct.unpack_from("<H6xQ", content, at)
            if index == number and length <= size <= end - at - 16:
                return content[at + 16 : at + 16 + length]
            at += 16 + (size + 7) // 8 * 8
    raise ValueError("a text that is not in its heap")


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
