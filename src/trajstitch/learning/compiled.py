"""Compiled functions whose results are not waited for, waiting that Ctrl-C ends, and room for more programs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Still:
    """The leaves of a result that are no arrays, as they were when the function was compiled."""

    leaves: tuple[Any, ...]
    structure: Any


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile a function as `eqx.filter_jit` does: arrays are its inputs, and everything else is a part of it.

    `filter_jit` waits until the result is there. This doesn't, so that several programs run at once on free cores, and
    the next batch is prepared while one is computed. Positional arguments only.
    """

    @partial(jax.jit, static_argnums=0)
    def program(still: _Still, arrays: list[Any]) -> tuple[list[Any], _Still]:
        given = iter(arrays)
        leaves = [next(given) if leaf is _ARRAY else leaf for leaf in still.leaves]
        return _apart(function(*jax.tree.unflatten(still.structure, leaves)))  # pyright: ignore[reportCallIssue]

    @wraps(function)
    def call(*arguments: Any) -> Any:
        arrays, still = _apart(arguments)
        found, still = program(still, arrays)
        made = iter(found)
        return jax.tree.unflatten(still.structure, [next(made) if leaf is _ARRAY else leaf for leaf in still.leaves])

    call.program = program  # pyright: ignore[reportAttributeAccessIssue]
    return call  # pyright: ignore[reportReturnType]


_ARRAY = object()
"""Stands for an array among the leaves that are none."""


def _apart(tree: Any) -> tuple[list[Any], _Still]:
    """Return a tree's arrays, and the rest of it."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [leaf for leaf in leaves if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic)]
    rest = tuple(_ARRAY if eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic) else leaf for leaf in leaves)
    return arrays, _Still(rest, structure)


def wait_for(values: T) -> T:
    """Return the values once they are computed. Ctrl-C ends the waiting, though not the computation."""
    done = threading.Event()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            jax.block_until_ready(values)
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=wait, daemon=True).start()
    done.wait()
    if failed:
        raise failed[0]
    return values


MAPS = Path("/proc/self/maps")
MAPS_ALLOWED = Path("/proc/sys/vm/max_map_count")


def forget_if_many() -> None:
    """Forget all compiled programs once they take half of the memory maps that Linux allows a process.

    Each program takes dozens of maps, for as long as it is remembered. A process that needs one map too many is ended
    within XLA, without an error that could be caught: after some twenty data sets of different shapes.
    """
    try:
        allowed = int(MAPS_ALLOWED.read_text())
        with MAPS.open("rb") as maps:
            taken = sum(1 for _ in maps)
    except (OSError, ValueError):  # no Linux, or a sandbox without /proc
        return
    if taken > allowed // 2:
        jax.clear_caches()
