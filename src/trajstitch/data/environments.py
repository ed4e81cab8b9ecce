"""The environment in which policies of a data set are evaluated, and the reference returns for scores."""

import json
import re
import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from trajstitch.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

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

_LEGS = ("thigh", "leg", "foot")
_LIMBS = {
    "Hopper": _LEGS,
    "Walker2d": tuple(f"{side} {part}" for side in ("right", "left") for part in _LEGS),
    "HalfCheetah": tuple(f"{end} {part}" for end in ("back", "front") for part in ("thigh", "shin", "foot")),
}
OBSERVATIONS = {
    "trajstitch/Maze": ("x", "y"),
    **{
        task: (
            *("height", *(f"angle of {part}" for part in ("torso", *limbs))),
            *("speed", "vertical speed", *(f"turning of {part}" for part in ("torso", *limbs))),
        )
        for task, limbs in _LIMBS.items()
    },
}
"""What the columns of an observation are, in environments that don't say so, by the id without its version."""

PACKAGES = ("gymnasium_robotics",)
"""Packages that register environments on import, and are imported if a data set names one of theirs."""

SHOWN_BY = ("render_mode",)
"""Arguments that open windows or draw, which no data file asks for."""
MOST_PARTS = 10_000
"""Numbers and characters of the arguments that a data file gives: some environments take long to build from many."""

OWN = {"trajstitch/Maze-v0": "trajstitch.data.maze"}
"""Our own environments and the modules that register them."""


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
    stored = _stored(metadata)
    return None if stored is None else stored["id"]


def observation_names(metadata: "Metadata", columns: int) -> tuple[str, ...] | None:
    """Return what the columns of an observation are, if the data's environment is one that is known."""
    names = OBSERVATIONS.get((environment_id(metadata) or "").rpartition("-v")[0])
    return names if names is not None and len(names) == columns else None


def parse_spec(text: Any, where: str) -> dict[str, Any]:
    """Return a stored EnvSpec as a dictionary; raise if it is none. `where` names its file in errors."""
    try:
        stored = json.loads(text)
        if not isinstance(stored, dict) or not isinstance(stored.get("id"), str):
            raise ValueError("no object with an id")
        kwargs, wrappers = stored.get("kwargs", {}), stored.get("additional_wrappers", ())
        limit = stored.get("max_episode_steps")
        if not isinstance(kwargs, dict) or not (limit is None or type(limit) is int):
            raise ValueError("kwargs or max_episode_steps of a wrong type")
        if not isinstance(wrappers, list | tuple) or not all(isinstance(one, dict) for one in wrappers):
            raise ValueError("additional_wrappers that are no list of objects")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: its environment is not an EnvSpec of Gymnasium as JSON ({error})") from error
    return stored


def parse_reference(stored: Any, where: str) -> tuple[float, float]:
    """Return stored reference returns; raise unless they are two different numbers."""
    try:
        low, high = (float(one) if type(one) in (int, float) else np.nan for one in stored)
    except (TypeError, ValueError, OverflowError):
        low = high = np.nan
    if not np.isfinite((low, high)).all():
        raise InputError(
            f"{where}: its reference scores are {str(stored)[:80]}: expected two numbers, of random and of expert"
        )
    if low == high:
        raise InputError(f"{where}: its reference scores are both {low:g}, so nothing can be scored: they must differ")
    return low, high


def spec(metadata: "Metadata") -> "EnvSpec":
    """Return how to make the environment to evaluate in.

    A data file may come from anywhere, so it can only choose among registered environments, and set their time limit
    and arguments, to plain values that name no file. It never says which code runs.
    """
    stored = _stored(metadata)
    if stored is None:
        raise InputError(f"{metadata.source or metadata.name}: names no environment, so policies can't be rolled out")
    registered = _registered(stored["id"], stored.get("entry_point"))
    if stored.get("additional_wrappers"):
        raise InputError(
            f"{stored['id']} can't be started with the wrappers that the data asks for "
            f"({', '.join(str(wrapper.get('name')) for wrapper in stored['additional_wrappers'])}), since code that a "
            "data file names is never run: register the wrapped environment under an id of its own"
        )
    kwargs = {name: value for name, value in stored.get("kwargs", {}).items() if name not in SHOWN_BY}
    if _parts(kwargs) > MOST_PARTS:
        raise InputError(
            f"{stored['id']} can't be started with the arguments that the data asks for: they have more than "
            f"{MOST_PARTS:,} parts, as damaged and hostile files do"
        )
    for name, value in kwargs.items():
        if not _is_plain(value) and registered.kwargs.get(name) != value:
            raise InputError(
                f"{stored['id']} can't be started with {name} = {value!r}, which the data asks for: arguments from a "
                "data file may not name other files"
            )
    return replace(
        registered,
        kwargs={**registered.kwargs, **kwargs},
        max_episode_steps=stored.get("max_episode_steps", registered.max_episode_steps),
        additional_wrappers=(),
    )


def _is_plain(value: Any) -> bool:
    """Return whether an argument is made of numbers, flags and words; a text that could be a path is not."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not (isinstance(value, str) and (value.startswith((".", "~")) or set(value) & set("/\\:")))


def _parts(value: Any) -> int:
    """Return how many numbers, flags and characters an argument is made of."""
    if isinstance(value, dict):
        return sum(len(name) + _parts(one) for name, one in value.items())
    if isinstance(value, list):
        return len(value) + sum(map(_parts, value))
    return len(value) if isinstance(value, str) else 1


def trust(metadata: "Metadata") -> None:
    """Register the environment that a data set names, with the code it names, because the user says so.

    In this process `spec` then accepts it. Wrappers stay refused.
    """
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    stored = _stored(metadata)
    if stored is None or not isinstance(stored.get("entry_point"), str):
        return
    try:
        gymnasium.registry[stored["id"]] = EnvSpec(
            stored["id"],
            stored["entry_point"],
            kwargs=stored.get("kwargs", {}),
            max_episode_steps=stored.get("max_episode_steps"),
        )
    except gymnasium.error.Error as error:
        raise InputError(f"{metadata.source or metadata.name}: {stored['id']!r} is no environment id") from error


def make(metadata: "Metadata", **options: object) -> "gymnasium.Env":
    """Make the environment to evaluate in."""
    return start(spec(metadata), **options)


def start(spec: "EnvSpec", **options: object) -> "gymnasium.Env":
    """Make an environment from what `spec` returned, in any process."""
    import gymnasium

    from trajstitch.data.guarded import Guarded

    try:
        return Guarded(gymnasium.make(spec, **options), spec)  # pyright: ignore[reportArgumentType]
    except gymnasium.error.DependencyNotInstalled as error:
        if "mujoco" in str(error).lower():
            raise InputError(f'{spec.id} needs MuJoCo: pip install "trajstitch[mujoco]"') from error
        raise InputError(f"{spec.id} needs a package that is not installed ({error})") from error
    except Exception as error:  # the environment's own, for arguments it doesn't take or a package that is missing
        what = "check its arguments, and " if spec.kwargs else ""
        raise InputError(f"{spec.id} can't be started ({error}): {what}install the package it comes from") from error


def _stored(metadata: "Metadata") -> dict[str, Any] | None:
    text = metadata.evaluation_environment or metadata.environment
    return None if text is None else parse_spec(text, metadata.source or metadata.name)


def _registered(name: str, entry_point: object) -> "EnvSpec":
    """Return the registry's spec of this name; raise if there is none, or if the file's code is not the registry's."""
    import gymnasium

    _register_own(name)
    package = entry_point.partition(":")[0].partition(".")[0] if isinstance(entry_point, str) else ""
    if name not in gymnasium.registry and package in PACKAGES:
        with suppress(ImportError):
            import_module(package)
    if name not in gymnasium.registry:
        raise InputError(
            f"{name} can't be started (no environment of this name is registered; the data names {entry_point}): "
            "install the package it comes from and name it with `environment=MODULE:NAME`, import it first, or run the "
            "code that the data names with `trust_environment=True`"
        )
    found = gymnasium.registry[name]
    known = _entry_point(found)
    if entry_point is not None and entry_point != known:
        raise InputError(
            f"{name} can't be started: the data says that it is made by {entry_point}, but Gymnasium's registry has "
            f"{known}, and code that a data file names is never run unless you say so (`trust_environment=True`)"
        )
    return found


def _register_own(name: str) -> None:
    if name in OWN:
        import_module(OWN[name])


def _entry_point(spec: "EnvSpec") -> str | None:
    """Return what makes an environment as MODULE:NAME, also where its own class was registered."""
    place = spec.entry_point
    return f"{place.__module__}:{getattr(place, '__qualname__', '')}" if callable(place) else place


def named(environment: str) -> str:
    """Return the EnvSpec (as JSON) of an environment that the user names, and make it known to this process.

    Gymnasium's id of a registered one (Hopper-v5), or MODULE:NAME, which imports the module: NAME is a class, a
    function that makes an environment, or the id of one that the module registers. Call this only with what a user has
    typed, never with what a file says.
    """
    import gymnasium

    module, colon, name = environment.partition(":")
    if not colon:
        return spec_json(environment)
    here = str(Path.cwd())
    if here not in sys.path:  # a user's module is usually in the folder they work in
        sys.path.append(here)
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:  # the module's own
        raise InputError(
            f"`environment={environment}`: the module {module} can't be imported ({type(error).__name__}: {error})"
        ) from error
    if found is None and name not in gymnasium.registry:
        raise InputError(
            f"`environment={environment}`: {module} has no {name}, and registers no environment of that name"
            f"{did_you_mean(name, [*vars(import_module(module)), *gymnasium.registry])}"
        )
    if found is None:
        return spec_json(name)
    if not callable(found):
        raise InputError(f"`environment={environment}` is a {type(found).__name__}, not a class or function")
    if environment not in gymnasium.registry:
        gymnasium.register(environment, environment)
    return spec_json_of(gymnasium.registry[environment])


def with_environment(metadata: "Metadata", environment: str, longest: int | None = None) -> "Metadata":
    """Return the metadata with the environment that the user names, see `named`.

    One without a time limit gets that of the metadata's own record of it, or `longest`.
    """
    made = parse_spec(named(environment), environment)
    if made.get("max_episode_steps") is None:
        before = _stored(metadata)
        limit = before.get("max_episode_steps") if before is not None and before["id"] == made["id"] else None
        made["max_episode_steps"] = limit or longest
    return replace(metadata, environment=json.dumps(made), evaluation_environment=None)


def with_limit(metadata: "Metadata", steps: int) -> "Metadata":
    """Return the metadata whose environment, if it names one, cuts episodes off after this many steps."""
    stored = _stored(metadata)
    if stored is None:
        return metadata
    limited = json.dumps({**stored, "max_episode_steps": steps})
    name = "environment" if metadata.evaluation_environment is None else "evaluation_environment"
    return replace(metadata, **{name: limited})


def time_limit(environment: str) -> int | None:
    """Return the number of steps after which a registered environment truncates an episode."""
    return parse_spec(spec_json(environment), environment)["max_episode_steps"]


def spec_json_of(spec: "EnvSpec") -> str:
    """Return an EnvSpec as JSON; a function that makes the environment is named, not stored."""
    return replace(spec, entry_point=_entry_point(spec)).to_json()


def spec_json(environment: str) -> str:
    """Return a registered environment's EnvSpec as JSON, without starting the environment (so without MuJoCo).

    Gymnasium imports what stands before a colon in an id. Ids are read from files too, so nothing is imported here.
    """
    import gymnasium

    module, colon, _ = environment.rpartition(":")
    if colon and module not in sys.modules:
        raise InputError(f"unknown environment {environment!r}: import {module or 'its package'} first")
    try:
        _register_own(environment)
        spec = gymnasium.spec(environment)
        options = {**spec.kwargs, **D4RL_OPTIONS.get(environment, {})}
        return spec_json_of(replace(spec, kwargs=options))
    except gymnasium.error.Error as error:
        hint = did_you_mean(environment, gymnasium.registry)
        raise InputError(f"unknown environment {environment!r}{hint}") from error
