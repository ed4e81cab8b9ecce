"""Train a policy on data: every seed at once, with checkpoints to evaluate and a state to resume from.

A training's folder holds, beside what every run's does:

    data.json                       what was known about the data, for evaluation
    state.safetensors               everything training needs to go on
    checkpoints/STEPS.safetensors   the policies of all seeds, each file complete in itself
"""

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from tyro.conf import Positional, arg

from trajstitch.benchmark import sources
from trajstitch.benchmark.sources import describe_source
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import metadata
from trajstitch.formats.columns import Columns
from trajstitch.learning.buffer import fill_buffer
from trajstitch.learning.fit import Objective, State, begin, fit, itself, member, stack
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.policy import Policy, Units, save_policies
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.training_data import Problem, Sizes
from trajstitch.progress import logger
from trajstitch.storage.runs import Run

POLICIES = {"bc": BC, "weighted-bc": WeightedBC, "td3-bc": TD3BC, "iql": IQL}
HELD_OUT = 0.1
"""Share of the episodes that is held out where there is no environment to evaluate in."""
CHUNK = 1000
"""Steps between two looks at the metrics."""
SAVE_SECONDS = 120
"""The state is saved this often, and at each checkpoint."""
BOUNDS = {
    **dict.fromkeys(("steps", "batch_size", "value_steps", "policy_delay", "hidden"), (1, math.inf)),
    **dict.fromkeys(("learning_rate", "temperature", "alpha", "target_noise", "target_noise_clip"), (0, math.inf)),
    **dict.fromkeys(("discount", "expectile", "target_rate"), (0, 1)),
}
"""Of an algorithm's settings."""


class Algorithm(Protocol):
    """What the classes in `policies` have in common."""

    @property
    def steps(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    def problem(self, data: Trajectories) -> Problem: ...
    def init(self, key: PRNGKeyArray, sizes: Sizes) -> Any: ...
    def objectives(self) -> tuple[Objective, ...]: ...


def train(data: Trajectories, algorithm: Algorithm | None = None, seeds: int = 5, seed: int = 0) -> list[Policy]:
    """Train policies on the data, one a seed, from `seed` on; BC, unless told otherwise."""
    return train_together([data], algorithm, seeds, seed)[0]


def train_together(
    sets: Sequence[Trajectories],
    algorithm: Algorithm | None = None,
    seeds: int = 5,
    seed: int = 0,
    resumed: Callable[[State], State] = itself,
    each: Callable[[State, dict[str, float]], None] | None = None,
) -> list[list[Policy]]:
    """Train policies on each of several data sets, all at once: for each set what `train` gives.

    On an accelerator this takes little longer than training on one set; the sets must agree in the sizes of
    observations and actions. `resumed` makes of the state before the first step the one to go on from, and `each` is
    called with the state as it goes, as by `fit`.
    """
    algorithm = algorithm or BC()
    check(algorithm, seeds, seed)
    sizes = sorted({(data.observation_size, data.action_size) for data in sets})
    if len(sizes) != 1:
        raise InputError(f"training together needs data sets of one observation and action size, not {sizes}")
    numbers, units = range(seed, seed + seeds), []

    def samples(data: Trajectories) -> Any:
        problem = algorithm.problem(data)
        units.append(problem.units)
        return problem.samples

    table, ranges = fill_buffer(map(samples, sets), [data.steps for data in sets])
    state = start(algorithm, sets[0], [*numbers] * len(sets))
    state = fit(algorithm, resumed(state), table, ranges.for_each(seeds), title=_name(algorithm), each=each)
    config = {"policy": _name(algorithm), **asdict(algorithm)}  # pyright: ignore[reportArgumentType]
    return [
        exported(replace(state, model=member(state.model, slice(at * seeds, (at + 1) * seeds))), one, numbers, config)
        for at, one in enumerate(units)
    ]


def check(algorithm: Algorithm, seeds: int, seed: int) -> None:
    """Raise for settings that make no sense."""
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, not {seeds}")
    if seed < 0:
        raise InputError(f"--seed must not be negative, not {seed}")
    for name, value in asdict(algorithm).items():  # pyright: ignore[reportArgumentType]
        if name not in BOUNDS:
            continue
        low, high = BOUNDS[name]
        for one in value if isinstance(value, tuple) else (value,):
            if not low <= one <= high:
                bound = f"at most {high:g}" if one > high else f"at least {low:g}"
                raise InputError(f"--{name.replace('_', '-')} must be {bound}, not {one:g}")


def start(algorithm: Algorithm, data: Trajectories, seeds: Sequence[int]) -> State:
    """The state before the first step. What a seed learns depends on its own number and its data alone."""
    keys = [jax.random.split(jax.random.key(seed)) for seed in seeds]
    # Drawn one by one: a vmap over seeds would round the weights differently with their number.
    models = stack([_drawn(algorithm, key, Sizes.of(data)) for key, _ in keys])
    return begin(algorithm, models, jnp.stack([key for _, key in keys]))


@eqx.filter_jit
def _drawn(algorithm: Algorithm, key: PRNGKeyArray, sizes: Sizes) -> Any:
    return algorithm.init(key, sizes)


def exported(state: State, units: Units, seeds: Sequence[int], config: dict[str, Any]) -> list[Policy]:
    """Each seed's policy as it stands, as NumPy arrays."""
    stacked = jax.tree.map(np.asarray, state.model.actor.network.layers)
    return [
        Policy([(weight[index], bias[index]) for weight, bias in stacked], units, seed, int(state.step), config)
        for index, seed in enumerate(seeds)
    ]


@dataclass(frozen=True, kw_only=True)
class Train:
    """A training job: which data, how many seeds, where to."""

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """The data set, as a URI."""
    seeds: int = 5
    """Policies trained side by side, one a seed."""
    seed: int = 0
    """The first seed."""
    top: float = 1.0
    """Learn from the best fraction of the episodes by return alone; of stitched ones, from all that may be as good."""
    hold_out: float | None = None
    """Share of the episodes kept to measure the action error on: if not given, 0.1 where the data names no
    environment, else none."""
    run: Path | None = None
    """The run's folder; by default runs/POLICY-SRC."""
    resume: bool = False
    """Go on with the run in that folder."""

    def folder(self, policy: str) -> Path:
        words = (policy, self.source, *([f"top-{self.top:g}"] if self.top < 1 else []))
        return self.run or Path("runs") / re.sub(r"[^\w.]+", "-", "-".join(words)).strip("-")

    def check(self, algorithm: Algorithm) -> None:
        check(algorithm, self.seeds, self.seed)
        if not 0 < self.top <= 1:
            raise InputError(f"--top is a fraction, above 0 and at most 1, not {self.top}: 0.1 is the best tenth")
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            raise InputError(f"--hold-out must be at least 0 and below 1, not {self.hold_out}")


def train_run(job: Train, algorithm: Algorithm, columns: Columns | None = None) -> Run:
    """Do the job, or go on with it, in its run's folder."""
    job.check(algorithm)
    data = sources.load(job.source, columns=columns)
    known = data.metadata.evaluation_environment or data.metadata.environment
    hold_out = job.hold_out if job.hold_out is not None else 0.0 if known else HELD_OUT
    learned, _ = divided(data, job.top, hold_out)
    seeds = range(job.seed, job.seed + job.seeds)
    config = {
        "policy": _name(algorithm),
        **asdict(algorithm),  # pyright: ignore[reportArgumentType]
        **describe_source(job.source, columns, data),
        "top": job.top,
        "hold_out": hold_out,
        "seeds": job.seeds,
        "seed": job.seed,
    }
    run = Run.start(job.folder(_name(algorithm)), "train", config, resume=job.resume)
    run.write_json("data", json.loads(metadata.to_json(data.metadata)))
    if checkpoint(run, algorithm.steps).exists():
        logger.info(f"{run.folder}: trained to its last step already")
        return run
    problem = _problem(run, algorithm, learned)
    state = start(algorithm, learned, seeds)
    if run.has("state"):
        state = run.read_tree("state", like=state)
    if job.resume:
        logger.info(f"{run.folder}: going on from step {int(state.step):,}")
    _forget_after(run, int(state.step))
    every, marks = schedule(algorithm.steps)
    saved, done = time.monotonic(), state

    def each(state: State, metrics: dict[str, float]) -> None:
        nonlocal saved, done
        step = int(state.step)
        run.log(step=step, **metrics)
        if step in marks:
            save_policies(exported(state, problem.units, seeds, config), checkpoint(run, step))
        if step in marks or time.monotonic() - saved > SAVE_SECONDS:
            run.write_tree("state", state)
            saved = time.monotonic()
        done = state

    title = f"{_name(algorithm)}, {job.seeds} seed{'s' * (job.seeds > 1)}"
    try:
        fit(algorithm, state, problem.samples, every=every, title=title, each=each)
    except (KeyboardInterrupt, SystemExit):
        run.write_tree("state", done)
        logger.info(f"{run.folder}: stopped at step {int(done.step):,}; the same command with --resume goes on")
        raise
    return run


def _problem(run: Run, algorithm: Algorithm, learned: Trajectories) -> Problem:
    """What the algorithm learns from; what had to be learned for that is kept in the run."""
    if not isinstance(algorithm, WeightedBC):
        return algorithm.problem(learned)
    if not run.has("weights"):
        logger.info(f"first a value function to weigh the samples by: {algorithm.value_steps:,} steps (--value-steps)")
        run.write_tensors("weights", {"weight": algorithm.weights(learned)})
    return algorithm.problem(learned, run.read_tensors("weights")["weight"])


def divided(data: Trajectories, top: float, hold_out: float) -> tuple[Trajectories, Trajectories | None]:
    """The best episodes, and of these the ones to learn from and the ones held out."""
    data = data.best(top) if top < 1 else data
    if hold_out == 0:
        return data, None
    if len(data) < 2:
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: one episode can't be divided into some to learn from and "
            "some to hold out: use --hold-out 0"
        )
    held = np.zeros(len(data), bool)
    count = min(max(round(hold_out * len(data)), 1), len(data) - 1)
    held[np.random.default_rng(0).permutation(len(data))[:count]] = True
    return data[np.flatnonzero(~held)], data[np.flatnonzero(held)]


def schedule(steps: int) -> tuple[int, set[int]]:
    """Steps in a chunk, and those after which there is a checkpoint.

    Of 100,000 steps, as in the paper, every 10,000 from 40,000 on; of others, the same tenths.
    """
    chunks = math.ceil(steps / 10 / CHUNK)
    every = math.ceil(steps / 10 / chunks)
    tenth = every * chunks
    return every, {*range(4 * tenth, steps, tenth), steps}


def checkpoint(run: Run, steps: int) -> Path:
    return run.path(f"checkpoints/{steps:09}.safetensors")


def _forget_after(run: Run, step: int) -> None:
    """Drop the metrics of steps that will be taken again."""
    kept = [line for line in run.metrics() if line["step"] <= step]
    run.path("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))


def _name(algorithm: Algorithm) -> str:
    return next((name for name, kind in POLICIES.items() if type(algorithm) is kind), type(algorithm).__name__)
