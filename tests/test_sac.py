"""SAC's losses equal the formulas written out in NumPy, and it learns."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import reach
from trajstitch.benchmark.behaviour import behave
from trajstitch.benchmark.expert import Expert, expert
from trajstitch.benchmark.exploration import Environment, evaluate, unflatten
from trajstitch.benchmark.ladder import Ladder, load_ladder
from trajstitch.benchmark.learner import Learner
from trajstitch.benchmark.training_run import TrainingRun
from trajstitch.policies.policy import SQUASHED_LOG_STD, Layers, act, sampled
from trajstitch.policies.sac import SAC, State, log_slope
from trajstitch.policies.td3 import Batch

SMALL = SAC(hidden=(16, 16), batch_size=32)
BOUND = (2.0, 0.5)


@pytest.fixture(scope="module")
def state() -> State:
    made = SMALL.init(jax.random.key(0), 3, BOUND)
    target = jax.tree.map(lambda leaf: 1.5 * leaf + 0.1, made.critics)
    return replace(made, log_temperature=jnp.asarray(-0.7), target_critics=target)


@pytest.fixture(scope="module")
def batch() -> Batch:
    random = np.random.default_rng(0)
    return Batch(
        observation=jnp.asarray(random.normal(size=(32, 3)), jnp.float32),
        action=jnp.asarray(random.uniform(-1, 1, (32, 2)) * BOUND, jnp.float32),
        reward=jnp.asarray(random.normal(size=32), jnp.float32),
        next_observation=jnp.asarray(random.normal(size=(32, 3)), jnp.float32),
        terminated=jnp.asarray(random.integers(0, 2, 32), jnp.float32),
    )


def layers_of(network) -> Layers:
    return [(np.asarray(weight, np.float64), np.asarray(bias, np.float64)) for weight, bias in network.layers]


def forward(layers: Layers, x: np.ndarray) -> np.ndarray:
    for weight, bias in layers[:-1]:
        x = np.maximum(x @ weight + bias, 0)
    return x @ layers[-1][0] + layers[-1][1]


def drawn(actor, observation, key) -> tuple[np.ndarray, np.ndarray]:
    """The action and its log density: of a normal variable, less the change of volume under tanh."""
    mean, log_std = np.split(forward(layers_of(actor.network), np.asarray(observation, np.float64)), 2, -1)
    std = np.exp(np.clip(log_std, *SQUASHED_LOG_STD))
    raw = mean + std * np.asarray(jax.random.normal(key, mean.shape), np.float64)
    density = stats.norm.logpdf(raw, mean, std) - np.log(1 - np.tanh(raw) ** 2)
    return np.tanh(raw) * BOUND, density.sum(-1)


def values(critics, observation, action) -> np.ndarray:
    inputs = np.concatenate([np.asarray(observation, np.float64), action], -1)
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], critics.networks) for i in range(2))
    return np.stack([forward(layers_of(one), inputs)[:, 0] for one in (first, second)])


def test_target_is_the_soft_value_and_the_reward_alone_after_termination(state: State, batch: Batch) -> None:
    key = jax.random.key(3)
    action, density = drawn(state.actor, batch.next_observation, key)
    soft = values(state.target_critics, batch.next_observation, action).min(0) - np.exp(-0.7) * density
    expected = np.asarray(batch.reward) + 0.99 * (1 - np.asarray(batch.terminated)) * soft
    target = SMALL.target(state, batch, key)
    np.testing.assert_allclose(target, expected, rtol=2e-5, atol=2e-5)
    ended = np.asarray(batch.terminated) == 1
    assert (np.asarray(target)[ended] == np.asarray(batch.reward)[ended]).all()


def test_actor_loss_is_the_entropy_term_less_the_lower_value(state: State, batch: Batch) -> None:
    key = jax.random.key(4)
    action, density = drawn(state.actor, batch.observation, key)
    expected = (0.3 * density - values(state.critics, batch.observation, action).min(0)).mean()
    loss, log_density = SMALL.actor_loss(state.actor, state.critics, jnp.asarray(0.3), batch, key)
    np.testing.assert_allclose(log_density, density, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(loss, expected, rtol=2e-5)


@pytest.mark.parametrize("entropy", [-3.0, 0.5])
def test_temperature_rises_where_the_entropy_is_too_low(state: State, entropy: float) -> None:
    log_density = jnp.asarray(np.random.default_rng(1).normal(-entropy, 0.1, 32), jnp.float32)
    gradient = jax.grad(SMALL.temperature_loss)(state.log_temperature, log_density, 2)
    expected = -np.exp(-0.7) * (np.asarray(log_density).mean() - 2.0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    assert (gradient < 0) == (entropy < -2)  # descending raises the temperature


def test_change_of_volume_is_exact_where_tanh_is_one() -> None:
    raw = np.array([-30.0, -3.0, 0.0, 1e-3, 3.0, 30.0])
    expected = -2 * np.log(np.cosh(raw))
    np.testing.assert_allclose(log_slope(jnp.asarray(raw)), expected, rtol=1e-6, atol=1e-6)
    assert np.isfinite(jax.grad(lambda x: log_slope(x).sum())(jnp.asarray(raw))).all()


def test_density_is_that_of_the_actions_which_are_sampled(state: State) -> None:
    """The integral of the density over all actions is one."""
    mean, log_std = (np.asarray(part)[:, :1] for part in state.actor.normal(jnp.ones((1, 3))))
    scaled = np.linspace(-1, 1, 200_001)[1:-1]
    raw = np.arctanh(scaled)
    density = np.exp(stats.norm.logpdf(raw, mean[0], np.exp(log_std[0])) - np.asarray(log_slope(jnp.asarray(raw))))
    np.testing.assert_allclose(np.trapezoid(density, scaled), 1, atol=1e-3)


def test_one_update_moves_every_part_once(state: State, batch: Batch) -> None:
    fresh = SMALL.init(jax.random.key(0), 3, BOUND)
    one = jax.tree.map(lambda leaf: leaf[None], batch)
    after, metrics = jax.jit(SMALL.update)(fresh, one, jax.random.key(1))
    for optimiser in (after.actor_optimiser, after.critic_optimiser, after.temperature_optimiser):
        assert int(optimiser[0].count) == 1  # pyright: ignore
    moved = after.target_critics.networks.layers[0][0] - fresh.target_critics.networks.layers[0][0]
    whole = after.critics.networks.layers[0][0] - fresh.target_critics.networks.layers[0][0]
    np.testing.assert_allclose(moved, SMALL.target_rate * whole, atol=1e-7)
    assert abs(abs(float(after.log_temperature)) - SMALL.learning_rate) < 1e-6
    assert all(np.isfinite(value) for value in metrics.values())


def test_numpy_samples_the_trained_policy() -> None:
    task = Environment("Pendulum-v1", 3, (2.0,))
    learner = Learner(SMALL, task, [0], capacity=40, updates=2)
    observation = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    actor = jax.tree.map(lambda leaf: leaf[0], learner.state.actor)
    key = jax.random.key(9)
    expected, _ = actor.sample(jnp.asarray(observation), key)
    layers = unflatten(learner.weights()[0], (3, 16, 16, 2))
    away = SMALL.exploration_noise * np.asarray(jax.random.normal(key, (5, 1)))
    np.testing.assert_allclose(behave(layers, observation, away, np.array([2.0])), expected, atol=1e-6)
    mode = behave(layers, observation, np.zeros((5, 1)), np.array([2.0]))
    np.testing.assert_allclose(mode, act(layers, observation, 2.0)[:, :1], atol=1e-6)
    many = sampled(layers, np.tile(observation[:1], (4000, 1)), np.random.default_rng(1).normal(size=(4000, 1)), 2.0)
    assert many.std() > 0.3
    assert (np.abs(many) <= 2).all()


def config_of(run: Path, **changes) -> Expert:
    config = Expert(
        reach.TASK,
        algorithm="sac",
        steps=2000,
        seeds=2,
        environments=4,
        round_steps=10,
        checkpoint_every=400,
        episodes=20,
        evaluators=1,
        snapshot_every=1000,
        run=run,
    )
    return replace(config, **changes)


LEARNS = SAC(hidden=(32, 32), batch_size=64, learning_rate=3e-3, start_steps=400, discount=0.9)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    return load_ladder(expert(config_of(tmp_path_factory.mktemp("sac") / "whole"), LEARNS))


def test_sac_learns_to_reach(learned: Ladder) -> None:
    assert (learned.algorithm, learned.random_steps) == ("sac", 400)
    task = Environment(reach.TASK, 1, (1.0,))
    before, after = (np.mean(evaluate(task, one.layers, 50, 0)) for one in (learned.checkpoints[0], learned.expert))
    # From a start of distance d, the best is −Σ max(d − k, 0): −0.5 in the mean. Standing still gives −10.
    assert before < -6
    assert after > -2.5


def test_stopped_training_resumes_to_the_same_bits(
    learned: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = TrainingRun.save_snapshot

    def stop(self, steps, learner, rows):
        save(self, steps, learner, rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainingRun, "save_snapshot", stop)
        with pytest.raises(KeyboardInterrupt):
            expert(config_of(tmp_path / "stopped"), LEARNS)
    resumed = load_ladder(expert(config_of(tmp_path / "stopped", resume=True), LEARNS))
    for one, other in zip(learned.checkpoints, resumed.checkpoints, strict=True):
        assert (one.steps, one.mean_return) == (other.steps, other.mean_return)
        for layer, same in zip(one.layers, other.layers, strict=True):
            np.testing.assert_array_equal(layer[0], same[0])
