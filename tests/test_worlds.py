"""The zoo is what it says: data fit to learn from, true returns that are true, and optima that data doesn't reach."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from scipy.spatial import KDTree

from trajstitch.data.checks import check
from trajstitch.data.trajectories import Trajectories
from world import Act, World
from worlds import UNSEEN, WORLDS

ALL = WORLDS | UNSEEN
EACH = pytest.mark.parametrize("world", ALL.values(), ids=ALL)
EXACT = [world for world in ALL.values() if not world.stochastic and not world.reward_noise]
ROUNDED = ("glider-rounded", "glider-coarse")
"""Worlds whose states can't be told from their observations, but replaying needs only the first."""
KNOWABLE = [world for world in WORLDS.values() if world.knowable]


def best_tenth(returns: np.ndarray) -> np.ndarray:
    return np.argsort(-returns)[: max(1, len(returns) // 10)]


def mean_behaviour(data: Trajectories) -> Act:
    """Return a policy that takes the mean action of the nearest logged states."""
    spread = data.observations.std(0)
    spread[spread == 0] = 1
    states = KDTree(data.observations[data.state_rows] / spread)
    return lambda observations: data.actions[states.query(observations / spread, 20)[1]].mean(1)


@EACH
def test_data_is_fit_to_learn_from(world: World) -> None:
    data = world.collect(0)
    assert not [finding for finding in check(data) if finding.verdict == "bad"]
    assert data.observations.dtype == data.actions.dtype == data.rewards.dtype == np.float32
    assert (data.episode_terminated ^ data.episode_truncated).all()


@EACH
def test_one_seed_gives_the_same_data_and_another_gives_other_data(world: World) -> None:
    assert world.collect(3).equals(world.collect(3))
    assert not world.collect(3).equals(world.collect(4))


@pytest.mark.parametrize("world", EXACT, ids=lambda world: world.name)
def test_replayed_actions_give_the_logged_returns(world: World) -> None:
    data = world.collect(1)
    np.testing.assert_allclose(world.replayed(data), data.returns, rtol=1e-4, atol=1e-4)
    if world.name not in ROUNDED:
        np.testing.assert_allclose(world.walked(data), data.returns, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["noisy-reward-0.3", "noisy-reward-0.6"])
def test_true_returns_are_without_the_noise_of_rewards(name: str) -> None:
    world = WORLDS[name]
    silent = replace(world, reward_noise=0.0)
    data, true = world.collect(0), world.true_returns(world.collect(0))
    error = data.returns - true
    assert error.std() == pytest.approx(world.reward_noise * np.sqrt(world.horizon), rel=0.3)
    np.testing.assert_allclose(true, silent.replayed(data), rtol=1e-6)


def test_slippery_walks_are_worth_about_what_was_logged_and_replays_are_not() -> None:
    world = WORLDS["slippery"]
    data = world.collect(0)
    np.testing.assert_allclose(world.walked(data), data.returns, atol=1)
    assert world.replayed(data).mean() < data.returns.mean()


@pytest.mark.parametrize("name", ["slippery", "exogenous"])
def test_luck_is_nothing_in_all_of_the_data_and_much_in_its_best_tenth(name: str) -> None:
    world = WORLDS[name]
    data = world.collect(0)
    luck = data.returns - world.without_luck(data)
    span = np.ptp(data.returns)
    assert abs(luck.mean()) < 0.02 * span
    assert luck[best_tenth(data.returns)].mean() > 0.02 * span


@pytest.mark.parametrize("name", ["two-leg", "pendulum", "mountain-car", "costs"])
def test_nothing_is_luck_where_nothing_is_random(name: str) -> None:
    data = WORLDS[name].collect(0)
    np.testing.assert_allclose(WORLDS[name].without_luck(data), data.returns, rtol=1e-2)


def test_jump_that_no_action_makes_is_luck() -> None:
    """The price of a battery can't be chosen: a walk that turns to a better price claims more than is true."""
    world = WORLDS["exogenous"]
    data = world.collect(0)
    rows = np.array(data.observations)
    rows[data.first_rows + 30, 1] = 1.8
    moved = replace(data, observations=rows)
    assert (world.walked(moved) - world.without_luck(moved)).mean() > (data.returns - world.without_luck(data)).mean()


@pytest.mark.parametrize("name", ["payload", "payload-tiny-unit", "set-point", "set-point-tiny-unit", "play-any-goal"])
def test_context_is_constant_within_an_episode_and_differs_between_them(name: str) -> None:
    data = WORLDS[name].collect(0)
    context = data.observations[:, -1]
    first = np.repeat(context[data.first_rows], data.lengths + 1)
    np.testing.assert_array_equal(context, first)
    assert len(np.unique(first)) > 2


@pytest.mark.parametrize("name", ["delayed", "delayed-with-clock"])
def test_delayed_reward_is_paid_at_the_last_step_alone(name: str) -> None:
    data = WORLDS[name].collect(0)
    assert (data.rewards[~data.last_of_episode] == 0).all()
    assert (data.rewards[data.last_of_episode] != 0).all()


def test_hidden_luck_is_worth_nothing() -> None:
    world = WORLDS["hidden-luck"]
    data = world.collect(0)
    lucky = data.best(0.1)
    assert lucky.returns.mean() > 50
    assert abs(world.true_returns(lucky).mean()) < 20
    assert abs(world.true_returns(data).mean()) < 1


def test_goal_that_pays_once_pays_once() -> None:
    world = WORLDS["sparse-once"]
    assert world.collect(0).returns.max() == 1
    assert world.played_by_expert().returns.max() == 1


@pytest.mark.parametrize("world", KNOWABLE, ids=lambda world: world.name)
def test_optimum_is_above_the_data(world: World) -> None:
    """From the same starts, the good controller does better than the best tenth, or is as good as can be."""
    data = world.collect(0)
    expert = world.expert_from(data)
    if world.stochastic:  # the best tenth had luck
        assert expert.mean() > data.returns.mean()
    else:
        true = world.replayed(data)
        best = best_tenth(true)
        assert expert[best].mean() >= true[best].mean()
        assert expert.mean() > true.mean()


@pytest.mark.parametrize("world", [w for w in ALL.values() if w.has_goal], ids=lambda world: world.name)
def test_good_controller_reaches_the_goal(world: World) -> None:
    assert world.played_by_expert().success.mean() > 0.95


@pytest.mark.parametrize("world", [w for w in WORLDS.values() if w.cloning_fails], ids=lambda world: world.name)
@pytest.mark.parametrize("seed", range(3))
def test_mean_behaviour_does_not_reach_the_goal(world: World, seed: int) -> None:
    data = world.collect(seed)
    assert world.success(mean_behaviour(data)) <= 0.1
    assert world.score(mean_behaviour(data)).mean() < world.optimum


@pytest.mark.parametrize("name", ["two-leg", "sparse-goal"])
def test_no_episode_goes_from_the_start_to_the_goal(name: str) -> None:
    world = WORLDS[name]
    data = world.collect(0)
    last = data.first_rows + data.lengths
    from_start = data.observations[data.first_rows, 1] < 0
    at_goal = world.reached(world.recover(data.observations[last], world.start(np.random.default_rng(0), len(data))))
    assert from_start.any()
    assert at_goal.any()
    assert not (from_start & at_goal).any()


@pytest.mark.parametrize(
    ("name", "theirs"), [("pendulum", "Pendulum-v1"), ("mountain-car", "MountainCarContinuous-v0")]
)
def test_dynamics_and_rewards_are_those_of_gymnasium(name: str, theirs: str) -> None:
    world, random = WORLDS[name], np.random.default_rng(0)
    environment = gymnasium.make(theirs).unwrapped
    environment.reset(seed=0)
    states = world.start(random, 1)
    for _ in range(50):
        action = random.uniform(-world.bound, world.bound, (1, 1))
        environment.state = states[0].copy()  # pyright: ignore[reportAttributeAccessIssue]
        seen, reward, terminated, _, _ = environment.step(action[0])
        states, rewards, ended = world.step(states, action, random)
        np.testing.assert_allclose(seen, world.observe(states)[0], rtol=1e-4, atol=1e-6)
        assert float(reward) == pytest.approx(rewards[0], rel=1e-5)
        assert terminated == ended[0]
