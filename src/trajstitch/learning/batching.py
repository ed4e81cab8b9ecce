"""Apply a model to any number of rows, in batches of one size."""

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def batch_rows() -> int:
    """Return how many rows a model evaluates at once: a fixed number for a device, so that no result depends on it."""
    return 4096 if jax.default_backend() == "cpu" else 65536


def in_batches(function: Callable[..., Any], *arrays: np.ndarray, rows: int | None = None) -> Any:
    """Apply a jitted function of rows to any number of rows; return a pytree of NumPy arrays.

    Every call has the same shape (the last is padded with its first row), so a row's result has the same bits
    regardless of the other rows, and nothing is compiled twice.
    """
    rows = rows or batch_rows()
    total = len(arrays[0])
    index = np.arange(-(-max(total, 1) // rows) * rows)
    index[total:] = max(total - 1, 0) // rows * rows
    if total == 0:
        arrays = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in arrays)
    results: Any = None

    def store(start: int, found: Any) -> None:
        nonlocal results
        found = jax.tree.map(np.asarray, found)
        if results is None:
            results = jax.tree.map(lambda leaf: np.empty((total, *leaf.shape[1:]), leaf.dtype), found)
        stop = min(start + rows, total)
        jax.tree.map(lambda whole, leaf: whole.__setitem__(slice(start, stop), leaf[: stop - start]), results, found)

    pending: deque[tuple[int, Any]] = deque()  # while one batch is computed, the next is prepared
    for start in range(0, len(index), rows):
        part = index[start : start + rows]
        with jax.default_matmul_precision("highest"):
            pending.append((start, function(*(array[part] for array in arrays))))
        if len(pending) > 2:
            store(*pending.popleft())
    for one in pending:
        store(*one)
    return results
