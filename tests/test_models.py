"""Each model learns a distribution that is known in closed form, and reports how well it does."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box
from scipy.stats import norm, ttest_1samp

from point import NOISE, SPREAD, collect
from small_graphs import logged
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories, concatenate
from trajstitch.data.transitions import hold_out
from trajstitch.learning.fit import member
from trajstitch.models import dynamics, forward
from trajstitch.models.dynamics import Dynamics, fit_dynamics, untrained_dynamics
from trajstitch.models.fitting import FEWEST_STEPS, limited
from trajstitch.models.forward import ForwardDynamics, _calibration, fit_forward, score_all_steps, untrained_forward
from trajstitch.models.hidden_state import TOLD_BY_ACTION, TOLD_BY_CHANGE, Missed, told_by_step_before
from trajstitch.models.inverse import InverseDynamics, fit_inverse
from trajstitch.models.reward import (
    GenerativeReward,
    RegressionReward,
    _standard_errors,
    crossed,
    fit_reward,
    halves,
    predict_rewards,
)
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


def shapes(model):
    """The shapes of a model's arrays, which one that is read into has to have."""
    return jax.tree.map(jnp.shape, eqx.filter(model, eqx.is_array))


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
    rows = data.state_rows[hold_out(data, config.held_out)[1]]
    change = (data.observations[rows + 1] - data.observations[rows] - scale.mean) / scale.std
    assert report.metrics["baseline"] == pytest.approx(norm.logpdf(change).sum(1).mean(), rel=1e-4)
    assert shapes(untrained_dynamics(config, 2, KEY)) == shapes(models)
    assert mean.shape == states.shape
    assert models.network.layers[0][0].shape[0] == 2


@pytest.mark.parametrize(
    ("room", "fit"), [(dynamics, fit_dynamics), (forward, fit_forward)], ids=["dynamics", "forward"]
)
def test_members_stop_by_steps_that_they_do_not_learn_from(room, fit, data, monkeypatch):
    def fitting(config, init, data, train, held, *_):
        assert sorted((*train, *held)) == list(range(data.steps))
        raise InterruptedError

    monkeypatch.setattr(room, "fit_ensemble", fitting)
    with pytest.raises(InterruptedError):
        fit(Dynamics() if room is dynamics else ForwardDynamics(), data, KEY)


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
    held = hold_out(data, config.held_out)[1]
    assert report.metrics["action_error"] == pytest.approx(np.square(found - data.actions)[held].mean(), rel=1e-4)
    assert report.metrics["action_error"] < report.metrics["baseline"]


def test_the_reported_error_of_actions_is_in_no_unit(data):
    """Actions and their bounds ten times as large are as far off, for their width."""
    config = InverseDynamics(hidden=(32,), steps=200, learning_rate=5e-3)
    space = Box(-10, 10, (data.action_size,), np.float32)
    wide = replace(data, actions=10 * data.actions, metadata=replace(data.metadata, action_space=space))
    (_, one), (_, other) = (fit_inverse(config, some, KEY) for some in (data, wide))
    assert one.metrics["action_error"] == pytest.approx(other.metrics["action_error"], rel=0.02)
    assert one.metrics["baseline"] == pytest.approx(other.metrics["baseline"], rel=1e-4)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_what_episodes_gain_is_counted_in_standard_errors(unit):
    gain = unit * np.random.default_rng(0).normal(0.3, 1, 40)
    assert _standard_errors(gain) == pytest.approx(ttest_1samp(gain, 0).statistic)  # pyright: ignore[reportAttributeAccessIssue]
    assert _standard_errors(np.full(3, unit)) == np.inf
    assert _standard_errors(np.full(3, -unit)) == -np.inf


def test_a_value_that_is_constant_ranks_only_if_it_is_right():
    one = np.ones(5)
    assert ranking(one, one) == ranking(1.005 * one, one) == 1
    assert ranking(1.5 * one, one) == ranking(one, np.arange(5.0)) == 0


def test_regression_reward_learns_the_reward(data):
    config = RegressionReward(hidden=(32,), steps=1000, learning_rate=5e-3)
    models, report = fit_reward(config, data, KEY)
    assert report.beats_baseline
    assert report.metrics["R²"] > 0.98
    step = (np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2)), np.zeros(3, bool))
    assert predict_rewards(models, *step).shape == (2, 3)


def test_generative_reward_learns_the_reward(data):
    config = GenerativeReward(hidden=(32,), steps=3000, learning_rate=3e-3)
    _, report = fit_reward(config, data, KEY)
    assert report.beats_baseline
    assert report.metrics["R²"] > 0.8


def test_forward_dynamics_tell_where_an_action_leads(data):
    config = ForwardDynamics(members=2, hidden=(32,), steps=1000, learning_rate=1e-2)
    models, report = fit_forward(config, data, KEY)
    assert report.beats_baseline
    assert shapes(untrained_forward(config, 2, 2, KEY)) == shapes(models)
    states = np.random.default_rng(1).uniform(-0.5, 0.5, (300, 2)).astype(np.float32)
    actions = np.clip(-states, -1, 1)
    right = score_all_steps(models, states, actions, states + 0.1 * actions)
    wrong = score_all_steps(models, states, actions, states - 0.1 * actions)
    assert np.quantile(right.error / right.length, 0.9) < 0.3
    np.testing.assert_allclose(np.median(wrong.error / wrong.length), 2, atol=0.3)
    np.testing.assert_allclose(
        right.reward, (states + 0.1 * actions)[:, 0] - 0.1 * np.square(actions).sum(1), atol=0.05
    )


def test_the_report_shows_whether_members_err_where_they_are_apart(data):
    """Every step is held out, so the table is of all of them; recalculated member by member."""
    models, _ = fit_forward(FORWARD, data, KEY)
    std = np.asarray(models.members.observation.std[0])
    states, actions = data.observations[data.state_rows], data.actions
    following = data.observations[data.state_rows + 1]
    step = jnp.asarray(states), jnp.asarray(actions)
    found = np.stack([member(models.members, number)(*step)[0] for number in range(2)])
    weight = np.asarray(models.weight)
    apart = np.sqrt((weight * np.square((found[0] - found[1]) / 2 / std)).sum(1))
    missed = (found.mean(0) - (following - states)) / std
    error = np.sqrt((weight * np.square(missed)).sum(1))
    table = np.array(_calibration(models, states, actions, missed))
    order = np.argsort(apart, kind="stable")
    for column, right in ((0, apart), (2, error)):
        medians = [np.median(right[part]) for part in np.array_split(order, 10)]
        np.testing.assert_allclose(table[:, column], medians, rtol=0.01)


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
    after = values(model, data.observations[data.first_rows + data.lengths])
    returns = data.discounted_returns(0.99, np.where(data.episode_terminated, 0, after))
    held = hold_out(data, config.held_out)[1]
    misses = values(model, data.observations[data.state_rows])[held] - returns[held]
    assert report.metrics["value_error"] == pytest.approx(np.sqrt(np.square(misses).mean()), rel=1e-4)
    assert report.metrics["bias"] == pytest.approx(misses.mean(), rel=1e-4)
    assert report.metrics["baseline"] == pytest.approx(np.sqrt(np.square(returns[held] - returns.mean()).mean()))
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


def ends_at_a_goal(random: np.random.Generator, lengths: np.ndarray, reached: np.ndarray) -> Trajectories:
    """Return wandering episodes, of which those that have reached a goal are rewarded once, at their end."""
    ends = np.cumsum(lengths) - 1
    rewards, last = np.zeros(lengths.sum(), np.float32), np.zeros(lengths.sum(), bool)
    rewards[ends], last[ends] = reached, True
    actions = random.uniform(-1, 1, (lengths.sum(), 2)).astype(np.float32)
    return Trajectories(
        observations=random.normal(size=(lengths.sum() + len(lengths), 2)).astype(np.float32).cumsum(0),
        actions=actions,
        rewards=rewards,
        terminated=last & (rewards > 0),
        truncated=last & (rewards == 0),
        offsets=np.append(0, ends + 1),
    )


@pytest.mark.parametrize("kind", ["reached at any time", "one long episode"])
def test_a_reward_that_is_known_beats_its_baseline_at_any_lengths(kind):
    """A model that sees ends knows these rewards, whether an episode of one step is rewarded or a very long one."""
    random = np.random.default_rng(0)
    if kind == "reached at any time":
        reached = np.arange(100) < 12
        lengths = np.append((1, 2), np.full(98, 60))
    else:
        reached, lengths = np.arange(40) < 30, np.append(np.full(39, 12), 3000)
    data = ends_at_a_goal(random, lengths, reached)
    _, report = fit_reward(RegressionReward(hidden=(32,), steps=1500, learning_rate=3e-3), data, KEY)
    assert report.beats_baseline


# Columns that actions don't control


FORWARD = ForwardDynamics(members=2, hidden=(32,), steps=1000, learning_rate=1e-2)


def beside(data: Trajectories, *columns: np.ndarray) -> Trajectories:
    return replace(data, observations=np.column_stack((data.observations, *columns)).astype(np.float32))


@pytest.mark.parametrize("unit", [1e-6, 1e-4, 1e6])
def test_a_context_in_any_unit_does_not_keep_the_forward_model_from_learning(data, unit):
    goal = unit * np.repeat(np.arange(len(data)) % 3, data.lengths + 1)
    fixed = np.array([False, False, True])
    models, report = fit_forward(FORWARD, beside(data, goal), KEY, ColumnRoles(fixed, ~fixed & fixed, ~fixed & fixed))
    assert report.beats_baseline
    assert report.metrics["R²"] > 0.8
    np.testing.assert_allclose(models.weight, [1, 1, 0], atol=0.2)


def test_a_column_of_noise_has_no_weight(data):
    noisy = beside(data, np.random.default_rng(3).normal(size=len(data.observations)))
    models, report = fit_forward(FORWARD, noisy, KEY)
    assert (np.asarray(models.weight[:2]) > 0.7).all()
    assert models.weight[2] < 0.1
    assert report.beats_baseline


def test_an_exogenous_column_is_marked_and_has_no_weight(data):
    course = np.cumsum(np.random.default_rng(3).normal(size=len(data.observations)))
    exogenous = np.array([False, False, True])
    roles = ColumnRoles(~exogenous & exogenous, exogenous, ~exogenous & exogenous)
    models, _ = fit_forward(FORWARD, beside(data, course), KEY, roles)
    assert np.asarray(models.exogenous).tolist() == [0, 0, 1]
    assert models.weight[2] == 0


def test_a_column_that_actions_do_not_control_has_no_weight_however_well_it_is_predicted(data):
    """What cools down by itself: its next value follows from its last one."""
    heat = np.concatenate(
        [(1 + number % 5) * 0.9 ** np.arange(length + 1) for number, length in enumerate(data.lengths)]
    )
    exogenous = np.array([False, False, True])
    known = ColumnRoles(~exogenous & exogenous, exogenous, ~exogenous & exogenous)
    assert fit_forward(FORWARD, beside(data, heat), KEY)[0].weight[2] > 0.5
    assert fit_forward(FORWARD, beside(data, heat), KEY, known)[0].weight[2] == 0


def test_what_is_usual_is_the_median_error_of_logged_steps(data):
    models, report = fit_forward(FORWARD, data, KEY)
    assert float(models.usual) == pytest.approx(report.metrics["median_consistency"])
    rows = data.state_rows
    scores = score_all_steps(models, data.observations[rows], data.actions, data.observations[rows + 1])
    assert float(np.median(scores.relative)) == pytest.approx(float(models.usual), rel=0.3)


def test_steps_that_do_not_move_say_nothing_of_what_is_usual(data):
    """A sensor that rounds gives many steps of no length, over which any error is huge."""
    rounded = replace(data, observations=np.float32(0.3) * np.round(data.observations / 0.3))
    models, _ = fit_forward(FORWARD, rounded, KEY)
    rows = rounded.state_rows
    scores = score_all_steps(models, rounded.observations[rows], rounded.actions, rounded.observations[rows + 1])
    assert np.median(scores.relative) > 100
    assert float(models.usual) < 3


def _late(data):
    """Return the data with each action where the one before it was: what it does shows a step later."""
    actions = np.roll(data.actions, -1, 0)
    return replace(data, actions=actions)


def test_hidden_state_shows_where_the_step_before_tells_what_action_and_observation_do_not(data):
    assert fit_forward(FORWARD, data, KEY)[1].metrics["told_by_the_step_before"] < 0.02
    assert fit_forward(FORWARD, _late(data), KEY)[1].metrics["told_by_the_step_before"] > 0.1


def test_luck_is_no_hidden_state(data):
    noise = np.random.default_rng(0).normal(0, 0.1, data.observations.shape).cumsum(0)
    missed = np.random.default_rng(1).normal(size=(data.steps, 2))
    steps = np.arange(data.steps)
    walking = replace(data, observations=data.observations + noise.astype(np.float32))
    train, held = (Missed(part, missed[part]) for part in np.array_split(steps, 2))
    told = told_by_step_before(walking, train, held, np.ones(2, bool))
    assert max(told.values()) < 0.01 * np.square(missed).sum()


def test_a_speed_that_is_hidden_is_told_by_the_change_before_however_far_away_it_happens():
    """Twenty points, each with a speed of its own, which are far from each other for their speed."""
    random = np.random.default_rng(0)
    speed, start = random.normal(size=(2, 20, 1, 2))
    data = logged(100 * start + speed * np.arange(11)[:, None], random.normal(size=(20, 10, 1)))
    missed = np.repeat(speed[:, 0], 10, axis=0)
    train, held = (Missed(steps, missed[steps]) for steps in np.arange(data.steps).reshape(-1, 2).T)
    told = told_by_step_before(data, train, held, np.ones(2, bool))
    assert told[TOLD_BY_CHANGE] > 0.8 * np.square(missed[held.steps]).sum()
    assert told[TOLD_BY_ACTION] < 0.1 * told[TOLD_BY_CHANGE]


# Rewards of steps that a model has not seen


BY_HEART = RegressionReward(hidden=(64, 64), steps=1000, learning_rate=1e-2)


@pytest.fixture(scope="module")
def by_heart(noise):
    """A reward model that had the time to learn noise by heart."""
    models, _ = fit_reward(BY_HEART, noise, KEY)
    rows = noise.state_rows
    steps = (noise.observations[rows], noise.actions, noise.observations[rows + 1], noise.terminated)
    return predict_rewards(models, *steps), halves(noise)


def correlation(found, noise):
    return float(np.corrcoef(found, noise.rewards)[0, 1])


def test_a_step_is_predicted_by_the_member_that_has_not_seen_it(by_heart, noise):
    found, half = by_heart
    other = crossed(found, half)
    for own in range(2):
        np.testing.assert_array_equal(other[half == own], found[1 - own][half == own])


def test_noise_of_a_step_does_not_leak_into_its_prediction(by_heart, noise):
    found, half = by_heart
    assert correlation(found[half, np.arange(noise.steps)], noise) > 0.3, "it must know it by heart"
    assert abs(correlation(crossed(found, half), noise)) < 0.08


def test_halves_are_of_whole_episodes(noise):
    half = halves(noise)
    for episode in range(len(noise)):
        assert len(set(half[noise.episode_of_step == episode].tolist())) == 1
    assert 0.4 < half.mean() < 0.6
    few = noise[np.arange(3)]
    assert 0.4 < halves(few).mean() < 0.6


def test_regression_reward_keeps_the_parameters_that_did_best_on_the_other_half(noise):
    brief, long = (fit_reward(replace(BY_HEART, steps=steps), noise, KEY)[1].metrics for steps in (1000, 2000))
    assert long["reward_error"] <= brief["reward_error"] * (1 + 1e-6)


def test_a_reward_at_an_end_is_told_from_others(data):
    """Where an episode terminates, 10 is paid, anywhere."""
    last = data.last_of_episode & (data.episode_of_step % 2 == 0)
    ending = replace(data, terminated=last, rewards=np.where(last, 10, 0).astype(np.float32))
    models, report = fit_reward(RegressionReward(hidden=(32,), steps=1000, learning_rate=5e-3), ending, KEY)
    assert report.metrics["R²"] > 0.9
    state = np.zeros((2, 2))
    found = predict_rewards(models, state, state, state, np.array([True, False])).mean(0)
    np.testing.assert_allclose(found, [10, 0], atol=1)


@pytest.mark.parametrize(
    ("rows", "epochs", "steps"),
    [(1_000, 10, FEWEST_STEPS), (100_000, 10, 4_000), (10**7, 10, 50_000), (1_000, None, 50_000)],
)
def test_epochs_limit_the_steps_of_small_data(rows, epochs, steps):
    for config in (RegressionReward, ForwardDynamics, InverseDynamics):
        assert limited(config(steps=50_000, epochs=epochs, batch_size=256), rows).steps == steps


def test_epochs_never_add_steps():
    assert limited(RegressionReward(steps=100, epochs=1000), 10**6).steps == 100
