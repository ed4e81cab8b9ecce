"""A small plant of one's own: its environment, its log as CSV, and a log with everything that goes wrong in one."""

from pathlib import Path

import gymnasium
import numpy as np

from trajstitch.formats.columns import Columns

COLUMNS = Columns(
    episode=("lot",), step="when", observations=("temp [°C]", "flow [l/h]"), actions=("valve",), reward="yield"
)
START = np.datetime64("2024-03-01T06:00:00")
MINUTE = np.timedelta64(60, "s")


class Plant(gymnasium.Env):
    """A tank that follows its valve; `set_state` puts it into the state that an observation shows."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=2)
        return self.state.copy(), {}

    def set_state(self, state):
        self.state = np.asarray(state, float)

    def step(self, action):
        self.state = following(self.state, float(action[0]))
        return self.state.copy(), -float(np.abs(self.state).sum()), False, False, {}


gymnasium.register("Plant-v0", "plant:Plant", max_episode_steps=20)


def following(state: np.ndarray, action: float) -> np.ndarray:
    return np.array([0.9 * state[0] + 0.1 * action, 0.5 * state[1] + 0.5 * state[0]])


def rows(lots: int = 6, steps: int = 12, seed: int = 0) -> list[list[str]]:
    """Return the cells of a whole log: lots of the same number of steps, one a minute."""
    random, cells = np.random.default_rng(seed), []
    for lot in range(lots):
        state = random.normal(size=2)
        for step in range(steps):
            action = float(np.clip(-state[0] + 0.3 * random.normal(), -1, 1))
            when = str(START + lot * np.timedelta64(1, "D") + step * MINUTE)
            reward = -np.abs(following(state, action)).sum()
            cells.append([f"L-{lot + 7}", when, *(f"{value:.6f}" for value in (*state, action, reward))])
            state = following(state, action)
    return cells


def write(path: Path, cells: list[list[str]]) -> str:
    """Write a log as CSV and return its URI."""
    header = [*COLUMNS.episode, str(COLUMNS.step), *COLUMNS.observations, *COLUMNS.actions, str(COLUMNS.reward)]
    path.write_text("\n".join(",".join(line) for line in [header, *cells]) + "\n", encoding="utf-8")
    return f"table:{path}"


FLAGS = [
    *("--columns.episode", "lot"),
    *("--columns.step", "when"),
    *("--columns.observations", *COLUMNS.observations),
    *("--columns.actions", "valve"),
    *("--columns.reward", "yield"),
]
"""The columns as flags."""
