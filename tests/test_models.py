"""Each model learns a distribution that is known in closed form, and reports how well it does."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from point import NOISE, SPREAD, collect
from trajstitch.data.trajectories import Trajectories, concatenate
from trajstitch.data.transitions import hold_out
from trajstitch.learning.fit import member
from trajstitch.models.dynamics import Dynamics, fit_dynamics
from trajstitch.models.forward import ForwardDynamics, fit_forward, score_all_steps
from trajstitch.models.inverse import InverseDynamics, fit_inverse
from trajstitch.models.reward import GenerativeReward, RegressionReward, fit_reward
from trajstitch.models.value import TwinValue, fit_value, ranking, values

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return collect()


@pytest.fixture(scope="module")
def noise(data: Trajectories) -> Trajectories:
    """The same shapes with nothing to learn."""
    random = np.random.default_rng(5)
    return replace(
        data,
        observations=random.normal(size=data.observations.shape).astype(np.float32),
        actions=random.uniform(-1, 1, data.actions.shape).astype(np.float32),
        rewards=random.normal(size=data.steps).astype(np.float32),
    )


def test_dynamics_learn_mean_and_spread_and_are_calibrated(data):
    config = Dynamics(members=3, keep=2, hidden=(32,), steps=1000, patience=1000, learning_rate=5e-3)
    models, report = fit_dynamics(config, data, KEY)
    states = np.random.default_rng(1).uniform(-0.6, 0.6, (200, 2)).astype(np.float32)
    mean, log_std = member(models, 0)(jnp.asarray(states))
    scale = member(models, 0).change
    np.testing.assert_allclose(scale.undo(mean), -0.1 * states, atol=0.02)
    true = ((0.1 * SPREAD) ** 2 + NOISE**2) ** 0.5
    np.testing.assert_allclose(np.median(np.exp(log_std) * scale.std), true, rtol=0.2)
    assert report.beats_baseline
    assert 0.8 < report.metrics["inside_the_90%_region"] < 0.97
    assert mean.shape == states.shape
    assert models.network.layers[0][0].shape[0] == 2


def test_inverse_dynamics_find_the_action_within_its_bounds(data):
    config = InverseDynamics(hidden=(32,), steps=2000, learning_rate=5e-3)
    model, report = fit_inverse(config, data, KEY)
    rows = data.state_rows
    states, following = data.observations[rows], data.observations[rows + 1]
    found = np.asarray(model(jnp.asarray(states), jnp.asarray(following)))
    # The noise hides the action: the best estimate shrinks (s' − s)/0.1 towards −s.
    weight = SPREAD**2 / (SPREAD**2 + (NOISE / 0.1) ** 2)
    best = -states + weight * ((following - states) / 0.1 + states)
    inside = (np.abs(states) < 0.6).all(1)
    assert np.abs(found - best)[inside].mean() < 0.06
    far = model(jnp.asarray(states), jnp.asarray(following + 50), jnp.full((len(states), model.latent_size), 3.0))
    assert np.abs(far).max() <= 1
    assert report.beats_baseline
    assert report.metrics["action_error"] < report.metrics["baseline"]


def test_regression_reward_learns_the_reward(data):
    config = RegressionReward(hidden=(32,), steps=1000, learning_rate=5e-3)
    model, report = fit_reward(config, data, KEY)
    assert report.beats_baseline
    assert report.metrics["R²"] > 0.98
    assert model(*(jnp.zeros((3, 2)),) * 3).shape == (3,)


def test_generative_reward_learns_the_reward(data):
    config = GenerativeReward(hidden=(32,), steps=3000, learning_rate=3e-3)
    _, report = fit_reward(config, data, KEY)
    assert report.beats_baseline
    assert report.metrics["R²"] > 0.8


def test_forward_dynamics_tell_where_an_action_leads(data):
    config = ForwardDynamics(members=2, hidden=(32,), steps=1000, learning_rate=1e-2)
    models, report = fit_forward(config, data, KEY)
    assert report.beats_baseline
    states = np.random.default_rng(1).uniform(-0.5, 0.5, (300, 2)).astype(np.float32)
    actions = np.clip(-states, -1, 1)
    right = score_all_steps(models, states, actions, states + 0.1 * actions)
    wrong = score_all_steps(models, states, actions, states - 0.1 * actions)
    assert np.quantile(right.error / right.length, 0.9) < 0.3
    np.testing.assert_allclose(np.median(wrong.error / wrong.length), 2, atol=0.3)
    np.testing.assert_allclose(
        right.reward, (states + 0.1 * actions)[:, 0] - 0.1 * np.square(actions).sum(1), atol=0.05
    )


def one_state(terminated: bool) -> Trajectories:
    """Reward 1 at every step of a world with one state; five-step episodes."""
    ends = np.tile([False] * 4 + [True], 20)
    return Trajectories(
        observations=np.zeros((120, 1), np.float32) + np.tile(np.arange(6, dtype=np.float32), 20)[:, None] * terminated,
        actions=np.zeros((100, 1), np.float32),
        rewards=np.ones(100, np.float32),
        terminated=ends if terminated else np.zeros(100, bool),
        truncated=np.zeros(100, bool) if terminated else ends,
        offsets=np.arange(0, 101, 5),
    )


def test_value_is_zero_after_a_termination_and_bootstraps_after_a_truncation():
    config = TwinValue(hidden=(16,), steps=3000, discount=0.9, target_rate=0.05, learning_rate=5e-3, batch_size=64)
    ending, _ = fit_value(config, one_state(terminated=True), KEY)
    np.testing.assert_allclose(
        values(ending, np.arange(5, dtype=np.float32)[:, None]), [4.0951, 3.439, 2.71, 1.9, 1.0], atol=0.15
    )
    endless, _ = fit_value(config, one_state(terminated=False), KEY)
    np.testing.assert_allclose(values(endless, np.zeros((1, 1), np.float32)), 10, atol=0.5)


def test_value_reports_its_errors_and_starts_warm(data):
    config = TwinValue(hidden=(16,), steps=2000, warm_steps=1, learning_rate=3e-3, target_rate=0.02)
    model, report = fit_value(config, data, KEY)
    assert report.beats_baseline
    assert report.metrics["R²"] > 0.5
    assert report.metrics["ranking"] > 0.7
    assert abs(report.metrics["bias"]) < report.metrics["value_error"]
    warm, _ = fit_value(config, data, KEY, warm=model)
    found, near, cold = (values(one, data.observations) for one in (model, warm, config.init(KEY, data)))
    assert np.abs(near - found).mean() < 0.2 * np.abs(cold - found).mean()


def test_a_model_of_noise_is_said_to_have_learned_nothing(noise):
    for report in (
        fit_reward(RegressionReward(hidden=(8,), steps=200), noise, KEY)[1],
        fit_value(TwinValue(hidden=(8,), steps=200), noise, KEY)[1],
    ):
        assert not report.beats_baseline
        assert "no better than its baseline" in str(report)


def test_a_value_that_is_too_low_everywhere_still_ranks():
    true = np.array([3.0, 1, 2, 5])
    assert ranking(true - 100, true) == 1
    assert ranking(np.full(4, 7.0), true) == 0
    assert ranking(np.full(4, 7.0), np.full(4, 7.0)) == 1


def test_discounted_returns_stop_at_each_episode_and_continue_with_what_follows():
    data = collect(episodes=3, length=4)
    after = np.array([1.0, 2.0, 3.0])
    found = data.discounted_returns(0.9, after)
    for episode in range(3):
        running = after[episode]
        for step in range(data.offsets[episode + 1] - 1, data.offsets[episode] - 1, -1):
            running = float(data.rewards[step]) + 0.9 * running
            assert found[step] == pytest.approx(running)


@pytest.mark.parametrize("fraction", [0.05, 0.2])
def test_one_long_episode_does_not_become_all_that_is_held_out(fraction):
    data = concatenate([collect(episodes=20, length=50), collect(episodes=1, length=5000)])
    for seed in range(20):
        train, held = hold_out(data, fraction, seed)
        assert len(train) + len(held) == data.steps
        assert len(held) <= 2 * fraction * data.steps


@pytest.mark.parametrize(("reward", "learned"), [(1.0, True), (0.0, False)])
def test_constant_reward_is_learned_unless_there_is_none(data, reward, learned):
    """Where each step survived is worth the same, as for a pole to balance, there is much to stitch."""
    constant = replace(data, rewards=np.full(data.steps, reward))
    _, report = fit_reward(RegressionReward(hidden=(32,), steps=1500, learning_rate=3e-3), constant, jax.random.key(0))
    assert report.beats_baseline is learned
