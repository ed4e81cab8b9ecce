"""Worlds of control: pendulum, mountain car, tank, battery, a cart that may be lost, and hidden causes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

from world import Behaviour, Step, World


@dataclass(frozen=True)
class Pendulum(World):
    """Gymnasium's Pendulum-v1: swing up with too little torque. A state is the angle from upright and the velocity."""

    horizon: int = 200
    bound = 2.0
    unstable: bool = True

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return np.stack((random.uniform(-np.pi, np.pi, count), random.uniform(-1, 1, count)), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        angle, velocity, torque = states[:, 0], states[:, 1], actions[:, 0]
        cost = angle**2 + 0.1 * velocity**2 + 0.001 * torque**2
        velocity = np.clip(velocity + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
        angle = (angle + 0.05 * velocity + np.pi) % (2 * np.pi) - np.pi
        return Step(np.stack((angle, velocity), 1), -cost, np.zeros(len(states), bool))

    def observe(self, states: np.ndarray) -> np.ndarray:
        return np.stack((np.cos(states[:, 0]), np.sin(states[:, 0]), states[:, 1]), 1).astype(np.float32)

    def recover(self, observations: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        cosine, sine, velocity = observations.astype(np.float64).T
        return np.stack((np.arctan2(sine, cosine), velocity), 1)

    def expert(self, states: np.ndarray) -> np.ndarray:
        return np.where(_balanceable(states), _balance(states), _swing(states))[:, None]

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        def noisy(act, noise: float):
            return lambda states, time, random: act(states)[:, None] + noise * random.normal(size=(len(states), 1))

        def held(states: np.ndarray, time: int, random: np.random.Generator) -> np.ndarray:
            return pushes[time // 10, : len(states)]

        pushes = random.uniform(-2, 2, (self.horizon // 10, 10, 1))
        good = noisy(lambda states: self.expert(states)[:, 0], 0.4)
        controllers = (good, noisy(_swing, 0.4), noisy(_balance, 0.4), held)
        return [Behaviour(self.start(random, 10), act, self.horizon) for act in controllers]


def _balance(states: np.ndarray) -> np.ndarray:
    return -(10 * states[:, 0] + 2.5 * states[:, 1])


def _balanceable(states: np.ndarray) -> np.ndarray:
    return np.abs(4 * states[:, 0] + states[:, 1]) < 1.2


def _swing(states: np.ndarray) -> np.ndarray:
    """Pump energy towards that of standing upright."""
    missing = 15 * (1 - np.cos(states[:, 0])) - states[:, 1] ** 2 / 2
    return 2 * np.sign(missing) * np.where(states[:, 1] < 0, -1, 1)


@dataclass(frozen=True)
class MountainCar(World):
    """Gymnasium's MountainCarContinuous-v0 with a shorter horizon. A state is position and velocity."""

    horizon: int = 300
    has_goal: bool = True

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return np.stack((random.uniform(-0.6, -0.4, count), np.zeros(count)), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        position, force = states[:, 0], actions[:, 0]
        velocity = np.clip(states[:, 1] + 0.0015 * force - 0.0025 * np.cos(3 * position), -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity = np.where((position == -1.2) & (velocity < 0), 0, velocity)
        following = np.stack((position, velocity), 1)
        reached = self.reached(following)
        return Step(following, 100.0 * reached - 0.1 * force**2, reached)

    def reached(self, states: np.ndarray) -> np.ndarray:
        return (states[:, 0] >= 0.45) & (states[:, 1] >= 0)

    def expert(self, states: np.ndarray) -> np.ndarray:
        return np.where(states[:, 1] < 0, -0.42, 0.42)[:, None]

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        def pumping(gain: float, noise: float):
            return lambda states, time, random: (
                gain * self.expert(states) + noise * random.normal(size=(len(states), 1))
            )

        def held(states: np.ndarray, time: int, random: np.random.Generator) -> np.ndarray:
            return pushes[time // 20, : len(states)]

        pushes = random.uniform(-1, 1, (self.horizon // 20, 10, 1))
        controllers = ((10, pumping(2.0, 0.5)), (5, pumping(1.0, 0.3)), (5, pumping(-1.2, 0.3)), (10, held))
        return [Behaviour(self.start(random, count), act, self.horizon) for count, act in controllers]


@dataclass(frozen=True)
class Tank(World):
    """Keep a tank's level at the set point of the episode. A state is the level and the set point."""

    unit: float = 1.0
    """Of the set point's column."""

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return np.stack((random.uniform(0, 1, count), random.uniform(0.2, 0.8, count)), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        level = np.clip(states[:, 0] + 0.05 * actions[:, 0] - 0.02 * states[:, 0], 0, 1)
        following = np.stack((level, states[:, 1]), 1)
        return Step(following, -np.abs(level - states[:, 1]), np.zeros(len(states), bool))

    def observe(self, states: np.ndarray) -> np.ndarray:
        return (states * (1, self.unit)).astype(np.float32)

    def recover(self, observations: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        return observations.astype(np.float64) / (1, self.unit)

    def expert(self, states: np.ndarray) -> np.ndarray:
        return ((states[:, 1] - 0.98 * states[:, 0]) / 0.05)[:, None]

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        def steering(gain: float, noise: float):
            return lambda states, time, random: (
                gain * (states[:, 1:] - states[:, :1])
                + 0.4 * states[:, :1]
                + noise * random.normal(size=(len(states), 1))
            )

        controllers = (steering(10, 0.3), steering(1.5, 0.3), steering(-1.5, 0.3))
        return [Behaviour(self.start(random, 30), act, self.horizon) for act in controllers]


@dataclass(frozen=True)
class Battery(World):
    """Buy and sell at a price that takes its own course (AR(1)). A state is the charge and the price."""

    stochastic: bool = True

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return np.stack((random.uniform(0.3, 0.7, count), 1 + 0.3 * random.normal(size=count)), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        charge, price = states.T
        bought = np.clip(charge + 0.1 * actions[:, 0], 0, 1) - charge
        following = 1 + 0.9 * (price - 1) + 0.13 * random.normal(size=len(states))
        # What is stored counts at the mean price, so that selling out is no gain by itself.
        reward = (1 - price) * bought - 0.002 * np.abs(actions[:, 0])
        return Step(np.stack((charge + bought, following), 1), reward, np.zeros(len(states), bool))

    def expert(self, states: np.ndarray) -> np.ndarray:
        return np.where(states[:, 1] > 1.05, -1.0, np.where(states[:, 1] < 0.95, 1.0, 0.0))[:, None]

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        def trading(gain: float, noise: float):
            return lambda states, time, random: (
                gain * (1 - states[:, 1:]) + noise * random.normal(size=(len(states), 1))
            )

        controllers = (trading(3, 0.4), trading(0, 0.6), trading(-2, 0.4))
        return [Behaviour(self.start(random, 30), act, self.horizon) for act in controllers]


@dataclass(frozen=True)
class Cart(World):
    """Keep a cart near the origin at a cost each step; far out it is lost. A state is position and velocity."""

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        return random.uniform(-0.6, 0.6, (count, 2))

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        velocity = states[:, 1] + 0.1 * (actions[:, 0] + 0.5 * states[:, 0])
        position = states[:, 0] + 0.1 * velocity
        lost = np.abs(position) > 1.5
        cost = 0.1 + position**2 + 0.1 * velocity**2 + 0.05 * actions[:, 0] ** 2
        return Step(np.stack((position, velocity), 1), -cost - 20.0 * lost, lost)

    def expert(self, states: np.ndarray) -> np.ndarray:
        return (-2.5 * states[:, 0] - 2.5 * states[:, 1])[:, None]

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        def steering(position: float, velocity: float, noise: float):
            return lambda states, time, random: (
                -position * states[:, :1] - velocity * states[:, 1:] + noise * random.normal(size=(len(states), 1))
            )

        controllers = (steering(2.5, 2.5, 0.3), steering(1.0, 0.3, 0.3), steering(0.2, 0.0, 0.5))
        made = [Behaviour(self.start(random, 30), act, self.horizon) for act in controllers]
        return [*made, *(Behaviour(self.start(random, 10), act, random.integers(8, 40, 10)) for act in controllers)]


@dataclass(frozen=True)
class Hidden(World):
    """What decides can't be seen: either which rewards an episode gets, or the place that the actions move."""

    hides: Literal["luck", "place"] = "luck"
    knowable: bool = False
    action_size = 2
    stochastic: bool = True

    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        # Quantiles instead of draws, so that the mean luck is nothing.
        luck = random.permutation(norm.ppf((np.arange(count) + 0.5) / count))
        return np.concatenate((random.uniform(-1, 1, (count, 4)), luck[:, None]), 1)

    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        following = states.copy()
        following[:, :2] = np.clip(states[:, :2] + 0.1 * actions, -1, 1)
        following[:, 2:4] = random.uniform(-1, 1, (len(states), 2))
        # Where the place is hidden, which way is better is the episode's luck too.
        luck, place = states[:, 4], following[:, :2].sum(1)
        reward = luck if self.hides == "luck" else np.sign(luck) * place
        return Step(following, reward, np.zeros(len(states), bool))

    @property
    def _seen(self) -> slice:
        return slice(0, 2) if self.hides == "luck" else slice(2, 4)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states[:, self._seen].astype(np.float32)

    def recover(self, observations: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        states = hidden.copy()
        states[:, self._seen] = observations
        return states

    def expert(self, states: np.ndarray) -> np.ndarray:
        return np.zeros((len(states), 2))

    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        aims = random.uniform(-1, 1, (100, 2))

        def act(states: np.ndarray, time: int, random: np.random.Generator) -> np.ndarray:
            return 3 * (aims - states[:, :2]) + 0.3 * random.normal(size=aims.shape)

        return [Behaviour(self.start(random, 100), act, self.horizon)]
