"""SAC (Haarnoja et al. 2018, arXiv:1812.05905): twin critics, a squashed Gaussian policy, automatic temperature.

Densities are of actions scaled to ±1, so that the entropy that the temperature keeps does not depend on their unit.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from trajstitch.learning.bounds import Bounds
from trajstitch.learning.networks import MLP
from trajstitch.policies.policy import SQUASHED_LOG_STD
from trajstitch.policies.td3 import Batch, Critics, Metrics, critic_error, part, towards


class SquashedGaussian(eqx.Module):
    """A stochastic policy: tanh of a normal variable, whose mean and log standard deviation a network gives."""

    network: MLP
    bound: tuple[float, ...] = eqx.field(static=True)

    def normal(
        self, observation: Float[Array, "*batch observations"]
    ) -> tuple[Float[Array, "*batch actions"], Float[Array, "*batch actions"]]:
        """Return mean and log standard deviation before the tanh."""
        mean, log_std = jnp.split(self.network(observation), 2, -1)
        return mean, jnp.clip(log_std, *SQUASHED_LOG_STD)

    def sample(
        self, observation: Float[Array, "*batch observations"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "*batch actions"], Float[Array, "*batch"]]:
        """Return an action for each observation, and the log density of its scaled action."""
        mean, log_std = self.normal(observation)
        away = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * away
        density = -0.5 * jnp.square(away) - log_std - 0.5 * math.log(2 * math.pi) - log_slope(raw)
        return jnp.asarray(self.bound) * jnp.tanh(raw), density.sum(-1)


def log_slope(raw: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return log(1 − tanh² x), in a form that doesn't run out of digits where tanh is ±1."""
    return 2 * (math.log(2) - raw - jax.nn.softplus(-2 * raw))


class State(eqx.Module):
    """Networks, the target critics, the temperature, and their optimiser states."""

    actor: SquashedGaussian
    critics: Critics
    target_critics: Critics
    log_temperature: Scalar
    actor_optimiser: PyTree
    critic_optimiser: PyTree
    temperature_optimiser: PyTree


@dataclass(frozen=True)
class SAC:
    """SAC as an online algorithm, whose policies are stochastic as those that D4RL's sets were collected with."""

    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size, of the temperature too."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Transitions in a gradient step."""
    discount: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount of a reward one step later (γ)."""
    target_rate: Annotated[float, Bounds(0, 1)] = 0.005
    """Share of the way that the target critics move to the trained ones at each update (τ)."""
    entropy_per_action: float = -1.0
    """Entropy that the temperature keeps, for each dimension of the action (nats, of actions within ±1)."""
    start_steps: Annotated[int, Bounds(0)] = 10_000
    """Environment steps with random actions before the first update."""

    name: ClassVar[str] = "sac"
    actor_outputs: ClassVar[int] = 2

    @property
    def policy_delay(self) -> int:
        """The policy is updated with the critics."""
        return 1

    @property
    def exploration_noise(self) -> float:
        """Actions taken while training are the policy's own samples."""
        return 1.0

    def init(self, key: PRNGKeyArray, observations: int, bound: tuple[float, ...]) -> State:
        actor_key, critic_key = jax.random.split(key)
        actor = SquashedGaussian(MLP(observations, self.hidden, self.actor_outputs * len(bound), actor_key), bound)
        critics = Critics(observations + len(bound), self.hidden, critic_key)
        log_temperature = jnp.zeros(())
        starts = (self._adam.init(part) for part in (actor, critics, log_temperature))
        # The target is a copy, so that a jitted update can take the whole state's memory.
        return State(actor, critics, jax.tree.map(jnp.array, critics), log_temperature, *starts)

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Take one update of the critics, the actor and the temperature. `batch` starts with an axis of one."""
        batch = part(batch, 0)
        target_key, actor_key = jax.random.split(key)
        target = self.target(state, batch, target_key)
        critic_loss, gradient = jax.value_and_grad(critic_error)(state.critics, batch, target)
        critics, critic_optimiser = self._descend(state.critics, gradient, state.critic_optimiser)

        temperature = jnp.exp(state.log_temperature)
        of_actor = jax.value_and_grad(self.actor_loss, has_aux=True)
        (actor_loss, log_density), gradient = of_actor(state.actor, critics, temperature, batch, actor_key)
        actor, actor_optimiser = self._descend(state.actor, gradient, state.actor_optimiser)

        gradient = jax.grad(self.temperature_loss)(state.log_temperature, log_density, len(actor.bound))
        log_temperature, temperature_optimiser = self._descend(
            state.log_temperature, gradient, state.temperature_optimiser
        )
        state = State(
            actor,
            critics,
            towards(state.target_critics, critics, self.target_rate),
            log_temperature,
            actor_optimiser,
            critic_optimiser,
            temperature_optimiser,
        )
        metrics = {"critic_loss": critic_loss, "value": target.mean(), "actor_loss": actor_loss}
        return state, metrics | {"temperature": temperature, "entropy": -log_density.mean()}

    def target(self, state: State, batch: Batch, key: PRNGKeyArray) -> Float[Array, "*batch"]:
        """Return r + γ (min Q'(s', a') − α log π(a'|s')), with a' sampled from the policy; r after termination."""
        action, log_density = state.actor.sample(batch.next_observation, key)
        value = state.target_critics(batch.next_observation, action).min(0)
        soft = value - jnp.exp(state.log_temperature) * log_density
        return batch.reward + self.discount * (1 - batch.terminated) * soft

    def actor_loss(
        self, actor: SquashedGaussian, critics: Critics, temperature: Scalar, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Scalar, Float[Array, "*batch"]]:
        """Return E[α log π(a|s) − min Q(s, a)] with a sampled from the policy, and the log densities."""
        action, log_density = actor.sample(batch.observation, key)
        value = critics(batch.observation, action).min(0)
        return (temperature * log_density - value).mean(), log_density

    def temperature_loss(self, log_temperature: Scalar, log_density: Float[Array, "*batch"], actions: int) -> Scalar:
        """Return E[−α (log π(a|s) + H)], with H the entropy to keep."""
        wanted = self.entropy_per_action * actions
        return -(jnp.exp(log_temperature) * jax.lax.stop_gradient(log_density + wanted)).mean()

    @property
    def _adam(self) -> Any:
        return optax.adam(self.learning_rate)

    def _descend(self, model: Any, gradient: Any, optimiser: PyTree) -> tuple[Any, PyTree]:
        """Take one step of Adam."""
        change, optimiser = self._adam.update(gradient, optimiser)
        return optax.apply_updates(model, change), optimiser
