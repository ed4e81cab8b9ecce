"""The data in a policy's own units, and what no policy can learn from."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from trajstitch.data.checks import require_finite
from trajstitch.data.normalise import ROUNDING, Float32Loss, Normaliser, action_bounds
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions
from trajstitch.errors import InputError
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
    require_finite(data, where)
    low, high = action_bounds(data)
    beyond = np.maximum(low - data.actions, data.actions - high) > ROUNDING * np.maximum(np.abs(high), 1)
    if beyond.any():
        step, dimension = np.argwhere(beyond)[0]
        raise InputError(
            f"{where}: action {dimension} is {data.actions[step, dimension]:g} in episode "
            f"{data.episode_of_step[step]}, outside its bounds {low[dimension]:g}..{high[dimension]:g}, where no "
            "policy can follow: clip the actions if the environment does, else mend the bounds"
        )
    observation = Normaliser(np.zeros(data.observation_size, np.float32), np.ones(data.observation_size, np.float32))
    if standardise:
        # Of the states acted in, as published: an episode's last one isn't.
        exact = Normaliser.of(data.observations[data.state_rows], epsilon)
        observation = Normaliser(*(part.astype(np.float32) for part in exact))
    return Units(*Float32Loss.of(data.observations).avoid(observation), low, high)


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
