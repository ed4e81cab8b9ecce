"""What a world of the zoo is: known dynamics, rewards and a good controller, and data logged in it.

States are rows of float64 and may hold more than the observation shows. Everything works on batches of episodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium.spaces import Box

from trajstitch.data import ragged
from trajstitch.data.trajectories import Metadata, Trajectories, concatenate

REPLAYS = 20
"""Draws over which a random world's returns are averaged."""
LUCK_DRAWS = 10
"""Draws of a step, and of what follows it, to tell luck from what was to be expected."""

Act = Callable[[np.ndarray], np.ndarray]
"""A policy: observations to actions."""


class Step(NamedTuple):
    """What follows a step: next states, rewards without their noise, and whether the episode ends there."""

    states: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray


class Behaviour(NamedTuple):
    """Episodes to log: where they start, how they act, and after how many steps each log ends."""

    starts: np.ndarray
    act: Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
    """Actions for states at a time; they are clipped to the bounds."""
    limits: np.ndarray | int


class Played(NamedTuple):
    """A policy's noise-free returns, and which episodes reached the goal (none where there is no goal)."""

    returns: np.ndarray
    success: np.ndarray


@dataclass(frozen=True)
class World(ABC):
    """A small world. Subclasses say how it starts, moves and looks, who logs data in it, and who acts well in it."""

    name: str
    about: str
    horizon: int = 60
    """Steps after which an episode is truncated."""
    reward_noise: float = 0.0
    """Standard deviation of the noise on each logged reward."""
    cloning_fails: bool = False
    """Whether cloning all of the data reaches the goal in at most a tenth of the episodes."""
    knowable: bool = True
    """Whether observations tell anything about which action is better."""

    stochastic: bool = False
    """Whether steps or hidden parts of the state are drawn at random."""
    unstable: bool = False
    """Whether misses grow, so that actions replayed without feedback soon mean nothing."""
    has_goal: bool = False

    action_size: ClassVar[int] = 1
    bound: ClassVar[float] = 1.0
    """Actions lie between this and its negative."""

    # What a subclass says

    @abstractmethod
    def start(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Return the states in which episodes usually start."""

    @abstractmethod
    def step(self, states: np.ndarray, actions: np.ndarray, random: np.random.Generator) -> Step:
        """Take a step."""

    @abstractmethod
    def expert(self, states: np.ndarray) -> np.ndarray:
        """Return the actions of a controller that is known to be good."""

    @abstractmethod
    def behaviours(self, random: np.random.Generator) -> list[Behaviour]:
        """Return the episodes that the data consists of."""

    def observe(self, states: np.ndarray) -> np.ndarray:
        """Return what is seen of states, in float32."""
        return states.astype(np.float32)

    def recover(self, observations: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """Return the states that look like this; what can't be seen is taken from the states `hidden`."""
        return observations.astype(np.float64)

    def reached(self, states: np.ndarray) -> np.ndarray:
        """Return which states are at the goal."""
        return np.zeros(len(states), bool)

    # What every world can do

    def collect(self, seed: int = 0) -> Trajectories:
        """Return logged data."""
        random = np.random.default_rng(seed)
        data = concatenate([self._log(behaviour, random) for behaviour in self.behaviours(random)])
        return data[random.permutation(len(data))]

    def _log(self, behaviour: Behaviour, random: np.random.Generator) -> Trajectories:
        states = behaviour.starts
        for _ in range(4):  # what float32 rounds off is no part of a start, so that replaying meets the same states
            states = self.recover(self.observe(states), states)
        limits = np.broadcast_to(behaviour.limits, len(states))
        lengths, ended = limits.copy(), np.zeros(len(states), bool)
        seen, taken, paid = [self.observe(states)], [], []
        for time in range(limits.max()):
            actions = self._clipped(behaviour.act(states, time, random))
            states, rewards, terminated = self.step(states, actions.astype(np.float64), random)
            now = terminated & ~ended & (time < limits)
            lengths[now], ended = time + 1, ended | now
            noise = self.reward_noise * random.normal(size=len(states)) if self.reward_noise else 0.0
            seen.append(self.observe(states))
            taken.append(actions)
            paid.append(rewards + noise)
        time = np.arange(limits.max() + 1)
        steps, rows = time[:-1] < lengths[:, None], time <= lengths[:, None]
        last = (time[:-1] == lengths[:, None] - 1)[steps]
        terminated = last & np.repeat(ended, lengths)
        return Trajectories(
            observations=np.stack(seen, 1)[rows],
            actions=np.stack(taken, 1)[steps],
            rewards=np.stack(paid, 1)[steps].astype(np.float32),
            terminated=terminated,
            truncated=last & ~terminated,
            offsets=ragged.offsets_of(lengths),
            metadata=Metadata(self.name, action_space=Box(-self.bound, self.bound, (self.action_size,), np.float32)),
        )

    def _clipped(self, actions: np.ndarray) -> np.ndarray:
        return np.clip(actions, -self.bound, self.bound).astype(np.float32)

    def play(self, act: Act, episodes: int = 100, seed: int = 0) -> Played:
        """Roll out a policy from the usual starts."""
        random = np.random.default_rng(seed)
        states = self.start(random, episodes)
        return self._rolled(states, lambda states: act(self.observe(states)), random, self.horizon)

    def play_from(self, data: Trajectories, act: Act, steps: int, seed: int = 0) -> np.ndarray:
        """Return a policy's noise-free returns over `steps` from the data's first states; in a random world, means."""
        total = np.zeros(len(data))
        replays = REPLAYS if self.stochastic else 1
        for replay in range(replays):
            random = np.random.default_rng((seed, replay))
            states = self.recover(data.observations[data.first_rows], self.start(random, len(data)))
            total += self._rolled(states, lambda states: act(self.observe(states)), random, steps).returns / replays
        return total

    def score(self, act: Act, episodes: int = 100, seed: int = 0) -> np.ndarray:
        """Return a policy's noise-free returns from the usual starts."""
        return self.play(act, episodes, seed).returns

    def success(self, act: Act, episodes: int = 100, seed: int = 0) -> float:
        """Return the share of episodes in which a policy reaches the goal."""
        return float(self.play(act, episodes, seed).success.mean())

    def played_by_expert(self, episodes: int = 100, seed: int = 0) -> Played:
        """Roll out the good controller from the usual starts."""
        random = np.random.default_rng(seed)
        return self._rolled(self.start(random, episodes), self.expert, random, self.horizon)

    @cached_property
    def optimum(self) -> float:
        """Mean return of the good controller from the usual starts."""
        return float(self.played_by_expert(500).returns.mean())

    def expert_from(self, data: Trajectories) -> np.ndarray:
        """Return what the good controller gains from each episode's first state, in as many steps as it had."""
        random = np.random.default_rng(0)
        states = self.recover(data.observations[data.first_rows], self.start(random, len(data)))
        # An episode that terminated had the whole horizon.
        limits = np.where(data.episode_terminated, np.maximum(self.horizon, data.lengths), data.lengths)
        return self._rolled(states, self.expert, random, limits).returns

    def _rolled(self, states: np.ndarray, act: Act, random: np.random.Generator, limits: np.ndarray | int) -> Played:
        returns, success, going = np.zeros(len(states)), np.zeros(len(states), bool), np.ones(len(states), bool)
        for time in range(np.max(limits)):
            going = going & (time < limits)
            states, rewards, terminated = self.step(states, self._clipped(act(states)).astype(np.float64), random)
            returns += going * rewards
            success |= going & self.reached(states)
            going = going & ~terminated
        return Played(returns, success)

    # The truth about data

    def true_returns(self, data: Trajectories) -> np.ndarray:
        """Return the true returns of the episodes: by `replayed`, or by `without_luck` where feedback is needed."""
        feedback = self.knowable and (self.stochastic or self.unstable)
        return self.without_luck(data) if feedback else self.replayed(data)

    def replayed(self, data: Trajectories) -> np.ndarray:
        """Return each episode's noise-free return if its actions are replayed from its first state.

        In a random world, the mean of several replays.
        """
        actions, _ = _padded(data)
        total = np.zeros(len(data))
        replays = REPLAYS if self.stochastic else 1
        for replay in range(replays):
            random = np.random.default_rng(replay)
            states = self.recover(data.observations[data.first_rows], self.start(random, len(data)))
            going = np.ones(len(data), bool)
            for time in range(actions.shape[1]):
                going = going & (time < data.lengths)
                states, rewards, terminated = self.step(states, actions[:, time], random)
                total += going * rewards / replays
                going = going & ~terminated
        return total

    def walked(self, data: Trajectories) -> np.ndarray:
        """Return each episode's sum of the rewards that are expected of its actions in its own states.

        Nothing counts after a state and action that truly end the episode.
        """
        actions, observations = _padded(data)
        total, going = np.zeros(len(data)), np.ones(len(data))
        random = np.random.default_rng(0)
        hidden = self.start(random, len(data))
        draws = REPLAYS if self.stochastic else 1
        for time in range(actions.shape[1]):
            states = self.recover(observations[:, time], hidden)
            several = [self.step(states, actions[:, time], random) for _ in range(draws)]
            going = going * (time < data.lengths)
            total += going * np.mean([one.rewards for one in several], axis=0)
            going = going * (1 - np.mean([one.terminated for one in several], axis=0))
            hidden = several[0].states
        return total

    def without_luck(self, data: Trajectories) -> np.ndarray:
        """Return each episode's expected rewards, less the value to the good controller of luck in its transitions.

        Luck is how much better the state that a step led to is than those that its state and action truly lead to. In
        the mean over honestly logged data it is 0. A walk of lucky steps, or of jumps that no action makes, is worth
        less than it claims. This is for worlds whose whole state can be seen.
        """
        draws = range(LUCK_DRAWS if self.stochastic else 1)
        random = np.random.default_rng(0)
        step, hidden = data.state_rows, self.start(random, data.steps)
        states, following = (self.recover(data.observations[rows], hidden) for rows in (step, step + 1))
        several = [self.step(states, data.actions.astype(np.float64), random) for _ in draws]
        lasting = np.where(data.episode_terminated, np.maximum(self.horizon, data.lengths), data.lengths)
        left = np.repeat(lasting, data.lengths) - ragged.positions(data.lengths) - 1

        def value(states: np.ndarray, ended: np.ndarray, draw: int) -> np.ndarray:
            """Return what follows; of two states, by the same chances."""
            chances = np.random.default_rng((1, draw))
            return self._rolled(states, self.expert, chances, np.where(ended, 0, left)).returns

        expected = [one.rewards + value(one.states, one.terminated, draw) for draw, one in enumerate(several)]
        luck = [value(following, data.terminated, draw) for draw in draws]
        return ragged.sums(np.mean(expected, axis=0) - np.mean(luck, axis=0), data.lengths)


def _padded(data: Trajectories) -> tuple[np.ndarray, np.ndarray]:
    """Return actions (float64) and observations as (episode, time, column), with zeros and last rows after the end."""
    longest = int(data.lengths.max())
    time = np.arange(longest + 1)
    actions = np.zeros((len(data), longest, data.action_size))
    actions[time[:-1] < data.lengths[:, None]] = data.actions
    rows = data.first_rows[:, None] + np.minimum(time, data.lengths[:, None])
    return actions, data.observations[rows]
