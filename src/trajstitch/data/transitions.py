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
    """Return the given steps (all if not given) as NumPy arrays; `fit` moves them to the device.

    A step whose next state is unknown gets its own state as the next one. So there is no NaN, and a value whose target
    at a terminated step is the reward alone learns from it; models of the dynamics take only the steps of `hold_out`.
    """
    steps = np.arange(data.steps) if steps is None else steps
    rows = data.state_rows[steps]
    following = rows + data.next_known[steps]

    def single(array: np.ndarray) -> Any:
        return array.astype(np.float32, copy=False)

    return Transitions(
        observation=single(data.observations[rows]),
        action=single(data.actions[steps]),
        reward=single(data.rewards[steps]),
        next_observation=single(data.observations[following]),
        terminated=data.terminated[steps],  # pyright: ignore[reportArgumentType]
    )


def hold_out(
    data: Trajectories, fraction: float, seed: int = 0, usable: Bool[np.ndarray, " steps"] | None = None
) -> tuple[Integer[np.ndarray, " train"], Integer[np.ndarray, " held_out"]]:
    """Split the usable steps into training and held-out ones; if not given, those whose next state is known.

    Whole episodes are held out, since neighbouring steps are nearly equal.
    """
    steps = np.flatnonzero(data.next_known if usable is None else usable)
    if len(steps) < 2:
        known = "" if len(steps) == data.steps else " with a known next state"
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: {len(steps)} step(s){known} are too few to learn from"
        )
    random = np.random.default_rng(seed)
    wanted = min(max(round(fraction * len(steps)), 1), len(steps) - 1)
    if len(data) >= FEWEST_EPISODES:
        lengths = np.bincount(data.episode_of_step[steps], minlength=len(data))
        order = random.permutation(len(data))
        order = order[lengths[order] <= 2 * wanted]  # one long episode must not take all
        before = np.cumsum(lengths[order]) - lengths[order]
        chosen = np.zeros(len(data), bool)
        chosen[order[before < wanted]] = True
        held = chosen[data.episode_of_step[steps]]
        if held.any() and not held.all():
            return steps[~held], steps[held]
    held = np.zeros(len(steps), bool)
    held[random.permutation(len(steps))[:wanted]] = True
    return steps[~held], steps[held]
