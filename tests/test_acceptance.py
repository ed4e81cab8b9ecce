"""A rebuilt trajectory replaces the old one only if it is truly better: not by a hair, and not by its length alone."""

import numpy as np
import pytest

from random_data import scorer
from small_graphs import graph_on, logged
from trajstitch.data.trajectories import Trajectories, concatenate
from trajstitch.stitching.acceptance import Rules, edges_of_graph, propose
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.walk import Walks


def episode(rewards: list[float], *, terminated: bool = False) -> Trajectories:
    states = np.random.default_rng(len(rewards)).normal(size=(1, len(rewards) + 1, 2))
    return logged(states, rewards=np.array([rewards]), terminated=np.array([terminated]))


def accepted(old: Trajectories, new: Trajectories, *others: Trajectories, rules: Rules | None = None) -> bool:
    """Return whether a walk along the steps of `new` replaces `old`."""
    data = concatenate((old, new, *others))
    paths, graph = Paths.of(data), graph_on(data, {})
    rows = slice(data.first_rows[1], data.first_rows[1] + data.lengths[1] + 1)
    steps = slice(data.offsets[1], data.offsets[2])
    kept = slice(data.offsets[1], None)
    walks = Walks(
        node=np.concatenate((paths.node[rows], paths.node[data.first_rows[1] :])),
        kind=np.concatenate((paths.kind[steps], paths.kind[kept])),
        edge=np.full(data.lengths[1] + data.steps - data.lengths[0], -1),
        offsets=np.concatenate(([0], np.cumsum([data.lengths[1], *data.lengths[1:]]))),
        terminated=np.concatenate((paths.terminated[1:2], paths.terminated[1:])),
        truncated=np.concatenate((paths.truncated[1:2], paths.truncated[1:])),
    )
    chosen = edges_of_graph(graph, np.zeros(len(graph)))
    return bool(propose(paths, walks, chosen, scorer(data), rules or Rules()).accepted[0])


SUCCESS = episode([0.0, 0, 0, 0, 1], terminated=True)


def test_a_return_of_zero_is_not_replaced_for_a_tiny_gain() -> None:
    nothing = episode([0.0] * 5)
    assert not accepted(nothing, episode([0.0, 0, 0, 0, 0.01]), SUCCESS)
    assert accepted(nothing, episode([0.0, 0, 0, 0, 0.9]), SUCCESS)


def test_a_gain_counts_by_the_spread_of_returns_in_any_unit() -> None:
    for unit in (1e-4, 1.0, 1e5):
        some = [episode((unit * np.array(rewards)).tolist()) for rewards in ([0.0] * 5, [0, 0, 0, 0, 0.01], [1.0] * 5)]
        assert not accepted(*some)


def test_the_threshold_is_a_share_of_the_return() -> None:
    old, new = episode([10.0] * 5), episode([11.0] * 5)
    assert accepted(old, new, rules=Rules(threshold=0.05))
    assert not accepted(old, new, rules=Rules(threshold=0.15))


@pytest.mark.parametrize(
    ("terminated", "reward", "expected"), [(False, 1.0, False), (True, 1.0, True), (False, 2.0, True)],
    ids=["cut off", "terminated", "cut off, and the walk earns more each step"],
)  # fmt: skip
def test_a_longer_walk_beats_a_cut_off_trajectory_only_by_its_rewards(
    terminated: bool, reward: float, expected: bool
) -> None:
    assert accepted(episode([1.0] * 5, terminated=terminated), episode([reward] * 10)) is expected


@pytest.mark.parametrize("terminated", [True, False])
def test_a_shorter_walk_saves_costs_only_where_it_terminates(terminated: bool) -> None:
    assert accepted(episode([-1.0] * 10), episode([-1.0] * 5, terminated=terminated)) is terminated


def lengths(*numbers: int) -> Paths:
    return Paths.of(concatenate([episode([0.0] * number) for number in numbers]))


def test_one_very_long_episode_does_not_set_the_horizon() -> None:
    assert Rules().longest(lengths(1500, *[20] * 30)) == 20


def test_the_horizon_is_a_length_that_at_least_two_episodes_reach() -> None:
    assert Rules().longest(lengths(9, 30, 12)) == 12
    assert Rules().longest(lengths(30, 30, 12)) == 30
    assert Rules().longest(lengths(7)) == 7


def test_a_horizon_that_is_given_counts() -> None:
    assert Rules(horizon=50).longest(lengths(9, 30, 12)) == 50
