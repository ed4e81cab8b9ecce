"""IQL (Kostrikov et al. 2021): V is an expectile of Q over the logged actions, which are cloned by their advantage.

Q is never evaluated at an action that isn't in the data. As published for MuJoCo: rewards scaled so that returns span
1000, a Gaussian actor with one standard deviation for each dimension, whose mean acts. Observations are standardised,
which the authors don't do (`standardise=False`).
"""

from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normaliser import ROUNDING
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions
from trajstitch.errors import InputError
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.losses import log_density
from trajstitch.learning.networks import MLP
from trajstitch.policies.algorithm import deploy_actor
from trajstitch.policies.policy import NetworkPolicy
from trajstitch.policies.td3 import Actor, Critics, critic_error, networks, towards
from trajstitch.policies.training_data import (
    Sizes,
    TrainingData,
    normalised_steps,
    policy_normaliser,
    steps_with_targets,
)

RETURN_SPAN = 1000.0
"""From the worst return to the best, after scaling."""
LOG_STD = (-5.0, 2.0)
"""Bounds of the actor's log standard deviation."""
HIGHEST_WEIGHT = 100.0
"""Weights of logged actions are clipped here, as published."""


class Model(eqx.Module):
    """Actor, value and critics, and the target critics."""

    actor: Actor
    log_std: Float[Array, " action"]
    value: MLP
    critics: Critics
    target_critics: Critics

    def advantage(self, batch: Transitions) -> Float[Array, " batch"]:
        """Return min Q'(s, a) − V(s)."""
        found = self.target_critics(batch.observation, batch.action).min(0)
        return found - self.value(batch.observation)[..., 0]


@dataclass(frozen=True)
class IQL:
    """Implicit Q-learning (Kostrikov et al. 2021)."""

    policy_class = NetworkPolicy
    deploy = staticmethod(deploy_actor)

    steps: Annotated[int, Bounds(1)] = 1_000_000
    """Gradient steps."""
    expectile: Annotated[float, Bounds(0, 1)] = 0.7
    """Expectile of Q over the logged actions that V estimates: 0.5 is the mean, 1 the maximum (τ)."""
    temperature: Annotated[float, Bounds(0)] = 3.0
    """How sharply cloning prefers better actions: their weight is exp(temperature × advantage) (β)."""
    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the hidden layers of actor, critics and value."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size; the actor's decays to zero along a cosine."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Logged steps in a gradient step."""
    standardise: bool = True
    """On: observations are standardised, so that no column's unit decides what is learned. Off: as published."""
    scale_rewards: bool = True
    """On: rewards are scaled so that the returns span 1000. Off: they are taken as they are."""
    discount: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount of a reward one step later (γ)."""
    target_rate: Annotated[float, Bounds(0, 1)] = 0.005
    """Share of the way that the target critics move to the trained ones at each step."""

    def training_data(self, data: Trajectories) -> TrainingData:
        normaliser = policy_normaliser(data, self.standardise)
        scale = 1.0
        if self.scale_rewards:
            returns = data.returns[data.lengths > 0].astype(np.float64)
            span = float(np.ptp(returns))
            if span <= ROUNDING * np.abs(returns).max():
                raise InputError(
                    f"{data.metadata.source or data.metadata.name}: every episode has the return {returns[0]:g}, so "
                    "rewards can't be scaled by the span of returns: leave them as they are with `scale_rewards=False`"
                )
            scale = RETURN_SPAN / span
        return TrainingData(normaliser, steps_with_targets(data, normalised_steps(data, normaliser, scale)))

    def init(self, key: PRNGKeyArray, sizes: Sizes) -> Model:
        key, value_key = jax.random.split(key)
        made = networks(key, sizes.observation_size, (1.0,) * sizes.action_size, self.hidden)
        value = MLP(sizes.observation_size, self.hidden, 1, value_key)
        return Model(made.actor, jnp.zeros(sizes.action_size), value, made.critics, made.target_critics)

    def value_loss(self, model: Model, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        above = model.advantage(batch)
        weight = jnp.where(above > 0, self.expectile, 1 - self.expectile)
        return (weight * jnp.square(above)).mean(), {"advantage": above.mean()}

    def actor_loss(self, model: Model, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        weight = jnp.minimum(jnp.exp(self.temperature * model.advantage(batch)), HIGHEST_WEIGHT)
        action = model.actor(batch.observation)
        likelihood = log_density(batch.action, action, jnp.clip(model.log_std, *LOG_STD))
        return -(weight * likelihood).mean(), {"action_error": jnp.square(action - batch.action).mean()}

    def critic_loss(self, model: Model, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        following = model.value(batch.next_observation)[..., 0]
        target = batch.reward + self.discount * (1 - batch.terminated) * following
        return critic_error(model.critics, batch, target), {"value": target.mean()}

    def objectives(self) -> tuple[Objective, ...]:
        adam = optax.adam(self.learning_rate)
        falling = optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.steps))

        def follow(model: Model) -> Model:
            moved = towards(model.target_critics, model.critics, self.target_rate)
            return eqx.tree_at(lambda model: model.target_critics, model, moved)

        return (
            Objective(self.value_loss, adam, lambda model: model.value),
            Objective(self.actor_loss, falling, lambda model: (model.actor, model.log_std)),
            Objective(self.critic_loss, adam, lambda model: model.critics, then=follow),
        )
