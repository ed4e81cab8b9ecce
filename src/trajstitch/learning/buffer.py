"""The pool of rows that `fit` draws batches from: data sets laid end to end, in a table of one of a few sizes.

A compiled program holds for one shape. So a table has room for more rows than it holds, up to the next usual size,
and which of them a member draws from is said by numbers: data of another length trains with the same program.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Integer

SMALLEST = 1024
"""The smallest usual size."""


class Slices(NamedTuple):
    """What each member draws from: so many `rows`, from the row `first` on."""

    first: Integer[np.ndarray | Array, " members"]
    rows: Integer[np.ndarray | Array, " members"]

    def for_each(self, members: int) -> "Slices":
        """Every range once for each of so many members, who stand side by side."""
        return Slices(*(np.repeat(part, members) for part in self))


def buffer_size(rows: int) -> int:
    """The least power of two, or one and a half of one, that holds so many rows: at most half as many again."""
    power = max(1 << max(rows - 1, 0).bit_length(), SMALLEST)
    return power // 4 * 3 if power > SMALLEST and rows <= power // 4 * 3 else power


def fill_buffer(parts: Iterable[Any], counts: Sequence[int], room: int = 0) -> tuple[Any, Slices]:
    """Data sets (pytrees of arrays with one row a step), of so many rows each, in one table; and where each stands.

    Each is copied as it comes, so a generator of them needs the memory of one beside the table. The table has `room`
    for so many rows at least.
    """
    table: Any = None
    ends = np.cumsum(counts)
    for part, count, end in zip(parts, counts, ends, strict=True):
        if table is None:
            size = buffer_size(max(int(ends[-1]), room))
            table = jax.tree.map(lambda leaf: _zeros((size, *leaf.shape[1:]), leaf.dtype), part)  # noqa: B023
        jax.tree.map(lambda whole, leaf: whole.__setitem__(slice(end - count, end), leaf), table, part)  # noqa: B023
    return table, Slices(ends - counts, np.asarray(counts))


def padded(data: Any) -> Any:
    """One data set as a table of a usual size; as it is, where it has one."""
    rows = len(jax.tree.leaves(data)[0])
    return data if rows == buffer_size(rows) else fill_buffer([data], [rows])[0]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that `jax.device_put` need not copy where the device is the CPU: they start at a multiple of 64 bytes.

    So a table is in memory once, and the rows it has room for but does not hold take none.
    """
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
