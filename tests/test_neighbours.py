"""Every exact engine equals brute force to the last index; the approximate one says how much it misses."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.errors import InputError
from trajstitch.stitching.neighbours import NeighbourSearch, alike, find_neighbours, squared_distance

ENGINES = ("tree", "flat", "accelerator")


def brute_force(states: np.ndarray, group: np.ndarray, near: NeighbourSearch) -> list[list[int]]:
    found = []
    for row in range(len(states)):
        far = zip(squared_distance(states[row], states).tolist(), range(len(states)), strict=True)
        far = sorted(pair for pair in far if group[pair[1]] != group[row])
        if near.radius is not None:
            far = [pair for pair in far if pair[0] <= float(near.radius) ** 2]
        found.append([other for _, other in far[: near.k]])
    return found


def listed(result) -> list[list[int]]:
    return [list(result.index[a:b]) for a, b in zip(result.offsets[:-1], result.offsets[1:], strict=True)]


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_exact_engines_equal_brute_force_with_ties_and_duplicates(engine, data):
    rows = data.draw(st.sampled_from((2, 24)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    # A coarse grid makes equal distances and equal states the rule.
    states = random.integers(-2, 3, (rows, 2)).astype(np.float32) * np.float32(0.1)
    group = np.sort(random.integers(0, 4, rows))
    near = NeighbourSearch(
        k=data.draw(st.sampled_from((None, 1, 3))), radius=data.draw(st.sampled_from((0.15, 0.25))), method=engine
    )
    assert listed(find_neighbours(states, group, near)) == brute_force(states, group, near)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.data())
@settings(max_examples=15, deadline=None)
def test_of_many_copies_those_count_that_are_among_the_first(engine, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    rows, places = data.draw(st.sampled_from(((60, 1), (60, 2), (60, 9), (60, 10_000))))
    states = random.integers(0, places, rows).astype(np.float32)[:, None] * np.array((0.1, -0.3), np.float32)
    group = random.integers(0, 9, rows) // data.draw(st.sampled_from((1, 7)))  # of some groups most of the copies are
    near = NeighbourSearch(k=data.draw(st.sampled_from((1, 2, 5))), method=engine)
    assert listed(find_neighbours(states, group, near)) == brute_force(states, group, near)
    assert listed(find_neighbours(states, group, near, 7)) == brute_force(states, group, near)[:7]


@pytest.mark.parametrize("engine", [*ENGINES, "approximate"])
def test_standing_still_costs_no_more_than_walking(engine):
    states = np.random.default_rng(0).normal(size=(30_000, 3)).astype(np.float32)
    states[::3] = 1
    group = np.arange(30_000) // 100
    start = time.monotonic()
    found = find_neighbours(states, group, NeighbourSearch(k=4, method=engine))
    assert time.monotonic() - start < 40  # searched one by one, copies would take 10,000² comparisons several times
    assert listed(found)[0] == [102, 105, 108, 111]
    assert listed(found)[-3] == [0, 3, 6, 9]


def test_marks_that_two_states_share_do_not_make_them_one(monkeypatch):
    states = np.array([[1, 2], [2, 1], [1, 2], [5, 6]], np.float32)
    assert alike(states[1:]) is None

    class Constant:
        def integers(self, low, high, size, dtype):
            return np.full(size, 7, dtype)  # so that the order of columns makes no difference

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Constant())
    found = alike(states)
    assert found is not None
    assert found[0] == found[2]
    assert len(set(found)) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_exact_engines_survive_rounding(engine):
    random = np.random.default_rng(0)
    states = (1000 + random.normal(size=(300, 5)) * 1e-2).astype(np.float32)  # a product of floats loses it all
    group = np.repeat(np.arange(10), 30)
    near = NeighbourSearch(k=4, method=engine)
    assert listed(find_neighbours(states, group, near)) == brute_force(states, group, near)


def test_the_accelerator_works_in_tiles_and_groups(monkeypatch):
    random = np.random.default_rng(0)
    states = random.normal(size=(3001, 3)).astype(np.float32)
    group = np.arange(3001) // 50
    expected = find_neighbours(states, group, NeighbourSearch(k=3, method="tree"))
    monkeypatch.setattr("trajstitch.stitching.neighbours.TILE", 1024)
    assert listed(find_neighbours(states, group, NeighbourSearch(k=3, method="accelerator"))) == listed(expected)


def test_own_episode_never_counts_even_when_it_crowds_out_all_others():
    states = np.concatenate((np.linspace(0, 0.1, 200), [5.0, 6.0]))[:, None].astype(np.float32)
    group = np.array([0] * 200 + [1, 1])
    found = find_neighbours(states, group, NeighbourSearch(k=2, method="tree"))
    assert listed(found)[:200] == [[200, 201]] * 200


def test_approximate_index_keeps_its_recall_and_says_so(caplog):
    caplog.set_level("INFO", "trajstitch")
    random = np.random.default_rng(0)
    states = random.normal(size=(4000, 6)).astype(np.float32)
    group = np.repeat(np.arange(40), 100)
    exact = find_neighbours(states, group, NeighbourSearch(k=8, method="tree"))
    found = find_neighbours(states, group, NeighbourSearch(k=8, method="approximate"))
    shared = [len(set(a) & set(b)) / len(a) for a, b in zip(listed(exact), listed(found), strict=True)]
    assert np.mean(shared) > 0.985
    assert "recall" in caplog.text


def test_pairs_of_several_rows():
    states = np.arange(6, dtype=np.float32)[:, None]
    found = find_neighbours(states, np.array([0, 1, 0, 1, 0, 1]), NeighbourSearch(k=2, method="tree"))
    owner, near = found.of(np.array([3, 0]))
    assert owner.tolist() == [0, 0, 1, 1]
    assert near.tolist() == [2, 4, 1, 3]


def test_nonsense_is_refused():
    with pytest.raises(InputError, match="`k`, `radius` or both"):
        NeighbourSearch(k=None)
    with pytest.raises(InputError, match="row 1 is not finite"):
        find_neighbours(np.array([[0.0], [np.nan]], np.float32), np.arange(2))
