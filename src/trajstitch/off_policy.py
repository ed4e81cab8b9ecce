"""What can be known about policies from data alone: how closely they follow it, and what they might be worth.

The worth is fitted-Q evaluation (Le et al. 2019): Q of the policy itself, learned from the data's steps. It is an
estimate, and no better than the data's coverage of what the policy would do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.fit import Metrics, Objective, begin, fit, stack
from trajstitch.models.mlp import MLP
from trajstitch.models.value import discounted_returns
from trajstitch.models.worth import explained
from trajstitch.policies.policy import Policy
from trajstitch.policies.samples import in_units
from trajstitch.policies.td3 import Actor, Critics, critic_error, towards
from trajstitch.trajectories import Trajectories
from trajstitch.transitions import Transitions


class Evaluated(eqx.Module):
    """A policy that stands still, and what its actions are worth."""

    actor: Actor
    critics: Critics
    target_critics: Critics


@dataclass(frozen=True)
class FittedQ:
    steps: int = 50_000
    """Gradient steps."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    batch_size: int = 256
    """Logged steps in a gradient step."""
    discount: float = 0.99
    """What a reward is worth one step later (γ)."""
    target_rate: float = 0.005
    """How far the target critics move towards the trained ones at each step."""

    def init(self, key: PRNGKeyArray, policy: Policy) -> Evaluated:
        actions = len(policy.units.low)
        layers = [(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in policy.layers]
        layers[-1] = (layers[-1][0][:, :actions], layers[-1][1][:actions])
        network = MLP(len(policy.units.mean), [len(bias) for _, bias in layers[:-1]], actions, key)
        actor = Actor(eqx.tree_at(lambda network: network.layers, network, layers), (1.0,) * actions)
        critics = Critics(len(policy.units.mean) + actions, self.hidden, key)
        return Evaluated(actor, critics, critics)

    def loss(self, model: Evaluated, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        following = model.target_critics(batch.next_observation, model.actor(batch.next_observation)).mean(0)
        target = batch.reward + self.discount * (1 - batch.terminated) * following
        return critic_error(model.critics, batch, jax.lax.stop_gradient(target)), {"value": target.mean()}

    def objectives(self) -> tuple[Objective, ...]:
        def follow(model: Evaluated) -> Evaluated:
            moved = towards(model.target_critics, model.critics, self.target_rate)
            return eqx.tree_at(lambda model: model.target_critics, model, moved)

        return (Objective(self.loss, optax.adam(self.learning_rate), lambda model: model.critics, then=follow),)


def estimated_returns(
    policies: Sequence[Policy], data: Trajectories, config: FittedQ | None = None
) -> tuple[Float[np.ndarray, " policies"], float]:
    """Each policy's estimated discounted return from the data's first states, and the data's own from there."""
    config = config or FittedQ()
    units = policies[0].units
    scale = float(1 / max(data.rewards.std(dtype=np.float64), 1e-6))
    models = stack([config.init(jax.random.key(policy.seed), policy) for policy in policies])
    keys = jnp.stack([jax.random.key(policy.seed) for policy in policies])
    state = fit(config, begin(config, models, keys), in_units(data, units, scale), title="fitted-Q evaluation")
    first = jnp.asarray(units.observe(data.observations[data.first_rows]))
    found = eqx.filter_vmap(lambda model: model.critics(first, model.actor(first)).mean())(state.model)
    logged = discounted_returns(data, config.discount)[data.offsets[:-1][data.lengths > 0]]
    return np.asarray(found, np.float64) / scale, float(logged.mean())


def action_errors(policies: Sequence[Policy], data: Trajectories) -> dict[str, Any]:
    """How far the policies' actions lie from the data's, in units of the action bounds."""
    logged = policies[0].units.to_unit(data.actions)
    rows = data.observations[data.state_rows]
    squares = [float(np.square(policy.units.to_unit(policy.act(rows)) - logged).mean()) for policy in policies]
    baseline = float(np.square(logged - logged.mean(0)).mean())
    return {
        "action_error": [square**0.5 for square in squares],
        "baseline": baseline**0.5,
        "explained": [explained(square, baseline) for square in squares],
        "steps": data.steps,
    }
