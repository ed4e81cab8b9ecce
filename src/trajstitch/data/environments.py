"""The environment in which policies of a data set are evaluated, and the reference returns for scores."""

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from trajstitch.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import gymnasium

    from trajstitch.data.trajectories import Metadata

REFERENCE: dict[str, tuple[float, float]] = {
    "hopper": (-20.272305, 3234.3),
    "halfcheetah": (-280.178953, 12135.0),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
}
"""D4RL's returns of a random and of an expert policy for each task."""

D4RL_ENVIRONMENTS = {
    "hopper": "Hopper-v4",
    "halfcheetah": "HalfCheetah-v4",
    "walker2d": "Walker2d-v4",
    "ant": "Ant-v4",
}
"""Gymnasium's v4 environments reproduce those that D4RL's v2 data was logged in; v5 changed Walker2d's physics."""
D4RL_OPTIONS = {"Ant-v4": {"use_contact_forces": True}}
"""Arguments with which those environments give the same observations as D4RL's."""

LEGACY_SPEC = {"apply_api_compatibility", "autoreset"}
"""Fields of an EnvSpec written before Gymnasium 1.0 that later versions refuse; Minari's older sets have them."""


def task_of(name: str) -> str | None:
    """Return the locomotion task in the name of a data set or environment: Hopper-v5, hopper-medium-v2, ..."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((task for task in REFERENCE if task in words and "maze" not in words), None)


def d4rl_environment(name: str) -> str | None:
    """Return the Gymnasium environment for the name of a D4RL data set, such as hopper-medium-replay-v2."""
    return D4RL_ENVIRONMENTS.get(task_of(name) or "")


def reference(metadata: "Metadata") -> tuple[float, float] | None:
    """Return the set's own reference returns, else D4RL's for its task, else None.

    The task is that of its environment, if it is one of Gymnasium's own; the set's name counts only if no environment
    is recorded.
    """
    if metadata.reference is not None:
        return metadata.reference
    known = environment_id(metadata)
    if known is None:
        return REFERENCE.get(task_of(metadata.name) or "")
    return REFERENCE.get(known.partition("-v")[0].lower()) if re.fullmatch(r"[A-Z]\w+-v\d+", known) else None


def normalised(returns: float | Float[np.ndarray, "..."], metadata: "Metadata") -> Float[np.ndarray, "..."]:
    """Return scores for returns: 0 for the reference's random policy, 100 for its expert; unchanged without one."""
    scale = reference(metadata)
    with np.errstate(over="ignore"):
        return np.asarray(returns if scale is None else 100 * (np.asarray(returns) - scale[0]) / (scale[1] - scale[0]))


def environment_id(metadata: "Metadata") -> str | None:
    """Return the Gymnasium id of the environment to evaluate in, if one is recorded."""
    spec = metadata.evaluation_environment or metadata.environment
    return None if spec is None else json.loads(spec)["id"]


def make(metadata: "Metadata", **options: object) -> "gymnasium.Env":
    """Make the environment to evaluate in, from the spec in the metadata."""
    spec = metadata.evaluation_environment or metadata.environment
    if spec is None:
        raise InputError(f"{metadata.source or metadata.name}: names no environment, so policies can't be rolled out")
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    stored = {name: value for name, value in json.loads(spec).items() if name not in LEGACY_SPEC}
    try:
        return gymnasium.make(EnvSpec.from_json(json.dumps(stored)), **options)  # pyright: ignore[reportArgumentType]
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f'{stored["id"]} needs MuJoCo: pip install "trajstitch[mujoco]"') from error
    except (gymnasium.error.Error, ImportError) as error:
        raise InputError(f"{stored['id']} can't be started ({error}): install the package it comes from") from error


def time_limit(environment: str) -> int | None:
    """Return the number of steps after which a registered environment truncates an episode."""
    return json.loads(spec_json(environment))["max_episode_steps"]


def spec_json(environment: str) -> str:
    """Return a registered environment's EnvSpec as JSON, without starting the environment (so without MuJoCo)."""
    import gymnasium

    try:
        spec = gymnasium.spec(environment)
        return replace(spec, kwargs={**spec.kwargs, **D4RL_OPTIONS.get(environment, {})}).to_json()
    except gymnasium.error.Error as error:
        hint = did_you_mean(environment, gymnasium.registry)
        raise InputError(f"unknown environment {environment!r}{hint}") from error
