"""TD3 (Fujimoto et al. 2018): twin critics, delayed policy updates, smoothed target actions.

The hyper-parameters are those of the authors' later public code; the paper's differ.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from trajstitch.learning.bounds import Bounds
from trajstitch.learning.networks import MLP

Metrics = dict[str, Scalar]


class Batch(NamedTuple):
    """Transitions; `terminated` is 1 where the episode ended, and 0 where a time limit cut it off."""

    observation: Float[Array, "*batch observations"]
    action: Float[Array, "*batch actions"]
    reward: Float[Array, "*batch"]
    next_observation: Float[Array, "*batch observations"]
    terminated: Float[Array, "*batch"]


class Actor(eqx.Module):
    """A deterministic policy: tanh of a network, scaled to the action bound."""

    network: MLP
    bound: tuple[float, ...] = eqx.field(static=True)

    def __call__(self, observation: Float[Array, "*batch observations"]) -> Float[Array, "*batch actions"]:
        return jnp.asarray(self.bound) * jnp.tanh(self.network(observation))


class Critics(eqx.Module):
    """Two action values, as one network with a leading axis of two."""

    networks: MLP

    def __init__(self, inputs: int, hidden: tuple[int, ...], key: PRNGKeyArray) -> None:
        self.networks = jax.vmap(lambda key: MLP(inputs, hidden, 1, key))(jax.random.split(key))

    def __call__(
        self, observation: Float[Array, "*batch observations"], action: Float[Array, "*batch actions"]
    ) -> Float[Array, "2 *batch"]:
        return jax.vmap(lambda network: network(jnp.concatenate([observation, action], -1))[..., 0])(self.networks)

    def first(
        self, observation: Float[Array, "*batch observations"], action: Float[Array, "*batch actions"]
    ) -> Float[Array, "*batch"]:
        """Return the first critic's values alone: those that the actor maximises."""
        network = jax.tree.map(lambda leaf: leaf[0], self.networks)
        return network(jnp.concatenate([observation, action], -1))[..., 0]


class Networks(eqx.Module):
    """Actor and critics, and their target networks."""

    actor: Actor
    critics: Critics
    target_actor: Actor
    target_critics: Critics


class State(Networks):
    """The networks with their optimiser states, for online training."""

    actor_optimiser: PyTree
    critic_optimiser: PyTree


def part(batch: Batch, index: int) -> Batch:
    """Return one of the batches of `TD3.update`."""
    return jax.tree.map(lambda leaf: leaf[index], batch)


def towards(target: Any, trained: Any, rate: float) -> Any:
    """Move the target network by `rate` of the way to the trained one.

    Written out, since `optax.incremental_update` rounds differently.
    """
    return jax.tree.map(lambda old, new: old + rate * (new - old), target, trained)


def networks(key: PRNGKeyArray, observations: int, bound: tuple[float, ...], hidden: tuple[int, ...]) -> Networks:
    """Return networks for this many observation dimensions and actions within ±`bound`."""
    actor_key, critic_key = jax.random.split(key)
    actor = Actor(MLP(observations, hidden, len(bound), actor_key), bound)
    critics = Critics(observations + len(bound), hidden, critic_key)
    # The targets are copies, not the same arrays, so that a jitted update can take the whole state's memory.
    return Networks(actor, critics, *jax.tree.map(jnp.array, (actor, critics)))


def smoothed_target(
    model: Networks, batch: Any, key: PRNGKeyArray, discount: float, noise: float, noise_clip: float
) -> Float[Array, "*batch"]:
    """Return r + γ min Q'(s', a'), with a' the target policy's action plus clipped noise; r after termination."""
    bound = jnp.asarray(model.actor.bound)
    away = bound * jnp.clip(noise * jax.random.normal(key, batch.action.shape), -noise_clip, noise_clip)
    action = jnp.clip(model.target_actor(batch.next_observation) + away, -bound, bound)
    value = model.target_critics(batch.next_observation, action).min(0)
    return batch.reward + discount * (1 - batch.terminated) * value


def critic_error(critics: Critics, batch: Any, target: Float[Array, " batch"]) -> Scalar:
    """Return the mean squared error of both critics, summed."""
    return jnp.square(critics(batch.observation, batch.action) - target).mean(-1).sum()


@dataclass(frozen=True)
class TD3:
    """TD3 as an online algorithm, with which the built-in policies were trained."""

    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Transitions in a gradient step."""
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
    exploration_noise: Annotated[float, Bounds(0)] = 0.1
    """Standard deviation of the noise on actions taken while training, relative to the action bound."""
    start_steps: Annotated[int, Bounds(0)] = 25_000
    """Environment steps with random actions before the first update."""

    name: ClassVar[str] = "td3"
    actor_outputs: ClassVar[int] = 1

    def init(self, key: PRNGKeyArray, observations: int, bound: tuple[float, ...]) -> State:
        made = networks(key, observations, bound, self.hidden)
        adam: Any = optax.adam(self.learning_rate)
        return State(**vars(made), actor_optimiser=adam.init(made.actor), critic_optimiser=adam.init(made.critics))

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Take `policy_delay` critic updates, then one of the actor and the targets.

        `batch` holds a batch for each critic update: its arrays start with axes (policy_delay, batch_size).
        Targets do not change between policy updates, so all their values are computed at once.
        """
        target = self.target(state, batch, key)
        critics, critic_optimiser, critic_losses = state.critics, state.critic_optimiser, []
        for i in range(self.policy_delay):
            loss, gradient = jax.value_and_grad(critic_error)(critics, part(batch, i), target[i])
            critics, critic_optimiser = self.descend(critics, gradient, critic_optimiser)
            critic_losses.append(loss)

        loss, gradient = jax.value_and_grad(self.actor_loss)(state.actor, critics, part(batch, -1))
        actor, actor_optimiser = self.descend(state.actor, gradient, state.actor_optimiser)
        state = State(
            actor,
            critics,
            towards(state.target_actor, actor, self.target_rate),
            towards(state.target_critics, critics, self.target_rate),
            actor_optimiser,
            critic_optimiser,
        )
        return state, {"critic_loss": jnp.stack(critic_losses).mean(), "value": target.mean(), "actor_loss": loss}

    def target(self, state: State, batch: Batch, key: PRNGKeyArray) -> Float[Array, "*batch"]:
        return smoothed_target(state, batch, key, self.discount, self.target_noise, self.target_noise_clip)

    def actor_loss(self, actor: Actor, critics: Critics, batch: Batch) -> Scalar:
        return -critics.first(batch.observation, actor(batch.observation)).mean()

    def descend(self, model: Any, gradient: Any, optimiser: PyTree) -> tuple[Any, PyTree]:
        """Take one step of Adam."""
        change, optimiser = optax.adam(self.learning_rate).update(gradient, optimiser)
        return optax.apply_updates(model, change), optimiser
