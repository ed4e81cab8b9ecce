"""The graph is the same however its making is divided, with and without a forward model, in memory and in a file."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.stitching import graph as graphs
from trajstitch.stitching.graph import Models, Reach, StitchGraph, build
from trajstitch.stitching.neighbours import NeighbourSearch
from worlds import models, random_data

NEAR = NeighbourSearch(k=6)


def same_graph(a: StitchGraph, b: StitchGraph) -> bool:
    return a.reach == b.reach and all(
        np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        for one, other in zip(
            (*vars(a.edges).values(), *vars(a.near).values(), a.logged, a.by_successor, a.by_neighbour, a.terminal),
            (*vars(b.edges).values(), *vars(b.near).values(), b.logged, b.by_successor, b.by_neighbour, b.terminal),
            strict=True,
        )
    )


def without_forward() -> Models:
    return replace(models(), forward=None)


@pytest.mark.parametrize("given", [models, without_forward])
def test_blocks_do_not_change_the_graph(given, monkeypatch):
    data = random_data(np.random.default_rng(1), coarse=True)
    whole = build(data, given(), NEAR, Reach(margin=2.0))
    assert len(whole.edges) > 20
    for rows, candidates in ((7, 2**20), (1000, 30), (1, 1)):
        monkeypatch.setattr(graphs, "BLOCK", rows)
        monkeypatch.setattr(graphs, "CANDIDATES", candidates)
        assert same_graph(build(data, given(), NEAR, Reach(margin=2.0)), whole)


def test_no_block_has_more_candidates_than_allowed(monkeypatch):
    data = random_data(np.random.default_rng(1), coarse=True)
    monkeypatch.setattr(graphs, "CANDIDATES", 50)
    asked = []
    candidates = graphs.candidates
    monkeypatch.setattr(graphs, "candidates", lambda *given: asked.append(candidates(*given)) or asked[-1])
    build(data, models(), NEAR, Reach(margin=None))
    assert len(asked) > 1
    assert max(len(pairs[0]) for pairs in asked) <= 50


@pytest.mark.parametrize("given", [models, without_forward])
def test_graph_is_saved_and_loaded(given, tmp_path):
    made = build(random_data(np.random.default_rng(2), coarse=False), given(), NEAR, Reach(margin=3.0))
    made.save(tmp_path / "graph.safetensors")
    found = StitchGraph.load(tmp_path / "graph.safetensors")
    assert same_graph(found, made)


def test_words_that_no_model_said_take_no_memory():
    made = build(random_data(np.random.default_rng(2), coarse=False), without_forward(), NEAR, Reach(margin=None))
    assert np.isnan(made.edges.reward).all()
    assert (
        sum(array.base.nbytes for array in (made.edges.reward, made.edges.consistency) if array.base is not None) < 64
    )
