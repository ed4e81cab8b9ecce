"""Conversion between flat rows and observations of a space: vectors, boxes of any shape, nested dicts of boxes."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from jaxtyping import Float

from trajstitch.errors import InputError

SUPPORTED = "supported are floating-point Box spaces and, for observations, (nested) Dicts of them"


def require_supported(space: Space, role: str) -> None:
    """Raise unless data of `space` is supported; `role` is "observation" or "action"."""
    if role == "action" and not isinstance(space, Box):
        raise InputError(f"the {role} space is {space}: {SUPPORTED}")
    for path, leaf in leaves(space, role):
        where = f"the {role} space{'/'.join(('', *path))}"
        if leaf.dtype == np.uint8 and len(leaf.shape) > 1:
            raise InputError(f"{where} holds images {leaf.shape}: {SUPPORTED}; encode the images as vectors first")
        if not np.issubdtype(leaf.dtype, np.floating):
            raise InputError(f"{where} has dtype {leaf.dtype}: {SUPPORTED}")


def leaves(space: Space, role: str = "observation") -> Iterator[tuple[tuple[str, ...], Box]]:
    """Yield each Box in the space with its path, in the order of their columns in a flat row."""
    if isinstance(space, Box):
        yield (), space
    elif isinstance(space, Dict):
        for name, part in space.spaces.items():
            for path, leaf in leaves(part, role):
                yield (name, *path), leaf
    else:
        raise InputError(f"the {role} space is {space}: {SUPPORTED}")


def flat_size(space: Space) -> int:
    """Return the number of columns of a flat row."""
    return sum(int(np.prod(leaf.shape)) for _, leaf in leaves(space))


def flat_bounds(space: Space) -> tuple[Float[np.ndarray, " size"], Float[np.ndarray, " size"]]:
    """Return the lowest and highest value of each column of a flat row."""
    boxes = [leaf for _, leaf in leaves(space)]
    return tuple(np.concatenate([getattr(box, side).ravel() for box in boxes]) for side in ("low", "high"))  # pyright: ignore[reportReturnType]


def flatten(space: Space, values: Any) -> Float[np.ndarray, "rows size"]:
    """Return a batch of observations as flat rows; for a Dict space, `values` are (nested) dicts of batches."""
    return join(space, {path: np.asarray(at(values, path)) for path, _ in leaves(space)})


def at(values: Any, path: tuple[str, ...]) -> Any:
    """Return the part of nested dicts at a leaf's path."""
    for name in path:
        values = values[name]
    return values


def unflatten(space: Space, rows: Float[np.ndarray, "rows size"]) -> Any:
    """Return flat rows as observations, an array for a Box, nested dicts for a Dict: the inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for path, part in split(space, rows).items():
        if not path:
            return part
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = part
    return nested


def join(space: Space, parts: dict[tuple[str, ...], np.ndarray]) -> Float[np.ndarray, "rows size"]:
    """Return flat rows from the array of each leaf, given by its path."""
    columns = [parts[path].reshape(len(parts[path]), int(np.prod(leaf.shape))) for path, leaf in leaves(space)]
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


def split(space: Space, rows: Float[np.ndarray, "rows size"]) -> dict[tuple[str, ...], np.ndarray]:
    """Return the array of each leaf by its path: the inverse of `join`.

    The leaves of a Dict get their own dtype back (flat rows have one dtype for all), unless that would change values.
    """
    parts, start = {}, 0
    for path, leaf in leaves(space):
        stop = start + int(np.prod(leaf.shape))
        part = rows[:, start:stop].reshape(len(rows), *leaf.shape)
        parts[path] = _exactly(part, np.dtype(leaf.dtype)) if path else part
        start = stop
    return parts


def _exactly(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = values.astype(dtype, copy=False)
    return cast if cast is values or np.array_equal(cast, values, equal_nan=True) else values


def to_json(space: Space) -> str:
    """Return a space as JSON, as Minari writes it."""
    from minari.serialization import serialize_space

    return str(serialize_space(space))


def from_json(text: str) -> Space:
    """Return the space that `to_json` wrote."""
    from minari.serialization import deserialize_space

    def space(stored: dict[str, Any]) -> Space:
        if stored["type"] == "Dict":
            # A list of pairs keeps the order of a row's columns; Gymnasium would sort a dict by name.
            return Dict([(name, space(part)) for name, part in stored["subspaces"].items()])
        return deserialize_space(stored)

    return space(json.loads(text))


def vector(size: int, dtype: Any = np.float64, low: float = -np.inf, high: float = np.inf) -> Box:
    """Return a space of plain vectors, for data without a space of its own."""
    return Box(low, high, (size,), dtype)
