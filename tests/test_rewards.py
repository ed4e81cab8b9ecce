"""The rewards that a plan counts with: predicted, and never outside of what similar logged steps paid."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_data import graph_of, random_data, scorer
from small_graphs import graph_on, logged
from trajstitch.data.trajectories import Trajectories
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.rewards import PlanRewards, RewardRange, paid_once, usual_reward

LENGTH = 5


def lines(*rewards: list[float], terminated: list[bool] | None = None) -> Trajectories:
    """Return episodes that go along one line, side by side, with these rewards."""
    states = np.zeros((len(rewards), LENGTH + 1, 2))
    states[..., 0] = np.arange(LENGTH + 1)
    states[..., 1] = 0.01 * np.arange(len(rewards))[:, None]
    return logged(states, rewards=np.array(rewards), terminated=None if terminated is None else np.array(terminated))


def node(episode: int, time: int) -> int:
    return episode * (LENGTH + 1) + time


def clipped(data: Trajectories, source: int, target: int, reward: float, k: int = 2) -> float:
    """Return the reward of a step between two nodes, each of which has `k` neighbours."""
    allowed = RewardRange.of(data, graph_on(data, {}, k))
    return float(allowed.clip(np.array([source]), np.array([target]), np.array([reward]))[0])


DENSE = lines([0, 1, 2, 3, 4], [0, 2, 3, 4, 5], [0, 3, 4, 5, 6])


def test_a_reward_stays_within_those_of_similar_steps() -> None:
    """From the second state, or into the third, 1 to 3 was paid."""
    for predicted, expected in ((9.0, 3.0), (-9.0, 1.0), (2.5, 2.5)):
        assert clipped(DENSE, node(0, 1), node(1, 2), predicted) == expected


def test_the_step_logged_into_the_target_counts_too() -> None:
    """No step near the second state is the last of its log, but the one into this target is, and paid 6."""
    for predicted in (99.0, -99.0):
        assert clipped(DENSE, node(0, 1), node(2, 5), predicted) == 6.0


def test_steps_count_only_if_they_end_alike() -> None:
    """Two of three episodes terminate at their fifth step, where 10 is paid; the log of the third breaks off there."""
    data = lines([0, 1, 2, 3, 10], [0, 1, 2, 3, 10], [0, 1, 2, 3, 4], terminated=[True, True, False])
    assert clipped(data, node(0, 4), node(1, 5), 0.0) == 10.0
    assert clipped(data, node(1, 4), node(2, 5), 99.0) == 4.0
    assert clipped(data, node(2, 4), node(1, 3), 99.0) == 2.0


def test_a_step_without_any_similar_one_gets_what_was_logged_at_its_source() -> None:
    """No step is logged into an episode's first state, and the steps from here are the last of their logs."""
    data = lines([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert clipped(data, node(0, 4), node(1, 0), 99.0, k=1) == 4.0


SPARSE = lines([0] * 5, [0] * 5, [0, 0, 0, 0, 1], [0] * 5, [0] * 5, [0] * 5)


def test_rewards_are_sparse_if_nearly_all_are_the_same() -> None:
    assert usual_reward(SPARSE) == 0
    assert usual_reward(DENSE) is None
    assert usual_reward(replace(SPARSE, rewards=SPARSE.rewards - 1)) == -1


def test_a_sparse_reward_is_not_smeared_over_the_steps_beside_it() -> None:
    for predicted in (0.0, 0.3, 1.0, 9.0):
        assert clipped(SPARSE, node(1, 4), node(0, 5), predicted) == 0


def test_a_sparse_reward_is_paid_where_all_similar_steps_are_paid() -> None:
    quiet = [[0.0] * 5] * 20
    data = lines([0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1], *quiet, terminated=[True] * 3 + [False] * 20)
    assert usual_reward(data) == 0
    assert clipped(data, node(0, 4), node(1, 5), 0.3) == 1
    assert clipped(data, node(3, 4), node(1, 5), 0.9) == 1  # the only step that terminates
    assert clipped(data, node(0, 4), node(4, 5), 0.9) == 0


def test_a_reward_that_no_episode_gets_twice_is_paid_once() -> None:
    data = lines([0, 0, 1, 0, 0], [0, 1, 0, 0, 0], *[[0.0] * 5] * 10)
    stops = paid_once(data, len(data.observations))
    assert np.flatnonzero(stops).tolist() == [node(0, 3), node(1, 2)]


@pytest.mark.parametrize(
    "rewards",
    [[[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]], [[0, 1, 0, 0, 0], [0.0] * 5], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]],
    ids=["some get two", "a single one is no rule", "dense"],
)
def test_walks_stop_nowhere_else(rewards: list[list[float]]) -> None:
    data = lines(*rewards, *([[0.0] * 5] * 10 if rewards[0][0] == rewards[0][2] == 0 else []))
    assert not paid_once(data, len(data.observations)).any()


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=10, deadline=None)
def test_no_jump_gets_a_reward_outside_the_logged_range(seed: int, coarse: bool) -> None:
    data = random_data(np.random.default_rng(seed), coarse=coarse)
    graph, made = graph_of(data, NeighbourSearch(k=4), None), scorer(data)
    rewards = PlanRewards.of(data, graph, made)
    assert graph.edges.reward is not None
    low, high = data.rewards.min(initial=0), data.rewards.max(initial=0)
    for found in (rewards.jump, rewards.logged):
        assert (found >= low - 1e-6).all()
        assert (found <= high + 1e-6).all()


def test_logged_steps_count_by_their_prediction_and_sparse_ones_by_their_log() -> None:
    data = random_data(np.random.default_rng(1), coarse=False)
    graph = graph_of(data, NeighbourSearch(k=4), None)
    rewards = PlanRewards.of(data, graph, scorer(data))
    assert not np.allclose(rewards.logged[data.state_rows], data.rewards)
    one = replace(data, rewards=(np.arange(data.steps) == 3).astype(np.float32))
    rewards = PlanRewards.of(one, graph, scorer(one))
    np.testing.assert_array_equal(rewards.logged[data.state_rows], one.rewards)


def test_without_the_range_rewards_are_as_predicted_and_walks_stop_nowhere() -> None:
    data = random_data(np.random.default_rng(1), coarse=False)
    graph = graph_of(data, NeighbourSearch(k=4), None)
    assert graph.edges.reward is not None
    free, within = (PlanRewards.of(data, graph, scorer(data), reward_range=on) for on in (False, True))
    np.testing.assert_array_equal(free.jump, graph.edges.reward.astype(np.float64))
    assert not np.array_equal(free.jump, within.jump)
    paid = lines([0, 0, 1, 0, 0], [0, 0, 0, 1, 0], *[[0.0] * 5] * 10)
    graph = graph_of(paid, NeighbourSearch(k=4), None)
    assert PlanRewards.of(paid, graph, scorer(paid)).stops.any()
    assert not PlanRewards.of(paid, graph, scorer(paid), reward_range=False).stops.any()


def test_a_step_whose_next_state_is_unknown_keeps_its_logged_reward() -> None:
    data = random_data(np.random.default_rng(1), coarse=False)
    rows = data.observations.copy()
    ends = (data.first_rows + data.lengths)[data.lengths > 0]
    rows[ends] = np.nan
    recorded = replace(data, observations=rows)
    steps = data.state_rows.astype(np.int32)
    found = scorer(recorded).logged_rewards(steps)
    unknown = np.isin(steps + 1, ends)
    assert unknown.any()
    np.testing.assert_array_equal(found[unknown], data.rewards[unknown])
    assert not np.isclose(found[~unknown], data.rewards[~unknown]).all()
    assert np.isfinite(found).all()
