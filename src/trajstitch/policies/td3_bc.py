"""TD3+BC (Fujimoto & Gu 2021): TD3 on the data, with a cloning loss that keeps the actor near the logged actions.

Q is divided by its mean absolute value, so that one weight α serves every task. Observations are standardised, as
published. Rewards are taken as they are, as published too, but for those of a size that Q could not learn: where the
largest is below 0.001 or above 1000, they are scaled by a power of ten.
"""

from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray

from trajstitch.data.normalise import to_plain
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.policies.algorithm import deploy_actor
from trajstitch.policies.policy import NetworkPolicy
from trajstitch.policies.td3 import Networks, critic_error, networks, smoothed_target, towards
from trajstitch.policies.training_data import (
    Sizes,
    TrainingData,
    normalised_steps,
    policy_normaliser,
    steps_with_targets,
)

EPSILON = 1e-3
"""Added to each observation's standard deviation, as published."""


@dataclass(frozen=True)
class TD3BC:
    """TD3+BC (Fujimoto & Gu 2021)."""

    policy_class = NetworkPolicy
    deploy = staticmethod(deploy_actor)

    steps: Annotated[int, Bounds(1)] = 1_000_000
    """Gradient steps."""
    alpha: Annotated[float, Bounds(0)] = 2.5
    """Weight of Q beside the cloning loss; larger stays less close to the logged actions."""
    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Logged steps in a gradient step."""
    standardise: bool = True
    """On: observations are standardised. Off: they are taken as they are."""
    discount: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount of a reward one step later (γ)."""
    target_rate: Annotated[float, Bounds(0, 1)] = 0.005
    """Share of the way that the target networks move to the trained ones at each policy update (τ)."""
    target_noise: Annotated[float, Bounds(0)] = 0.2
    """Standard deviation of the noise on the target action, relative to the action bound."""
    target_noise_clip: Annotated[float, Bounds(0)] = 0.5
    """Bound of that noise, relative to the action bound."""
    policy_delay: Annotated[int, Bounds(1)] = 2
    """Critic updates per policy update."""

    def training_data(self, data: Trajectories) -> TrainingData:
        normaliser = policy_normaliser(data, self.standardise, EPSILON)
        return TrainingData(
            normaliser, steps_with_targets(data, normalised_steps(data, normaliser, to_plain(data.rewards)))
        )

    def init(self, key: PRNGKeyArray, sizes: Sizes) -> Networks:
        return networks(key, sizes.observation_size, (1.0,) * sizes.action_size, self.hidden)

    def critic_loss(self, model: Networks, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        target = smoothed_target(model, batch, key, self.discount, self.target_noise, self.target_noise_clip)
        return critic_error(model.critics, batch, jax.lax.stop_gradient(target)), {"value": target.mean()}

    def actor_loss(self, model: Networks, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        action = model.actor(batch.observation)
        value = model.critics.first(batch.observation, action)
        weight = self.alpha / jax.lax.stop_gradient(jnp.abs(value).mean())
        error = jnp.square(action - batch.action).mean()
        return error - weight * value.mean(), {"action_error": error}

    def objectives(self) -> tuple[Objective, ...]:
        adam = optax.adam(self.learning_rate)
        trained = lambda model: (model.actor, model.critics)  # noqa: E731
        targets = lambda model: (model.target_actor, model.target_critics)  # noqa: E731

        def follow(model: Networks) -> Networks:
            return eqx.tree_at(targets, model, towards(targets(model), trained(model), self.target_rate))

        return (
            Objective(self.critic_loss, adam, lambda model: model.critics),
            Objective(self.actor_loss, adam, lambda model: model.actor, every=self.policy_delay, then=follow),
        )
