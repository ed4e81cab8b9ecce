"""A walk claims no reward that its actions would miss, and keeps every reward that they get.

The world is a line on which an action moves by at most 1, with a reward of 1 at the goal, which ends the episode. The
models know it exactly: a jump farther than 1 misses by the rest.
"""

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from small_graphs import graph_on
from trajstitch.data import ragged
from trajstitch.data.trajectories import Metadata, Trajectories, concatenate
from trajstitch.learning.fit import stack
from trajstitch.learning.networks import normaliser_of
from trajstitch.models.forward import Forward, ForwardDynamics, ForwardEnsemble
from trajstitch.models.inverse import Inverse, InverseDynamics
from trajstitch.models.reward import RegressionReward, Reward
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.capacity import plan_with_capacity
from trajstitch.stitching.graph import EdgeScorer, Models
from trajstitch.stitching.jump_tests import Consistency, Likelihood
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.planning import Plan
from trajstitch.stitching.replay import Replay

PLAN = Plan(pessimism=0, predicted_rewards=False, doubt=0.1)
"""No range of rewards: there are too few episodes to tell one."""


class Line(Forward):
    def __call__(self, observation: Array, action: Array) -> tuple[Array, Array]:
        moved = jnp.concatenate((jnp.clip(action, -1, 1), jnp.zeros_like(observation[..., 1:])), -1)
        return moved, observation[..., 0] + jnp.clip(action[..., 0], -1, 1)


class Drifting(Forward):
    """It is wrong about every step, by the same."""

    def __call__(self, observation: Array, action: Array) -> tuple[Array, Array]:
        return 0.5 * action + 3.0, observation[..., 0]


class Push(Inverse):
    def __call__(self, observation: Array, next_observation: Array, latent: Array | None = None) -> Array:
        return jnp.clip(next_observation - observation, -1, 1)[..., :1]


class Nothing(Reward):
    def __call__(self, observation: Array, *rest: Array | None) -> Array:
        return jnp.zeros(observation.shape[:-1])


def scorer(data: Trajectories, forward: type[Forward] = Line, weight: float = 1.0) -> EdgeScorer:
    scales = [normaliser_of(np.eye(2)[:, : data.observation_size] * 2 - 1)] * 3
    one = ForwardDynamics(hidden=(2,)).init(jax.random.key(0), [*scales, normaliser_of(np.array([[0.0], [1.0]]))])
    ones = jnp.ones(data.observation_size)
    ensemble = ForwardEnsemble(stack([forward(**vars(one))] * 2), weight * ones, 0 * ones, jnp.zeros(()))
    inverse = Push(**vars(InverseDynamics(hidden=(2,)).init(jax.random.key(0), data)))
    reward = stack([Nothing(**vars(RegressionReward(hidden=(2,)).init(jax.random.key(0), data)))] * 2)
    return EdgeScorer(Models(inverse, reward, {"consistency": ensemble}), {"consistency": Consistency()}, data)


def episode(states: list[float], paid: Mapping[int, float] | None = None, *, reaches: bool = False) -> Trajectories:
    """An episode through these places; `paid` are rewards by step; 1 is added to the last if it reaches the goal."""
    rewards = np.zeros(len(states) - 1, np.float32)
    for step, reward in (paid or {}).items():
        rewards[step] = reward
    rewards[-1] += reaches
    last = np.arange(len(rewards)) == len(rewards) - 1
    return Trajectories(
        observations=np.array(states, np.float32)[:, None],
        actions=np.diff(states).astype(np.float32)[:, None],
        rewards=rewards,
        terminated=last & reaches,
        truncated=last & (not reaches),
        offsets=np.array([0, len(rewards)]),
        metadata=Metadata("line"),
    )


def along(first: float, last: float) -> list[float]:
    """Places one step apart, from the first to the last."""
    return [first + step for step in range(round(last - first) + 1)]


def stitched(data: Trajectories, jumps: list[tuple[int, int]], plan: Plan = PLAN, weight: float = 1.0) -> Trajectories:
    graph = graph_on(data, dict.fromkeys(jumps, 0.0))
    return plan_with_capacity(data, graph, scorer(data, weight=weight), plan, Rules(horizon=100))[0].trajectories()


def replayed(data: Trajectories, number: int, goal: float) -> float:
    """The true return of an episode's actions, where the goal begins there."""
    place, total = float(data[number].observations[0, 0]), 0.0
    for action in data[number].actions[:, 0]:
        place += float(np.clip(action, -1, 1))
        if place >= goal:
            return total + 1
    return total


def two(miss: float) -> tuple[Trajectories, list[tuple[int, int]]]:
    """An episode that stops half-way, one that goes from there to just inside the goal, and a jump between them."""
    halfway, onward = [*along(0, 4), 4.0, 4.0], along(4 + miss, 8 + miss)
    data = concatenate((episode(halfway), episode(onward, reaches=True)))
    return data, [(4, len(halfway) + 1)]


def test_a_walk_ends_before_a_goal_that_it_would_miss() -> None:
    data, jumps = two(miss=0.3)
    claiming = stitched(data, jumps, replace(PLAN, doubt=None))
    assert (claiming.returns[0], replayed(claiming, 0, goal=8.2)) == (1, 0)
    after = stitched(data, jumps)
    assert (after.returns[0], replayed(after, 0, goal=8.2)) == (0, 0)
    assert after.provenance is not None
    assert after.provenance.stitched[: after.lengths[0]].any()
    assert (after.episode_terminated[0], after.episode_truncated[0]) == (False, True)
    # What it keeps is the same walk, without its last step.
    assert after.lengths[0] == claiming.lengths[0] - 1
    for name in ("observations", "actions", "rewards"):
        kept = getattr(after[0], name)
        np.testing.assert_array_equal(kept, getattr(claiming[0], name)[: len(kept)])


def test_a_walk_that_arrives_keeps_its_reward() -> None:
    data, jumps = two(miss=0.05)
    after = stitched(data, jumps)
    assert (after.returns[0], replayed(after, 0, goal=7.5)) == (1, 1)
    assert after.episode_terminated[0]
    assert after.equals(stitched(data, jumps, replace(PLAN, doubt=None)))


def test_small_misses_add_up() -> None:
    """A tenth may be lost: one jump that misses by 0.07 of a step is no reason to doubt, and two are."""
    halfway, between, onward = along(0, 3) + [3.0] * 3, [*along(2.07, 6.07), 6.07], along(5.14, 8.14)
    data = concatenate((episode(halfway), episode(between), episode(onward, reaches=True)))
    second, third = len(halfway), len(halfway) + len(between)
    after = stitched(data, [(3, second + 2), (second + 4, third + 2)])
    assert after.returns.tolist() == [0, 1, 1]
    assert after.provenance is not None
    assert ragged.sums(after.provenance.stitched.astype(float), after.lengths).tolist() == [2, 1, 0]


def test_a_walk_that_is_worse_without_the_reward_does_not_replace_its_trajectory() -> None:
    halfway, onward = [*along(0, 4), 4.0, 4.0], along(4.3, 8.3)
    data = concatenate((episode(halfway, {5: -0.5}, reaches=True), episode(onward, reaches=True)))
    jumps = [(4, len(halfway) + 1)]
    assert stitched(data, jumps, replace(PLAN, doubt=None)).returns[0] == 1
    after = stitched(data, jumps)
    assert after.equals(replace(data, provenance=after.provenance))


def test_where_returns_are_sums_of_small_rewards_nothing_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise AssertionError("replayed")

    monkeypatch.setattr(Replay, "_chances", fail)
    halfway, onward = along(0, 20) + [20.0] * 22, along(20.3, 60.3)
    rise = {step: 0.02 * step for step in range(40)}
    data = concatenate((episode(halfway), episode(onward, rise)))
    after = stitched(data, [(20, len(halfway) + 1)])
    assert after.returns[0] > 10


def test_logged_episodes_are_replayed_as_they_were() -> None:
    """Whatever the ensemble misses on their steps."""
    data = two(miss=0.3)[0]
    replay = Replay.of(scorer(data, Drifting), 10)
    assert replay is not None
    for chances in replay.chances(Paths.of(data), np.array([0, 1])):
        np.testing.assert_array_equal(chances, 0)


def test_what_the_ensemble_cannot_predict_goes_as_it_went() -> None:
    data, jumps = two(miss=0.3)
    assert stitched(data, jumps, weight=0.0).returns[0] == 1


def test_nothing_is_replayed_without_a_forward_ensemble() -> None:
    data = two(miss=0.3)[0]
    known = scorer(data).models
    likely = EdgeScorer(Models(known.inverse, known.reward, {"likelihood": None}), {"likelihood": Likelihood()}, data)
    assert Replay.of(likely, 10) is None
