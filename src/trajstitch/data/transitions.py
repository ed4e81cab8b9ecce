"""Transitions as arrays, from which batches are drawn, and the split into training and held-out steps."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError

FEWEST_EPISODES = 10
"""With fewer episodes than this, single steps are held out instead of whole episodes."""


class Transitions(NamedTuple):
    """One transition per row: what `fit` draws batches from, and also a batch itself."""

    observation: Float[Array, "steps observation"]
    action: Float[Array, "steps action"]
    reward: Float[Array, " steps"]
    next_observation: Float[Array, "steps observation"]
    terminated: Bool[Array, " steps"]


def transitions(data: Trajectories, steps: Integer[np.ndarray, " some"] | None = None) -> Transitions:
    """Return the given steps (all if not given) as NumPy arrays; `fit` moves them to the device."""
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
    """Split the steps into training and held-out ones.

    Whole episodes are held out, since neighbouring steps are nearly equal.
    """
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
