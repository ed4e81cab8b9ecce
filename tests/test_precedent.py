"""The precedent of a jump: a logged step that leads from near its source to near its target."""

import jax
import numpy as np
import pytest

from mazes import _crosses
from random_data import models, random_data
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.stitching.graph import EdgeScorer, Models, build_graph
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.precedent import NEAR, Precedent, Scale
from worlds import WORLDS


def scorer(data: Trajectories, limit: float | None = None, fixed: tuple[int, ...] = ()) -> EdgeScorer:
    roles = ColumnRoles.none(data.observation_size)
    roles.fixed[list(fixed)] = True
    test = Precedent(limit)
    model, _ = test.fit(data, jax.random.key(0), roles)
    return EdgeScorer(Models(models().inverse, models().reward, {"precedent": model}), {"precedent": test}, data)


def slowly(data: Trajectories, near: list[np.ndarray], scale: np.ndarray, source: int, target: int, own: bool) -> float:
    """The distance of the nearest logged step over the pair's length, one step at a time."""
    states = data.observations.astype(np.float64) * scale
    length = np.linalg.norm(states[target] - states[source])
    if length == 0:
        return np.nan
    starts = set(data.state_rows.tolist())
    looked = [*([source] if own else []), *near[source].tolist()]
    found = [
        max(np.linalg.norm(states[one] - states[source]), np.linalg.norm(states[one + 1] - states[target])) / length
        for one in looked
        if one in starts
    ]
    return float(min(found, default=np.inf))


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_a_slow_search(seed: int) -> None:
    data = random_data(np.random.default_rng(seed), coarse=False)
    made = scorer(data)
    graph = build_graph(data, made, NeighbourSearch(k=4))
    near = np.split(graph.neighbours.index, graph.neighbours.offsets[1:-1])
    scale = 1 / data.observations.astype(np.float64).std(0)
    logged = np.array([slowly(data, near, scale, row, row + 1, own=False) for row in data.state_rows])
    np.testing.assert_allclose(graph.logged["precedent"][data.state_rows], logged, rtol=1e-4)
    enough = max(NEAR, np.quantile(logged[~np.isnan(logged)], 0.1))
    pairs = zip(graph.edges.source.tolist(), graph.edges.target.tolist(), strict=True)
    jumps = np.array([slowly(data, near, scale, *pair, own=True) for pair in pairs]) / enough
    np.testing.assert_allclose(graph.edges.scores["precedent"], np.nan_to_num(jumps, nan=np.inf), rtol=1e-4)
    kept = build_graph(data, scorer(data, 1.0), NeighbourSearch(k=4)).edges
    assert 0 < len(kept) < len(graph.edges)
    assert (kept.scores["precedent"] <= 1).all()


def test_a_column_that_actions_do_not_control_does_not_count() -> None:
    data = random_data(np.random.default_rng(0), coarse=False)
    weight = scorer(data, fixed=(1,)).models.tests["precedent"].weight
    assert weight[0] > 0
    assert weight[1] == 0


def test_an_untrained_model_has_the_shapes_of_a_fitted_one() -> None:
    data = random_data(np.random.default_rng(0), coarse=False)
    fitted, untrained = scorer(data).models.tests["precedent"], Precedent().untrained(data, jax.random.key(0))
    assert isinstance(untrained, Scale)
    assert jax.tree.map(np.shape, fitted) == jax.tree.map(np.shape, untrained)


def test_fewer_jumps_lead_through_a_wall_that_no_model_has_seen() -> None:
    """In this maze a wall without thickness is at x = 0, and few logged steps run into it."""
    data = WORLDS["play-four-goals"].collect(2)
    shares = []
    for limit in (None, 1.0):
        edges = build_graph(data, scorer(data, limit, fixed=(2, 3)), NeighbourSearch(k=16)).edges
        start, end = (data.observations[nodes, :2] for nodes in (edges.source, edges.target))
        stopped = np.abs(start[:, 0] - end[:, 0]) > 0.6 * np.linalg.norm(start - end, axis=1)
        shares.append((_crosses(start, end) & stopped).mean())
    assert shares[0] > 0.005
    assert shares[1] < shares[0] / 2
