"""Train policies on data: all seeds at once, in memory or in a run's folder.

The folder of a training holds, beside what every run's does:

    data.json                       the data's metadata, for evaluation
    weights.safetensors             the samples' weights, if the algorithm has some
    state.safetensors               everything that training needs to continue
    checkpoints/STEPS.safetensors   the policies of all seeds, each file complete in itself
    action-error.json               how far the policies' actions are from the logged ones, and the mean action is
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from trajstitch.data.checks import own_names, require_trajectories
from trajstitch.data.source_facts import as_recorded, source_facts
from trajstitch.data.stitch_record import holds_originals
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import metadata
from trajstitch.learning.bounds import check_bounds, check_seeds
from trajstitch.learning.buffer import fill_buffer
from trajstitch.learning.fit import State, begin, fit, itself, member, stack
from trajstitch.policies import name_of
from trajstitch.policies.action_error import compare_with_constant
from trajstitch.policies.algorithm import Algorithm, SampleWeighted
from trajstitch.policies.bc import BC
from trajstitch.policies.policy import Policy, load_policies, save_policies
from trajstitch.policies.training_data import Sizes, TrainingData
from trajstitch.progress import logger
from trajstitch.storage.runs import Run, damaged

HELD_OUT = 0.1
"""Share of the episodes that is held out if there is no environment to evaluate in."""
CHUNK = 1000
"""Steps between two reports of the metrics."""
LONGEST_NAME = 40
"""Characters of a data set's name beside a progress bar."""
SAVE_SECONDS = 120
"""The state is saved this often, and at each checkpoint."""
MAKES = (
    *("data.json", "weights.safetensors", "state.safetensors", "checkpoints/*.safetensors", "action-error.json"),
    *("seconds.json", "scores.json", "estimate.json"),
)
"""The files of a training, and of its evaluation, which are removed if it is started again."""


def train(
    data: Trajectories,
    algorithm: Algorithm | None = None,
    seeds: int = 5,
    seed: int = 0,
    *,
    run: Run | None = None,
    held_out: Trajectories | None = None,
) -> list[Policy]:
    """Train policies on the data, one for each seed from `seed` on; by BC if no algorithm is given.

    With a `run`, metrics, checkpoints and the state are written to its folder, and training continues from the state
    that is there. Policies that predict the actions of the `held_out` episodes (if not given, of the data) no better
    than a constant action are warned of.
    """
    algorithm = BC() if algorithm is None else algorithm
    check_training(algorithm, seeds, seed)
    require_trajectories(data)
    if run is None:
        policies = train_together([data], algorithm, seeds, seed)[0]
        compare_with_constant(policies, data, held_out)
        return policies
    facts = source_facts(data)
    job = {**settings(algorithm), "seeds": seeds, "seed": seed}
    job |= {name: facts.pop(name) for name in ("fingerprint", "action_bounds")}
    run.keep_job(job, **facts, top=1.0, hold_out=0.0, longest=longest_episode(data))
    run.write_json("data", json.loads(metadata.to_json(data.metadata)))
    return _train_in(run, data, algorithm, seeds, seed, held_out)


def train_together(
    sets: Sequence[Trajectories],
    algorithm: Algorithm | None = None,
    seeds: int = 5,
    seed: int | list[int] = 0,
    resumed: Callable[[State], State] = itself,
    each: Callable[[State, dict[str, float]], None] | None = None,
    *,
    every: int = CHUNK,
    config: dict[str, Any] | None = None,
    training_data: Callable[[Trajectories], TrainingData] | None = None,
) -> list[list[Policy]]:
    """Train policies on each of several data sets, all at once: for each set what `train` returns.

    On an accelerator this takes little longer than training on one set.

    Args:
        sets: The data sets; all must have the same observation and action sizes.
        algorithm: The method with its settings; `BC()` if not given.
        seeds: How many policies of each set.
        seed: The first seed, of all sets or, as a list, of each.
        resumed: Takes the state before the first step and returns the one to continue from.
        each: Called after each `every` steps with the state and the mean metrics.
        every: Steps between two calls of `each`.
        config: What the policies carry as their config; the algorithm's settings if not given.
        training_data: Makes what is learned from, in place of the algorithm's own.
    """
    algorithm = BC() if algorithm is None else algorithm
    first = list(seed) if isinstance(seed, list | tuple) else [seed] * len(sets)
    for data, one in zip(sets, first, strict=True):
        check_training(algorithm, seeds, one)
        require_trajectories(data, "sets")
    sizes = sorted({(data.observation_size, data.action_size) for data in sets})
    if len(sizes) != 1:
        raise InputError(f"training together needs data sets of one observation and action size, not {sizes}")
    numbers = [number for one in first for number in range(one, one + seeds)]
    without_samples: list[TrainingData] = []
    configs = [(config or settings(algorithm)) | own_names(data) for data in sets]

    def samples(data: Trajectories) -> Any:
        made = (training_data or algorithm.training_data)(data)
        without_samples.append(made._replace(samples=None))
        return made.samples

    buffer, slices = fill_buffer(map(samples, sets), [data.steps for data in sets])
    state = resumed(initial_state(algorithm, sets[0], numbers))
    learned = f"{len(sets)} sets" if len(sets) > 1 else sets[0].metadata.name[:LONGEST_NAME]
    title = f"{name_of(algorithm)}, {seeds} seed{'s' * (seeds > 1)}, on {learned}"
    state = fit(algorithm, state, buffer, slices.for_each(seeds), every=every, title=title, each=each)
    return deploy_each(algorithm, state, without_samples, first, seeds, configs)


def train_run(
    data: Trajectories,
    algorithm: Algorithm,
    folder: Path,
    seeds: int = 5,
    seed: int = 0,
    *,
    top: float = 1.0,
    hold_out: float | None = None,
    held_out: Trajectories | None = None,
    source: dict[str, Any] | None = None,
    resume: bool = False,
    force: bool = False,
) -> Run:
    """Train policies in a run's folder, or continue a run with `resume`; return the run.

    A run that is continued may get more steps than it had. With `force`, a run that is there is started again.

    `top` is the fraction of the episodes to learn from, the best by `Trajectories.best`. `hold_out` is the share of
    these kept to measure the action error on: if not given, 0.1 if the data names no environment, else 0; none if
    `held_out` are episodes that were kept aside before. `source` are facts about the data for the run's config.
    """
    check_training(algorithm, seeds, seed, top, hold_out)
    require_trajectories(data)
    known = data.metadata.evaluation_environment or data.metadata.environment
    hold_out = hold_out if hold_out is not None else 0.0 if known or held_out is not None else HELD_OUT
    learned, apart = split_episodes(data, top, hold_out)
    held_out = apart if held_out is None else held_out
    source = source_facts(data) if source is None else source
    if resume:
        source = as_recorded(folder, source)
    config = {**settings(algorithm), **source, "top": top, "hold_out": hold_out, "seeds": seeds, "seed": seed}
    config["learned_return"] = float(learned.returns.mean())
    extends = resume and (folder / "run.json").is_file() and _extends(Run.open(folder, "train"), algorithm)
    free = ("source", "learned_return", *(("steps",) if extends else ()))
    run = Run.start(folder, "train", config, resume=resume, force=force, makes=MAKES, free=free)
    run.keep_job({}, longest=longest_episode(data))
    if note := note_on_stitched(data, algorithm, config["source"]):
        logger.info(note)
    run.write_json("data", json.loads(metadata.to_json(data.metadata)))
    _train_in(run, learned, algorithm, seeds, seed, held_out)
    return run


def longest_episode(data: Trajectories) -> int:
    """Return the steps of the longest episode: the limit in an environment that has none of its own."""
    return int(data.lengths.max(initial=0))


def _extends(run: Run, algorithm: Algorithm) -> bool:
    """Return whether a run was to be trained for fewer steps, so that it is trained on now."""
    before = run.config.get("steps")
    if not isinstance(before, int) or before >= algorithm.steps:
        return False
    logger.info(f"{run.folder}: extended from {before:,} to {algorithm.steps:,} steps")
    return True


def note_on_stitched(data: Trajectories, algorithm: Algorithm, source: str | None = None) -> str | None:
    """Return a note on which kind of stitched data this is, and which kind suits the algorithm; None if logged."""
    if not data.has_jumps:
        return None
    where = source or data.metadata.source or data.metadata.name
    union, clones = holds_originals(data), not hasattr(algorithm, "discount")
    holds = f"{where}: holds stitched episodes {'beside' if union else 'in place of'} the original ones"
    learner = "a clone" if clones else "a learner of values"
    if union != clones:
        return f"{holds}, which suits {learner}"
    if clones:
        return f"{holds}; {learner} usually does better without the originals (stitch without `keep_original`)"
    return f"{holds}; {learner} usually does better with the originals too (stitch with `keep_original=True`)"


def _train_in(
    run: Run, data: Trajectories, algorithm: Algorithm, seeds: int, seed: int, held_out: Trajectories | None
) -> list[Policy]:
    """Train in a run, and measure the action error."""
    start = time.monotonic()
    try:
        policies = _continue(run, data, algorithm, seeds, seed)
    finally:
        run.write_json("seconds", {"training": _seconds(run) + time.monotonic() - start})
    run.write_json("action-error", compare_with_constant(policies, data, held_out))
    return policies


def _seconds(run: Run) -> float:
    """Return how long training has taken so far."""
    if not run.has("seconds"):
        return 0.0
    with damaged(run.path("seconds.json")):
        return float(run.read_json("seconds")["training"])


def _continue(run: Run, data: Trajectories, algorithm: Algorithm, seeds: int, seed: int) -> list[Policy]:
    """Train from the state that is kept in the run: the same loop, with its state and checkpoints kept."""
    last = checkpoint(run, algorithm.steps)
    if last.exists():
        with damaged(last, "remove it, and the same command with `resume=True` makes it again"):
            policies = load_policies(last)
            if len(policies) != seeds:
                raise ValueError(f"it holds {len(policies)} policies, not {seeds}")
        logger.info(f"{run.folder}: already trained to its last step")
        return policies
    numbers, config = range(seed, seed + seeds), settings(algorithm) | run.config | own_names(data)
    every, marks = schedule(algorithm.steps)
    kept: TrainingData | None = None
    saved, done = time.monotonic(), None

    def training_data(data: Trajectories) -> TrainingData:
        nonlocal kept
        found = _training_data(run, algorithm, data)
        kept = found._replace(samples=None)
        return found

    def resumed(state: State) -> State:
        nonlocal done
        if run.has("state"):
            state = run.read_tree("state", like=state)
            logger.info(f"{run.folder}: continuing from step {int(state.step):,}")
        run.drop_metrics_after(int(state.step))
        done = state
        if not checkpoint(run, int(state.step)).exists():  # the job was stopped between the state and it
            keep_checkpoint(state)
        return state

    def keep_checkpoint(state: State) -> None:
        if (step := int(state.step)) in marks:
            assert kept is not None
            policies = deploy(algorithm, state, kept, numbers, config)
            with run.writing():
                save_policies(policies, checkpoint(run, step))

    def each(state: State, metrics: dict[str, float]) -> None:
        nonlocal saved, done
        step = int(state.step)
        run.log(step=step, **metrics)
        done = state
        if step in marks or time.monotonic() - saved > SAVE_SECONDS:
            run.write_tree("state", state)
            saved = time.monotonic()
        keep_checkpoint(state)

    try:
        policies = train_together(
            [data],
            algorithm,
            seeds,
            seed,
            resumed,
            each,
            every=every,
            config=config,
            training_data=training_data,
        )[0]
    except (KeyboardInterrupt, SystemExit):
        if done is not None:
            run.write_tree("state", done)
            logger.info(f"{run.folder}: stopped at step {int(done.step):,}")
        raise
    return policies


def _training_data(run: Run, algorithm: Algorithm, data: Trajectories) -> TrainingData:
    """Return what the algorithm learns from; weights of samples are computed once and kept in the run."""
    if not isinstance(algorithm, SampleWeighted):
        return algorithm.training_data(data)
    if not run.has("weights"):
        run.write_tensors("weights", {"weight": algorithm.weights(data)})
    path = run.path("weights.safetensors")
    with damaged(path):
        weights = run.read_tensors("weights")["weight"]
        if weights.shape != (data.steps,) or not np.isfinite(weights).all():
            raise ValueError(f"weights of shape {weights.shape} for {data.steps:,} steps")
    return algorithm.training_data(data, weights)  # pyright: ignore[reportCallIssue]  # by SampleWeighted


def check_training(
    algorithm: Algorithm, seeds: int, seed: int, top: float = 1.0, hold_out: float | None = None
) -> None:
    """Raise for settings that make no sense."""
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm) or not is_dataclass(algorithm):
        given = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else f"{algorithm!r}"
        raise InputError(f"`algorithm` must be an algorithm with its settings, such as BC(), not {given}")
    check_seeds(seed, seeds)
    check_bounds(algorithm)
    if not 0 < top <= 1:
        raise InputError(f"`top` is a fraction, above 0 and at most 1, not {top}: 0.1 is the best tenth")
    if hold_out is not None and not 0 <= hold_out < 1:
        raise InputError(f"`hold_out` must be at least 0 and below 1, not {hold_out}")


def settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return the algorithm's name and settings, as policies and runs carry them."""
    return {"policy": name_of(algorithm), **asdict(algorithm)}  # pyright: ignore[reportArgumentType]


def initial_state(algorithm: Algorithm, data: Trajectories, seeds: Sequence[int]) -> State:
    """Return the state before the first step. What a seed learns depends only on its own number and its data."""
    keys = [jax.random.split(jax.random.key(seed)) for seed in seeds]
    # Drawn one by one: a vmap over seeds would round the weights differently for each number of seeds.
    models = stack([_initial_model(algorithm, key, Sizes.of(data)) for key, _ in keys])
    return begin(algorithm, models, jnp.stack([key for _, key in keys]))


@eqx.filter_jit
def _initial_model(algorithm: Algorithm, key: PRNGKeyArray, sizes: Sizes) -> Any:
    return algorithm.init(key, sizes)


def deploy(
    algorithm: Algorithm, state: State, data: TrainingData, seeds: Sequence[int], config: dict[str, Any]
) -> list[Policy]:
    """Return each seed's policy after the steps taken so far."""
    arrays, static = eqx.partition(state.model, eqx.is_array)
    arrays = jax.tree.map(np.asarray, arrays)
    models = [eqx.combine(jax.tree.map(lambda leaf: leaf[i], arrays), static) for i in range(len(seeds))]  # noqa: B023
    return [
        algorithm.deploy(model, data, seed, int(state.step), config) for model, seed in zip(models, seeds, strict=True)
    ]


def deploy_each(
    algorithm: Algorithm,
    state: State,
    sets: Sequence[TrainingData],
    first: Sequence[int],
    seeds: int,
    configs: Sequence[dict[str, Any]] | None = None,
) -> list[list[Policy]]:
    """Return the policies of each data set that trains together, whose seeds start at its `first`."""
    configs = configs or [settings(algorithm)] * len(sets)

    def own(number: int) -> State:
        """Return the state of one data set's seeds."""
        return replace(state, model=member(state.model, slice(number * seeds, (number + 1) * seeds)))

    return [
        deploy(algorithm, own(number), made, range(one, one + seeds), config)
        for number, (made, one, config) in enumerate(zip(sets, first, configs, strict=True))
    ]


def split_episodes(data: Trajectories, top: float, hold_out: float) -> tuple[Trajectories, Trajectories | None]:
    """Split the best episodes into those to learn from and those held out."""
    data = data.best(top) if top < 1 else data
    if hold_out == 0:
        return data, None
    if len(data) < 2:
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: one episode can't be split into some to learn from and "
            "some to hold out: use `hold_out=0`"
        )
    held = np.zeros(len(data), bool)
    count = min(max(round(hold_out * len(data)), 1), len(data) - 1)
    held[np.random.default_rng(0).permutation(len(data))[:count]] = True
    return data[np.flatnonzero(~held)], data[np.flatnonzero(held)]


def schedule(steps: int) -> tuple[int, set[int]]:
    """Return the steps of a chunk, and the steps after which a checkpoint is written.

    Of 100,000 steps, as in the paper, every 10,000 from 40,000 on; of other numbers, the same tenths.
    """
    chunks = math.ceil(steps / 10 / CHUNK)
    every = math.ceil(steps / 10 / chunks)
    tenth = every * chunks
    return every, {*range(4 * tenth, steps, tenth), steps}


def checkpoint(run: Run, steps: int) -> Path:
    """Return the path of the checkpoint after this many steps."""
    return run.path(f"checkpoints/{steps:09}.safetensors")
