"""What a jump must pass: beyond what is usual on logged steps, by local evidence, within its context."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from random_data import jump_tests, models, random_data, scorer
from trajstitch.data.trajectories import Trajectories
from trajstitch.models.forward import ForwardEnsemble
from trajstitch.stitching.graph import EdgeScorer, build_graph
from trajstitch.stitching.jump_tests import Candidates, Consistency
from trajstitch.stitching.nearby import Nearby
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch

DATA = random_data(np.random.default_rng(0), coarse=False)
STEPS = DATA.state_rows.astype(np.int32)
ALL = np.arange(len(DATA.observations), dtype=np.int32)
ALONE = Neighbours(np.zeros(len(ALL) + 1, np.int64), np.zeros(0, np.int32))
"""No node has a neighbour."""


def ensemble(
    usual: float = 0.0, weight: tuple[float, float] = (1.0, 1.0), exogenous: tuple[float, float] = (0.0, 0.0)
) -> ForwardEnsemble:
    """The random ensemble, with other facts about it."""
    made: ForwardEnsemble = models().tests["consistency"]
    facts = (jnp.asarray(weight), jnp.asarray(exogenous), jnp.asarray(usual))
    return eqx.tree_at(lambda one: (one.weight, one.exogenous, one.usual), made, facts)


def jumps(source: np.ndarray | None = None, target: np.ndarray | None = None) -> Candidates:
    """Jumps from each logged state to a node of another episode."""
    source = STEPS if source is None else source
    target = np.roll(ALL, 13)[source] if target is None else target
    return scorer(DATA).candidates(source, target)


def scored(model: ForwardEnsemble, candidates: Candidates) -> dict[str, np.ndarray]:
    return Consistency().score(model, candidates).scores


def test_consistency_is_the_error_beyond_what_is_usual() -> None:
    own = scored(ensemble(), jumps())
    beyond = scored(ensemble(usual=1.5), jumps())
    expected = np.sqrt(np.maximum(np.square(own["consistency"]) - 1.5**2, 0))
    np.testing.assert_allclose(beyond["consistency"], expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(beyond["error"], own["error"])
    assert 0 < (beyond["consistency"] == 0).mean() < 1


def test_the_limit_is_on_what_is_beyond() -> None:
    scores = {"consistency": np.array([0.0, 0.1999, 0.2, 0.2001, 5.0], np.float32)}
    assert Consistency(limit=0.2).passes(scores, {}).tolist() == [True, True, True, False, False]
    assert Consistency(limit=None).passes(scores, {}).all()


def test_a_jump_may_be_no_surer_than_the_logged_steps_beside_it() -> None:
    """At a wall, logged steps do not go as predicted: where they missed, a jump may miss as well."""
    sure = scored(ensemble(usual=1e6), jumps())  # nothing is beyond what is usual
    assert (sure["consistency"] == 0).all()
    wall = np.zeros(len(ALL), np.float32)
    wall[STEPS[:5]] = 3.0
    found = scored(ensemble(usual=1e6), replace(jumps(), nearby=Nearby(ALONE, wall > 0, wall, usual=0.1)))
    assert (found["consistency"][:5] > 0.2).all()
    assert (found["consistency"][5:] == 0).all()


def test_what_happened_near_a_state_counts_there() -> None:
    neighbours = Neighbours(np.array([0, 1, 2, 3, 3]), np.array([1, 2, 0]))  # 0 sees 1, 1 sees 2, 2 sees 0, 3 nothing
    logged = {"error": np.array([0.1, 0.5, 0.2, np.nan]), "length": np.array([1.0, 1.0, 2.0, np.nan])}
    steps = np.array([True, True, True, False])
    found = Nearby.of(neighbours, steps, logged)
    assert found.error is not None
    np.testing.assert_allclose(found.error, [0.5, 0.5, 0.2, 0.0])
    assert found.usual == pytest.approx(0.5)
    assert Nearby.of(neighbours, steps).error is None


def test_an_exogenous_column_must_be_where_it_was_logged_next() -> None:
    """The second column takes its own course: only the value that was logged next is possible."""
    model = ensemble(weight=(1.0, 0.0), exogenous=(0.0, 1.0))
    ignoring = ensemble(weight=(1.0, 0.0))
    own = scored(model, jumps(STEPS, STEPS + 1))
    np.testing.assert_allclose(own["error"], scored(ignoring, jumps(STEPS, STEPS + 1))["error"], rtol=1e-5)
    std = np.asarray(model.members.observation.std[0])[1]
    found, without = scored(model, jumps())["error"], scored(ignoring, jumps())["error"]
    target = jumps().target
    apart = (DATA.observations[target, 1] - DATA.observations[STEPS + 1, 1]) / std
    np.testing.assert_allclose(np.square(found), np.square(without) + np.square(apart), rtol=1e-3, atol=1e-4)


def test_a_column_without_weight_does_not_count() -> None:
    both = scored(ensemble(), jumps())["error"]
    first, second = (scored(ensemble(weight=weight), jumps())["error"] for weight in ((1.0, 0.0), (0.0, 1.0)))
    assert (first > 0).any()
    assert (both >= np.maximum(first, second) - 1e-5).all()
    assert not np.allclose(both, first)


def graph_pairs(data: Trajectories, context: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    made = EdgeScorer(models(), jump_tests(margin=None), data, context)
    edges = build_graph(data.filled(), made, NeighbourSearch(k=6)).edges
    return edges.source, edges.target


def test_no_edge_leads_to_another_context() -> None:
    episode = np.repeat(np.arange(len(DATA)), DATA.lengths + 1)
    context = episode % 2
    source, target = graph_pairs(DATA)
    assert (context[source] != context[target]).any()
    source, target = graph_pairs(DATA, context)
    assert len(source)
    assert (context[source] == context[target]).all()


def test_neighbours_are_those_of_the_same_context() -> None:
    """A context with few trajectories still finds candidates among them."""
    episode = np.repeat(np.arange(len(DATA)), DATA.lengths + 1)
    context = (episode < 3).astype(np.int64)
    made = EdgeScorer(models(), jump_tests(margin=None), DATA, context)
    neighbours = build_graph(DATA, made, NeighbourSearch(k=6)).neighbours
    owner, near = neighbours.of(ALL)
    assert (context[owner] == context[near]).all()
    assert (episode[owner] != episode[near]).all()
    assert (np.diff(neighbours.offsets)[context == 0] > 0).all()


def test_no_edge_leads_to_a_state_that_was_not_recorded() -> None:
    rows = DATA.observations.copy()
    ends = (DATA.first_rows + DATA.lengths)[DATA.lengths > 0]
    rows[ends] = np.nan
    assert np.isin(graph_pairs(DATA)[1], ends).any()
    source, target = graph_pairs(replace(DATA, observations=rows))
    assert len(source)
    assert not np.isin(target, ends).any()


def test_what_was_logged_into_an_unrecorded_state_has_no_score() -> None:
    rows = DATA.observations.copy()
    ends = (DATA.first_rows + DATA.lengths)[DATA.lengths > 0]
    rows[ends] = np.nan
    found = scorer(replace(DATA, observations=rows)).score_logged(STEPS)
    unknown = np.isin(STEPS + 1, ends)
    assert found.keys() == {"mean_log_likelihood", "error", "length"}
    for values in found.values():
        assert np.isnan(values[unknown]).all()
        assert np.isfinite(values[~unknown]).all()
