"""The built-in set maze/mixed: a light one, which needs no MuJoCo, of two drivers who are good at different things.

One knows the first half of the way: it drives straight to the gap in the wall, and then loses its way there. The other
knows the second half: it strays about before the wall, and then drives to the goal. Nobody drives well all the way.
"""

import gymnasium
import numpy as np

from trajstitch.data import environments, maze
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.progress import progress
from trajstitch.storage.circumstances import versions

REFERENCE = (11.97, 51.47)
"""Mean returns of random actions and of driving to the goal at full speed, each of 1,000 episodes: `references`."""
LOST = np.array([-0.2, 0.6])
"""Where the first driver loses its way."""
STRAYING = (20, 35)
"""Fewest and most steps that the second driver strays about."""
TIRING = 6
"""Steps after which one who strays chooses another place to go to."""
NOISE = (0.1, 0.4)
"""Smallest and largest standard deviation of an episode's action noise."""


def collect(name: str, source: str, transitions: int, seed: int) -> Trajectories:
    """Return at least this many transitions, in whole episodes of the two drivers by turns."""
    environment = gymnasium.make(maze.NAME, disable_env_checker=True)
    observations, actions, rewards = [], [], []
    with progress(f"Collecting {source}", transitions) as advance:
        for number in range(-(-transitions // maze.LIMIT)):
            random = np.random.default_rng((seed, number))
            plan = _plan(random, knows_start=number % 2 == 0)
            noise = random.uniform(*NOISE)
            observation, _ = environment.reset(seed=int(random.integers(2**31)))
            observations.append(observation)
            for target in plan:
                action = maze.towards(observation.astype(np.float64), target) + noise * random.normal(size=2)
                action = np.clip(action, -1, 1).astype(np.float32)
                observation, reward, *_ = environment.step(action)
                observations.append(observation)
                actions.append(action)
                rewards.append(reward)
            advance(len(plan))
    steps = len(actions)
    ends = np.arange(steps) % maze.LIMIT == maze.LIMIT - 1
    return Trajectories(
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=np.array(rewards),
        terminated=np.zeros(steps, bool),
        truncated=ends,
        offsets=np.arange(0, steps + 1, maze.LIMIT),
        metadata=Metadata(
            name=name,
            source=source,
            environment=environments.spec_json(maze.NAME),
            observation_space=environment.observation_space,
            action_space=environment.action_space,
            reference=REFERENCE,
            extra={
                "description": "Two drivers by turns, each good at half of the way. Made by trajstitch.",
                "collected_with": {"seed": seed, "versions": versions()},
            },
        ),
    )


def _plan(random: np.random.Generator, *, knows_start: bool) -> np.ndarray:
    """Return where a driver wants to go at each step."""
    if knows_start:
        straight = 18
        around = LOST + random.uniform(-0.15, 0.15, (maze.LIMIT, 2))
        return np.concatenate((np.tile(LOST, (straight, 1)), np.repeat(around, TIRING, 0)[: maze.LIMIT - straight]))
    straying = int(random.integers(*STRAYING))
    places = random.uniform((-0.95, -0.95), (-0.1, 0.6), (maze.LIMIT, 2))
    return np.concatenate((np.repeat(places, TIRING, 0)[:straying], np.tile(maze.GOAL, (maze.LIMIT - straying, 1))))


def references(episodes: int = 1_000, seed: int = 0) -> tuple[float, float]:
    """Return the mean returns of random actions and of driving to the goal at full speed."""
    environment = gymnasium.make(maze.NAME, disable_env_checker=True)
    random = np.random.default_rng(seed)
    totals = np.zeros((2, episodes))
    for good in (0, 1):
        for episode in range(episodes):
            observation, _ = environment.reset(seed=seed + episode)
            for _ in range(maze.LIMIT):
                action = maze.expert(observation.astype(np.float64)) if good else random.uniform(-1, 1, 2)
                observation, reward, *_ = environment.step(action.astype(np.float32))
                totals[good, episode] += float(reward)
    random_return, best = totals.mean(1)
    return float(random_return), float(best)
