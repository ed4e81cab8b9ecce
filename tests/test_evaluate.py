"""Rollouts: the same returns in any process, equal to the plain loop's."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from trajstitch.data import spaces
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata
from trajstitch.errors import InputError
from trajstitch.evaluation import rollouts as rollout
from trajstitch.evaluation.evaluate import FIRST_SEED, evaluate
from trajstitch.evaluation.film import film
from trajstitch.evaluation.rollouts import flat
from trajstitch.policies.policy import NetworkPolicy, PolicyNormaliser

PENDULUM = Metadata("pendulum", environment=spec_json("Pendulum-v1"))


def policy(seed: int, observations: int = 3) -> NetworkPolicy:
    random = np.random.default_rng(seed)
    layers = [(random.normal(size=(rows, columns)).astype(np.float32), np.zeros(columns, np.float32))
              for rows, columns in ((observations, 8), (8, 1))]  # fmt: skip
    normaliser = PolicyNormaliser(np.zeros(observations), np.ones(observations), np.array([-2.0]), np.array([2.0]))
    return NetworkPolicy(layers, normaliser, seed)


@pytest.fixture(scope="module")
def returns() -> np.ndarray:
    """Two policies, more episodes than are stepped together."""
    return evaluate([policy(0), policy(1)], PENDULUM, episodes=12, processes=2)


def test_returns_are_the_plain_loop_s(returns: np.ndarray) -> None:
    environment = gymnasium.make("Pendulum-v1")
    for number in range(2):
        for episode in (0, 11):
            observation, _ = environment.reset(seed=FIRST_SEED + episode)
            total, ended = 0.0, False
            while not ended:
                observation, reward, terminated, truncated, _ = environment.step(policy(number).act(observation))
                total, ended = total + float(reward), terminated or truncated
            assert returns[number, episode] == pytest.approx(total, rel=1e-3)


def test_returns_are_the_same_whatever_the_number_of_processes(returns: np.ndarray) -> None:
    np.testing.assert_array_equal(evaluate([policy(0), policy(1)], PENDULUM, episodes=12, processes=1), returns)


def test_data_without_an_environment_is_refused() -> None:
    with pytest.raises(InputError, match="names no environment"):
        evaluate([policy(0)], Metadata("a log"))


def test_policy_for_another_environment_is_refused() -> None:
    with pytest.raises(InputError, match="Pendulum-v1 has 3 observations and 1 actions, but the policy 4 and 1"):
        evaluate([policy(0, observations=4)], PENDULUM)


def test_diverged_policy_is_refused() -> None:
    broken = policy(0)
    broken.layers[0][0][0, 0] = np.nan
    with pytest.raises(InputError, match="its training diverged"):
        evaluate([broken], PENDULUM)


def test_episode_that_nothing_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "LONGEST", 50)
    endless = gymnasium.make("Pendulum-v1", max_episode_steps=-1)
    with pytest.raises(InputError, match="no time limit"):
        rollout.play([endless], lambda observations: np.zeros((1, 1), np.float32), 0)


def test_nested_observations_are_flattened_as_the_data_was() -> None:
    space = Dict([("z", Box(-1, 1, (2,), np.float64)), ("a", Dict({"b": Box(-1, 1, (1, 2), np.float64)}))])
    value = {"a": {"b": np.array([[3.0, 4.0]])}, "z": np.array([1.0, 2.0])}
    rows = spaces.flatten(space, {"a": {"b": value["a"]["b"][None]}, "z": value["z"][None]})  # pyright: ignore
    np.testing.assert_array_equal(flat(space, value), rows[0])
    np.testing.assert_array_equal(flat(space, value), [1, 2, 3, 4])


def test_video_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(InputError, match=r"trajstitch\[video\]"):
        film(policy(0), PENDULUM, tmp_path / "episode.mp4")
