"""Several copies of a task's environment stepped together, without Gymnasium's overhead at each step.

Half of a Hopper step's time goes into Python around the simulator. Here MuJoCo is stepped directly, and observations,
rewards and ends are computed for all lanes at once. The results equal those of Gymnasium's own environment bit for
bit: the tests replay collected steps there.
"""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from jaxtyping import Bool, Float


class Step(NamedTuple):
    """What came of one step of several lanes."""

    observations: Float[np.ndarray, "lanes observation"]
    rewards: Float[np.ndarray, " lanes"]
    terminated: Bool[np.ndarray, " lanes"]


class Lanes:
    """`count` environments of Hopper-v5, Walker2d-v5 or HalfCheetah-v5."""

    def __init__(self, environment: str, count: int) -> None:
        from mujoco import mj_step  # pyright: ignore[reportAttributeAccessIssue]

        self._mj_step = mj_step
        self.environments: list[Any] = [
            gymnasium.make(environment, disable_env_checker=True).unwrapped for _ in range(count)
        ]
        first = self.environments[0]
        spec = gymnasium.spec(environment)
        assert spec.max_episode_steps is not None
        self.limit = spec.max_episode_steps
        self.low, self.high = first.action_space.low, first.action_space.high
        self.size = first.observation_space.shape[0]
        # Views of each simulator's own memory, made once: making them is most of the cost of reading.
        self._states = [(one.data.qpos, one.data.qvel, one.data.ctrl) for one in self.environments]
        self._falls = hasattr(first, "_healthy_z_range")
        self._positions = first.model.nq

    def __len__(self) -> int:
        return len(self.environments)

    def reset(self, lane: int, seed: int) -> Float[np.ndarray, " observation"]:
        return self.environments[lane].reset(seed=seed)[0]

    def step(self, lanes: list[int], actions: Float[np.ndarray, "lanes action"]) -> Step:
        """Step these lanes, with one action each."""
        first = self.environments[0]
        state = np.empty((len(lanes), first.model.nq + first.model.nv))
        before = np.empty(len(lanes))
        for row, lane in enumerate(lanes):
            positions, velocities, control = self._states[lane]
            before[row] = positions[0]
            control[:] = actions[row]
            environment = self.environments[lane]
            self._mj_step(environment.model, environment.data, nstep=environment.frame_skip)
            state[row, : self._positions], state[row, self._positions :] = positions, velocities
        observations = state[:, 1:].copy()
        speed = (state[:, 0] - before) / first.dt
        cost = first._ctrl_cost_weight * np.square(actions).sum(axis=1)
        rewards = first._forward_reward_weight * speed
        healthy = np.ones(len(lanes), bool)
        if self._falls:
            healthy = self._healthy(first, state)
            rewards = rewards + healthy * first._healthy_reward
            np.clip(observations[:, self._positions - 1 :], -10, 10, out=observations[:, self._positions - 1 :])
        return Step(observations, rewards - cost, ~healthy)

    @staticmethod
    def _healthy(first: Any, state: Float[np.ndarray, "lanes state"]) -> Bool[np.ndarray, " lanes"]:
        def within(bounds: tuple[float, float], values: np.ndarray) -> np.ndarray:
            return (bounds[0] < values) & (values < bounds[1])

        healthy = within(first._healthy_z_range, state[:, 1]) & within(first._healthy_angle_range, state[:, 2])
        if hasattr(first, "_healthy_state_range"):
            healthy &= within(first._healthy_state_range, state[:, 2:]).all(axis=1)
        return healthy
