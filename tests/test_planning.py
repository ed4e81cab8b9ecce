"""Planning solves Bellman's equation on the graph, as plain value iteration does in the long run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_data import graph_of, random_data, scorer
from trajstitch.errors import InputError
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.greedy import rebuild
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.planning import Plan, Problem, evaluate, plan, slope


def value_iteration(data, graph, gain, discount, sweeps=400):
    """One state after the other, again and again."""
    reward = dict(zip(data.state_rows.tolist(), data.rewards.tolist(), strict=True))
    values = np.zeros(len(graph))
    for _ in range(sweeps):
        old = values.copy()
        for node in range(len(graph)):
            if graph.terminal[node]:
                values[node] = 0
            elif graph.last[node]:
                near = [n for n in graph.neighbours.of(np.array([node]))[1] if not graph.last[n]]
                values[node] = np.mean(old[near]) if near else old[~graph.last].mean()
            else:
                action_values = [reward[node] + discount * old[node + 1]]
                action_values += [
                    gain[edge] + discount * old[graph.edges.target[edge]]
                    for edge in range(graph.offsets[node], graph.offsets[node + 1])
                ]
                values[node] = max(action_values)
    return values


@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from((0.0, 0.3)))
@settings(max_examples=10, deadline=None)
def test_a_plan_equals_value_iteration(seed, coarse, pessimism):
    data = random_data(np.random.default_rng(seed), coarse=coarse)
    graph = graph_of(data, NeighbourSearch(k=3), 10.0)
    config = Plan(discount=0.9, pessimism=pessimism)
    decisions, values = plan(data, graph, config)
    assert graph.edges.reward is not None
    gain = graph.edges.reward - pessimism * slope(data, graph, 0.9) * graph.edges.scores["error"].astype(np.float64)
    expected = value_iteration(data, graph, gain, 0.9)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)

    reward = np.zeros(len(graph))
    reward[data.state_rows] = data.rewards
    for node in data.state_rows:
        step = reward[node] + 0.9 * expected[node + 1]
        edge = decisions.choice[node]
        if edge >= 0:
            assert graph.edges.source[edge] == node
        chosen = step if edge < 0 else gain[edge] + 0.9 * expected[graph.edges.target[edge]]
        assert chosen == pytest.approx(expected[node], abs=1e-3)


def test_a_policy_is_valued_along_its_pointers():
    # Two episodes, 0 1 2 and 3 4 5 6; 4 jumps to 0, 1 jumps to 4, which is a loop; 6 ends, and 2 is worth 7.
    problem = Problem(
        step_reward=np.array([5.0, 1.0, 0.0, 2.0, 0.5, 3.0, 0.0]),
        last=np.array([0, 0, 1, 0, 0, 0, 1], bool),
        terminal=np.array([0, 0, 0, 0, 0, 0, 1], bool),
        neighbours=Neighbours(np.zeros(8, int), np.zeros(0, int)),
        source=np.array([1, 4]),
        target=np.array([4, 0]),
        gain=np.array([-1.0, 10.0]),
        discount=0.9,
        scale=10.0,
    )
    after = np.array([0, 0, 7.0, 0, 0, 0, 0])
    loop = (10 + 0.9 * 5 + 0.81 * -1) / (1 - 0.9**3)  # from 4 on
    from_1 = -1 + 0.9 * loop
    found = evaluate(problem, np.array([-1, 0, -1, -1, 1, -1, -1]), after)
    np.testing.assert_allclose(found, [5 + 0.9 * from_1, from_1, 7, 2 + 0.9 * loop, loop, 3, 0])
    found = evaluate(problem, np.full(7, -1), after)
    along = [5 + 0.9 * (1 + 0.9 * 7), 1 + 0.9 * 7, 7, 2 + 0.9 * (0.5 + 0.9 * 3), 0.5 + 0.9 * 3, 3, 0]
    np.testing.assert_allclose(found, along)


def test_a_planned_walk_gains_what_it_promises():
    """Undiscounted and without a price, an accepted trajectory is the better one."""
    data = random_data(np.random.default_rng(4), coarse=False)
    graph = graph_of(data, NeighbourSearch(k=4), 20.0)
    decisions, _ = plan(data, graph, Plan(discount=0.95, pessimism=0))
    paths, summary = rebuild(Paths.of(data), graph, decisions, scorer(data), Rules())
    found = paths.trajectories()
    assert summary.accepted > 0
    assert summary.jumps > 0
    changed = found.returns != data.returns
    assert (found.returns > data.returns)[changed].all()


def test_a_high_price_leaves_the_data_alone():
    data = random_data(np.random.default_rng(4), coarse=False)
    graph = graph_of(data, NeighbourSearch(k=4), 20.0)
    decisions, _ = plan(data, graph, Plan(pessimism=1e9))
    assert (decisions.choice < 0).all()


def test_planning_without_a_forward_model_is_refused():
    data = random_data(np.random.default_rng(4), coarse=False)
    graph = graph_of(data, NeighbourSearch(k=4), 20.0, forward=False)
    with pytest.raises(InputError, match="forward model"):
        plan(data, graph, Plan())
