"""The data in a policy's own units, and what no policy can learn from."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from trajstitch import formats
from trajstitch.data.checks import ROUNDING
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Sight, Transitions
from trajstitch.errors import InputError
from trajstitch.models.inverse import action_bounds
from trajstitch.policies.policy import Units


class Sizes(NamedTuple):
    """Of a policy's inputs and outputs."""

    observation_size: int
    action_size: int

    @classmethod
    def of(cls, data: Trajectories) -> "Sizes":
        return cls(data.observation_size, data.action_size)


class Problem(NamedTuple):
    """What an algorithm learns from."""

    units: Units
    samples: Any
    """A pytree of arrays in those units, one row a step."""


def units(data: Trajectories, standardise: bool, epsilon: float = 0.0) -> Units:
    """The data's units; `epsilon` is added to each observation's standard deviation. Raises for unusable data.

    What single precision would not see is standardised in any case.
    """
    where = data.metadata.source or data.metadata.name
    if data.steps == 0:
        raise InputError(f"{where}: holds no steps, so there is nothing to train on")
    formats.require_finite(data, where)
    low, high = action_bounds(data)
    beyond = np.maximum(low - data.actions, data.actions - high) > ROUNDING * np.maximum(np.abs(high), 1)
    if beyond.any():
        step, dimension = np.argwhere(beyond)[0]
        raise InputError(
            f"{where}: action {dimension} is {data.actions[step, dimension]:g} in episode "
            f"{data.episode_of_step[step]}, outside its bounds {low[dimension]:g}..{high[dimension]:g}, where no "
            "policy can follow: clip the actions if the environment does, else mend the bounds"
        )
    mean, std = np.zeros(data.observation_size, np.float32), np.ones(data.observation_size, np.float32)
    if standardise:
        # Of the states acted in, as published: an episode's last one isn't.
        acted_in = data.observations[data.state_rows]
        mean = acted_in.mean(0, dtype=np.float64).astype(np.float32)
        spread = acted_in.std(0, dtype=np.float64)
        std = np.where(spread > ROUNDING * (1 + np.abs(mean)), spread + epsilon, 1).astype(np.float32)
    return Units(*Sight.of(data.observations).units(mean, std), low, high)


def in_units(data: Trajectories, units: Units, reward_scale: float = 1.0, *, clip: bool = True) -> Transitions:
    """Every step of the data, in those units and float32; `clip` takes the rounding off actions at their bounds."""
    rows = data.state_rows
    observations, actions = units.observe(data.observations), units.to_unit(data.actions)
    return Transitions(
        observation=jnp.asarray(observations[rows]),
        action=jnp.asarray(np.clip(actions, -1, 1) if clip else actions),
        reward=jnp.asarray(reward_scale * data.rewards, jnp.float32),
        next_observation=jnp.asarray(observations[rows + 1]),
        terminated=jnp.asarray(data.terminated),
    )
