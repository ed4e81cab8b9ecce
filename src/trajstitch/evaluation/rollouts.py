"""Rollouts: the one loop that plays episodes in an environment, and what a worker process plays at a time.

Nothing here imports jax, so that a worker process starts in a second or two.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box

from trajstitch.data import environments as registry
from trajstitch.data import spaces
from trajstitch.errors import InputError
from trajstitch.policies.policy import Policy

LONGEST = 100_000
"""Steps after which an episode is given up: nothing would end it."""


def play(
    environments: Sequence[gymnasium.Env],
    act: Callable[[np.ndarray], np.ndarray],
    first_seed: int,
    flatten: Callable[[Any], np.ndarray] = np.asarray,
    each: Callable[[], None] = lambda: None,
) -> list[float]:
    """Play one episode in each environment, the i-th from seed `first_seed` + i, and return their returns.

    The episodes are stepped together, so that short ones don't count more; finished ones keep their place in the
    policy's batch, so that no bit depends on them. `each` is called after the resets and after every step.
    """
    current = np.stack([flatten(env.reset(seed=first_seed + i)[0]) for i, env in enumerate(environments)])
    returns, running = np.zeros(len(environments)), list(range(len(environments)))
    steps = 0
    each()
    while running:
        steps += 1
        if steps > LONGEST:
            raise InputError(
                f"an episode went on for {LONGEST:,} steps: its environment has no time limit (max_episode_steps): "
                "give one with `max_steps`"
            )
        action = act(current)
        for i in tuple(running):
            observation, reward, terminated, truncated, _ = environments[i].step(action[i])
            current[i] = flatten(observation)
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
        each()
    return returns.tolist()


def play_policy(
    policy: Policy,
    environments: Sequence[gymnasium.Env],
    first_seed: int,
    observation_space: gymnasium.Space | None = None,
    each: Callable[[], None] = lambda: None,
) -> list[float]:
    """Play one episode of the policy in each environment; observations are flattened as the data's space says."""
    space = observation_space or environments[0].observation_space
    action_space = environments[0].action_space
    assert isinstance(action_space, Box)

    def act(observations: np.ndarray) -> np.ndarray:
        return policy.act(observations).astype(action_space.dtype).reshape(-1, *action_space.shape)

    return play(environments, act, first_seed, lambda observation: flat(space, observation), each)


class Rollout(NamedTuple):
    """Episodes of one policy that a process plays together."""

    environment: EnvSpec
    """What `environments.spec` returned."""
    observation_space: gymnasium.Space | None
    policy: Policy
    first_seed: int
    episodes: int


def roll_out(rollout: Rollout) -> list[float]:
    """Play the episodes and return their returns."""
    environments = _environments(rollout.environment, rollout.episodes)
    return play_policy(rollout.policy, environments, rollout.first_seed, rollout.observation_space)


def flat(space: gymnasium.Space, observation: Any) -> np.ndarray:
    """Return one observation as a row, its parts in the space's order."""

    return np.concatenate([np.ravel(spaces.at(observation, path)) for path, _ in spaces.leaves(space)])


_made: dict[tuple[str, int], list[gymnasium.Env]] = {}


def _environments(environment: EnvSpec, count: int) -> list[gymnasium.Env]:
    """Return a process's environments, made once: a reset leaves nothing of the episode before."""
    key = repr(environment), count
    if key not in _made:
        _made[key] = [registry.start(environment, disable_env_checker=True) for _ in range(count)]
    return _made[key]
