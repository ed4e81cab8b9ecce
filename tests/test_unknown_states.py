"""Logs that don't record the state after an episode's last step: its reward counts, and no NaN gets into a network."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import trajstitch
from test_units import SMALL, log
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import hold_out
from trajstitch.evaluation.compare import compare
from trajstitch.models.dynamics import Dynamics, fit_dynamics
from trajstitch.models.forward import ForwardDynamics, fit_forward
from trajstitch.models.inverse import InverseDynamics, fit_inverse
from trajstitch.models.reward import RegressionReward, fit_reward
from trajstitch.models.value import TwinValue, fit_value, values
from trajstitch.policies import algorithm_class
from trajstitch.policies.bc import BC
from trajstitch.policies.train import train

TRIPS = """episode,obs_x,obs_v,action,reward,terminated,truncated
0,0.0,1.0,0.1,-0.1,0,0
0,0.5,1.5,0.2,-0.2,0,0
0,0.9,2.0,0.3,-10,1,0
1,0.1,0.9,0.1,-0.1,0,0
1,0.6,1.1,0.2,-0.1,0,0
1,1.1,1.3,0.2,1,1,0
2,0.2,0.8,0.0,-0.1,0,0
2,0.3,0.7,0.0,-0.3,0,1
"""
RETURNS = [-10.3, 0.8, -0.4]


@pytest.fixture
def trips(tmp_path: Path) -> Trajectories:
    (tmp_path / "trips.csv").write_text(TRIPS)
    return trajstitch.load(f"table:{tmp_path / 'trips.csv'}")


def test_the_reward_of_the_last_row_counts_in_every_format(
    trips: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    assert trips.returns.tolist() == pytest.approx(RETURNS)
    assert trajstitch.inspect(trips)["returns"]["min"] == pytest.approx(-10.3)
    for place in ("npz:a.npz", "d4rl:a.hdf5", "table:a.parquet", "table:a.csv", "minari:test/a-v0"):
        scheme, _, name = place.partition(":")
        uri = place if scheme == "minari" else f"{scheme}:{tmp_path / name}"
        trajstitch.save(trips, uri)
        again = trajstitch.load(uri)
        assert again.equals(trips)
        facts = trajstitch.inspect(again)
        assert facts["returns"]["min"] == pytest.approx(-10.3)
        assert facts["final_state_unknown"] == 3
        assert not [check for check in facts["checks"] if check["verdict"] == "bad"]
        (continuity,) = (check for check in facts["checks"] if check["check"] == "continuity")
        assert "3 of 3 episodes was not recorded" in continuity["detail"]
    assert "nan" not in (tmp_path / "a.csv").read_text().lower()
    assert len((tmp_path / "a.csv").read_text().splitlines()) == len(TRIPS.splitlines())


def test_a_missing_next_observation_at_an_end_is_unknown(tmp_path: Path) -> None:
    text = "episode,obs,action,reward,terminated,next_obs\n0,1,0,1,0,2\n0,2,0,-10,1,\n1,5,0,1,0,6\n1,6,0,1,1,7\n"
    (tmp_path / "log.csv").write_text(text)
    data = trajstitch.load(f"table:{tmp_path / 'log.csv'}")
    assert data.next_known.tolist() == [True, False, True, True]
    assert data.returns.tolist() == [-9, 2]


def test_an_end_flag_in_the_middle_of_a_stored_episode_splits_it(tmp_path: Path) -> None:
    data = log(episodes=2, length=4)
    flagged = replace(data, terminated=np.arange(8) == 1)
    trajstitch.save(flagged, f"npz:{tmp_path / 'log.npz'}")
    again = trajstitch.load(f"npz:{tmp_path / 'log.npz'}")
    assert again.lengths.tolist() == [2, 2, 4]
    np.testing.assert_array_equal(again.rewards, data.rewards)
    facts = trajstitch.inspect(again)
    assert any("what follows is taken as another episode" in check["detail"] for check in facts["checks"])
    assert not [check for check in facts["checks"] if check["verdict"] == "bad"]


def unknown_ends(data: Trajectories) -> Trajectories:
    observations = data.observations.copy()
    observations[data.first_rows + data.lengths] = np.nan
    return replace(data, observations=observations)


@pytest.mark.parametrize("name", ["bc", "weighted-bc", "td3-bc", "iql"])
def test_every_policy_learns_from_a_log_with_unknown_final_states(name: str, tmp_path: Path) -> None:
    data = unknown_ends(log())
    brief = {"steps": 20, "hidden": (8,), **({"value_steps": 20} if name == "weighted-bc" else {})}
    policies = train(data, algorithm_class(name)(**brief), seeds=2)
    assert all(np.isfinite(array).all() for policy in policies for array in policy.tensors().values())
    samples = algorithm_class(name)(**brief).training_data(data).samples
    assert all(np.isfinite(leaf).all() for leaf in samples if leaf is not None)
    expected = data.steps if "bc" in name and name != "td3-bc" else int(data.target_known.sum())
    assert len(samples.action) == expected
    found = compare({name: policies}, data)
    estimated = found.estimates[0].estimated
    assert estimated is not None
    assert np.isfinite(np.array([*estimated, *found.logged], np.float64)).all()


def test_values_learn_the_reward_of_a_terminated_step_without_a_next_state() -> None:
    """One step from each state: terminated, with the reward x, and its next state unknown."""
    random = np.random.default_rng(0)
    states = random.uniform(-1, 1, (300, 1))
    data = Trajectories(
        observations=np.stack([states, np.full_like(states, np.nan)], axis=1).reshape(600, 1),
        actions=random.uniform(-1, 1, (300, 1)),
        rewards=states[:, 0],
        terminated=np.ones(300, bool),
        truncated=np.zeros(300, bool),
        offsets=np.arange(301),
    )
    model, report = fit_value(TwinValue(steps=500, hidden=(16,), learning_rate=3e-3), data, jax.random.key(0))
    assert report.beats_baseline
    np.testing.assert_allclose(values(model, states), states[:, 0], atol=0.2)


def test_models_of_the_dynamics_learn_from_known_steps_only() -> None:
    data = unknown_ends(log())
    for part in hold_out(data, 0.2):
        assert data.next_known[part].all()
    brief: dict[str, Any] = {"steps": 20, "hidden": (8,)}
    key = jax.random.key(0)
    for _, report in (
        fit_dynamics(Dynamics(**brief, members=2, keep=1), data, key),
        fit_forward(ForwardDynamics(**brief, members=2), data, key),
        fit_inverse(InverseDynamics(**brief), data, key),
        fit_reward(RegressionReward(**brief), data, key),
    ):
        assert np.isfinite(list(report.metrics.values())).all(), report


def test_filled_data_has_no_nan_and_known_data_is_itself() -> None:
    data = log()
    assert data.filled() is data
    filled = unknown_ends(data).filled()
    assert np.isfinite(filled.observations).all()
    last = data.first_rows + data.lengths
    np.testing.assert_array_equal(filled.observations[last], data.observations[last - 1])


def test_nan_anywhere_else_is_still_refused() -> None:
    data = unknown_ends(log())
    broken = data.observations.copy()
    broken[3, 0] = np.nan
    with pytest.raises(trajstitch.InputError, match="NaN"):
        train(replace(data, observations=broken), BC(**SMALL), seeds=1)
    partly = log().observations.copy()
    partly[25, 0] = np.nan  # an episode's last state, in one column
    with pytest.raises(trajstitch.InputError, match="NaN"):
        train(replace(log(), observations=partly), BC(**SMALL), seeds=1)
