"""A task that is learned in seconds; importing this module registers it, in worker processes too.

A point on a line is pushed by actions; the reward is −|position| after each push; 10 steps from a random start.
"""

import gymnasium
import numpy as np

TASK = "reach:TrajstitchReach-v0"


class Reach(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-5, 5, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-2, 2, 1).astype(np.float32)
        return self.place, {}

    def step(self, action):
        self.place = (self.place + np.clip(action, -1, 1)).astype(np.float32)
        return self.place, -float(abs(self.place[0])), False, False, {}


if "TrajstitchReach-v0" not in gymnasium.registry:
    gymnasium.register("TrajstitchReach-v0", lambda **_: Reach(), max_episode_steps=10)
