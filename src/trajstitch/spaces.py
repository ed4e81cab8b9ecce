"""Flat rows and the spaces they came from: vectors, boxes of any shape, nested dicts of boxes."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from jaxtyping import Float

from trajstitch.errors import InputError

SUPPORTED = "supported are floating-point Box spaces and, for observations, (nested) Dicts of them"


def require_supported(space: Space, role: str) -> None:
    """Raise unless rows of `space` can be stitched; `role` is "observation" or "action"."""
    if role == "action" and not isinstance(space, Box):
        raise InputError(f"the {role} space is {space}: {SUPPORTED}")
    for path, leaf in leaves(space, role):
        where = f"the {role} space{'/'.join(('', *path))}"
        if leaf.dtype == np.uint8 and len(leaf.shape) > 1:
            raise InputError(f"{where} holds images {leaf.shape}: {SUPPORTED}; encode the images as vectors first")
        if not np.issubdtype(leaf.dtype, np.floating):
            raise InputError(f"{where} has dtype {leaf.dtype}: {SUPPORTED}")


def leaves(space: Space, role: str = "observation") -> Iterator[tuple[tuple[str, ...], Box]]:
    """Each Box in the space with its path, in the order its values take in a flat row."""
    if isinstance(space, Box):
        yield (), space
    elif isinstance(space, Dict):
        for name, part in space.spaces.items():
            for path, leaf in leaves(part, role):
                yield (name, *path), leaf
    else:
        raise InputError(f"the {role} space is {space}: {SUPPORTED}")


def flat_size(space: Space) -> int:
    return sum(int(np.prod(leaf.shape)) for _, leaf in leaves(space))


def flat_bounds(space: Space) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """Lowest and highest value of each column of a flat row."""
    boxes = [leaf for _, leaf in leaves(space)]
    return tuple(np.concatenate([getattr(box, side).ravel() for box in boxes]) for side in ("low", "high"))  # pyright: ignore[reportReturnType]


def flatten(space: Space, values: Any) -> Float[np.ndarray, "rows size"]:
    """Rows of a batch of observations; a Dict space takes (nested) dicts of arrays with a leading row axis."""
    columns = []
    for path, leaf in leaves(space):
        part = values
        for name in path:
            part = part[name]
        part = np.asarray(part)
        columns.append(part.reshape(len(part), int(np.prod(leaf.shape))))
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


def unflatten(space: Space, rows: Float[np.ndarray, "rows size"]) -> Any:
    """The inverse of `flatten`: an array for a Box, nested dicts of arrays for a Dict."""
    nested: dict[str, Any] = {}
    start = 0
    for path, leaf in leaves(space):
        size = int(np.prod(leaf.shape))
        part = rows[:, start : start + size].reshape(-1, *leaf.shape)
        part = part.astype(leaf.dtype, copy=False) if path else part
        start += size
        if not path:
            return part
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = part
    return nested


def vector(size: int, dtype: Any = np.float64, low: float = -np.inf, high: float = np.inf) -> Box:
    """The space of plain vectors, for data that came without one."""
    return Box(low, high, (size,), dtype)
