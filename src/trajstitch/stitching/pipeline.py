"""A stitching job in a run folder, stage by stage: what is done is kept, and `--resume` goes on from there.

quality.json                      how far states foretell the returns; below the preset's limit nothing else is made
models.safetensors, models.json   the models, and what each is worth on held-out steps; until all are fitted, those
                                  that are, as model-NAME.safetensors
graph.safetensors                 the graph
last-pass.safetensors             D_k and V after the last greedy pass that was finished, and what all did so far
saved.json                        the targets that are written
passes.json                       what each pass did
result.npz                        the stitched data, as it was saved to the target

Of several seeds, which share all but the last two, each has these in a folder of its own, seed-SEED.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from tyro.conf import Positional, arg

from trajstitch import formats
from trajstitch.benchmark import sources
from trajstitch.benchmark.sources import describe_source
from trajstitch.data.normalise import Normaliser, rescale_for_float32
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.learning.fit_report import FitReport
from trajstitch.learning.networks import normaliser_of
from trajstitch.progress import logger
from trajstitch.stitching.config import (
    Preset,
    Progress,
    StitchConfig,
    StitchingTask,
    check_seeds,
    fit_models,
    ignorance,
    improve_together,
    keys_of,
    lonely,
    one_quality,
    preset_for,
    untouched,
)
from trajstitch.stitching.graph import Models, StitchGraph, build
from trajstitch.stitching.greedy import Summary
from trajstitch.stitching.paths import Jumps, Paths
from trajstitch.stitching.predictability import return_predictability
from trajstitch.storage.runs import Run, tensors_of, tree_from
from trajstitch.storage.tensors import read_tensors


@dataclass(frozen=True, kw_only=True)
class Stitch:
    """A stitching job: which data, where to, and what may differ from the preset."""

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """The data set, as a URI; it is never touched."""
    target: Annotated[Positional[str], arg(metavar="DST")]
    """Where the better data set goes, as a URI; {seed} in it stands for the seed's number."""
    preset: Preset = "default"
    """default: the best we know. quick: minutes on a laptop. paper: its hyper-parameters exactly."""
    seed: int = 0
    """Of the models, the value function and the latents."""
    seeds: int = 1
    """Make as many data sets, from SEED on, which share the models of SEED; DST must have {seed} in it."""
    passes: int | None = None
    """Greedy passes (K), where the preset makes any."""
    margin: float | None = None
    """By how much a jump's log-likelihood may fall short of the logged step's; the paper's is 0."""
    consistency: float | None = None
    """How far a jump's action may miss its target by the forward ensemble's word, over the jump's length."""
    quality: float | None = None
    """Leave the data alone unless its states foretell this share of the returns' variance; 0 stitches whatever."""
    max_jumps: int | None = None
    """Accept only trajectories with at most this many jumps."""
    value_test: bool = True
    """Whether to jump only to states of higher value; otherwise greedy passes diversify the data instead."""
    run: Path | None = None
    """The run's folder; by default runs/stitch-SRC-PRESET-seed-SEED."""
    resume: bool = False
    """Go on with the run in that folder."""
    force: bool = False
    """Overwrite the target if it is there."""

    @property
    def numbers(self) -> range:
        """The seeds' numbers."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def targets(self) -> list[str]:
        """Where each seed's data set goes."""
        if self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, not {self.seeds}")
        if self.seeds > 1 and "{seed}" not in self.target:
            raise InputError(
                f"{self.target} names one data set, where {self.seeds} seeds make {self.seeds}: say where the seed's "
                "number goes, as in npz:better-{seed}.npz"
            )
        return [self.target.replace("{seed}", str(seed)) for seed in self.numbers]

    @property
    def folder(self) -> Path:
        several = f"-to-{self.numbers[-1]}" if self.seeds > 1 else ""
        name = re.sub(r"[^\w.]+", "-", f"stitch-{self.source}-{self.preset}-seed-{self.seed}{several}").strip("-")
        return self.run or Path("runs") / name

    def config(self, data: Trajectories) -> StitchConfig:
        """The preset with what was asked otherwise."""
        config = preset_for(self.preset, data)
        if self.passes is not None:
            if config.plan is not None:
                raise InputError(f"--passes goes with greedy passes; the preset {self.preset!r} plans instead")
            config = replace(config, passes=self.passes)
        if self.margin is not None:
            config = replace(config, reach=replace(config.reach, margin=self.margin))
        if self.consistency is not None:
            if config.forward is None:
                raise InputError(f"--consistency needs the forward model, which the preset {self.preset!r} has none of")
            config = replace(config, reach=replace(config.reach, consistency=self.consistency))
        if self.quality is not None:
            config = replace(config, quality=self.quality)
        rules = replace(config.rules, max_jumps=self.max_jumps, value_test=self.value_test)
        return replace(config, rules=rules)


@dataclass(frozen=True)
class Stitched:
    """What came of a job for one seed."""

    run: Run
    before: Trajectories
    after: Trajectories
    passes: list[dict[str, Any]]
    """What each pass did; empty where nothing was stitched."""
    left_alone: str | None
    """Why nothing was, if so."""
    seconds: dict[str, float]


def stitch_run(job: Stitch, columns: Columns | None = None) -> list[Stitched]:
    """Do the job, or go on with it; what comes of it for each seed."""
    saved = _saved(job)
    for target in job.targets:
        sources.require_apart(job.source, target)
        if target not in saved:
            formats.require_free(target, force=job.force)
    data = sources.load(job.source, columns=columns)
    config = job.config(data)
    check_seeds(config, job.numbers)
    facts = {"target": job.target, "seed": job.seed, "seeds": job.seeds, "preset": job.preset}
    facts |= {**describe_source(job.source, columns, data), "stitching": asdict(config)}
    run = Run.start(job.folder, "stitch", facts, resume=job.resume)
    try:
        done = Stages(run, config, data, job.seed, job.seeds).all()
    except (KeyboardInterrupt, SystemExit):
        logger.info(f"{run.folder}: stopped; the same command with --resume goes on after what is finished")
        raise
    if done[0].left_alone is not None:
        logger.info(f"nothing is stitched: {done[0].left_alone}")
    for one, target in zip(done, job.targets, strict=True):
        if target in saved:
            logger.info(f"{target} was written before and is left as it is; --force writes it again")
            continue
        formats.save(one.after, target, force=job.force)
        saved.append(target)
        run.write_json("saved", saved)
    return done


def _saved(job: Stitch) -> list[str]:
    """The targets that the run has written before and that are there, unless all are to be written again."""
    path = job.folder / "saved.json"
    if not job.resume or job.force or not path.exists():
        return []
    return [target for target in json.loads(path.read_text()) if formats.exists(target)]


def place(run: Run, seed: int | None = None) -> str:
    """Where in a run's folder a seed's own files are: the first seed's, unless told."""
    first, seeds = run.facts["config"]["seed"], run.facts["config"].get("seeds", 1)
    seed = first if seed is None else seed
    if seed not in range(first, first + seeds):
        raise InputError(f"{run.folder}: holds no seed {seed}; the seeds are {first} to {first + seeds - 1}")
    return f"seed-{seed}/" if seeds > 1 else ""


class Stages:
    """A run's stages: each is read if it is there, else made and kept."""

    def __init__(
        self,
        run: Run,
        config: StitchConfig,
        data: Trajectories,
        seed: int,
        seeds: int = 1,
        before: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.run, self.config, self.data = run, config, data
        self.seen = rescale_for_float32(data)
        """The data as models and walks see it."""
        self.seeds = range(seed, seed + seeds)
        self.models_key, _ = keys_of(seed)
        self._models: tuple[Models, list[FitReport]] | None = None
        self._results: list[tuple[Trajectories, list[dict[str, Any]]]] = []
        self.before = before
        """Called with the name of each stage that is about to be made; it may object by raising."""

    def all(self) -> list[Stitched]:
        """Every stage in turn, as far as it pays; what comes of it for each seed."""
        return all_together([self])[0]

    def prepare(self) -> None:
        """Every stage before the passes, as far as it pays."""
        if self.no_use() is None and not self.finished:
            self.graph(self.models()[0])

    def no_use(self) -> str | None:
        """Why nothing is to be stitched, if so; this takes the models."""
        return lonely(self.data) or self.one_quality() or ignorance(self.models()[1])

    def return_predictability(self) -> float | None:
        """How far states foretell the returns, as `quality` says."""
        if not self.run.has("quality"):
            self.run.write_json("quality", {"return_predictability": return_predictability(self.seen)})
        return self.run.read_json("quality")["return_predictability"]

    def one_quality(self) -> str | None:
        """Why nothing is to be gained, if so."""
        return one_quality(self.config, self.return_predictability()) if self.config.quality > 0 else None

    def models(self) -> tuple[Models, list[FitReport]]:
        if self._models is None:
            done = self.run.path("models.json").exists()  # the last to be written
            self._models = self._fit_models() if not done else self._read_models()
        return self._models

    def _read_models(self) -> tuple[Models, list[FitReport]]:
        models = self.run.read_tree("models", like=untrained(self.config, self.seen, self.models_key))
        return models, [FitReport(**worth) for worth in self.run.read_json("models")]

    def _fit_models(self) -> tuple[Models, list[FitReport]]:
        self.before("models")
        start = time.monotonic()
        like = untrained(self.config, self.seen, self.models_key)

        def kept(name: str, fitted: Callable[[], tuple[Any, FitReport]]) -> tuple[Any, FitReport]:
            """Each model is kept as soon as it is fitted, until all are."""
            file = f"model-{name}"
            if self.run.has(file):
                _, facts = read_tensors(self.run.path(f"{file}.safetensors"))
                return self.run.read_tree(file, getattr(like, name)), FitReport(**json.loads(facts["worth"]))
            model, worth = fitted()
            self.run.write_tree(file, model, worth=json.dumps(asdict(worth)))
            return model, worth

        models, worths = fit_models(self.config, self.seen, self.models_key, kept)
        self.run.write_tree("models", models)
        self.run.write_json("models", [asdict(worth) for worth in worths])
        self.took("models", start)
        for path in self.run.folder.glob("model-*"):
            path.unlink()
        return models, worths

    def graph(self, models: Models) -> StitchGraph:
        path = self.run.path("graph.safetensors")
        if path.exists():
            return StitchGraph.load(path)
        self.before("graph")
        start = time.monotonic()
        graph = build(self.seen, models, self.config.near, self.config.reach)
        graph.save(path)
        self.took("graph", start)
        return graph

    @property
    def places(self) -> list[str]:
        """Where each seed's own files are."""
        return [place(self.run, seed) for seed in self.seeds]

    @property
    def finished(self) -> bool:
        return all(self.run.has(f"{where}passes") for where in self.places)

    def grounds(self) -> list[StitchingTask]:
        """What each seed's passes go over."""
        models, _ = self.models()
        graph = self.graph(models)
        return [StitchingTask(self.seen, models, graph, keys_of(seed)[1]) for seed in self.seeds]

    def begun(self) -> list[Progress]:
        """How far each seed's passes are."""
        return self._kept() or [Progress(Paths.of(self.seen))] * len(self.seeds)

    def finish(self, courses: Sequence[Progress]) -> None:
        """Save each seed's stitched data, and what each pass did."""
        self._results = []
        for course, where in zip(courses, self.places, strict=True):
            after = replace(course.paths, data=self.data).trajectories()
            passes = [asdict(summary) for summary in course.summaries]
            formats.save(after, self._result(where), force=True)
            self.run.write_json(f"{where}passes", passes)
            self._results.append((after, passes))

    def results(self) -> list[tuple[Trajectories, list[dict[str, Any]]]]:
        """Each seed's stitched data of a finished run, and what each pass did."""
        return self._results or [
            (formats.load(self._result(where)), self.run.read_json(f"{where}passes")) for where in self.places
        ]

    def untouched(self) -> list[tuple[Trajectories, list[dict[str, Any]]]]:
        """The same where nothing was stitched."""
        return [(untouched(self.data), [])] * len(self.seeds)

    def _result(self, where: str) -> str:
        return f"npz:{self.run.path(f'{where}result.npz')}"

    def keep(self, courses: Sequence[Progress]) -> None:
        """Save what the passes so far have come to, in place of what was saved before."""
        tensors: dict[str, np.ndarray] = {}
        for seed, course in zip(self.seeds, courses, strict=True):
            tensors |= {f"{seed}/{name}": getattr(course.paths, name) for name in _PATHS}
            tensors |= {f"{seed}/jumps/{item.name}": getattr(course.paths.jumps, item.name) for item in fields(Jumps)}
            tensors |= {f"{seed}/value/{name}": array for name, array in tensors_of(course.value).items()}
        summaries = [[asdict(summary) for summary in course.summaries] for course in courses]
        self.run.write_tensors("last-pass", tensors, summaries=json.dumps(summaries))

    def _kept(self) -> list[Progress] | None:
        """What the passes of an earlier run came to, if any were finished."""
        if not self.run.has("last-pass"):
            return None
        file = self.run.path("last-pass.safetensors")
        tensors, facts = read_tensors(file)
        untrained = self.config.value.init(self.models_key, self.seen)

        def course(seed: int, summaries: list[dict[str, Any]]) -> Progress:
            own = {
                name.removeprefix(f"{seed}/"): array for name, array in tensors.items() if name.startswith(f"{seed}/")
            }
            jumps = Jumps(**{item.name: own[f"jumps/{item.name}"] for item in fields(Jumps)})
            value = {name.removeprefix("value/"): array for name, array in own.items() if name.startswith("value/")}
            return Progress(
                Paths(self.seen, **{name: own[name] for name in _PATHS}, jumps=jumps),
                tree_from(value, untrained, str(file)),
                tuple(Summary(**summary) for summary in summaries),
            )

        try:
            courses = [course(*one) for one in zip(self.seeds, json.loads(facts["summaries"]), strict=True)]
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(
                f"{file}: not a pass's result ({error}): remove it to start from the first pass"
            ) from error
        logger.info(f"{self.run.folder}: going on after pass {len(courses[0].summaries)}")
        return courses

    def took(self, stage: str, start: float) -> None:
        """Add the time since `start` to what the stage took before."""
        before = self.run.read_json("seconds") if self.run.has("seconds") else {}
        self.run.write_json("seconds", before | {stage: before.get(stage, 0.0) + time.monotonic() - start})


def all_together(several: Sequence[Stages]) -> list[list[Stitched]]:
    """Every stage of several runs, as far as it pays: what comes of each for each of its seeds.

    Their greedy passes are made together, so their settings must be the same, but for which states are candidates.
    """
    reasons = [stages.no_use() for stages in several]
    due = [stages for stages, reason in zip(several, reasons, strict=True) if reason is None and not stages.finished]
    if due:
        _pass_together(due)
    outcomes = []
    for stages, reason in zip(several, reasons, strict=True):
        seconds = stages.run.read_json("seconds") if stages.run.has("seconds") else {}
        results = stages.results() if reason is None else stages.untouched()
        outcomes.append([Stitched(stages.run, stages.data, *result, reason, seconds) for result in results])
    return outcomes


def _pass_together(several: Sequence[Stages]) -> None:
    config = several[0].config
    assert all(replace(stages.config, near=config.near) == config for stages in several)
    grounds = [stages.grounds() for stages in several]
    begun = [course for stages in several for course in stages.begun()]
    for stages in several:
        stages.before("passes")
    start = time.monotonic()

    def parts(courses: Sequence[Progress]) -> Iterator[tuple[Stages, Sequence[Progress]]]:
        at = 0
        for stages in several:
            yield stages, courses[at : at + len(stages.seeds)]
            at += len(stages.seeds)

    def each(courses: list[Progress]) -> None:
        nonlocal start
        for stages, part in parts(courses):
            stages.keep(part)
            stages.took("passes", start)
        start = time.monotonic()

    courses = improve_together(config, [ground for some in grounds for ground in some], begun, each)
    for stages, part in parts(courses):
        stages.finish(part)
        stages.took("passes", start)


_PATHS = ("node", "kind", "offsets", "terminated", "truncated")


def untrained(config: StitchConfig, data: Trajectories, key: PRNGKeyArray) -> Models:
    """Models of the shapes that `fit_models` gives, to read trained ones into."""

    def scale(size: int) -> Normaliser:
        return normaliser_of(np.zeros((1, size)))

    size, actions = data.observation_size, data.action_size
    dynamics = eqx.filter_vmap(lambda key: config.dynamics.init(key, scale(size), scale(size)))(
        jax.random.split(key, config.dynamics.keep)
    )
    forward = None
    if config.forward is not None:
        scales = (scale(size), scale(actions), scale(size), scale(1))
        judge = config.forward
        forward = eqx.filter_vmap(lambda key: judge.init(key, scales))(jax.random.split(key, judge.members))
    return Models(dynamics, config.inverse.init(key, data), config.reward.init(key, data), forward)
