"""The fast engine returns what a direct reading of Algorithm 1 does: every step, flag and acceptance."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import PRNGKeyArray

from oracle import Oracle, Path
from random_data import graph_of, models, random_data, scorer
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.learning.networks import normaliser_of
from trajstitch.stitching import greedy as passes
from trajstitch.stitching.acceptance import Rules, propose
from trajstitch.stitching.diversify import SampleJumps, add_walks
from trajstitch.stitching.graph import EdgeScorer, StitchGraph, build_graph
from trajstitch.stitching.greedy import one_pass
from trajstitch.stitching.nearby import Nearby
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.walk import Walks


def tables(data: Trajectories, near: list[list[int]] | None = None) -> tuple[np.ndarray, ...]:
    """Every pair of nodes: its lowest and its mean log-likelihood, and its consistency.

    With each node's neighbours, the consistency is at least that of the logged steps nearby.
    """
    nodes = len(data.observations)
    source, target = (part.ravel().astype(np.int32) for part in np.indices((nodes, nodes)))
    made = scorer(data, margin=None)
    found = made.candidates(source, target)
    if near is not None:
        steps = data.state_rows.astype(np.int32)
        logged = made.score_logged(steps)
        error, length = (np.zeros(nodes, np.float32) for _ in range(2))
        error[steps], length[steps] = logged["error"], logged["length"]
        worst = np.array([error[[node, *near[node]]].max() for node in range(nodes)])
        usual = float(np.median(worst[length > 0] / length[length > 0]))
        unused = Neighbours(np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32))
        found = replace(found, nearby=Nearby(unused, np.zeros(nodes, bool), worst, usual))
    for name, test in made.tests.items():
        found = test.score(made.models.tests[name], found)
    names = ("log_likelihood", "mean_log_likelihood", "consistency")
    return tuple(found.scores[name].reshape(nodes, nodes) for name in names)


def nearest(data: Trajectories, near: NeighbourSearch) -> list[list[int]]:
    episode = np.repeat(np.arange(len(data)), data.lengths + 1)
    states = data.observations
    if near.standardise:
        states = np.asarray(normaliser_of(states).apply(jnp.asarray(states)))
    found = []
    for row, state in enumerate(states.astype(np.float64)):
        far = sorted(
            (float(np.square(state - other.astype(np.float64)).sum()), number)
            for number, other in enumerate(states)
            if episode[number] != episode[row]
        )
        if near.radius is not None:
            far = [pair for pair in far if pair[0] <= float(near.radius) ** 2]
        found.append([number for _, number in far[: near.k]])
    return found


def assert_same(found: Trajectories, expected: list[Path], data: Trajectories) -> None:
    assert found.lengths.tolist() == [len(path.steps) for path in expected]
    nodes = np.array([node for path in expected for node in path.nodes])
    steps = [step for path in expected for step in path.steps]
    np.testing.assert_array_equal(found.observations, data.observations[nodes])
    assert found.episode_terminated.tolist() == [path.terminated and bool(path.steps) for path in expected]
    assert found.episode_truncated.tolist() == [path.truncated and bool(path.steps) for path in expected]
    assert found.provenance is not None
    assert found.provenance.stitched.tolist() == [step.stitched for step in steps]
    source = data.first_rows[found.provenance.source_episode] + found.provenance.source_step
    assert source.tolist() == [step.source for step in steps]
    if steps:
        np.testing.assert_array_equal(found.actions, [step.action for step in steps])
        np.testing.assert_array_equal(found.rewards, np.array([step.reward for step in steps], np.float32))
        np.testing.assert_array_equal(found.provenance.margin, np.array([step.margin for step in steps], np.float32))
        np.testing.assert_array_equal(
            found.provenance.value_gain, np.array([step.value_gain for step in steps], np.float32)
        )


@dataclass
class Case:
    """A random data set, its rules and models, and the two ways to stitch it."""

    random: np.random.Generator
    data: Trajectories
    rules: Rules
    scorer: EdgeScorer
    graph: StitchGraph
    oracle: Oracle
    latents: PRNGKeyArray | None

    def synthesise(self, latents: PRNGKeyArray | None) -> Callable[[int, int], tuple]:
        """Return the oracle's source of actions and rewards."""
        nodes = len(self.data.observations)
        source, target = (part.ravel().astype(np.int32) for part in np.indices((nodes, nodes)))
        action, reward = self.scorer.synthesise(source, target, latents)
        return lambda u, w: (action[u * nodes + w], reward[u * nodes + w])

    def latents_of(self, number: int) -> PRNGKeyArray | None:
        return None if self.latents is None else jax.random.fold_in(self.latents, number)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    data = random_data(random, coarse=draw(st.booleans()))
    near = draw(
        st.sampled_from(
            (
                NeighbourSearch(k=4),
                NeighbourSearch(k=None, radius=1.0, standardise=False),
                NeighbourSearch(k=6, radius=1.5),
                NeighbourSearch(k=30, method="flat"),
            )
        )
    )
    neighbours = nearest(data, near)
    low, mean, consistency = tables(data, neighbours)
    limits = draw(st.sampled_from(((0.0, None), (3.0, None), (None, None), (3.0, float(np.median(consistency))))))
    rules = Rules(
        threshold=draw(st.sampled_from((0.1, 0.0, -5.0))),
        max_jumps=draw(st.sampled_from((None, None, 2))),
        horizon=draw(st.sampled_from((None, None, 5, 30))),
    )
    made = scorer(data, *limits)
    oracle = Oracle(
        data,
        neighbours,
        low,
        mean,
        consistency,
        limits[0],
        limits[1],
        rules.threshold,
        rules.max_jumps,
        rules.horizon or sorted(data.lengths.tolist())[-2],  # one long trajectory does not set it
    )
    key = jax.random.key(1) if draw(st.booleans()) else None
    graph = build_graph(data, made, near)
    return Case(random, data, rules, made.knowing(graph.neighbours, graph.logged), graph, oracle, key)


@given(cases())
@settings(max_examples=30, deadline=None)
def test_several_passes_equal_algorithm_1_step_by_step(case: Case):
    fast, slow = Paths.of(case.data), case.oracle.first_data()
    for number in range(4):
        values = np.round(case.random.normal(size=len(case.data.observations)), 1).astype(np.float32)
        latents = case.latents_of(number)
        fast, summary = one_pass(fast, case.graph, case.scorer, values.__getitem__, case.rules, latents)
        slow, accepted = case.oracle.one_pass(slow, values, case.synthesise(latents))
        assert summary.accepted == accepted
        assert_same(fast.trajectories(), slow, case.data)


@given(cases())
@settings(max_examples=30, deadline=None)
def test_diversifying_equals_its_rule_step_by_step(case: Case):
    fast, slow = Paths.of(case.data), case.oracle.first_data()
    rules = replace(case.rules, value_test=False)
    for number in range(3):
        key, latents = jax.random.fold_in(jax.random.key(2), number), case.latents_of(number)
        jumps, before = SampleJumps.of(case.graph, key), len(slow)
        fast, summary = add_walks(fast, case.graph, case.scorer, rules, key, latents)
        slow = case.oracle.diversified(
            slow, lambda *at, jumps=jumps: jumps.draw(*(np.array([part]) for part in at))[0], case.synthesise(latents)
        )
        assert summary.accepted == len(slow) - before
        assert_same(fast.trajectories(), slow, case.data)


def test_the_random_cases_do_stitch():
    """The properties above would hold of an engine and an oracle that both do nothing."""
    jumps = again = added = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        data = random_data(random, coarse=False)
        made = scorer(data, 3.0)
        stitch_graph = build_graph(data, made, NeighbourSearch(k=4))
        paths = Paths.of(data)
        for number in range(3):
            before = paths
            values = random.normal(size=len(data.observations)).astype(np.float32)
            paths, summary = one_pass(paths, stitch_graph, made, values.__getitem__, Rules(threshold=-5.0))
            jumps += summary.jumps
            again += summary.jumps if number and len(before.jumps) else 0
        added += add_walks(Paths.of(data), stitch_graph, made, Rules(value_test=False), jax.random.key(seed))[
            1
        ].accepted
    assert added > 30
    assert jumps > 100
    assert again > 50


def test_likelihoods_are_those_of_the_models():
    data = random_data(np.random.default_rng(0), coarse=False)
    low, mean, _ = tables(data)
    states = jnp.asarray(data.observations)
    with jax.default_matmul_precision("highest"):
        each = jax.vmap(lambda model: model.log_likelihood(states[:, None], states[None]))(models().tests["likelihood"])
    np.testing.assert_allclose(low, each.min(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mean, jax.nn.logsumexp(each, 0) - np.log(len(each)), rtol=1e-4, atol=1e-4)


@pytest.fixture
def graph() -> tuple[Trajectories, StitchGraph]:
    data = random_data(np.random.default_rng(5), coarse=False)
    return data, graph_of(data, NeighbourSearch(k=4), 3.0)


def test_a_pass_does_not_depend_on_how_many_edges_are_looked_at_together(monkeypatch):
    data = random_data(np.random.default_rng(6), coarse=True)
    stitch_graph, made = graph_of(data, NeighbourSearch(k=4), 3.0), scorer(data, 3.0)
    values = np.random.default_rng(6).integers(0, 3, len(data.observations)).astype(np.float32)  # many ties
    rules = Rules(threshold=-5.0)

    def two_passes() -> Paths:
        paths = Paths.of(data)
        for number in range(2):
            paths, summary = one_pass(paths, stitch_graph, made, np.roll(values, number).__getitem__, rules)
            assert summary.jumps > 0
        return paths

    whole = two_passes()
    monkeypatch.setattr(passes, "EDGES", 3)
    assert two_passes().trajectories().equals(whole.trajectories())


def test_a_pair_has_the_same_scores_alone_and_among_others(graph):
    data, expected = graph
    made = scorer(data, 3.0).knowing(expected.neighbours, expected.logged)
    for row in (0, len(expected.edges) // 2):
        edge = expected.edges.take(np.array([row]))
        replaced = {name: values[edge.source] for name, values in expected.logged.items()}
        alone, _ = made.edges(edge.source, edge.target, replaced)
        assert alone.arrays().keys() == edge.arrays().keys()
        assert all(np.array_equal(array, edge.arrays()[name]) for name, array in alone.arrays().items())


def test_latents_depend_on_pass_source_and_target_alone(graph):
    data, stitch_graph = graph
    made = scorer(data)
    source, target = stitch_graph.edges.source, stitch_graph.edges.target
    action, reward = made.synthesise(source, target, jax.random.key(0))
    alone = made.synthesise(source[5:6], target[5:6], jax.random.key(0))
    np.testing.assert_array_equal(alone[0], action[5:6])
    np.testing.assert_array_equal(alone[1], reward[5:6])
    other = made.synthesise(source, target, jax.random.fold_in(jax.random.key(0), 1))[0]
    assert not np.array_equal(other, action)
    plain = made.synthesise(source, target)[0]
    assert not np.array_equal(plain, action)
    np.testing.assert_array_equal(plain, stitch_graph.edges.action)


def test_float64_data_keep_their_type_and_logged_bits(graph):
    data = graph[0]
    data = replace(data, observations=data.observations.astype(np.float64), rewards=data.rewards.astype(np.float64))
    made = scorer(data)
    values = np.random.default_rng(0).normal(size=len(data.observations)).astype(np.float32)
    found = one_pass(Paths.of(data), graph[1], made, values.__getitem__, Rules(threshold=-5.0))[0].trajectories()
    assert found.observations.dtype == found.rewards.dtype == np.float64
    assert found.provenance is not None
    untouched = Paths.of(data).trajectories()
    assert untouched.equals(data)


@pytest.mark.parametrize(
    ("reward", "terminated", "accepted"),
    [(-1.0, False, False), (-1.0, True, True), (1.0, False, False)],
    ids=["costs, cut off sooner", "costs, ended sooner", "rewards, cut off sooner"],
)
def test_walk_that_is_only_cut_off_sooner_is_not_better(reward: float, terminated: bool, accepted: bool) -> None:
    """Six steps at one price each, or the first three of them."""
    data = replace(random_data(np.random.default_rng(1), coarse=False))
    data = data[np.flatnonzero(data.lengths >= 6)[:2]]
    data = replace(data, rewards=np.full(data.steps, reward, np.float32))
    paths = Paths.of(data)
    made, graph = scorer(data), graph_of(data, NeighbourSearch(k=4))
    decisions = passes.decide(paths, graph, made, lambda states: np.zeros(len(states), np.float32))
    first = paths.offsets[:-1] + np.arange(len(data))
    walks = Walks(
        node=np.concatenate([paths.node[at : at + 4] for at in first]),
        kind=np.concatenate([paths.kind[at : at + 3] for at in paths.offsets[:-1]]),
        edge=np.full(3 * len(data), -1),
        offsets=3 * np.arange(len(data) + 1),
        terminated=np.full(len(data), terminated),
        truncated=np.full(len(data), not terminated),
    )
    assert propose(paths, walks, decisions.chosen, made, Rules()).accepted.tolist() == [accepted] * len(data)


def test_what_was_stitched_before_stays_on_record() -> None:
    data = random_data(np.random.default_rng(2), coarse=False)
    origin = Provenance.logged(data.offsets)
    jumps = np.arange(data.steps) % 3 == 0
    origin = replace(origin, stitched=jumps, source_step=origin.source_step + 7, margin=np.where(jumps, 0.5, np.nan))
    again = Paths.of(replace(data, provenance=origin)).trajectories().provenance
    assert again is not None
    for name in ("source_episode", "source_step", "stitched", "margin", "value_gain", "predicted_reward"):
        np.testing.assert_array_equal(getattr(again, name), getattr(origin, name))
