"""What can be known about policies from data alone: how closely they follow it, and what they might be worth.

The worth is fitted-Q evaluation (Le et al. 2019): Q of the policy itself, learned from the data's steps. It is an
estimate, and no better than the data's coverage of what the policy would do. It looks beyond the cut of a truncated
episode, which a sum of logged rewards does not, so the behaviour that made the data is estimated likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from trajstitch.data.normalise import Float32Loss, Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions
from trajstitch.learning.fit import Metrics, Objective, State, begin, fit, stack
from trajstitch.learning.fit_report import explained
from trajstitch.learning.networks import MLP, normaliser_of
from trajstitch.policies.policy import Policy, Units
from trajstitch.policies.td3 import Actor, Critics, critic_error, towards
from trajstitch.policies.training_data import in_units


class Sample(NamedTuple):
    step: Transitions
    next_action: Float[Array, "*batch action"]
    """What was done next; where nothing was, what was done last."""


class Evaluated(eqx.Module):
    """What the actions of a policy that stands still are worth."""

    actor: Actor | None
    """None: whoever acted in the data."""
    critics: Critics
    target_critics: Critics

    def following(self, batch: Sample) -> Float[Array, "*batch action"]:
        return batch.next_action if self.actor is None else self.actor(batch.step.next_observation)


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

    def init(self, key: PRNGKeyArray, actor: Actor | None, inputs: int) -> Evaluated:
        critics = Critics(inputs, self.hidden, key)
        return Evaluated(actor, critics, critics)

    def loss(self, model: Evaluated, batch: Sample, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        step = batch.step
        following = model.target_critics(step.next_observation, model.following(batch)).mean(0)
        target = step.reward + self.discount * (1 - step.terminated) * following
        return critic_error(model.critics, step, jax.lax.stop_gradient(target)), {"value": target.mean()}

    def objectives(self) -> tuple[Objective, ...]:
        def follow(model: Evaluated) -> Evaluated:
            moved = towards(model.target_critics, model.critics, self.target_rate)
            return eqx.tree_at(lambda model: model.target_critics, model, moved)

        return (Objective(self.loss, optax.adam(self.learning_rate), lambda model: model.critics, then=follow),)


def estimated_returns(
    policies: Sequence[Policy], data: Trajectories, config: FittedQ | None = None
) -> tuple[Float[np.ndarray, " policies"], float]:
    """The estimated discounted return from the data's first states: each policy's, and the logged behaviour's."""
    config = config or FittedQ()
    seen = normaliser_of(data.observations[data.state_rows])
    mean, std = Float32Loss.of(data.observations).avoid(Normaliser(np.asarray(seen.mean), np.asarray(seen.std)))
    units = policies[0].units._replace(mean=mean, std=std)
    logged_returns = data.discounted_returns(config.discount)
    middle = float(logged_returns.mean())
    size = max(float(logged_returns.std()), 0.01 * abs(middle)) or 1.0
    step = in_units(data, units, clip=False)
    # Q in units of the logged returns, which is where it starts: those of rewards follow from Bellman's equation.
    left = 1 - config.discount * (1 - data.terminated)
    step = step._replace(reward=jnp.asarray((data.rewards - middle * left) / size, jnp.float32))
    after = np.minimum(np.arange(data.steps) + 1, data.offsets[1:][data.episode_of_step] - 1)
    samples = Sample(step, step.action[after])
    inputs = data.observation_size + data.action_size

    def fitted(actors: Sequence[Actor | None], seeds: Sequence[int], title: str) -> State:
        keys = [jax.random.key(seed) for seed in seeds]
        models = stack([config.init(key, actor, inputs) for key, actor in zip(keys, actors, strict=True)])
        return fit(config, begin(config, models, jnp.stack(keys)), samples, title=title)

    first = data.offsets[:-1][data.lengths > 0]
    state, logged = step.observation[first], step.action[first]
    ours = fitted([actor(policy, units) for policy in policies], [policy.seed for policy in policies], "fitted-Q")
    found = eqx.filter_vmap(lambda model: model.critics(state, model.actor(state)).mean())(ours.model)
    theirs = fitted([None], [policies[0].seed], "fitted-Q of the logged behaviour")
    behaviour = eqx.filter_vmap(lambda model: model.critics(state, logged).mean())(theirs.model)
    return middle + size * np.asarray(found, np.float64), middle + size * float(behaviour[0])


def actor(policy: Policy, units: Units) -> Actor:
    """A policy's actor for observations in other units."""
    actions = len(policy.units.low)
    layers = [(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in policy.layers]
    weight, bias = policy.layers[0]
    shift = (units.mean - policy.units.mean) / policy.units.std
    layers[0] = jnp.asarray((units.std / policy.units.std)[:, None] * weight), jnp.asarray(bias + shift @ weight)
    layers[-1] = (layers[-1][0][:, :actions], layers[-1][1][:actions])
    network = MLP(len(units.mean), [len(bias) for _, bias in layers[:-1]], actions, jax.random.key(0))
    return Actor(eqx.tree_at(lambda network: network.layers, network, layers), (1.0,) * actions)


def unseen(held: Trajectories, learned: Trajectories) -> Bool[np.ndarray, " steps"]:
    """Which steps of episodes held out start in a state that those learned from don't visit: stitched episodes share
    many."""
    if held.provenance is None or learned.provenance is None:
        return np.ones(held.steps, bool)
    ours, theirs = (
        part.source_episode.astype(np.int64) << 32 | part.source_step for part in (held.provenance, learned.provenance)
    )
    return ~np.isin(ours, theirs)


def action_errors(
    policies: Sequence[Policy], data: Trajectories, steps: Bool[np.ndarray, " steps"] | None = None
) -> dict[str, Any]:
    """How far the policies' actions lie from the data's, in units of the action bounds: at those steps, or at all."""
    steps = np.ones(data.steps, bool) if steps is None else steps
    logged = policies[0].units.to_unit(data.actions[steps])
    rows = data.observations[data.state_rows[steps]]
    squares = [float(np.square(policy.units.to_unit(policy.act(rows)) - logged).mean()) for policy in policies]
    baseline = float(np.square(logged - logged.mean(0)).mean())
    return {
        "action_error": [square**0.5 for square in squares],
        "baseline": baseline**0.5,
        "explained": [explained(square, baseline) for square in squares],
        "steps": len(rows),
    }
