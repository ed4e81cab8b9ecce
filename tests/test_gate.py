"""Whether a data set is of one quality, told from the data alone."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.data.normalise import rescale_for_float32
from trajstitch.data.trajectories import Trajectories, concatenate
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.gate import return_predictability, unpredictable_returns
from trajstitch.stitching.pipeline import stitch


def walks(skills: np.ndarray, luck: float, length: int = 40) -> Trajectories:
    """Episodes whose skill shows in their states, and whose reward is skill and luck."""
    random = np.random.default_rng(0)
    episodes = len(skills)
    states = random.normal(size=(episodes, length + 1, 3)) + 5 * skills[:, None, None]
    rewards = np.repeat(skills + luck * random.normal(size=episodes), length)
    ends = np.tile(np.arange(length) == length - 1, episodes)
    return Trajectories(
        observations=states.reshape(-1, 3).astype(np.float32),
        actions=random.uniform(-1, 1, (len(rewards), 1)).astype(np.float32),
        rewards=rewards.astype(np.float32),
        terminated=np.zeros_like(ends),
        truncated=ends,
        offsets=np.arange(episodes + 1) * length,
    )


def test_skill_is_predictable_and_noise_is_not():
    skills = np.repeat([0.0, 1.0], 30)
    assert return_predictability(walks(skills, luck=0.0)) == pytest.approx(1, abs=0.01)
    assert return_predictability(walks(np.zeros(60), luck=1.0)) == pytest.approx(0, abs=0.1)
    mixed = return_predictability(walks(np.repeat([0.0, 1.0], 300), luck=0.5))  # a half of the variance each
    assert mixed == pytest.approx(0.45, abs=0.1)  # and of what is found, some is the luck of the ten nearest


def test_units_and_constant_states_do_not_matter():
    data = walks(np.repeat([0.0, 1.0], 30), luck=0.5)
    share = return_predictability(data)
    scaled = replace(data, observations=data.observations * np.array([1000, 1, 0.001], np.float32))
    assert return_predictability(scaled) == pytest.approx(share, abs=1e-3)
    for value in (1, 1e6):
        constant = np.concatenate((data.observations, np.full((len(data.observations), 1), value, np.float32)), 1)
        assert return_predictability(replace(data, observations=constant)) == pytest.approx(share, abs=1e-3)
    for unit, origin in ((1, 5e6), (1e-9, 0)):
        moved = replace(data, observations=unit * data.observations.astype(np.float64) + origin)
        assert return_predictability(rescale_for_float32(moved)) == pytest.approx(share, abs=1e-3)


def test_copies_of_an_episode_do_not_predict_it():
    data = walks(np.zeros(60), luck=1.0)
    assert return_predictability(concatenate([data] * 5)) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("episodes", [1, 2, 19])
def test_few_episodes_say_nothing(episodes):
    assert return_predictability(walks(np.zeros(episodes), luck=1.0)) is None


def test_equal_returns_are_of_one_quality():
    assert return_predictability(walks(np.zeros(30), luck=0.0)) == 0


def test_unpredictable_data_comes_back_as_it_was_before_any_model_is_fitted(caplog):
    caplog.set_level("INFO", "trajstitch")
    data = walks(np.zeros(60), luck=1.0)
    better = stitch(data, StitchConfig(min_predictability=0.5))
    assert better.equals(data)
    assert better.provenance is not None
    assert not better.provenance.stitched.any()
    assert "the data is left unchanged: states predict" in caplog.text
    assert "log likelihood" not in caplog.text


def test_the_limit_decides():
    assert unpredictable_returns(0.5, 0.5) is None
    assert unpredictable_returns(None, 0.5) is None
    assert unpredictable_returns(0.0, 0.0) is None
    reason = unpredictable_returns(0.2, 0.5)
    assert reason is not None
    assert "20%" in reason
    assert "50%" in reason
