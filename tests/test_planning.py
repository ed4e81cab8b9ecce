"""Planning solves Bellman's equation on the graph, as plain value iteration does in the long run."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_data import graph_of, jump_tests, models, random_data, scorer
from small_graphs import graph_on, logged
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.learning.bounds import check_bounds
from trajstitch.models.reward import RegressionReward, fit_reward
from trajstitch.stitching import planning
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.graph import EdgeScorer, Models, StitchGraph
from trajstitch.stitching.greedy import rebuild
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.planning import Plan, Problem, evaluate, plan, slope, solve
from trajstitch.stitching.rewards import PlanRewards


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


@pytest.mark.parametrize(("more", "taken"), [(0.0, False), (5e-5, False), (2e-4, True)])
def test_a_jump_that_gains_no_more_than_rounding_is_not_planned(more, taken):
    """Rounding is a ten-millionth of the largest reward, in each of the 1 / (1 - γ) that a value is a sum of."""
    data = logged(
        np.array([[[0.0], [1.0]], [[2.0], [3.0]]]), rewards=np.array([[1.0], [0.0]]), terminated=np.ones(2, bool)
    )
    config = Plan(discount=0.999, pessimism=0, predicted_rewards=False)
    decisions, _ = plan(data, graph_on(data, {(0, 3): 1.0 + more}), config)
    assert (decisions.choice[0] >= 0) == taken


def test_the_default_plan_is_within_its_bounds():
    check_bounds(Plan())


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_the_best_jump_of_each_node_is_found_in_blocks_of_any_size(counts, seed, block):
    random, nodes = np.random.default_rng(seed), len(counts)
    source = np.repeat(np.arange(nodes), counts)
    problem = Problem(
        step_reward=np.zeros(nodes),
        last=np.zeros(nodes, bool),
        terminal=np.zeros(nodes, bool),
        neighbours=Neighbours(np.zeros(nodes + 1, int), np.zeros(0, int)),
        source=source,
        target=random.integers(0, nodes, len(source)),
        gain=random.integers(0, 3, len(source)).astype(float),
        discount=0.5,
        scale=1.0,
    )
    values, least = 2.0 * random.integers(0, 3, nodes), random.integers(-1, 4, nodes) + 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "BLOCK", block)
        jumps = planning._Jumps.of(problem)
    found = {}
    for part in jumps.blocks:
        found |= dict(zip(*jumps.better(values, least, part), strict=True))
    expected = {}
    for node in range(nodes):
        jump_values = {
            edge: problem.gain[edge] + values[problem.target[edge]] / 2 for edge in np.flatnonzero(source == node)
        }
        if jump_values and max(jump_values.values()) > least[node]:
            expected[node] = max(jump_values, key=jump_values.__getitem__)
    assert found == expected


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


# What a plan counts with


def along_a_line(rewards: np.ndarray) -> Trajectories:
    """Episodes that go along one line, nearly side by side, with rewards (episode, time)."""
    episodes, length = rewards.shape
    states = np.zeros((episodes, length + 1, 2))
    states[..., 0] = np.arange(length + 1)
    states[..., 1] = 1e-3 * np.random.default_rng(0).normal(size=(episodes, length + 1))
    return logged(states, rewards=rewards, terminated=np.ones(episodes, bool))


def to_each_successor(data: Trajectories, length: int) -> list[tuple[int, int]]:
    """Jumps from each state to the next one of five other episodes."""
    random, episodes = np.random.default_rng(1), len(data)
    return [
        (at * (length + 1) + time, other * (length + 1) + time + 1)
        for at in range(episodes)
        for time in range(length)
        for other in random.permutation(episodes)[:5].tolist()
        if other != at
    ]


@pytest.fixture(scope="module")
def lucky() -> tuple[Trajectories, StitchGraph, EdgeScorer]:
    """Fifty times the same ten steps, each paid 0.5 and noise."""
    data = along_a_line(0.5 + np.random.default_rng(2).normal(size=(50, 10)))
    config = RegressionReward(hidden=(16,), steps=300, learning_rate=1e-3)
    fitted = Models(models().inverse, fit_reward(config, data, jax.random.key(0))[0], models().tests)
    made = EdgeScorer(fitted, jump_tests(), data)
    pairs = to_each_successor(data, 10)
    source, target = (np.array(part, np.int32) for part in zip(*pairs, strict=True))
    predicted = made.rewards(source, target, np.zeros((len(pairs), 1), np.float32)).min(0)
    return data, graph_on(data, dict(zip(pairs, predicted.tolist(), strict=True)), k=5), made


def test_noise_in_rewards_is_not_bought(lucky) -> None:
    """All ways are the same. By the logged rewards a plan promises the luckiest, by predicted ones what is usual."""
    data, graph, made = lucky
    config = Plan(discount=0.99)
    usual = 0.5 * (1 - 0.99**10) / (1 - 0.99)
    promised = [
        solve(Problem.of(data, graph, config, rewards), config).values[data.first_rows].mean()
        for rewards in (None, PlanRewards.of(data, graph, made))
    ]
    assert promised[0] > 2 * usual
    assert abs(promised[1] - usual) < 0.15 * (promised[0] - usual)


def test_a_lucky_episode_is_not_preferred(lucky) -> None:
    data, graph, made = lucky
    rewards = PlanRewards.of(data, graph, made)
    found = Paths.of(data).returns_by(rewards.logged)
    assert found.std() < 0.3 * data.returns.std()
    assert abs(np.corrcoef(found, data.returns)[0, 1]) < 0.5


def test_nothing_follows_a_stop() -> None:
    """After a reward that is paid once, the plan counts nothing more: neither the steps after it nor another one."""
    rewards = np.zeros((12, 6))
    rewards[0, 2] = rewards[1, 4] = 1
    data = along_a_line(rewards)
    goal, other = 3, 7 + 4  # after the reward of the first episode; before that of the second
    graph = graph_on(data, {(goal, other): 0.0})
    plain = Problem.of(data, graph, Plan(discount=0.9))
    stopped = Problem.of(data, graph, Plan(discount=0.9), PlanRewards.of(data, graph, scorer(data)))
    assert solve(plain, Plan(discount=0.9)).values[2] == pytest.approx(1 + 0.9 * 0.9 * 1)
    found = solve(stopped, Plan(discount=0.9))
    assert found.values[2] == pytest.approx(1)
    assert found.values[goal] == 0
    assert found.choice[goal] == -1
