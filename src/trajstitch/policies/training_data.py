"""What a policy learns from: the steps of the data as its normaliser shows them, and checks of the data."""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from trajstitch.data.checks import require_finite
from trajstitch.data.normalise import ROUNDING, Float32Loss, Normaliser, action_bounds, robust_normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions
from trajstitch.errors import InputError
from trajstitch.policies.policy import PolicyNormaliser

LIMIT = 10.0
"""Standard deviations beyond which a standardised observation grows only with the logarithm."""

Samples = TypeVar("Samples")


class Sizes(NamedTuple):
    """Sizes of a policy's input and output."""

    observation_size: int
    action_size: int

    @classmethod
    def of(cls, data: Trajectories) -> "Sizes":
        return cls(data.observation_size, data.action_size)


class TrainingData(NamedTuple):
    """What an algorithm learns from."""

    normaliser: PolicyNormaliser
    samples: Any
    """A pytree of arrays, normalised, with one row for each step that is learned from: batches are drawn from it."""
    deployed: Any = None
    """What the deployed policy keeps of the data beside the normaliser; None for most."""


def policy_normaliser(data: Trajectories, standardise: bool, epsilon: float = 0.0) -> PolicyNormaliser:
    """Return the data's normaliser; raise for data that no policy can learn from.

    With `standardise`, observations are standardised in a way that no unit can break (`robust_normaliser`), and
    `epsilon` is added to each standard deviation. Columns that float32 would lose are standardised in any case.
    """
    where = data.metadata.source or data.metadata.name
    if data.steps == 0:
        raise InputError(f"{where}: holds no steps, so there is nothing to train on")
    require_finite(data, where)
    low, high = action_bounds(data)
    beyond = np.maximum(low - data.actions, data.actions - high) > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    if beyond.any():
        step, dimension = np.argwhere(beyond)[0]
        raise InputError(
            f"{where}: action {dimension} is {data.actions[step, dimension]:g} in episode "
            f"{data.episode_of_step[step]}, outside its bounds {low[dimension]:g}..{high[dimension]:g}, where no "
            "policy can follow: clip the actions if the environment does, or correct the bounds"
        )
    if standardise:
        # Of the states acted in, as published: an episode's last state is not one of them.
        observation = robust_normaliser(data.observations[data.state_rows], epsilon)
        if observation.mean.dtype != np.float32:  # columns that need care are measured on all states
            observation = robust_normaliser(data.observations, epsilon)
        return PolicyNormaliser(*observation, low, high, np.array(LIMIT, np.float32))
    observation = Normaliser(np.zeros(data.observation_size, np.float32), np.ones(data.observation_size, np.float32))
    return PolicyNormaliser(*Float32Loss.of(data.observations).avoid(observation), low, high)


def normalised_steps(
    data: Trajectories, normaliser: PolicyNormaliser, reward_scale: float = 1.0, *, clip: bool = True
) -> Transitions:
    """Return every step of the data, normalised and in float32; `clip` takes rounding off actions at their bounds.

    A step whose next state is unknown gets its own state as the next one.
    """
    rows = data.state_rows
    observations, actions = normaliser.observe(data.observations), normaliser.to_unit(data.actions)
    return Transitions(
        observation=jnp.asarray(observations[rows]),
        action=jnp.asarray(np.clip(actions, -1, 1) if clip else actions),
        reward=jnp.asarray(reward_scale * data.rewards, jnp.float32),
        next_observation=jnp.asarray(observations[rows + data.next_known]),
        terminated=jnp.asarray(data.terminated),
    )


def steps_with_targets(data: Trajectories, steps: Samples) -> Samples:
    """Return those of the data's steps that an action value can learn from: not those cut off in an unknown state."""
    known = data.target_known
    if known.all():
        return steps
    if not known.any():
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: no step has a known next state or terminates, so values "
            "can't be learned: clone it instead (`trajstitch train bc`)"
        )
    return jax.tree.map(lambda leaf: leaf[known], steps)
