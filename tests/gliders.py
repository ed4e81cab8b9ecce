"""Worlds that were made after the method, to see how it does on what it was not made with: see `UNSEEN` in worlds.py.

A glider has a velocity, so that its place can't be changed at once; a pole falls; an arm's angles wrap around; a
reactor follows a recipe, with a feed that drifts by itself.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from world import Behaviour, Step, World

GOAL, RADIUS = 0.8, 0.2
THRUSTERS = 3
"""Actions of a glider; those beyond its dimensions do nothing."""


@dataclass(frozen=True)
class Glider(World):
    """A body in a box that is pushed towards a corner. A state is place, velocity, the last action and the wind."""

    horizon: int = 80
    has_goal: bool = True
    action_size = THRUSTERS

    dimensions: int = 2
    reward: Literal["nearness", "goal", "cost"] = "nearness"
    """By nearness each step, 1 at the goal, or a cost of pushing until the goal; at one wall the body is lost."""
    logged: Literal["legs", "play", "one policy"] = "legs"
    scale: float = 1.0
    """Of rewards."""
    slip: float = 0.0
    """Standard deviation of the noise on each move."""
    winds: int = 1
    """Different winds, of which each episode has one; they are seen if there are several."""
    late: bool = False
    """Whether actions count one step later, which is not seen."""
    hides_velocity: bool = False
    sensor: float = 0.0
    """What is seen is rounded to multiples of this; 0: it isn't."""
    idle: bool = False
    """Whether the thruster without effect is never used."""

    @property
    def _place(self) -> slice:
        return slice(0, self.dimensions)

    @property
    def _velocity(self) -> slice:
        return slice(self.dimensions, 2 * self.dimensions)

    @property
    def _pending(self) -> slice:
        return slice(2 * self.dimensions, 2 * self.dimensions + THRUSTERS)

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return self._states(random, random.uniform(-0.9, -0.6, (count, self.dimensions)))

    def _states(self, random: np.random.Generator, place: np.ndarray) -> np.ndarray:
        """Return the states of bodies at rest."""
        count = len(place)
        wind = 0.4 * (random.integers(self.winds, size=count) - (self.winds - 1) / 2)
        return np.concatenate((place, np.zeros((count, self.dimensions + THRUSTERS)), wind[:, None]), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        push = (states[:, self._pending] if self.late else actions)[:, self._place]
        velocity = 0.8 * states[:, self._velocity] + 0.05 * push
        velocity[:, 0] += 0.01 * states[:, -1]
        place = states[:, self._place] + velocity
        if self.slip:
            place = place + self.slip * random.normal(size=place.shape)
        following = states.copy()
        following[:, self._velocity] = np.where(np.abs(place) > 1, 0, velocity)
        following[:, self._place] = place = np.clip(place, -1, 1)
        following[:, self._pending] = actions
        reached, away = self.reached(following), self._away(following)
        match self.reward:
            case "nearness":
                return Step(following, self.scale * (1 - away), np.zeros(len(states), bool))
            case "goal":
                return Step(following, self.scale * reached, reached)
            case "cost":
                lost = place[:, 0] < -0.98
                cost = 0.1 + 0.05 * np.square(push).sum(1) + 30.0 * lost
                return Step(following, self.scale * (10.0 * reached - cost), reached | lost)

    def _away(self, states: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square(states[:, self._place] - GOAL).sum(1))

    def reached(self, states: np.ndarray) -> np.ndarray:
        return self._away(states) < RADIUS

    @property
    def _seen(self) -> list[int]:
        columns = range(self.dimensions if self.hides_velocity else 2 * self.dimensions)
        return [*columns, *([2 * self.dimensions + THRUSTERS] if self.winds > 1 else [])]

    def observe(self, states: np.ndarray) -> np.ndarray:
        seen = states[:, self._seen]
        return (np.round(seen / self.sensor) * self.sensor if self.sensor else seen).astype(np.float32)

    def recover(self, observations: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        states = hidden.copy()
        states[:, self._seen] = observations
        return states

    def expert(self, states: np.ndarray) -> np.ndarray:
        return self._towards(states, np.full(self.dimensions, GOAL))

    def _towards(self, states: np.ndarray, target: np.ndarray, gain: float = 1.0) -> np.ndarray:
        actions = np.zeros((len(states), THRUSTERS))
        actions[:, self._place] = 4 * (target - states[:, self._place]) - 6 * states[:, self._velocity]
        return gain * actions

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        goal, middle = np.full(self.dimensions, GOAL), np.zeros(self.dimensions)
        middle[0], middle[-1] = -0.3, 0.5
        around = lambda low, high, count: random.uniform(low, high, (count, self.dimensions))  # noqa: E731
        match self.logged:
            case "legs":
                return [
                    self._going(random, around(-0.9, -0.6, 40), middle),
                    self._going(random, middle + around(-0.08, 0.08, 40), goal),
                ]
            case "one policy":
                return [self._going(random, around(-0.9, 0.9, 80), goal, (0.4, 0.4), gain=0.3)]
            case "play":
                places = random.uniform(-1, 1, (self.horizon // 20, 80, self.dimensions))
                wander = lambda states, time, random: (  # noqa: E731
                    self._towards(states, places[time // 20]) + self._noise(0.3, states, random)
                )
                return [Behaviour(self._states(random, around(-0.9, 0.9, 80)), wander, self.horizon)]

    def _going(
        self,
        random: np.random.Generator,
        place: np.ndarray,
        target: np.ndarray,
        noise: tuple[float, float] = (0.1, 0.5),
        gain: float = 1.0,
    ) -> Behaviour:
        """Return episodes that go to a target, each with a noise of its own between two bounds."""
        level = random.uniform(*noise, (len(place), 1))

        def act(states: np.ndarray, time: int, random: np.random.Generator) -> np.ndarray:
            return self._towards(states, target, gain) + self._noise(level, states, random)

        return Behaviour(self._states(random, place), act, self.horizon)

    def _noise(self, level: np.ndarray | float, states: np.ndarray, random: np.random.Generator) -> np.ndarray:
        used = np.arange(THRUSTERS) < (self.dimensions if self.idle else THRUSTERS)
        return level * random.normal(size=(len(states), THRUSTERS)) * used


@dataclass(frozen=True)
class Pole(World):
    """Balance a pole on a cart: 1 each step until it falls. A state is place, velocity, angle and its velocity."""

    horizon: int = 200
    unstable: bool = True

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return random.uniform(-0.05, 0.05, (count, 4))

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        angle, turning = states[:, 2], states[:, 3]
        sine, cosine = np.sin(angle), np.cos(angle)
        force = (10 * actions[:, 0] + 0.05 * turning**2 * sine) / 1.1
        twist = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        change = np.stack((states[:, 1], force - 0.05 * twist * cosine / 1.1, turning, twist), 1)
        following = states + 0.02 * change
        fallen = (np.abs(following[:, 0]) > 2.4) | (np.abs(following[:, 2]) > 0.21)
        return Step(following, np.ones(len(states)), fallen)

    def expert(self, states: np.ndarray) -> np.ndarray:
        return (states @ (0.1, 0.2, 3.0, 0.6))[:, None]

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        def balancing(gain: float, noise: float, push: float = 0.0):
            return lambda states, time, random: (
                gain * self.expert(states) + push + noise * random.normal(size=(len(states), 1))
            )

        controllers = (
            (10, balancing(1, 0.3)),
            (30, balancing(0.5, 0.6, 0.1)),
            (30, balancing(0.2, 0.8)),
            (20, balancing(1, 0.5, 0.3)),
        )
        return [Behaviour(self.start(random, count), act, self.horizon) for count, act in controllers]


@dataclass(frozen=True)
class Arm(World):
    """Hold the tip of an arm at one of three targets. A state is two angles, which wrap around, and the target."""

    action_size = 2
    has_goal: bool = True

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        targets = np.array([(1.2, 0.5), (-0.8, 1.0), (0.3, -1.4)])
        angles = random.uniform(-np.pi, np.pi, (count, 2))
        return np.concatenate((angles, targets[random.integers(3, size=count)]), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        following = states.copy()
        following[:, :2] = _wrapped(states[:, :2] + 0.15 * actions)
        reward = -self._away(following) - 0.05 * np.square(actions).sum(1)
        return Step(following, reward, np.zeros(len(states), bool))

    def _away(self, states: np.ndarray) -> np.ndarray:
        first, both = states[:, 0], states[:, 0] + states[:, 1]
        tip = np.stack((np.cos(first) + 0.8 * np.cos(both), np.sin(first) + 0.8 * np.sin(both)), 1)
        return np.sqrt(np.square(tip - states[:, 2:]).sum(1))

    def reached(self, states: np.ndarray) -> np.ndarray:
        return self._away(states) < 0.15

    def expert(self, states: np.ndarray) -> np.ndarray:
        across, up = states[:, 2], states[:, 3]
        elbow = np.arccos(np.clip((across**2 + up**2 - 1 - 0.8**2) / 1.6, -1, 1))
        shoulder = np.arctan2(up, across) - np.arctan2(0.8 * np.sin(elbow), 1 + 0.8 * np.cos(elbow))
        return _wrapped(np.stack((shoulder, elbow), 1) - states[:, :2]) / 0.15

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        pushes = random.uniform(-1, 1, (self.horizon // 6, 40, 2))

        def reaching(gain: float, noise: float):
            return lambda states, time, random: (
                gain * self.expert(states) + noise * random.normal(size=(len(states), 2))
            )

        controllers = (
            (15, reaching(1, 0.3)),
            (40, lambda states, time, _: pushes[time // 6]),
            (30, reaching(0.1, 0.5)),
        )
        return [Behaviour(self.start(random, count), act, self.horizon) for count, act in controllers]


def _wrapped(angles: np.ndarray) -> np.ndarray:
    return (angles + np.pi) % (2 * np.pi) - np.pi


@dataclass(frozen=True)
class Reactor(World):
    """Follow a recipe's temperature. A state is temperature, concentration, feed (which drifts) and the recipe."""

    horizon: int = 100
    stochastic: bool = True
    action_size = 2
    drift: float = 0.02
    """Standard deviation of the feed's moves; 0: it stays what it is in an episode."""
    recipes: int = 4

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        recipe = 330 + 20 * random.integers(self.recipes, size=count) / max(self.recipes - 1, 1)
        low, high = (280, 0.2, 0.9), (320, 0.5, 1.1)
        return np.concatenate((random.uniform(low, high, (count, 3)), recipe[:, None]), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        heat, concentration, feed, recipe = states.T
        rate = self._rate(states)
        following = states.copy()
        following[:, 0] = heat + 4 * actions[:, 0] + 25 * rate - 0.05 * (heat - 300)
        following[:, 1] = np.clip(concentration + 0.025 * (actions[:, 1] + 1) * feed - rate, 0, 1)
        if self.drift:
            following[:, 2] += 0.05 * (1 - feed) + self.drift * random.normal(size=len(states))
        hot = following[:, 0] > 390
        reward = 10 * rate - np.abs(following[:, 0] - recipe) / 20 - 20.0 * hot
        return Step(following, reward, hot)

    def _rate(self, states: np.ndarray) -> np.ndarray:
        return 0.08 * np.exp((states[:, 0] - 340) / 25) * states[:, 1]

    def expert(self, states: np.ndarray) -> np.ndarray:
        heat, concentration, _, recipe = states.T
        heating = (recipe - heat + 0.05 * (heat - 300) - 25 * self._rate(states)) / 4
        return np.stack((heating, 4 * (0.6 - concentration)), 1)

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        pushes = random.uniform(-1, 1, (self.horizon // 10, 30, 2))

        def following(gain: float, noise: float):
            return lambda states, time, random: (
                gain * self.expert(states) + noise * random.normal(size=(len(states), 2))
            )

        controllers = (
            (20, following(1, 0.2)),
            (30, following(0.3, 0.4)),
            (30, lambda states, time, _: pushes[time // 10]),
        )
        return [Behaviour(self.start(random, count), act, self.horizon) for count, act in controllers]
