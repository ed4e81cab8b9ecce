"""A world whose models are known in closed form: a point that moves by a tenth of its action, and noise.

s' = s + 0.1 a + 0.01 n with a = clip(−s + 0.3 m, ±1), r = s'₀ − 0.1 ‖a‖²; an episode ends when s₀ leaves ±2.
"""

import numpy as np
from gymnasium.spaces import Box

from trajstitch.data.trajectories import Metadata, Trajectories

NOISE = 0.01
SPREAD = 0.3


def collect(episodes: int = 60, length: int = 50, seed: int = 0) -> Trajectories:
    random = np.random.default_rng(seed)
    observations, actions, rewards, terminated, truncated, offsets = [], [], [], [], [], [0]
    for _ in range(episodes):
        state = random.uniform(-1.5, 1.5, 2)
        observations.append(state)
        for time in range(length):
            action = np.clip(-state + SPREAD * random.normal(size=2), -1, 1)
            state = state + 0.1 * action + NOISE * random.normal(size=2)
            observations.append(state)
            actions.append(action)
            rewards.append(state[0] - 0.1 * action @ action)
            terminated.append(bool(abs(state[0]) > 2))
            truncated.append(not terminated[-1] and time == length - 1)
            if terminated[-1]:
                break
        offsets.append(len(actions))
    return Trajectories(
        observations=np.array(observations, np.float32),
        actions=np.array(actions, np.float32),
        rewards=np.array(rewards, np.float32),
        terminated=np.array(terminated),
        truncated=np.array(truncated),
        offsets=np.array(offsets),
        metadata=Metadata("point", action_space=Box(-1, 1, (2,), np.float32)),
    )
