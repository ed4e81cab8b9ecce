"""The light built-in set: made without MuJoCo, from two drivers who are good at different halves of the way."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import trajstitch
from trajstitch.benchmark import collect as collecting
from trajstitch.benchmark import maze
from trajstitch.data import environments
from trajstitch.data.maze import GOAL, LIMIT, NAME, START
from trajstitch.evaluation.simulator import replay

SET = "maze/mixed"


@pytest.fixture(scope="module")
def data() -> trajstitch.Trajectories:
    return trajstitch.collect(trajstitch.Collect(SET, 2_400))


def test_set_is_collected_without_mujoco(monkeypatch) -> None:
    monkeypatch.setattr(collecting, "find_spec", lambda _: None)
    found = trajstitch.collect(trajstitch.Collect(SET, 61))
    assert found.lengths.tolist() == [LIMIT, LIMIT]


def test_same_seed_gives_the_same_bits_and_another_seed_others(data) -> None:
    assert trajstitch.collect(trajstitch.Collect(SET, 2_400)).equals(data)
    assert not trajstitch.collect(trajstitch.Collect(SET, 2_400, seed=1)).equals(data)


def test_each_driver_is_good_at_half_of_the_way(data) -> None:
    places = data.observations.reshape(len(data), LIMIT + 1, 2)
    first, second = places[::2], places[1::2]
    assert np.allclose(places[:, 0], START, atol=0.11)
    assert (np.linalg.norm(first - GOAL, axis=-1).min(1) > 0.5).all(), "the first never gets to the goal"
    assert (np.linalg.norm(second[:, -1] - GOAL, axis=-1) < 0.3).all(), "the second always does"
    beside = np.abs(first[:, 20] - maze.LOST).max(-1) < 0.4
    assert beside.mean() > 0.9
    assert (second[:, 18, 0] < 0).mean() > 0.9, "when the first is at the gap, the second strays about"
    scores = environments.normalised(data.returns, data.metadata)
    assert scores.max() < 90, "nobody drives well all the way"


def test_references_are_those_of_their_command() -> None:
    assert maze.references(50) == pytest.approx(maze.REFERENCE, rel=0.05)


def test_environment_is_what_gymnasium_asks_for() -> None:
    environment = gymnasium.make(NAME, render_mode="rgb_array")
    check_env(environment.unwrapped, skip_render_check=True)
    environment.reset(seed=0)
    picture = environment.render()
    assert isinstance(picture, np.ndarray)
    assert (picture[picture.shape[0] // 2 + 40, picture.shape[1] // 2] < 200).all(), "the wall is drawn"


def test_wall_can_not_be_walked_through() -> None:
    bare = gymnasium.make(NAME).unwrapped
    bare.reset(seed=0)
    bare.set_state(np.array([-0.05, -0.5]))  # pyright: ignore[reportAttributeAccessIssue]
    place = bare.step(np.array([1.0, 0.0], np.float32))[0]
    np.testing.assert_allclose(place, [-0.05, -0.5], atol=1e-6)


def test_simulator_takes_logged_steps_again(data) -> None:
    rows = data.state_rows
    found = replay(data.metadata, data.observations[rows][:200], data.actions[:200], processes=1)
    assert found.known.all()
    np.testing.assert_allclose(found.next_observations, data.observations[rows + 1][:200], atol=1e-6)
    np.testing.assert_allclose(found.rewards, data.rewards[:200], atol=1e-6)
