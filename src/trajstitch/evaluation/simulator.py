"""Replay steps in the simulator: set it to an observed state, take the action, and return what happens.

This measures how real a stitched step is without any model. It works for MuJoCo tasks whose observation is the
simulator's positions and velocities, without the position along the track: Hopper, Walker2d, HalfCheetah, Swimmer and
similar ones. And for every environment that can be set to a state, by a method of its own:

    def set_state(self, state):
        ...

`state` is an observation as the data has it, a flat row of numbers, and the environment goes on from the state that
shows it. It may return the observation that it shows now: if that is another one, the step is not counted.
"""

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from jaxtyping import Bool, Float

from trajstitch.data import environments
from trajstitch.data.trajectories import Metadata
from trajstitch.engines.workers import cores
from trajstitch.errors import InputError
from trajstitch.evaluation.processes import light_processes, portable
from trajstitch.evaluation.processes import pool as start_pool
from trajstitch.evaluation.rollouts import flat
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
            f"{metadata.source or metadata.name}: names no environment, so there is no simulator to replay in: name "
            "one with `environment`, by Gymnasium's id or as MODULE:NAME"
        )
    spec = environments.spec(metadata)
    own = environments.start(spec)
    set_by_hook = _has_hook(own)
    if not set_by_hook:
        _rebuildable(own, observations.shape[1])
    own.close()
    chunks = [slice(start, start + CHUNK) for start in range(0, max(len(actions), 1), CHUNK)]
    work = [(spec, observations[chunk], actions[chunk]) for chunk in chunks]
    parts = []
    with ExitStack() as stack:
        apart: Callable[..., Iterable[Any]] = map
        if portable(spec):
            stack.enter_context(light_processes())
            apart = stack.enter_context(start_pool(min(processes or cores(), len(work)))).imap
        advance = stack.enter_context(progress("Replaying in the simulator", len(actions)))
        for part in apart(_replay_by_hook if set_by_hook else _replay, work):
            parts.append(part)
            advance(len(part[1]))
    return Outcome(*(np.concatenate(pieces) for pieces in zip(*parts, strict=True)))


def _has_hook(environment: Any) -> bool:
    """Return whether the environment has a `set_state` that takes one state; MuJoCo's takes two arguments."""
    hook = getattr(environment.unwrapped, "set_state", None)
    if not callable(hook):
        return False
    try:
        inspect.signature(hook).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def _replay_by_hook(work: tuple[EnvSpec, np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    spec, observations, actions = work
    environment = environments.start(spec, disable_env_checker=True)
    environment.reset(seed=0)
    bare: Any = environment.unwrapped
    action_space = environment.action_space
    following, rewards = np.empty_like(observations), np.empty(len(actions))
    known = np.ones(len(actions), bool)
    for step, (observation, action) in enumerate(zip(observations, actions, strict=True)):
        shown = bare.set_state(observation.copy())
        if shown is not None:
            known[step] = np.allclose(_flat(environment, shown), observation, rtol=1e-5, atol=1e-6)
        reached, rewards[step], *_ = bare.step(action.astype(action_space.dtype).reshape(action_space.shape))
        following[step] = _flat(environment, reached)
    return following, rewards, known


def _flat(environment: Any, observation: Any) -> np.ndarray:
    return np.ravel(flat(environment.observation_space, observation))


def _rebuildable(environment: Any, size: int) -> Any:
    """Return the bare simulator; raise if an observation of this size doesn't show its whole state."""
    bare = environment.unwrapped
    name = environment.spec.id if environment.spec else type(bare).__name__
    if not hasattr(bare, "set_state") or not hasattr(bare, "model"):
        raise InputError(
            f"{name} is not a MuJoCo task of Gymnasium and has no method set_state(state) that puts it into the state "
            "that an observation shows: its state can't be set"
        )
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
