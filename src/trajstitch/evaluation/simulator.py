"""Replay steps in the simulator: set it to an observed state, take the action, and return what happens.

This measures how real a stitched step is without any model. It works for MuJoCo tasks whose observation is the
simulator's positions and velocities, without the position along the track: Hopper, Walker2d, HalfCheetah, Swimmer and
similar ones.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from jaxtyping import Bool, Float

from trajstitch.data import environments
from trajstitch.data.trajectories import Metadata
from trajstitch.errors import InputError
from trajstitch.evaluation.processes import light_processes
from trajstitch.evaluation.processes import pool as start_pool
from trajstitch.progress import progress

CHUNK = 2_000
"""Steps that a process replays at once: a fraction of a second, so that progress shows."""


@dataclass(frozen=True)
class Outcome:
    """What the simulator did in each step."""

    next_observations: Float[np.ndarray, "steps observation"]
    rewards: Float[np.ndarray, " steps"]
    known: Bool[np.ndarray, " steps"]
    """Whether the state could be rebuilt exactly, which it can't be if the observation clips a velocity."""


def replay(
    metadata: Metadata,
    observations: Float[np.ndarray, "steps observation"],
    actions: Float[np.ndarray, "steps action"],
    processes: int | None = None,
) -> Outcome:
    """Take each action in the state that its observation shows."""
    if environments.environment_id(metadata) is None:
        raise InputError(
            f"{metadata.source or metadata.name}: names no environment, so there is no simulator to replay in"
        )
    spec = environments.spec(metadata)
    _rebuildable(environments.start(spec), observations.shape[1])
    chunks = [slice(start, start + CHUNK) for start in range(0, max(len(actions), 1), CHUNK)]
    work = [(spec, observations[chunk], actions[chunk]) for chunk in chunks]
    parts = []
    with (
        light_processes(),
        start_pool(min(processes or os.cpu_count() or 1, len(work))) as pool,
        progress("Replaying in the simulator", len(actions)) as advance,
    ):
        for part in pool.imap(_replay, work):
            parts.append(part)
            advance(len(part[1]))
    return Outcome(*(np.concatenate(pieces) for pieces in zip(*parts, strict=True)))


def _rebuildable(environment: Any, size: int) -> Any:
    """Return the bare simulator; raise if an observation of this size doesn't show its whole state."""
    bare = environment.unwrapped
    name = environment.spec.id if environment.spec else type(bare).__name__
    if not hasattr(bare, "set_state") or not hasattr(bare, "model"):
        raise InputError(f"{name} is not a MuJoCo task of Gymnasium: its state can't be set")
    if bare.model.nq - 1 + bare.model.nv != size:
        raise InputError(
            f"{name}: an observation of {size} numbers doesn't show the simulator's {bare.model.nq} positions and "
            f"{bare.model.nv} velocities, so its state can't be rebuilt"
        )
    environment.reset(seed=0)
    bare.set_state(bare.init_qpos, bare.init_qvel)
    shown = bare._get_obs()
    if not np.allclose(shown, np.concatenate((bare.init_qpos[1:], bare.init_qvel))):
        raise InputError(f"{name}: its observation is not its positions and velocities, so no state can be rebuilt")
    return bare


def _replay(work: tuple[EnvSpec, np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from mujoco import mj_resetData  # pyright: ignore[reportAttributeAccessIssue]

    spec, observations, actions = work
    environment = environments.start(spec)
    bare = _rebuildable(environment, observations.shape[1])
    positions = bare.model.nq
    following, rewards = np.empty_like(observations), np.empty(len(actions))
    known = np.empty(len(actions), bool)
    for step, (observation, action) in enumerate(zip(observations, actions, strict=True)):
        # Nothing of the step before may remain, such as the solver's warm start.
        mj_resetData(bare.model, bare.data)
        bare.set_state(np.concatenate(([0.0], observation[: positions - 1])), observation[positions - 1 :])
        known[step] = np.array_equal(bare._get_obs(), observation) and not _clipped(spec, observation[positions - 1 :])
        following[step], rewards[step], *_ = bare.step(action)
    return following, rewards, known


def _clipped(spec: EnvSpec, velocities: np.ndarray) -> bool:
    """Return whether a velocity may be clipped: Hopper and Walker2d show at most 10."""
    return not spec.id.startswith("HalfCheetah") and bool((np.abs(velocities) >= 10).any())
