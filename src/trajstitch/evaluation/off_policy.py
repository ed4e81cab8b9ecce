"""Off-policy estimates: which return policies may have, without any rollout.

The return is estimated by fitted-Q evaluation (Le et al. 2019): Q of the policy itself, learned from the data's steps.
It is an estimate, and no better than the data's coverage of what the policy would do. It looks beyond the end of a
truncated episode, which a sum of logged rewards does not, so the behaviour that made the data is estimated in the same
way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normalise import robust_normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions
from trajstitch.learning.fit import Metrics, Objective, State, begin, fit, stack
from trajstitch.policies.action_error import action_errors, action_normaliser, unseen
from trajstitch.policies.algorithm import actor_of
from trajstitch.policies.policy import NetworkPolicy, Policy
from trajstitch.policies.td3 import Actor, Critics, critic_error, towards
from trajstitch.policies.training_data import LIMIT, normalised_steps, steps_with_targets

__all__ = ["Evaluated", "FittedQ", "Sample", "action_errors", "estimated_returns", "unseen"]


class Sample(NamedTuple):
    """A step of the data, and the action taken in its next state by the policy that is evaluated."""

    step: Transitions
    next_action: Float[Array, "*batch action"]
    """Not used where the policy is a network: it acts in the loss."""


class Evaluated(eqx.Module):
    """Q of a fixed policy."""

    actor: Actor | None
    """The policy; None if its actions are in the samples."""
    critics: Critics
    target_critics: Critics

    def next_action(self, batch: Sample) -> Float[Array, "*batch action"]:
        return batch.next_action if self.actor is None else self.actor(batch.step.next_observation)


@dataclass(frozen=True)
class FittedQ:
    """Settings of fitted-Q evaluation."""

    steps: int = 50_000
    """Gradient steps."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    batch_size: int = 256
    """Logged steps in a gradient step."""
    discount: float = 0.99
    """Discount of a reward one step later (γ)."""
    target_rate: float = 0.005
    """Share of the way that the target critics move to the trained ones at each step."""

    def init(self, key: PRNGKeyArray, actor: Actor | None, inputs: int) -> Evaluated:
        critics = Critics(inputs, self.hidden, key)
        return Evaluated(actor, critics, critics)

    def loss(self, model: Evaluated, batch: Sample, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        step = batch.step
        following = model.target_critics(step.next_observation, model.next_action(batch)).mean(0)
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
    """Estimate the discounted return from the data's first states: each policy's, and the logged behaviour's."""
    config = config or FittedQ()
    mean, std = robust_normaliser(data.observations[data.state_rows])
    normaliser = action_normaliser(policies, data)._replace(mean=mean, std=std, limit=np.array(LIMIT, np.float32))
    logged_returns = data.discounted_returns(config.discount)
    middle = float(logged_returns.mean())
    size = max(float(logged_returns.std()), 0.01 * abs(middle)) or 1.0
    step = normalised_steps(data, normaliser, clip=False)
    # Q is normalised by the logged returns, so that it starts near them; rewards follow from Bellman's equation.
    left = 1 - config.discount * (1 - data.terminated)
    step = step._replace(reward=jnp.asarray((data.rewards - middle * left) / size, jnp.float32))
    after = np.minimum(np.arange(data.steps) + 1, data.offsets[1:][data.episode_of_step] - 1)
    logged = Sample(step, step.action[after])  # the next logged action; after the last step of an episode, its own
    inputs = data.observation_size + data.action_size

    def fitted(samples: Sample, actors: Sequence[Actor | None], seeds: Sequence[int], title: str) -> State:
        keys = [jax.random.key(seed) for seed in seeds]
        models = stack([config.init(key, actor, inputs) for key, actor in zip(keys, actors, strict=True)])
        return fit(config, begin(config, models, jnp.stack(keys)), steps_with_targets(data, samples), title=title)

    first = data.offsets[:-1][data.lengths > 0]
    state = step.observation[first]

    def value_of(samples: Sample, seed: int, actions: Float[Array, "starts action"], title: str) -> float:
        """Return the normalised value of the first states, where the samples hold the actions that are evaluated."""
        found = fitted(samples, [None], [seed], title)
        return float(eqx.filter_vmap(lambda model: model.critics(state, actions).mean())(found.model)[0])

    networks = [policy for policy in policies if isinstance(policy, NetworkPolicy)]
    states = data.filled().observations
    linear = all(one.is_linear(states) for one in (normaliser, *(policy.normaliser for policy in networks)))
    if linear and len(networks) == len(policies):
        actors = [actor_of(policy, normaliser) for policy in networks]
        ours = fitted(logged, actors, [policy.seed for policy in policies], "fitted-Q")
        found = eqx.filter_vmap(lambda model: model.critics(state, model.actor(state)).mean())(ours.model)
    else:
        found = []
        for policy in policies:
            # The policy never changes, so its actions in the data's states are computed once.
            actions = jnp.asarray(normaliser.to_unit(policy.act(states)))
            samples = Sample(step, actions[data.state_rows + 1])
            found.append(value_of(samples, policy.seed, actions[data.state_rows[first]], "fitted-Q"))
    behaviour = value_of(logged, policies[0].seed, step.action[first], "fitted-Q of the logged behaviour")
    return middle + size * np.asarray(found, np.float64), middle + size * behaviour
