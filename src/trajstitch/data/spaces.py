"""Conversion between flat rows and observations of a space: vectors, boxes of any shape, nested dicts of boxes."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from jaxtyping import Float

from trajstitch.errors import InputError

LARGEST = 1 << 20
"""Numbers in one observation."""
WIDEST = 8
"""Bytes of a number: wider floats are kept by few formats, and not by JAX."""

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


def from_json(text: Any, role: str = "observation") -> Space:
    """Return the space that `to_json` wrote; raise if the text is no space, or one that is not supported."""

    numbers = 0

    def space(stored: Any) -> Space:
        nonlocal numbers
        kind = stored["type"]
        if kind == "Box":
            shape = _shape(stored)
            numbers += math.prod(shape)
            if numbers > LARGEST:
                raise ValueError(f"more than {LARGEST:,} numbers")
            return _box(stored, shape)
        if kind == "Dict":
            # A list of pairs keeps the order of a row's columns; Gymnasium would sort a dict by name.
            return Dict([(name, space(part)) for name, part in stored["subspaces"].items()])
        if kind in ("Discrete", "MultiDiscrete", "MultiBinary", "Tuple", "Text"):
            raise InputError(f"the {role} space is a {kind} space: {SUPPORTED}")
        raise ValueError(f"unknown type {kind!r}")

    try:
        return space(json.loads(text))
    except (KeyError, TypeError, AttributeError, ValueError, AssertionError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise InputError(f"its spaces can't be read (that of {role}s: {reason}): save it again") from error


def _shape(stored: dict[str, Any]) -> list[int]:
    """Return the shape of a stored Box; raise ValueError if it has none."""
    shape = stored["shape"]
    if not isinstance(shape, list) or not all(type(side) is int and side > 0 for side in shape):
        raise ValueError(f"a Box of shape {shape!r}")
    return shape


def _box(stored: dict[str, Any], shape: list[int]) -> Box:
    """Return a stored Box; raise ValueError or TypeError if it is none."""
    dtype = np.dtype(stored["dtype"])
    if dtype.kind not in "fiub" or dtype.itemsize > WIDEST:
        raise ValueError(f"a Box of dtype {dtype}")
    low, high = (np.asarray(stored[side], np.float64) for side in ("low", "high"))
    if not (np.broadcast_to(low, shape) <= np.broadcast_to(high, shape)).all():
        raise ValueError("a Box whose lowest values are not below its highest")
    with np.errstate(over="ignore"):
        low, high = (np.broadcast_to(np.asarray(stored[side], dtype), shape) for side in ("low", "high"))
        return Box(low, high, dtype=dtype.type)


def vector(size: int, dtype: Any = np.float64, low: float = -np.inf, high: float = np.inf) -> Box:
    """Return a space of plain vectors, for data without a space of its own."""
    return Box(low, high, (size,), dtype)
