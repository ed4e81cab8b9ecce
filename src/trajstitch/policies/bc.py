"""Behavioural cloning: regress the logged action on the observation (Eq. 1), and the paper's weighted ablation.

Observations are standardised (the authors use them as they are: `standardise=False`), actions scaled to ±1.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normalise import rescale_for_float32
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.losses import log_density
from trajstitch.learning.networks import MLP
from trajstitch.models.value import TwinValue, fit_value, values
from trajstitch.policies.algorithm import deploy_actor
from trajstitch.policies.policy import LOG_STD, NetworkPolicy
from trajstitch.policies.td3 import Actor
from trajstitch.policies.training_data import Sizes, TrainingData, normalised_steps, policy_normaliser
from trajstitch.progress import logger


class Sample(NamedTuple):
    """A logged action to clone, and its weight if it has one."""

    observation: Float[Array, "*batch observation"]
    action: Float[Array, "*batch action"]
    weight: Float[Array, "*batch"] | None = None


class Clone(eqx.Module):
    """The policy that is cloned."""

    actor: Actor
    """Outputs the action and, if it is Gaussian, as many numbers for the standard deviation."""


@dataclass(frozen=True)
class BC:
    """Behavioural cloning, as in the paper."""

    policy_class = NetworkPolicy
    deploy = staticmethod(deploy_actor)

    steps: Annotated[int, Bounds(1)] = 100_000
    """Gradient steps."""
    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the policy's hidden layers."""
    learning_rate: Annotated[float, Bounds(0)] = 1e-3
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Logged steps in a gradient step."""
    standardise: bool = True
    """On: observations are standardised, so that no column's unit decides what is learned. Off: as in the paper."""
    gaussian: bool = False
    """Learn a standard deviation too, by maximum likelihood, so that the policy has a density."""

    def training_data(self, data: Trajectories) -> TrainingData:
        normaliser = policy_normaliser(data, self.standardise)
        steps = normalised_steps(data, normaliser)
        return TrainingData(normaliser, Sample(steps.observation, steps.action))

    def init(self, key: PRNGKeyArray, sizes: Sizes) -> Clone:
        outputs = sizes.action_size * (2 if self.gaussian else 1)
        return Clone(Actor(MLP(sizes.observation_size, self.hidden, outputs, key), (1.0,) * outputs))

    def loss(self, model: Clone, batch: Sample, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        action, *deviation = jnp.split(model.actor(batch.observation), 2 if self.gaussian else 1, axis=-1)
        error = jnp.square(action - batch.action).mean(-1)
        loss = error
        if deviation:
            low, high = LOG_STD
            loss = -log_density(batch.action, action, low + (high - low) / 2 * (deviation[0] + 1))
        loss = loss if batch.weight is None else batch.weight * loss
        return loss.mean(), {"action_error": error.mean()}

    def objectives(self) -> tuple[Objective, ...]:
        return (Objective(self.loss, optax.adam(self.learning_rate)),)


@dataclass(frozen=True)
class WeightedBC(BC):
    """BC with each sample weighted by V(s).

    The paper's ablation: what the value function gives without stitching. V is the same for every seed. Only the
    ratios of the weights matter, so their mean is made 1. Where V is negative, its lowest value becomes the zero, since
    a negative weight would push the policy away from the logged action.
    """

    value_steps: Annotated[int, Bounds(1)] = 100_000
    """Gradient steps of V, which is trained first."""

    def training_data(self, data: Trajectories, weights: Float[np.ndarray, " steps"] | None = None) -> TrainingData:
        made = super().training_data(data)
        weights = self.weights(data) if weights is None else weights
        return made._replace(samples=made.samples._replace(weight=jnp.asarray(weights)))

    def weights(self, data: Trajectories) -> Float[np.ndarray, " steps"]:
        """Return each step's weight: V of its state, over the mean."""
        logger.info(f"training a value function to weight the samples: {self.value_steps:,} steps (`value_steps`)")
        seen = rescale_for_float32(data)
        value, report = fit_value(TwinValue(steps=self.value_steps), seen, jax.random.key(0))
        logger.info(str(report))
        found = values(value, seen.observations[data.state_rows])
        found = found - min(found.min(), 0)
        return (found / found.mean() if found.max() > 0 else np.ones_like(found)).astype(np.float32)
