"""A plan for all trajectories together keeps its states from being crowded, and is a plan for each where none is."""

import math

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from random_data import graph_of, random_data, scorer
from small_graphs import graph_on, logged
from trajstitch.data import ragged
from trajstitch.data.ragged import rank_among_equals
from trajstitch.data.trajectories import Trajectories
from trajstitch.stitching import capacity
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.capacity import (
    ActionValues,
    BestFreeAction,
    Room,
    count_uses,
    count_visits,
    plan_with_capacity,
)
from trajstitch.stitching.graph import EdgeScorer, StitchGraph
from trajstitch.stitching.greedy import rebuild
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.planning import Plan, Problem, plan, solve
from trajstitch.stitching.rewards import PlanRewards
from trajstitch.stitching.walk import Visited


def world(seed, coarse=False):
    data = random_data(np.random.default_rng(seed), coarse=coarse)
    return data, graph_of(data, NeighbourSearch(k=4), 20.0), scorer(data)


def count_jumps(paths: Paths) -> np.ndarray:
    return ragged.sums((paths.kind >= paths.nodes).astype(float), paths.lengths)


def most_visits(share: float, episodes: int) -> int:
    """A share of the trajectories may visit a state, and at least the square root of their number."""
    return max(math.ceil(episodes**0.5), round(share * episodes))


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from((0.1, 0.4, 0.8)), st.booleans())
@settings(max_examples=15, deadline=None, phases=(Phase.generate,))
def test_no_state_is_crowded_and_every_change_is_a_gain(seed, coarse, most, predicted):
    data, graph, made = world(seed, coarse)
    config = Plan(discount=0.95, pessimism=0, max_visits=most, predicted_rewards=predicted)
    paths, summary = plan_with_capacity(data, graph, made, config, Rules())
    room = most_visits(most, len(data))
    assert count_visits(paths).max() <= room
    assert count_uses(paths, graph).max(initial=0) <= max(2, room // 5)
    changed = count_jumps(paths) > 0
    by_node = PlanRewards.of(data, graph, made).logged if predicted else None
    old, new = Paths.of(data).returns_by(by_node), paths.returns_by(by_node)
    assert (new > old + 0.1 * np.maximum(np.abs(old), data.returns.std()) - 1e-4)[changed].all()
    assert summary.accepted == changed.sum()

    edges = set(zip(graph.edges.source.tolist(), graph.edges.target.tolist(), strict=True))
    provenance = paths.trajectories().provenance
    assert provenance is not None
    for episode in range(len(data)):
        first = paths.offsets[episode] + episode
        nodes = paths.node[first : first + paths.lengths[episode] + 1].tolist()
        stitched = provenance.stitched[paths.offsets[episode] : paths.offsets[episode + 1]]
        assert nodes[0] == data.first_rows[episode]
        for here, there, jump in zip(nodes, nodes[1:], stitched, strict=False):
            assert ((here, there) in edges) if jump else (there == here + 1 and not graph.last[here])


def test_more_room_gains_more_and_keeps_fewer_states():
    data, graph, made = crowd(60)
    found = [
        plan_with_capacity(data, graph, made, Plan(max_visits=most, pessimism=0), Rules())[1]
        for most in (0.01, 0.4, 1.0)
    ]
    assert found[0].mean_return < found[1].mean_return < found[2].mean_return
    assert found[0].states_kept > found[1].states_kept > found[2].states_kept


def test_with_room_for_all_a_walk_gains_at_least_what_the_plan_alone_does():
    data, graph, made = world(4)
    config = Plan(discount=0.95, predicted_rewards=False)
    alone = rebuild(Paths.of(data), graph, plan(data, graph, config)[0], made, Rules())[1]
    assert alone.accepted > 0
    assert plan_with_capacity(data, graph, made, config, Rules())[1].mean_return >= alone.mean_return


def test_without_a_jump_the_data_stays_as_it_is():
    data = random_data(np.random.default_rng(3), coarse=False)
    graph = graph_of(data, NeighbourSearch(k=4), -1e9)
    assert len(graph.edges) == 0
    paths, summary = plan_with_capacity(data, graph, scorer(data), Plan(max_visits=0.4), Rules())
    np.testing.assert_array_equal(paths.node, np.arange(len(data.observations)))
    assert (summary.proposed, summary.accepted, summary.states_kept) == (0, 0, 1.0)


def test_the_same_seed_gives_the_same_paths():
    data, graph, made = world(7)
    config = Plan(discount=0.95, max_visits=0.4)
    one, other = (plan_with_capacity(data, graph, made, config, Rules())[0] for _ in range(2))
    np.testing.assert_array_equal(one.node, other.node)
    np.testing.assert_array_equal(one.jumps.reward, other.jumps.reward)


def test_all_are_planned_in_parts_and_who_was_not_rebuilt_in_two_more(monkeypatch):
    data, graph, made = world(4)
    walked = []

    def walk(*given):
        walked.append(given[-1].tolist())
        return real(*given)

    real = capacity._walk_around
    monkeypatch.setattr(capacity, "_walk_around", walk)
    paths, _ = plan_with_capacity(data, graph, made, Plan(discount=0.95, predicted_rewards=False, parts=3), Rules())
    *first, one, other = walked
    assert len(first) == 3
    assert sorted(number for part in first for number in part) == list(range(len(data)))
    assert {*one, *other} >= {*np.flatnonzero(count_jumps(paths) == 0)}
    assert len(one) + len(other) < len(data)


def test_every_action_at_a_node_has_its_value():
    data, graph, _ = world(2)
    problem = Problem.of(data, graph, Plan(discount=0.95))
    solution = solve(problem, Plan(discount=0.95))
    step, jump = problem.step_values(solution.values), problem.jump_values(solution.values)
    nodes = np.flatnonzero(~graph.last)
    for node, row in zip(nodes, ActionValues.of(problem, solution.values, graph.offsets).at(nodes), strict=True):
        jumps = jump[graph.offsets[node] : graph.offsets[node + 1]]
        assert row[0] == pytest.approx(step[node], abs=2 * problem.precision)
        np.testing.assert_array_equal(row[1 : 1 + len(jumps)], jumps)
        assert (row[1 + len(jumps) :] == -np.inf).all()
        chosen = solution.choice[node]
        assert row.max() == pytest.approx(step[node] if chosen < 0 else jump[chosen], abs=2 * problem.precision)


def test_a_queue_is_served_in_order():
    assert rank_among_equals(np.array([5, 3, 5, 5, 3])).tolist() == [0, 0, 1, 2, 1]
    assert rank_among_equals(np.array([], int)).tolist() == []


def crowd(episodes: int, length: int = 8) -> tuple[Trajectories, StitchGraph, EdgeScorer]:
    """Many poor trajectories that can all jump to the second-best line, from which one jump leads to the best one.

    A line's place is its reward, so that every step pays what the steps beside it do.
    """
    line = np.concatenate((np.zeros(episodes), [5.0, 5.0, 10.0, 10.0]))
    states = np.stack(np.broadcast_arrays(np.arange(length + 1.0), 10 * line[:, None]), 2)
    data = logged(states, rewards=np.repeat(line[:, None], length, 1))
    second, best = episodes * (length + 1), (episodes + 2) * (length + 1)
    jumps = {(at * (length + 1) + 1, second + 2): 0.0 for at in range(episodes)}
    jumps |= {(second + 3, best + 4): 5.0}
    return data, graph_on(data, jumps, k=1), scorer(data)


@pytest.mark.parametrize("parts", [1, 3, 10])
@pytest.mark.parametrize(("episodes", "share"), [(60, 0.0), (60, 0.5), (20, 0.0)])
def test_no_jump_is_made_by_more_trajectories_than_allowed(parts, episodes, share) -> None:
    data, graph, made = crowd(episodes)
    paths, summary = plan_with_capacity(data, graph, made, Plan(max_visits=share, parts=parts, pessimism=0), Rules())
    capacity = most_visits(share, len(data))
    uses, most_uses = count_uses(paths, graph), max(2, capacity // 5)
    assert uses[graph.edges.source >= episodes * 9].max() == most_uses
    assert uses.max() <= most_uses
    assert most_uses <= summary.accepted <= capacity
    assert summary.accepted <= summary.proposed <= episodes
    assert count_visits(paths).max() <= capacity


@pytest.mark.parametrize(("episodes", "most"), [(5, 3), (96, 10), (400, 21)])
def test_a_state_is_visited_by_at_least_the_square_root_of_all(episodes, most, caplog) -> None:
    caplog.set_level("INFO", "trajstitch")
    data, graph, made = crowd(episodes)
    assert math.ceil(len(data) ** 0.5) == most
    paths, _ = plan_with_capacity(data, graph, made, Plan(max_visits=0.0, pessimism=0), Rules())
    assert f"at most {most} trajectories may visit a state" in caplog.text
    assert count_visits(paths).max() == most


def test_where_nothing_has_room_a_walk_takes_the_logged_step() -> None:
    """In another's episode, in its own, and at a last state, where there is no step to take."""
    graph = graph_on(logged(np.arange(8.0).reshape(2, 4, 1)), {(0, 5): 1.0, (5, 2): 1.0})
    values = ActionValues(np.where(graph.last, -np.inf, 0.0), np.ones(2), graph.offsets)
    for standing, edge, onward in ((5, -1, 6), (1, -1, 2), (7, -1, -1)):
        choose = BestFreeAction(graph, values, Room(np.zeros(8, int), np.zeros(2, np.int32)))
        found = choose(np.array([0]), np.array([0]), np.array([standing]), Visited(1, 10))
        assert [one.tolist() for one in found] == [[edge], [onward]]
    choose = BestFreeAction(graph, values, Room(np.zeros(8, int), np.ones(2, np.int32)))
    found = choose(np.array([0]), np.array([0]), np.array([5]), Visited(1, 10))
    assert [one.tolist() for one in found] == [[1], [2]]  # its own states are never full for it
