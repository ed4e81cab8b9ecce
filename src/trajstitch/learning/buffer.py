"""The buffer of rows that `fit` draws batches from: data sets one after another, in arrays of one of a few sizes.

A compiled program holds for one shape. So a buffer has room for more rows than it holds, up to the next standard
size, and numbers (`Slices`) say which rows a member draws from: data of another length trains with the same program.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Integer

SMALLEST = 1024
"""The smallest standard size."""


class Slices(NamedTuple):
    """The rows that each member draws from: `rows` of them, starting at the row `first`."""

    first: Integer[np.ndarray | Array, " members"]
    rows: Integer[np.ndarray | Array, " members"]

    def for_each(self, members: int) -> "Slices":
        """Return every slice `members` times in a row: once for each member that draws from it."""
        return Slices(*(np.repeat(part, members) for part in self))


def buffer_size(rows: int) -> int:
    """Return the standard size for this many rows: the least 2ⁿ or 1.5 × 2ⁿ that holds them."""
    power = max(1 << max(rows - 1, 0).bit_length(), SMALLEST)
    return power // 4 * 3 if power > SMALLEST and rows <= power // 4 * 3 else power


def fill_buffer(parts: Iterable[Any], counts: Sequence[int], room: int = 0) -> tuple[Any, Slices]:
    """Copy data sets into one buffer, and return it with the slice of each.

    A data set is a pytree of arrays with one row a step; `counts` are the numbers of rows at most. Each is copied as it
    comes, so a generator of them needs the memory of one beside the buffer. The buffer has `room` for at least that
    many rows.
    """
    buffer: Any = None
    ends = [0]
    for part, _ in zip(parts, counts, strict=True):
        if buffer is None:
            size = buffer_size(max(sum(counts), room))
            buffer = jax.tree.map(lambda leaf: _zeros((size, *leaf.shape[1:]), leaf.dtype), part)  # noqa: B023
        ends.append(ends[-1] + len(jax.tree.leaves(part)[0]))
        jax.tree.map(lambda whole, leaf: whole.__setitem__(slice(*ends[-2:]), leaf), buffer, part)
    return buffer, Slices(np.array(ends[:-1]), np.diff(ends))


def padded(data: Any) -> Any:
    """Return one data set as a buffer of a standard size; the data itself if it has one."""
    rows = len(jax.tree.leaves(data)[0])
    return data if rows == buffer_size(rows) else fill_buffer([data], [rows])[0]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros that start at a multiple of 64 bytes, which `jax.device_put` need not copy on the CPU.

    So a buffer is in memory once, and the rows it has room for but does not hold take no memory.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
