"""TD3 learns, and is exact about seeds and ends of episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.benchmark.exploration import Environment, unflatten
from trajstitch.benchmark.learner import Learner
from trajstitch.policies.policy import act
from trajstitch.policies.td3 import TD3, Batch

SMALL = TD3(hidden=(16, 16), batch_size=32)
TASK = Environment("Pendulum-v1", 3, (2.0,))


@pytest.fixture(scope="module")
def batch() -> Batch:
    random = np.random.default_rng(0)
    shape = (SMALL.policy_delay, SMALL.batch_size)
    return Batch(
        observation=jnp.asarray(random.normal(size=(*shape, 3))),
        action=jnp.asarray(random.uniform(-2, 2, (*shape, 1))),
        reward=jnp.asarray(random.normal(size=shape)),
        next_observation=jnp.asarray(random.normal(size=(*shape, 3))),
        terminated=jnp.asarray(random.integers(0, 2, shape), jnp.float32),
    )


def test_actor_finds_the_known_optimum_of_a_one_step_problem() -> None:
    """The reward is −(a − s)², so the best action is the observation itself."""
    algorithm = TD3(hidden=(32, 32), learning_rate=3e-3, batch_size=64)
    state = algorithm.init(jax.random.key(0), 1, (2.0,))

    def step(state, key):
        draw, act_key, noise = jax.random.split(key, 3)
        shape = (algorithm.policy_delay, algorithm.batch_size, 1)
        observation = jax.random.uniform(draw, shape, minval=-1, maxval=1)
        action = jax.random.uniform(act_key, shape, minval=-2, maxval=2)
        reward = -jnp.square(action - observation)[..., 0]
        batch = Batch(observation, action, reward, observation, jnp.ones_like(reward))
        return algorithm.update(state, batch, noise)

    state, _ = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))(
        state, jax.random.split(jax.random.key(1), 1500)
    )
    observation = jnp.linspace(-0.9, 0.9, 50)[:, None]
    np.testing.assert_allclose(state.actor(observation), observation, atol=0.12)


def test_value_of_a_chain_is_its_discounted_reward() -> None:
    """Reward 1 for ever, never terminated: the value is 1 / (1 − γ), which only bootstrapping can find."""
    algorithm = TD3(hidden=(16,), learning_rate=1e-2, batch_size=8, discount=0.5, target_rate=0.1)
    state = algorithm.init(jax.random.key(0), 1, (1.0,))
    shape = (algorithm.policy_delay, algorithm.batch_size)
    ones = jnp.ones((*shape, 1))
    action = jax.random.uniform(jax.random.key(2), ones.shape, minval=-1, maxval=1)
    forever = Batch(ones, action, jnp.ones(shape), ones, jnp.zeros(shape))
    step = lambda state, key: algorithm.update(state, forever, key)  # noqa: E731
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 1000)))(state)
    np.testing.assert_allclose(state.critics(jnp.ones((1, 1)), jnp.zeros((1, 1))), 2, atol=0.1)


def test_termination_ends_the_value_and_truncation_does_not(batch: Batch) -> None:
    state = SMALL.init(jax.random.key(0), 3, (2.0,))
    target = SMALL.target(state, batch, jax.random.key(1))
    ended = batch.terminated == 1
    assert (target[ended] == batch.reward[ended]).all()
    assert (target[~ended] != batch.reward[~ended]).all()


def test_target_action_stays_within_bound_and_clipped_noise(batch: Batch) -> None:
    loud = TD3(hidden=(16, 16), target_noise=100.0, target_noise_clip=0.25)
    state = loud.init(jax.random.key(0), 3, (2.0,))
    seen = []

    class Spy:
        def __call__(self, observation, action):
            seen.append(action)
            return jnp.zeros((2, *action.shape[:-1]))

    object.__setattr__(state, "target_critics", Spy())
    loud.target(state, batch, jax.random.key(1))
    calm = state.target_actor(batch.next_observation)
    assert (jnp.abs(seen[0]) <= 2).all()
    assert (jnp.abs(seen[0] - calm) <= 0.25 * 2 + 1e-6).all()


def test_actor_and_targets_move_once_in_policy_delay_critic_updates(batch: Batch) -> None:
    state = SMALL.init(jax.random.key(0), 3, (2.0,))
    after, metrics = jax.jit(SMALL.update)(state, batch, jax.random.key(1))
    counts = [int(optimiser[0].count) for optimiser in (after.critic_optimiser, after.actor_optimiser)]  # pyright: ignore
    assert counts == [SMALL.policy_delay, 1]
    moved = after.target_actor.network.layers[0][0] - state.target_actor.network.layers[0][0]
    whole = after.actor.network.layers[0][0] - state.target_actor.network.layers[0][0]
    np.testing.assert_allclose(moved, SMALL.target_rate * whole, atol=1e-7)
    assert all(np.isfinite(value) for value in metrics.values())


def trained(seeds: list[int]) -> np.ndarray:
    learner = Learner(SMALL, TASK, seeds, capacity=200, updates=20)
    rows = {seed: np.random.default_rng(seed).normal(size=(100, TASK.row)).astype(np.float32) for seed in seeds}
    learner.insert(np.stack([rows[seed] for seed in seeds]))
    learner.improve(0)
    learner.improve(1)
    return learner.weights()


def test_same_seed_gives_the_same_bits_and_another_seed_does_not() -> None:
    first, again = trained([3, 4]), trained([3, 4])
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first[0], first[1])


def test_a_seed_learns_the_same_alone_as_beside_others() -> None:
    np.testing.assert_allclose(trained([4])[0], trained([3, 4])[1], rtol=0, atol=1e-5)


def test_replay_forgets_the_oldest_when_full() -> None:
    learner = Learner(SMALL, TASK, [0], capacity=40, updates=2)
    for value in range(3):
        learner.insert(np.full((1, 20, TASK.row), value, np.float32))
    np.testing.assert_array_equal(np.asarray(learner.replay)[0, :, 0], np.repeat([2.0, 1.0], 20))


def test_numpy_policy_equals_the_trained_actor() -> None:
    learner = Learner(SMALL, TASK, [0, 1], capacity=40, updates=2)
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = jax.vmap(lambda actor: actor(jnp.asarray(observation)))(learner.state.actor)
    for weights, actions in zip(learner.weights(), expected, strict=True):
        layers = unflatten(weights, (3, *SMALL.hidden, 1))
        np.testing.assert_allclose(act(layers, observation, np.asarray(TASK.bound)), actions, atol=1e-6)
