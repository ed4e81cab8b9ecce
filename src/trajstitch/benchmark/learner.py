"""The updates of ladder training: TD3 or SAC for all seeds at once, with the replay buffer on the accelerator."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from trajstitch.benchmark.exploration import Environment
from trajstitch.policies.online import Online
from trajstitch.policies.td3 import Batch
from trajstitch.storage.trees import tensors_of, tree_from


class Learner:
    """The states and replay buffers of all seeds; the first axis of each array is the seeds."""

    def __init__(
        self, algorithm: Online, environment: Environment, seeds: list[int], capacity: int, updates: int
    ) -> None:
        self.algorithm, self.environment, self.updates = algorithm, environment, updates
        self.seeds = jnp.asarray(seeds)
        self.state = initial(algorithm, environment, self.seeds)
        self.replay = jnp.zeros((len(seeds), capacity, environment.row))
        self.actor = flat_actor(self.state)
        self.metrics: dict[str, Array] = {}
        self.seen = 0

    def insert(self, rows: Float[np.ndarray, "seeds rows row"]) -> None:
        """Add transitions, in place of the oldest if the buffer is full. Its capacity is a multiple of `rows`."""
        self.replay = _insert(self.replay, rows, self.seen % self.replay.shape[1])
        self.seen += rows.shape[1]

    def improve(self, index: int) -> None:
        """Start round `index` of updates; returns at once, while the device computes."""
        filled = min(self.seen, self.replay.shape[1])
        self.state, self.actor, self.metrics = _improve(
            self.state, self.replay, filled, self.seeds, index, self.algorithm, self.environment, self.updates
        )

    def weights(self) -> Float[np.ndarray, "seeds parameters"]:
        """Wait for the updates and return the actors as flat vectors."""
        return np.asarray(self.actor)

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the state as the tensors of a file."""
        return tensors_of(self.state)

    def restore(self, tensors: dict[str, np.ndarray], rows: Float[np.ndarray, "seeds rows row"], seen: int) -> None:
        """Restore the state from `tensors`, after `seen` transitions, the last of which are `rows`."""
        self.state = tree_from(tensors, self.state, "the snapshot")
        self.actor = flat_actor(self.state)
        capacity = self.replay.shape[1]
        rows = rows[:, -capacity:]
        slots = np.arange(seen - rows.shape[1], seen) % capacity
        replay = np.zeros(self.replay.shape, np.float32)
        replay[:, slots] = rows
        self.replay, self.seen = jnp.asarray(replay), seen


@partial(jax.jit, static_argnums=(0, 1))
def initial(algorithm: Online, environment: Environment, seeds: Int[Array, " seeds"]) -> Any:
    """Return the states of all seeds before the first update."""

    def one(seed: Int[Array, ""]) -> Any:
        return algorithm.init(jax.random.key(seed), environment.observations, environment.bound)

    return jax.vmap(one)(seeds)


@partial(jax.jit, donate_argnums=0)
def _insert(
    replay: Float[Array, "seeds capacity row"], rows: Float[Array, "seeds rows row"], position: Int[Array, ""]
) -> Float[Array, "seeds capacity row"]:
    return jax.lax.dynamic_update_slice(replay, rows, (0, position, 0))


@partial(jax.jit, static_argnums=(5, 6, 7), donate_argnums=0)
def _improve(
    state: Any,
    replay: Float[Array, "seeds capacity row"],
    filled: Int[Array, ""],
    seeds: Int[Array, " seeds"],
    index: Int[Array, ""],
    algorithm: Online,
    environment: Environment,
    updates: int,
) -> tuple[Any, Float[Array, "seeds parameters"], dict[str, Array]]:
    """Make a whole round of updates in one program: draw all batches at once, then scan over the updates."""
    shape = (updates // algorithm.policy_delay, algorithm.policy_delay, algorithm.batch_size)

    def step(state: Any, drawn):
        rows, key = drawn
        return algorithm.update(state, unpack(rows, environment), key)

    def one(state: Any, replay: Float[Array, "capacity row"], seed: Int[Array, ""]):
        draw_key, noise_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), index))
        rows = replay[jax.random.randint(draw_key, shape, 0, filled)]
        return jax.lax.scan(step, state, (rows, jax.random.split(noise_key, shape[0])))

    state, metrics = jax.vmap(one)(state, replay, seeds)
    return state, flat_actor(state), {name: values.mean(1) for name, values in metrics.items()}


def unpack(rows: Float[Array, "*batch row"], environment: Environment) -> Batch:
    """Return rows of the replay buffer as transitions."""
    width, actions = environment.observations, len(environment.bound)
    return Batch(
        observation=rows[..., :width],
        action=rows[..., width : width + actions],
        next_observation=rows[..., width + actions : -2],
        reward=rows[..., -2],
        terminated=rows[..., -1],
    )


@jax.jit
def flat_actor(state: Any) -> Float[Array, "seeds parameters"]:
    """Return the actors' parameters as flat vectors."""
    parameters = jax.tree.leaves(state.actor.network.layers)
    return jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in parameters], axis=1)
