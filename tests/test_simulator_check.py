"""The simulator check: logged steps are exact, invented ones are not, and errors are ranked by a score."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.evaluation.simulator_check import _by, _correlation, check_jumps


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return collect(Collect("halfcheetah/medium", transitions=300, processes=1))


def all_jumps(data: Trajectories) -> Trajectories:
    origin = Provenance.logged(data.offsets)
    return replace(data, provenance=replace(origin, stitched=np.ones(data.steps, bool)))


def test_logged_steps_claimed_as_jumps_are_exact(data):
    check = check_jumps(data, all_jumps(data), most=200)
    assert len(check.error) == 200
    assert check.ratio.max() < 1e-6
    assert np.abs(check.reward_error).max() < 1e-6


def test_jumps_with_the_wrong_action_and_reward_do_not(data):
    wrong = replace(all_jumps(data), actions=-data.actions, rewards=data.rewards + 1)
    summary = check_jumps(data, wrong, most=200).summary()
    assert summary["median_ratio"] > 0.1
    assert summary["mean_reward_error"] > 0.3


def test_no_jumps_give_no_check(data):
    nothing = replace(data, provenance=Provenance.logged(data.offsets))
    assert check_jumps(data, nothing).summary() == {"steps": 0}


def test_bins_and_rank_correlation_follow_the_score():
    scale = np.linspace(0.01, 0.5, 50)
    rows = _by(scale, scale**2, (0.0, 0.1, np.inf))
    assert [row["edges"] for row in rows] == [10, 40]
    assert rows[0]["median_ratio"] < rows[1]["median_ratio"]
    assert _correlation(scale, scale**2) == pytest.approx(1.0)
    assert _correlation(scale, np.ones(50)) is None
