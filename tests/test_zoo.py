"""Stitching on the zoo, end to end with small networks: what is claimed is true, and what can be gained is gained."""

from functools import cache

import numpy as np
import pytest

from trajstitch.data.trajectories import Trajectories
from trajstitch.models.forward import ForwardDynamics
from trajstitch.models.inverse import InverseDynamics
from trajstitch.models.reward import RegressionReward
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.jump_tests import Consistency
from trajstitch.stitching.pipeline import Stitched, StitchJob, stitch_together
from trajstitch.stitching.planning import Plan
from trajstitch.stitching.precedent import Precedent
from worlds import WORLDS

NETWORK = {"hidden": (32, 32), "steps": 1000, "learning_rate": 3e-3, "batch_size": 256}
BRIEF = StitchConfig(
    tests={"precedent": Precedent(), "consistency": Consistency(ForwardDynamics(members=2, patience=1000, **NETWORK))},
    inverse=InverseDynamics(**NETWORK),
    reward=RegressionReward(**NETWORK),
    plan=Plan(max_visits=0.025),
)
CHANGED = ("two-leg", "two-leg-steps", "sparse-goal", "sparse-once", "noisy-reward-0.6", "payload-tiny-unit", "costs")
UNCHANGED = {
    "hidden-luck": "no better than their baseline on held-out steps: reward",
    "hidden-place": "no better than their baseline on held-out steps: inverse dynamics, reward, forward dynamics",
    "exogenous": "column 1 moves by chance, not by actions",
    "delayed": "episodes terminate in states that others pass through",
    "set-point": "every trajectory has a context of its own: column 1 never changes within an episode",
    "single": "there is one trajectory, and jumps lead to others",
}


@cache
def stitched(name: str) -> Stitched:
    return stitch_together([StitchJob(WORLDS[name].collect(0), BRIEF)])[0][0]


def jumps(data: Trajectories) -> np.ndarray:
    assert data.provenance is not None
    return data.provenance.stitched


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_claimed_is_true(name: str) -> None:
    done = stitched(name)
    assert done.reason is None
    claimed, true = done.after.returns.mean(), WORLDS[name].true_returns(done.after).mean()
    assert claimed - true <= 0.05 * np.ptp(done.before.returns)


@pytest.mark.parametrize("name", ["two-leg", "two-leg-steps", "sparse-goal", "sparse-once", "payload-tiny-unit"])
def test_legs_become_whole_ways(name: str) -> None:
    done, world = stitched(name), WORLDS[name]
    before, after = (world.true_returns(data).mean() for data in (done.before, done.after))
    assert jumps(done.after).any()
    assert after - before > 0.2 * np.ptp(done.before.returns)


@pytest.mark.parametrize("name", CHANGED)
def test_no_trajectory_gets_truly_worse_in_the_mean(name: str) -> None:
    done, world = stitched(name), WORLDS[name]
    before, after = (world.true_returns(data).mean() for data in (done.before, done.after))
    assert after >= before - 0.02 * np.ptp(done.before.returns)


@pytest.mark.parametrize("name", ["sparse-goal", "sparse-once"])
def test_a_goal_that_pays_one_is_never_claimed_to_pay_more(name: str) -> None:
    after = stitched(name).after
    assert after.returns.max() == 1
    assert set(np.unique(after.rewards)) == {0, 1}


@pytest.mark.parametrize("name", CHANGED)
def test_jumps_get_rewards_within_the_logged_range(name: str) -> None:
    before, after = stitched(name).before, stitched(name).after
    made = after.rewards[jumps(after)]
    assert made.min(initial=np.inf) >= before.rewards.min() - 1e-6
    assert made.max(initial=-np.inf) <= before.rewards.max() + 1e-6


def test_no_jump_changes_the_payload() -> None:
    after = stitched("payload-tiny-unit").after
    payload = after.observations[:, 2]
    np.testing.assert_array_equal(payload, np.repeat(payload[after.first_rows], after.lengths + 1))
    assert stitched("payload-tiny-unit").columns["fixed"] == ["2"]


@pytest.mark.parametrize("name", UNCHANGED)
def test_where_nothing_can_be_known_nothing_is_changed(name: str) -> None:
    done = stitched(name)
    assert done.reason is not None
    assert UNCHANGED[name] in done.reason
    assert done.after.equals(done.before)


def test_only_what_was_fitted_has_a_fit_report() -> None:
    """Data cards and pages say which models beat their baselines; the precedent test has no model."""
    done = stitched("two-leg")
    assert [report.model for report in done.reports] == ["inverse dynamics", "reward", "forward dynamics"]
