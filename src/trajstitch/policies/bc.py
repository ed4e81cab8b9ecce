"""Behavioural cloning: regress the logged action on the observation (Eq. 1), and the paper's weighted ablation.

Observations go in as they are, like the authors'; actions are measured in units of their bounds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normalise import rescale_for_float32
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.losses import log_density
from trajstitch.learning.networks import MLP
from trajstitch.models.value import TwinValue, fit_value, values
from trajstitch.policies.policy import LOG_STD
from trajstitch.policies.td3 import Actor
from trajstitch.policies.training_data import Problem, Sizes, in_units, units
from trajstitch.progress import logger


class Sample(NamedTuple):
    observation: Float[Array, "*batch observation"]
    action: Float[Array, "*batch action"]
    weight: Float[Array, "*batch"] | None = None


class Clone(eqx.Module):
    actor: Actor
    """Its outputs are the action and, if it is Gaussian, as many for the standard deviation."""


@dataclass(frozen=True)
class BC:
    steps: int = 100_000
    """Gradient steps."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the policy's hidden layers."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    batch_size: int = 256
    """Logged steps in a gradient step."""
    standardise: bool = False
    """Standardise observations; the paper does not."""
    gaussian: bool = False
    """Learn a standard deviation too, by maximum likelihood, so that the policy has a density."""

    def problem(self, data: Trajectories) -> Problem:
        made = units(data, self.standardise)
        steps = in_units(data, made)
        return Problem(made, Sample(steps.observation, steps.action))

    def init(self, key: PRNGKeyArray, sizes: Sizes) -> Clone:
        outputs = sizes.action_size * (2 if self.gaussian else 1)
        return Clone(Actor(MLP(sizes.observation_size, self.hidden, outputs, key), (1.0,) * outputs))

    def loss(self, model: Clone, batch: Sample, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        action, *spread = jnp.split(model.actor(batch.observation), 2 if self.gaussian else 1, axis=-1)
        error = jnp.square(action - batch.action).mean(-1)
        loss = error
        if spread:
            low, high = LOG_STD
            loss = -log_density(batch.action, action, low + (high - low) / 2 * (spread[0] + 1))
        loss = loss if batch.weight is None else batch.weight * loss
        return loss.mean(), {"action_error": error.mean()}

    def objectives(self) -> tuple[Objective, ...]:
        return (Objective(self.loss, optax.adam(self.learning_rate)),)


@dataclass(frozen=True)
class WeightedBC(BC):
    """Each sample weighted by V(s): what the value function gives without stitching.

    V is the same for every seed. Only the ratios of the weights matter, so their mean is made 1;
    where V falls below zero, the lowest becomes the zero, since a negative weight would flee the logged action.
    """

    value_steps: int = 100_000
    """Gradient steps of V, which comes first."""

    def problem(self, data: Trajectories, weights: Float[np.ndarray, " steps"] | None = None) -> Problem:
        made, samples = super().problem(data)
        weights = self.weights(data) if weights is None else weights
        return Problem(made, samples._replace(weight=jnp.asarray(weights)))

    def weights(self, data: Trajectories) -> Float[np.ndarray, " steps"]:
        """Of each step: V of its state, over the mean."""
        seen = rescale_for_float32(data)
        value, worth = fit_value(TwinValue(steps=self.value_steps), seen, jax.random.key(0))
        logger.info(str(worth))
        found = values(value, seen.observations[data.state_rows])
        found = found - min(found.min(), 0)
        return (found / found.mean() if found.max() > 0 else np.ones_like(found)).astype(np.float32)
