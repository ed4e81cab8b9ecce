"""The data as the models see it: single steps as arrays, and the scales that standardise them."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError

FEWEST_EPISODES = 10
"""With fewer episodes than this, single steps are held out rather than whole episodes."""
FAR, SMALL = 1e4, 1e-5
"""A column whose mean is so many times its spread is too far from zero for single precision to tell its values apart,
and one whose spread is below this is too small to be told from a constant."""


class Sight(NamedTuple):
    """What single precision would not see of states: the steps of time stamps or map coordinates, which it rounds
    away, and what is in units in which all is next to nothing."""

    mean: Float[np.ndarray, " columns"]
    spread: Float[np.ndarray, " columns"]
    far: Bool[np.ndarray, " columns"]
    small: Bool[np.ndarray, " columns"]

    @classmethod
    def of(cls, states: Float[np.ndarray, "rows columns"]) -> "Sight":
        mean, spread = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64)
        varies = spread > 1000 * np.finfo(states.dtype).eps * np.abs(states).max(0)  # by more than its own rounding
        return cls(mean, spread, varies & (np.abs(mean) > FAR * spread), varies & (spread < SMALL))

    @property
    def lost(self) -> Bool[np.ndarray, " columns"]:
        return self.far | self.small

    def units(self, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """These, but for what would be lost, which is standardised from exactly where it is."""
        if not self.lost.any():
            return mean, std
        return np.where(self.lost, self.mean, mean), np.where(self.lost, self.spread, std)


def in_sight(data: Trajectories) -> Trajectories:
    """The data with each column of its states where single precision sees it, which is mostly where it is."""
    sight = Sight.of(data.observations)
    if not sight.lost.any():
        return data
    states = (data.observations - np.where(sight.far, sight.mean, 0)) / np.where(sight.small, sight.spread, 1)
    return replace(data, observations=states.astype(np.float32))


class Transitions(NamedTuple):
    """Steps, one a row: what `fit` draws its batches from, and what a batch is."""

    observation: Float[Array, "steps observation"]
    action: Float[Array, "steps action"]
    reward: Float[Array, " steps"]
    next_observation: Float[Array, "steps observation"]
    terminated: Bool[Array, " steps"]


def transitions(data: Trajectories, steps: Integer[np.ndarray, " some"] | None = None) -> Transitions:
    """The steps asked for (all, unless told), still as NumPy arrays: `fit` takes them to the device."""
    steps = np.arange(data.steps) if steps is None else steps
    rows = data.state_rows[steps]

    def single(array: np.ndarray) -> Any:
        return array.astype(np.float32, copy=False)

    return Transitions(
        observation=single(data.observations[rows]),
        action=single(data.actions[steps]),
        reward=single(data.rewards[steps]),
        next_observation=single(data.observations[rows + 1]),
        terminated=data.terminated[steps],  # pyright: ignore[reportArgumentType]
    )


def hold_out(
    data: Trajectories, fraction: float, seed: int = 0
) -> tuple[Integer[np.ndarray, " train"], Integer[np.ndarray, " held_out"]]:
    """Split the steps: whole episodes are held out, since neighbouring steps all but repeat each other."""
    if data.steps < 2:
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: {data.steps} step(s) are too few to learn from"
        )
    random = np.random.default_rng(seed)
    wanted = min(max(round(fraction * data.steps), 1), data.steps - 1)
    if len(data) >= FEWEST_EPISODES:
        order = random.permutation(len(data))
        order = order[data.lengths[order] <= 2 * wanted]  # one long episode must not take all
        before = np.cumsum(data.lengths[order]) - data.lengths[order]
        chosen = np.zeros(len(data), bool)
        chosen[order[before < wanted]] = True
        held = chosen[data.episode_of_step]
        if held.any() and not held.all():
            return np.flatnonzero(~held), np.flatnonzero(held)
    held = np.zeros(data.steps, bool)
    held[random.permutation(data.steps)[:wanted]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


class Scale(eqx.Module):
    """Mean and spread of each column. A column that never varies keeps its units."""

    mean: Float[Array, " columns"]
    std: Float[Array, " columns"]

    def __init__(self, rows: Float[np.ndarray, "rows columns"]) -> None:
        mean = rows.mean(0, dtype=np.float64)
        std = rows.std(0, dtype=np.float64)
        self.mean = jnp.asarray(mean, jnp.float32)
        self.std = jnp.asarray(np.where(std > 1e-6 * (1 + np.abs(mean)), std, 1.0), jnp.float32)

    def apply(self, rows: Float[Array, "*rows columns"]) -> Float[Array, "*rows columns"]:
        return (rows - self.mean) / self.std

    def undo(self, rows: Float[Array, "*rows columns"]) -> Float[Array, "*rows columns"]:
        return rows * self.std + self.mean


def batch_rows() -> int:
    """Rows a model evaluates at once: enough to fill the device, and fixed, so that no result depends on it."""
    return 4096 if jax.default_backend() == "cpu" else 65536


def in_batches(function: Callable[..., Any], *arrays: np.ndarray, rows: int | None = None) -> Any:
    """Apply a jitted function of rows to any number of rows; the result is a pytree of numpy arrays.

    Every call sees the same shape, the last one padded with its first row: a row's result has the same bits
    whatever rows stand beside it, and nothing is compiled twice.
    """
    rows = rows or batch_rows()
    total = len(arrays[0])
    index = np.arange(-(-max(total, 1) // rows) * rows)
    index[total:] = max(total - 1, 0) // rows * rows
    if total == 0:
        arrays = tuple(np.zeros((1, *array.shape[1:]), array.dtype) for array in arrays)
    results: Any = None

    def settle(start: int, found: Any) -> None:
        nonlocal results
        found = jax.tree.map(np.asarray, found)
        if results is None:
            results = jax.tree.map(lambda leaf: np.empty((total, *leaf.shape[1:]), leaf.dtype), found)
        stop = min(start + rows, total)
        jax.tree.map(lambda whole, leaf: whole.__setitem__(slice(start, stop), leaf[: stop - start]), results, found)

    pending: deque[tuple[int, Any]] = deque()  # while one batch is computed, the next is made ready
    for start in range(0, len(index), rows):
        part = index[start : start + rows]
        with jax.default_matmul_precision("highest"):
            pending.append((start, function(*(array[part] for array in arrays))))
        if len(pending) > 2:
            settle(*pending.popleft())
    for one in pending:
        settle(*one)
    return results
