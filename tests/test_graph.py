"""The graph is the same however its making is divided, with and without a forward model, in memory and in a file."""

import numpy as np
import pytest

from random_data import graph_of, random_data
from trajstitch.stitching import graph as graphs
from trajstitch.stitching.graph import StitchGraph, candidates
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch

NEAR = NeighbourSearch(k=6)


def arrays(graph: StitchGraph) -> dict[str, np.ndarray]:
    parts = {"edges": graph.edges.arrays(), "neighbours": vars(graph.neighbours), "logged": graph.logged}
    own = {name: getattr(graph, name) for name in ("episode", "last", "terminal", "by_successor", "by_neighbour")}
    return own | {f"{part}/{name}": array for part, found in parts.items() for name, array in found.items()}


def same_graph(a: StitchGraph, b: StitchGraph) -> bool:
    one, other = arrays(a), arrays(b)
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in one
    )


@pytest.mark.parametrize("seed", range(5))
def test_candidates_follow_a_near_state_or_are_near_the_next_one(seed):
    """Each pair once, with the rules that it is a candidate by, as a loop over all states finds them."""
    random = np.random.default_rng(seed)
    last = np.zeros(30, bool)
    last[[6, 7, 19, 29]] = True
    near = [random.permutation(30)[: random.integers(6)] for _ in range(30)]
    rules: dict[tuple[int, int], set[str]] = {}
    asked = np.sort(random.permutation(30)[:20])
    for node in asked.tolist():
        for other in near[node].tolist():
            if not last[other]:
                rules.setdefault((node, other + 1), set()).add("successor")
        for other in [] if last[node] else near[node + 1].tolist():
            rules.setdefault((node, other), set()).add("neighbour")
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in near])))
    neighbours = Neighbours(offsets, np.concatenate(near).astype(np.int32))
    source, target, by_successor, by_neighbour = candidates(neighbours, last, asked)
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == sorted(rules)
    assert by_successor.tolist() == ["successor" in rules[pair] for pair in sorted(rules)]
    assert by_neighbour.tolist() == ["neighbour" in rules[pair] for pair in sorted(rules)]
    assert {"successor", "neighbour"} in rules.values()


@pytest.mark.parametrize("forward", [True, False])
def test_blocks_do_not_change_the_graph(forward, monkeypatch):
    data = random_data(np.random.default_rng(1), coarse=True)
    whole = graph_of(data, NEAR, 2.0, forward=forward)
    assert len(whole.edges) > 20
    for rows, most in ((7, 2**20), (1000, 30), (1, 1)):
        monkeypatch.setattr(graphs, "BLOCK", rows)
        monkeypatch.setattr(graphs, "CANDIDATES", most)
        assert same_graph(graph_of(data, NEAR, 2.0, forward=forward), whole)


def test_no_block_has_more_candidates_than_allowed(monkeypatch):
    data = random_data(np.random.default_rng(1), coarse=True)
    monkeypatch.setattr(graphs, "CANDIDATES", 50)
    asked = []
    candidates = graphs.candidates
    monkeypatch.setattr(graphs, "candidates", lambda *given: asked.append(candidates(*given)) or asked[-1])
    graph_of(data, NEAR, None)
    assert len(asked) > 1
    assert max(len(pairs[0]) for pairs in asked) <= 50


@pytest.mark.parametrize("forward", [True, False])
def test_graph_is_saved_and_loaded(forward, tmp_path):
    made = graph_of(random_data(np.random.default_rng(2), coarse=False), NEAR, 3.0, forward=forward)
    made.save(tmp_path / "graph.safetensors")
    found = StitchGraph.load(tmp_path / "graph.safetensors")
    assert same_graph(found, made)


def test_scores_that_no_test_makes_take_no_memory():
    made = graph_of(random_data(np.random.default_rng(2), coarse=False), NEAR, None, forward=False)
    assert made.edges.reward is None
    assert made.edges.action is None
    assert made.edges.scores.keys() == {"log_likelihood", "mean_log_likelihood"}
