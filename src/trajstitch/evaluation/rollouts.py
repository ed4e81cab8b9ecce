"""The one loop that plays episodes in an environment."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from trajstitch.errors import InputError

LONGEST = 100_000
"""Steps after which an episode is given up: nothing would end it."""


def play(
    environments: Sequence[gymnasium.Env],
    act: Callable[[np.ndarray], np.ndarray],
    first_seed: int,
    flatten: Callable[[Any], np.ndarray] = np.asarray,
) -> list[float]:
    """The return of one episode in each environment, the i-th started from seed `first_seed` + i.

    The episodes are stepped together, so that short ones don't count more; finished ones keep their place in the
    policy's batch, so that no bit depends on them.
    """
    current = np.stack([flatten(env.reset(seed=first_seed + i)[0]) for i, env in enumerate(environments)])
    returns, running = np.zeros(len(environments)), list(range(len(environments)))
    steps = 0
    while running:
        steps += 1
        if steps > LONGEST:
            raise InputError(
                f"an episode went on for {LONGEST:,} steps: its environment has no time limit, and needs one "
                "(max_episode_steps) to be evaluated in"
            )
        action = act(current)
        for i in tuple(running):
            observation, reward, terminated, truncated, _ = environments[i].step(action[i])
            current[i] = flatten(observation)
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
    return returns.tolist()
