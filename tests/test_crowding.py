"""A plan for all trajectories together keeps its states from being crowded, and is a plan for each where none is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.crowding import admitted, spread, visits
from trajstitch.graph import Judge, Reach, build
from trajstitch.neighbours import Near
from trajstitch.passes import Rules, rebuild
from trajstitch.paths import Paths
from trajstitch.plan import Plan, plan
from worlds import models, random_data


def world(seed, coarse=False):
    data = random_data(np.random.default_rng(seed), coarse=coarse)
    return data, build(data, models(), Near(k=4), Reach(20.0)), Judge(models(), data.observations)


@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_no_state_is_crowded_and_every_change_is_a_gain(seed, coarse, most):
    data, graph, judge = world(seed, coarse)
    paths, summary = spread(data, graph, judge, Plan(discount=0.95, pessimism=0, most_visits=most), Rules())
    assert visits(paths).max() <= most
    changed = paths.returns != data.returns
    old = data.returns.astype(np.float64)
    assert (paths.returns >= old + 0.1 * np.abs(old) - 1e-4)[changed].all()
    assert summary.accepted >= changed.sum()

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


def test_more_room_gains_more_and_none_is_asked_for_gives_the_plan_itself():
    data, graph, judge = world(4)
    alone, of_plan = rebuild(Paths.of(data), graph, plan(data, graph, Plan(discount=0.95))[0], judge, Rules())
    free, of_free = spread(data, graph, judge, Plan(discount=0.95), Rules())
    assert of_free == of_plan
    for name in ("node", "kind", "offsets", "terminated"):
        np.testing.assert_array_equal(getattr(free, name), getattr(alone, name))
    room = [spread(data, graph, judge, Plan(discount=0.95, most_visits=most), Rules())[1] for most in (1, 2, 100)]
    assert of_plan.accepted > 0
    assert room[0].accepted < room[2].accepted
    assert room[2].mean_return >= of_plan.mean_return
    assert room[0].states_kept >= room[2].states_kept


def test_the_same_seed_gives_the_same_paths():
    data, graph, judge = world(7)
    config = Plan(discount=0.95, most_visits=2)
    one, other = (spread(data, graph, judge, config, Rules())[0] for _ in range(2))
    np.testing.assert_array_equal(one.node, other.node)
    np.testing.assert_array_equal(one.jumps.reward, other.jumps.reward)


@pytest.mark.parametrize(("most", "expected"), [(1, [False] * 3), (2, [False, True, False]), (3, [True, True, False])])
def test_the_highest_gain_is_admitted_first(most, expected):
    """Walks 0 to 2 want node 7, where walk 3 stays; walk 2 wants the full node 8 besides."""
    data = random_data(np.random.default_rng(0), coarse=False)
    new = replace(
        Paths.of(data),
        node=np.array([0, 7, 2, 7, 4, 7, 8, 6, 7, 8, 9], np.int32),
        kind=np.zeros(7, np.int32),
        offsets=np.array([0, 1, 2, 4, 7]),
    )
    load = np.ones(len(data.observations), int)
    load[8] = most
    episode = np.minimum(np.arange(len(load)) // 2, 3)
    wanting, gain = np.array([True, True, True, False]), np.array([1.0, 2.0, 3.0, 0.0])
    assert admitted(new, episode, wanting, gain, load, most).tolist() == [*expected, False]
