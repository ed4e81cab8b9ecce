"""A point robot that has to go around a wall: a Gymnasium environment that needs no simulator.

It moves by a tenth of its action. Every step is rewarded by how near the goal is, along the way around the wall, and
an episode lasts 60 steps. Nothing is left to chance but the start.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

NAME = "trajstitch/Maze-v0"
LIMIT = 60
"""Steps of an episode."""
STEP = 0.1
TIP = np.array([0.0, 0.3])
"""The wall stands at x = 0, from the bottom to this point."""
GATE = np.array([0.0, 0.4])
"""Where to pass the wall."""
START, GOAL = np.array([-0.7, -0.7]), np.array([0.7, -0.7])
FARTHEST = 3.0
"""A distance that no place has, so that rewards are positive."""
PIXELS = 160


class Maze(gymnasium.Env):
    """A point robot on its way around a wall. An observation is its place, an action where to move."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - as Gymnasium has it
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.place = START.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.set_state(START + self.np_random.uniform(-0.1, 0.1, 2)), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        after = np.clip(self.place + STEP * np.clip(action, -1, 1), -1, 1)
        if crosses(self.place, after):
            after[0] = self.place[0]
        return self.set_state(after), 1 - distance(self.place) / FARTHEST, False, False, {}

    def set_state(self, state: np.ndarray) -> np.ndarray:
        """Put the robot at the place that an observation shows, and return what it observes there."""
        seen = np.asarray(state, np.float32)
        self.place = seen.astype(np.float64)
        return seen

    def render(self) -> np.ndarray:
        """Return a picture: the wall grey, the goal green, the robot dark."""
        picture = np.full((PIXELS, PIXELS, 3), 255, np.uint8)
        x, y = np.meshgrid(np.linspace(-1, 1, PIXELS), np.linspace(1, -1, PIXELS))
        picture[(abs(x) < 0.02) & (y < TIP[1])] = (150, 156, 162)
        for place, size, colour in ((GOAL, 0.1, (42, 127, 98)), (self.place, 0.05, (36, 41, 46))):
            picture[np.hypot(x - place[0], y - place[1]) < size] = colour
        return picture


def crosses(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether the straight way from one place to another goes through the wall."""
    if before[0] * after[0] >= 0:
        return False
    height = before[1] - before[0] / (after[0] - before[0]) * (after[1] - before[1])
    return bool(height < TIP[1])


def distance(place: np.ndarray) -> float:
    """Return the length of the shortest way from a place to the goal."""
    if crosses(place, GOAL):
        return float(np.linalg.norm(place - TIP) + np.linalg.norm(TIP - GOAL))
    return float(np.linalg.norm(place - GOAL))


def towards(place: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the action that leads to a target, or first to the gate, slower than an expert does."""
    way = _way(place, target)
    return way / max(float(np.linalg.norm(way)), 1.0)


def expert(place: np.ndarray) -> np.ndarray:
    """Return the action that leads to the goal, or first to the gate, at full speed."""
    way = _way(place, GOAL)
    return way / max(float(np.abs(way).max()), 1.0)


def _way(place: np.ndarray, target: np.ndarray) -> np.ndarray:
    return ((GATE if crosses(place, target) else target) - place) / STEP


gymnasium.register(NAME, "trajstitch.data.maze:Maze", max_episode_steps=LIMIT)
