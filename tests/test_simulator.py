"""The simulator repeats logged steps exactly, and invented ones not."""

import numpy as np
import pytest

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.benchmark.ladder import TASKS
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata
from trajstitch.errors import InputError
from trajstitch.evaluation.simulator import replay


@pytest.mark.parametrize("task", TASKS)
def test_logged_steps_are_what_the_simulator_does(task):
    data = collect(Collect(f"{task}/medium", transitions=200, processes=1))
    rows = data.state_rows[:200]
    outcome = replay(data.metadata, data.observations[rows], data.actions[:200], processes=1)
    assert outcome.known.mean() > 0.3  # half of Walker2d's states have a velocity that the observation clips
    error = np.abs(outcome.next_observations - data.observations[rows + 1])[outcome.known]
    assert error.max() < 1e-8
    assert np.abs(outcome.rewards - data.rewards[:200])[outcome.known].max() < 1e-8


def test_other_action_leads_elsewhere():
    data = collect(Collect("hopper/medium", transitions=100, processes=1))
    rows = data.state_rows[:100]
    outcome = replay(data.metadata, data.observations[rows], -data.actions[:100], processes=1)
    error = np.abs(outcome.next_observations - data.observations[rows + 1]).sum(1)
    length = np.abs(data.observations[rows + 1] - data.observations[rows]).sum(1)
    assert np.median(error / length) > 0.1


def test_clipped_velocities_are_not_known():
    data = collect(Collect("hopper/medium", transitions=10, processes=1))
    observations = data.observations[:2].copy()
    observations[0, 6] = 10.0
    assert replay(data.metadata, observations, data.actions[:2], processes=1).known.tolist() == [False, True]


@pytest.mark.parametrize(
    ("environment", "said"), [("Pendulum-v1", "not a MuJoCo task"), ("Ant-v5", "can't be rebuilt")]
)
def test_states_that_can_not_be_rebuilt_are_refused(environment, said):
    with pytest.raises(InputError, match=said):
        replay(Metadata(environment=spec_json(environment)), np.zeros((1, 3)), np.zeros((1, 1)))


def test_data_without_an_environment_is_refused():
    with pytest.raises(InputError, match="names no environment"):
        replay(Metadata(), np.zeros((1, 3)), np.zeros((1, 1)))
