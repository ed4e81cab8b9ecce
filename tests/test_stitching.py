"""From data to better data in one call."""

from dataclasses import replace

import numpy as np
import pytest

from point import collect
from trajstitch.data.normalise import rescale_for_float32
from trajstitch.models.dynamics import Dynamics
from trajstitch.models.forward import ForwardDynamics
from trajstitch.models.inverse import InverseDynamics
from trajstitch.models.reward import RegressionReward
from trajstitch.models.value import TwinValue
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.jump_tests import Consistency, Likelihood
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.pipeline import stitch
from trajstitch.stitching.planning import Plan

SMALL = StitchConfig(
    tests={
        "likelihood": Likelihood(
            Dynamics(members=2, keep=2, hidden=(16,), learning_rate=3e-3, steps=500, patience=500), margin=4.0
        ),
        "consistency": Consistency(ForwardDynamics(members=2, hidden=(16,), steps=500), limit=0.5),
    },
    inverse=InverseDynamics(hidden=(16,), steps=500, learning_rate=3e-3),
    reward=RegressionReward(hidden=(16,), steps=500, learning_rate=3e-3),
    neighbours=NeighbourSearch(k=8),
    rules=Rules(threshold=0.05),
    plan=Plan(discount=0.95),
)
GREEDY = replace(
    SMALL,
    plan=None,
    passes=2,
    value=TwinValue(hidden=(16,), steps=500, discount=0.95, warm_steps=500, target_rate=0.05),
)


@pytest.fixture(scope="module")
def data():
    return collect(episodes=40, length=30)


@pytest.mark.parametrize("config", [SMALL, GREEDY], ids=["plan", "greedy"])
def test_returns_rise_by_steps_that_are_possible(data, config):
    better = stitch(data, config)
    assert better.returns.mean() > data.returns.mean()
    assert (better.returns >= data.returns - 1e-3).all()
    origin = better.provenance
    assert origin is not None
    assert 0 < origin.stitched.sum() < better.steps
    rows = better.state_rows
    # The point moves by a tenth of its action, give or take its noise: so must the jumps.
    miss = better.observations[rows + 1] - better.observations[rows] - 0.1 * better.actions
    assert np.median(np.linalg.norm(miss[origin.stitched], axis=1)) < 0.03
    logged = ~origin.stitched
    source = data.first_rows[origin.source_episode] + origin.source_step
    np.testing.assert_array_equal(better.observations[rows], data.observations[source])
    np.testing.assert_array_equal(better.observations[rows + 1][logged], data.observations[source + 1][logged])
    assert better.lengths.max() <= data.lengths.max()


@pytest.mark.parametrize(("unit", "origin"), [(1, 5e6), (1e-7, 0), (1e-3, -40)])
def test_states_far_from_zero_or_in_tiny_units_are_stitched_as_well(data, unit, origin):
    moved = replace(data, observations=unit * data.observations.astype(np.float64) + origin)
    better, usual = stitch(moved, SMALL), stitch(data, SMALL)
    gain, expected = (made.returns.mean() - data.returns.mean() for made in (better, usual))
    assert gain > 0.7 * expected
    assert better.observations.dtype == np.float64
    assert better.provenance is not None
    source = moved.first_rows[better.provenance.source_episode] + better.provenance.source_step
    np.testing.assert_array_equal(better.observations[better.state_rows], moved.observations[source])


def test_states_in_plain_sight_are_taken_as_they_are(data):
    assert rescale_for_float32(data) is data
    constant = np.full(len(data.observations), 5e6) + np.random.default_rng(0).choice((0, 1e-9), len(data.observations))
    noisy = replace(data, observations=np.column_stack((data.observations, constant)))
    assert rescale_for_float32(noisy) is noisy  # it varies by rounding alone
    time = np.linspace(1.7e9, 1.7e9 + 1e4, len(data.observations))
    seen = rescale_for_float32(replace(data, observations=np.column_stack((data.observations, time))))
    np.testing.assert_array_equal(seen.observations[:, :-1], data.observations)
    np.testing.assert_allclose(seen.observations[:, -1], time - time.mean(), atol=1e-3)


def test_one_seed_gives_the_same_bits(data):
    assert stitch(data, SMALL, seed=3).equals(stitch(data, SMALL, seed=3))


def test_noise_comes_back_as_it_was(data, caplog):
    random = np.random.default_rng(0)
    noise = replace(data, actions=random.uniform(-1, 1, data.actions.shape).astype(np.float32))
    assert stitch(noise, SMALL).equals(noise)
    assert "no better than their baseline on held-out steps: inverse dynamics" in caplog.text
