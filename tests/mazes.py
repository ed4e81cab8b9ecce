"""Worlds of a point robot in the plane, with or without a wall: it moves by a tenth of its action."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from world import Behaviour, Step, World

STEP = 0.1
TIP = np.array([0.0, 0.3])
"""The wall stands at x = 0, from the bottom to this point."""
GATE, TIGHT_GATE = np.array([0.0, 0.45]), np.array([0.0, 0.301])
"""Where behaviour policies pass the wall, and where the good controller does."""
START, MIDDLE, GOAL = np.array([-0.7, -0.7]), np.array([-0.2, 0.6]), np.array([0.7, -0.7])
RADIUS = 0.15
"""Within this distance the goal is reached."""
FARTHEST = 3.0
TIRING = 12
"""Steps after which a wanderer chooses another target."""

X, Y, GOAL_X, GOAL_Y, SPEED, PAID, TIME = range(7)
"""Columns of a state; others that don't matter may follow."""


class Look(NamedTuple):
    """Which columns of the state are observed, and in which unit each."""

    columns: tuple[int, ...] = (X, Y)
    units: tuple[float, ...] = (1.0, 1.0)

    def add(self, *columns: int, unit: float = 1.0) -> "Look":
        return Look((*self.columns, *columns), (*self.units, *(unit for _ in columns)))


@dataclass(frozen=True)
class Maze(World):
    """A point robot on its way to a goal."""

    action_size = 2
    has_goal: bool = True

    logged: Literal["legs", "few legs", "wandering", "play", "one policy", "long", "long and short"] = "legs"
    """Who logs the data."""
    reward: Literal["dense", "steps", "goal", "once", "end"] = "dense"
    """By nearness each step, −1 each step, 1 at the goal, 1 at the goal once, or by nearness at the last step alone."""
    wall: bool = True
    slip: float = 0.0
    """Standard deviation of the noise on each move."""
    goals: Literal["one", "four", "any"] = "one"
    speeds: tuple[float, ...] = (1.0,)
    """Speeds that an episode may have, such as by its payload."""
    look: Look = field(default_factory=Look)
    others: Literal["none", "noise", "drift", "stamps"] = "none"
    """Columns that don't matter: noise, slow drift, or a huge constant and milliseconds since the log began."""

    # Its states

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        anywhere = self.logged in ("play", "one policy")
        return self._states(random, self._uniform(random, count) if anywhere else _around(START, random, count))

    def _uniform(self, random: np.random.Generator, count: int) -> np.ndarray:
        return random.uniform(-0.95, 0.95, (count, 2))

    def _states(self, random: np.random.Generator, position: np.ndarray) -> np.ndarray:
        """Return states of episodes that begin at these positions."""
        count = len(position)
        goal = np.tile(GOAL, (count, 1))
        if self.goals == "four":
            goal = 0.7 * np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])[random.integers(4, size=count)]
        elif self.goals == "any":
            goal = random.uniform(-0.85, 0.85, (count, 2))
        speed = np.asarray(self.speeds)[random.integers(len(self.speeds), size=count)]
        others = np.zeros((count, 0))
        if self.others in ("noise", "drift"):
            others = random.normal(size=(count, 100))
        elif self.others == "stamps":
            others = np.stack((np.full(count, 1e12), 1e4 * random.integers(100, size=count)), 1)
        return np.concatenate((position, goal, speed[:, None], np.zeros((count, 2)), others), 1)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return (states[:, self.look.columns] * self.look.units).astype(np.float32)

    def recover(self, observations: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        states = hidden.copy()
        states[:, self.look.columns] = observations.astype(np.float64) / self.look.units
        return states

    def reached(self, states: np.ndarray) -> np.ndarray:
        return _norm(states[:, : Y + 1] - states[:, GOAL_X : GOAL_Y + 1]) < RADIUS

    # Its dynamics

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        following = states.copy()
        before = states[:, : Y + 1]
        move = STEP * states[:, SPEED, None] * actions
        if self.slip:
            move = move + self.slip * random.normal(size=move.shape)
        after = np.clip(before + move, -1, 1)
        if self.wall:
            after[:, X] = np.where(_crosses(before, after), before[:, X], after[:, X])
        following[:, : Y + 1] = after
        following[:, TIME] += 1
        if self.others == "noise":
            following[:, TIME + 1 :] = random.normal(size=following[:, TIME + 1 :].shape)
        elif self.others == "drift":
            steps = random.normal(size=following[:, TIME + 1 :].shape)
            following[:, TIME + 1 :] = 0.995 * following[:, TIME + 1 :] + 0.1 * steps
        elif self.others == "stamps":
            following[:, -1] += 100
        reached, near = self.reached(following), 1 - self._distance(following) / FARTHEST
        nothing, never = np.zeros(len(states)), np.zeros(len(states), bool)
        match self.reward:
            case "dense":
                return Step(following, near, never)
            case "steps":
                return Step(following, nothing - 1, reached)
            case "goal":
                return Step(following, reached.astype(float), reached)
            case "once":
                paid = reached & (states[:, PAID] == 0)
                following[:, PAID] = np.maximum(states[:, PAID], paid)
                return Step(following, paid.astype(float), never)
            case "end":
                over = following[:, TIME] >= self.horizon
                return Step(following, np.where(over, near, 0.0), over)

    def _distance(self, states: np.ndarray) -> np.ndarray:
        """Return the length of the shortest way to the goal."""
        position, goal = states[:, : Y + 1], states[:, GOAL_X : GOAL_Y + 1]
        straight, around = _norm(position - goal), _norm(position - TIP) + _norm(TIP - goal)
        return np.where(_crosses(position, goal), around, straight) if self.wall else straight

    # Who acts in it

    def expert(self, states: np.ndarray) -> np.ndarray:
        way = self._way(states, states[:, GOAL_X : GOAL_Y + 1], TIGHT_GATE)
        return way / np.maximum(np.abs(way).max(1), 1)[:, None]

    def _towards(self, states: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return actions that lead to a target, slower when near and never at full speed in both directions."""
        way = self._way(states, target, GATE)
        return way / np.maximum(_norm(way), 1)[:, None]

    def _way(self, states: np.ndarray, target: np.ndarray, gate: np.ndarray) -> np.ndarray:
        """Return the action that would lead to a target, or first to the gate, at once."""
        position = states[:, : Y + 1]
        target = np.broadcast_to(target, position.shape)
        if self.wall:
            target = np.where(_crosses(position, target)[:, None], gate, target)
        return (target - position) / (STEP * states[:, SPEED, None])

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        match self.logged:
            case "legs":
                return self._legs(random, (50, 50), self.horizon)
            case "few legs":
                return self._legs(random, (3, 2), 10)
            case "wandering":
                return [self._wandering(random, _around(START, random, 100, 0.25), self.horizon, 0.4)]
            case "play":
                return [self._wandering(random, self._uniform(random, 120), self.horizon, 0.2)]
            case "one policy":
                return [self._going(random, self._uniform(random, 100), None, self.horizon, (0.5, 0.5), gain=0.4)]
            case "long":
                return [self._wandering(random, _around(START, random, 1), 3000, 0.2)]
            case "long and short":
                return [
                    *self._legs(random, (60, 60), 25),
                    self._wandering(random, _around(START, random, 1), 1500, 0.2),
                ]

    def _legs(self, random: np.random.Generator, counts: tuple[int, int], limit: int) -> list[Behaviour]:
        """Return some episodes that go from the start to the middle and wait there, and some from there to the goal."""
        noise = (0.1, 0.4)
        return [
            self._going(random, _around(START, random, counts[0]), MIDDLE, limit, noise),
            self._going(random, _around(MIDDLE, random, counts[1], 0.06), None, limit, noise),
        ]

    def _going(
        self,
        random: np.random.Generator,
        position: np.ndarray,
        target: np.ndarray | None,
        limit: int,
        noise: tuple[float, float],
        gain: float = 1.0,
    ) -> Behaviour:
        """Return episodes that go to a target, or to the goal, each with a noise of its own between two bounds."""
        level = random.uniform(*noise, (len(position), 1))

        def act(states: np.ndarray, time: int, random: np.random.Generator) -> np.ndarray:
            aim = states[:, GOAL_X : GOAL_Y + 1] if target is None else target
            return gain * self._towards(states, aim) + level * random.normal(size=(len(states), 2))

        return Behaviour(self._states(random, position), act, limit)

    def _wandering(self, random: np.random.Generator, position: np.ndarray, limit: int, noise: float) -> Behaviour:
        """Return episodes that go from one random place to the next, for any goal."""
        places = random.uniform(-0.95, 0.95, (limit // TIRING + 1, len(position), 2))

        def act(states: np.ndarray, time: int, random: np.random.Generator) -> np.ndarray:
            return self._towards(states, places[time // TIRING]) + noise * random.normal(size=(len(states), 2))

        return Behaviour(self._states(random, position), act, limit)


def _norm(vectors: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(vectors).sum(-1))


def _around(place: np.ndarray, random: np.random.Generator, count: int, spread: float = 0.1) -> np.ndarray:
    return np.clip(place + random.uniform(-spread, spread, (count, 2)), -0.99, 0.99)


def _crosses(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return whether the straight way from one place to another goes through the wall."""
    across = before[:, X] * after[:, X] < 0
    way = np.where(across, after[:, X] - before[:, X], 1.0)
    height = before[:, Y] - before[:, X] / way * (after[:, Y] - before[:, Y])
    return across & (height < TIP[Y])
