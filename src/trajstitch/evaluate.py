"""Evaluation: roll policies out in the environment their data names, and keep every episode's return.

Which episodes a process plays, and in which batch, is settled in advance, and each starts from a seed of its own. So
the returns are the same whatever the number of processes. These import no jax and start in a second or two.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float

from trajstitch import console, environments, spaces
from trajstitch.errors import InputError
from trajstitch.policies.policy import Policy
from trajstitch.sets.rollout import evaluators, one_thread_each, play
from trajstitch.trajectories import Metadata

FIRST_SEED = 30_000
"""Of the environment's first episode; the ladders' checkpoints were chosen and measured on others."""
TOGETHER = 10
"""Episodes stepped together."""


class Rollout(NamedTuple):
    """What one process does at a time."""

    environment: str
    """An EnvSpec as JSON."""
    observation_space: gymnasium.Space | None
    policy: Policy
    first_seed: int
    episodes: int


def evaluate(
    policies: Sequence[Policy],
    metadata: Metadata,
    episodes: int = 10,
    seed: int = FIRST_SEED,
    processes: int | None = None,
) -> Float[np.ndarray, "policies episodes"]:
    """The return of each policy's episodes; episode i of every policy starts from the seed `seed` + i."""
    if episodes < 1 or (processes is not None and processes < 1):
        raise InputError("the numbers of episodes and of processes must be at least 1")
    environment = metadata.evaluation_environment or metadata.environment or ""
    require_fitting(policies, metadata)
    rollouts = [
        Rollout(environment, metadata.observation_space, policy, seed + first, min(TOGETHER, episodes - first))
        for policy in policies
        for first in range(0, episodes, TOGETHER)
    ]
    title = f"Rolling out in {environments.environment_id(metadata)}"
    count = min(processes or os.cpu_count() or 1, len(rollouts))
    returns: list[float] = []
    with (
        one_thread_each(),
        evaluators(count) as pool,
        console.progress(title, len(policies) * episodes, "episodes") as advance,
    ):
        for part in pool.map(roll_out, rollouts):
            returns += part
            advance(len(part), mean_return=float(np.mean(part)))
    return np.array(returns).reshape(len(policies), episodes)


def require_fitting(policies: Sequence[Policy], metadata: Metadata) -> None:
    """Raise unless the data's environment can be started here and takes these policies."""
    environment = environments.make(metadata)
    observations = spaces.flat_size(metadata.observation_space or environment.observation_space)
    acted = environment.action_space
    environment.close()
    if not isinstance(acted, Box):
        raise InputError(f"{environments.environment_id(metadata)}: its actions are {acted}, not a Box of numbers")
    for policy in policies:
        sizes = len(policy.units.mean), len(policy.units.low)
        if sizes != (observations, int(np.prod(acted.shape))):
            raise InputError(
                f"{environments.environment_id(metadata)} has {observations} observations and "
                f"{int(np.prod(acted.shape))} actions, but the policy {sizes[0]} and {sizes[1]}"
            )


def roll_out(rollout: Rollout) -> list[float]:
    lanes = _lanes(rollout.environment, rollout.episodes)
    space = rollout.observation_space or lanes[0].observation_space
    acted = lanes[0].action_space
    assert isinstance(acted, Box)

    def act(observations: np.ndarray) -> np.ndarray:
        return rollout.policy.act(observations).astype(acted.dtype).reshape(-1, *acted.shape)

    return play(lanes, act, rollout.first_seed, lambda observation: flat(space, observation))


def flat(space: gymnasium.Space, observation: Any) -> np.ndarray:
    """One observation as a row."""

    def at(path: tuple[str, ...]) -> np.ndarray:
        part = observation
        for name in path:
            part = part[name]
        return np.ravel(part)

    return np.concatenate([at(path) for path, _ in spaces.leaves(space)])


@cache
def _lanes(environment: str, count: int) -> list[gymnasium.Env]:
    """A process's environments, made once: a reset leaves nothing of the episode before."""
    return [environments.make(Metadata(environment=environment), disable_env_checker=True) for _ in range(count)]


def film(policy: Policy, metadata: Metadata, path: Path, seed: int = FIRST_SEED) -> float:
    """Write one episode as a video, and return its return."""
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError('a video needs imageio with ffmpeg: pip install "trajstitch[video]"') from error
    environment = environments.make(metadata, render_mode="rgb_array")
    space = metadata.observation_space or environment.observation_space
    frames, total, ended = [], 0.0, False
    observation, _ = environment.reset(seed=seed)
    try:
        frames.append(environment.render())
    except Exception as error:  # whatever the graphics library says, it is the same to the user
        raise InputError(
            f"{environments.environment_id(metadata)} can't be drawn here ({type(error).__name__}: {error}): on a "
            "machine without a screen, set MUJOCO_GL=egl or MUJOCO_GL=osmesa and install its library"
        ) from error
    acted = environment.action_space
    while not ended:
        action = policy.act(flat(space, observation)[None]).reshape(acted.shape).astype(acted.dtype)
        observation, reward, terminated, truncated, _ = environment.step(action)
        total, ended = total + float(reward), terminated or truncated
        frames.append(environment.render())
    fps = environment.metadata.get("render_fps", 30)
    environment.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    imageio.mimwrite(path, frames, fps=fps, macro_block_size=1)
    return total
