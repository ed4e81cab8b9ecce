"""The functions of the Python API whose data may also be named, by a URI, a path or a built-in set's name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Float

from trajstitch.benchmark import sources
from trajstitch.data.checks import require_trajectories
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation import compare as comparing
from trajstitch.evaluation import evaluate as evaluating
from trajstitch.policies import train as training
from trajstitch.policies.algorithm import Algorithm
from trajstitch.policies.policy import Policy, load_policies
from trajstitch.stitching.config import Preset, StitchConfig, preset
from trajstitch.stitching.pipeline import StitchJob, stitch_together
from trajstitch.storage.runs import Run

LOADING = re.compile(r"`(columns|missing|resample|allow_\w+)\b")
"""What an error names that only `load` takes."""

Data = Trajectories | str | Path
"""Trajectories, or where they are: a URI, a file's path, or the name of a built-in set."""


@overload
def stitch(
    data: Data,
    config: Preset | StitchConfig = "default",
    seed: int = 0,
    *,
    passes: int | None = None,
    keep_original: bool | None = None,
    stitchings: int | None = None,
    run: Run | str | Path | None = None,
) -> Trajectories: ...
@overload
def stitch(
    data: Data,
    config: Preset | StitchConfig = "default",
    seed: int = 0,
    *,
    passes: int | None = None,
    keep_original: bool | None = None,
    stitchings: int | None = None,
    run: Run | str | Path | None = None,
    seeds: int,
) -> list[Trajectories]: ...
def stitch(
    data: Data,
    config: Preset | StitchConfig = "default",
    seed: int = 0,
    *,
    passes: int | None = None,
    keep_original: bool | None = None,
    stitchings: int | None = None,
    run: Run | str | Path | None = None,
    seeds: int | None = None,
) -> Trajectories | list[Trajectories]:
    """Return a better data set made from the data alone: every trajectory is the old one or a better one.

    Data that can't be improved comes back unchanged, and a warning says why. `provenance` tells where each step comes
    from.

    Args:
        data: What was logged: trajectories, a URI, a path or a built-in set's name.
        config: A preset's name (quick, default, paper), or a config of your own.
        seed: Seed of the models.
        passes: Greedy passes, in place of the config's own number.
        keep_original: Keep all original trajectories, as they were, and add the changed ones, for learners of Q.
        stitchings: Join this many stitchings, each with models of its own, by `seed` and those after it.
        run: Folder in which finished stages are kept, and from which the same stitching continues.
        seeds: Return a list of this many data sets, for `seed` and those after it: each has its own V and latents, all
            share the models and the graph of `seed`.
    """
    found = _loaded(data)
    require_trajectories(found)
    config = preset(config) if isinstance(config, str) else config
    if not isinstance(config, StitchConfig):
        raise InputError(f"`config` must be a preset's name or a StitchConfig, not {config!r}")
    given = {"passes": passes, "keep_original": keep_original, "stitchings": stitchings}
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    job = StitchJob(found, config.for_data(found.metadata), seed, 1 if seeds is None else seeds, _run(run, "stitch"))
    sets = [stitched.after for stitched in stitch_together([job])[0]]
    return sets[0] if seeds is None else sets


def train(
    data: Data,
    algorithm: Algorithm | None = None,
    seeds: int = 5,
    seed: int = 0,
    *,
    run: Run | str | Path | None = None,
    held_out: Trajectories | None = None,
) -> list[Policy]:
    """Train policies on the data, one for each seed, all at once.

    Policies that predict actions no better than a constant action are warned of.

    Args:
        data: What to learn from: trajectories, a URI, a path or a built-in set's name.
        algorithm: The method with its settings, such as `BC(steps=20_000)`; `BC()` if not given.
        seeds: How many policies, for `seed` and those after it.
        seed: The first seed.
        run: Folder that keeps metrics, checkpoints and the state, and from which the same training continues.
        held_out: Episodes to measure the action error on; if not given, those of the data.
    """
    return training.train(_loaded(data), algorithm, seeds, seed, run=_run(run, "train"), held_out=held_out)


def compare(
    policies: Mapping[str, Policy | Sequence[Policy] | str | Path],
    data: Data,
    *,
    held_out: Trajectories | None = None,
    seed: int = 0,
) -> comparing.Comparison:
    """Compare policies by what logged data tells about their returns, without an environment.

    Args:
        policies: Policies by name: one, several seeds of a method, whose mean counts, or the folder of their training.
        data: What was logged: trajectories, a URI, a path or a built-in set's name. Of stitched data that holds the
            original episodes, these are taken.
        held_out: Episodes to measure action errors on; if not given, those of the data.
        seed: Seed of the resampling of episodes.
    """
    groups = {name: load_policies(one) if isinstance(one, str | Path) else one for name, one in policies.items()}
    return comparing.compare(groups, _loaded(data), held_out=held_out, seed=seed)


def evaluate(
    policies: Sequence[Policy] | str | Path,
    data: Metadata | Data,
    episodes: int = 10,
    seed: int = evaluating.FIRST_SEED,
    processes: int | None = None,
) -> Float[np.ndarray, "policies episodes"]:
    """Return the return of each episode of each policy, rolled out in an environment.

    Args:
        policies: The policies, or the folder of their training.
        data: Data that names the environment, or its metadata, URI, path or built-in name.
        episodes: Episodes of each policy.
        seed: Seed of the first episode; episode i of every policy starts from `seed` + i.
        processes: Worker processes; one for each core if not given. The returns do not depend on it.
    """
    found = load_policies(policies) if isinstance(policies, str | Path) else policies
    known = data if isinstance(data, Metadata) else _loaded(data).metadata
    return evaluating.evaluate(found, known, episodes, seed, processes)


def _loaded(data: Data) -> Trajectories:
    """Return the data, loaded if it is named; what is neither is refused by the function that gets it."""
    if not isinstance(data, str | Path):
        return data
    try:
        return sources.load(data)
    except InputError as error:
        if not LOADING.search(str(error)):
            raise
        raise InputError(f"{error} (load it first: data = trajstitch.load({str(data)!r}, ...))") from error


def _run(run: Run | str | Path | None, kind: str) -> Run | None:
    """Return the run, in a new folder or in one that holds a run of this kind."""
    return Run.start(Path(run), kind, {}, resume=True) if isinstance(run, str | Path) else run
