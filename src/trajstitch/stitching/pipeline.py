"""The stitching pipeline, once: gate, models, graph, plan or passes, result.

`stitch` makes the stages in memory. With a run, each stage is kept in its folder as soon as it is made, and is read
from there if it exists:

models.safetensors      the models and their fit reports; until all are fitted, one model-NAME.safetensors each
graph.safetensors       the graph
progress.safetensors    D_k and V after the last finished greedy pass, with the summaries so far
passes.json             what each pass did
result.npz              the stitched data, each changed trajectory in the original's place

Several seeds share all but the last two, which each has in a folder of its own, seed-SEED. Several stitchings share
nothing, and each has all of these files in a folder of its own, stitching-SEED. `result.assemble` makes the data set.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from trajstitch.data.column_roles import ColumnRoles, column_names
from trajstitch.data.normalise import rescale_for_float32
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Trajectories
from trajstitch.engines.workers import LOCAL, Workers
from trajstitch.formats.columns import listed
from trajstitch.learning.bounds import check_bounds, check_seeds
from trajstitch.learning.fit_report import FitReport
from trajstitch.learning.together import together
from trajstitch.models.hidden_state import TOLD, StepBefore
from trajstitch.models.inverse import fit_inverse
from trajstitch.models.reward import fit_reward
from trajstitch.progress import in_stage, logger
from trajstitch.stitching import gate
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.graph import EdgeScorer, Models, StitchGraph, build_graph
from trajstitch.stitching.guards import hidden_state
from trajstitch.stitching.improve import Progress, StitchingTask, improve_together
from trajstitch.stitching.layout import keep_graph, keep_job, keep_result, read_graph, read_result
from trajstitch.stitching.memory import check_memory
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.result import assemble
from trajstitch.storage.runs import Run, damaged
from trajstitch.storage.tensors import under

T = TypeVar("T")

TOGETHER = 2**24
"""Transitions, about, whose models are fitted at the same time; more would take tens of GiB."""


@dataclass(frozen=True)
class StitchJob:
    """A data set to stitch, for one seed or several that share the models."""

    data: Trajectories
    config: StitchConfig
    seed: int = 0
    seeds: int = 1
    run: Run | None = None
    """Where finished stages are kept; in memory if not given."""
    before_stage: Callable[[str], None] = lambda stage: None
    """Called with the name of each stage that is about to be made; it may raise to stop there."""
    workers: Workers = LOCAL
    """What the graph is built by."""

    @property
    def numbers(self) -> range:
        """The seeds' numbers."""
        return range(self.seed, self.seed + self.seeds)

    def stitching(self, number: int) -> "StitchJob":
        """Return one of the job's stitchings, which has a seed and, in a run, a folder of its own."""
        if self.config.stitchings == 1:
            return self
        seed = self.seed + number
        run = self.run and self.run.part(f"stitching-{seed}")
        return replace(self, seed=seed, run=run)


@dataclass(frozen=True)
class Stitched:
    """The outcome of a job for one seed."""

    before: Trajectories
    after: Trajectories
    passes: list[dict[str, Any]]
    """What each pass did; empty if the data was left unchanged. Of several stitchings, with the `seed` of each."""
    reason: str | None
    """Why the data was left unchanged, if it was (by each of several stitchings)."""
    columns: dict[str, list[str]]
    """Columns that are not controlled by actions, by their role."""
    reports: list[FitReport]
    """How well each model does on held-out steps."""
    seconds: dict[str, float]
    """Time taken by each stage."""


def stitch_together(jobs: Sequence[StitchJob]) -> list[list[Stitched]]:
    """Run several jobs; return the outcome of each for each of its seeds.

    The V's of all greedy passes train together, so the configs must be the same but for the neighbour search. Several
    stitchings are made one after the other, so that one graph of each job is held at a time.
    """
    _check(jobs)
    stitchings = max((job.config.stitchings for job in jobs), default=1)
    rounds = []
    for number in range(stitchings):
        if stitchings > 1:
            logger.info(f"stitching {number + 1} of {stitchings}")
        rounds.append(_stitch_once([job.stitching(number) for job in jobs]))
    return [
        [_joined(job, [once[at][seed] for once in rounds]) for seed in range(job.seeds)] for at, job in enumerate(jobs)
    ]


def fit_models_together(jobs: Sequence[StitchJob]) -> None:
    """Fit the models of jobs that have a run and lack them, those of all jobs at the same time.

    On an accelerator this takes little longer than fitting those of one job; elsewhere it is no faster.
    """
    _check(jobs)
    due = [
        one
        for job in jobs
        for one in (job.stitching(number) for number in range(job.config.stitchings))
        if one.run is not None and not one.run.has("models") and not one.run.has("passes")
    ]
    batch = np.cumsum([job.data.steps for job in due]) // TOGETHER
    for number in np.unique(batch):
        some = [due[at] for at in np.flatnonzero(batch == number)]
        together([lambda job=job: Stages(job).reason() for job in some])


def read_stitched(job: StitchJob, reports: Sequence[FitReport]) -> Trajectories:
    """Return the data set of a job of one seed that is finished in its run, given its models' reports."""
    several = [job.stitching(number) for number in range(job.config.stitchings)]
    results = [
        read_result(one.run, "", one.data)[0] if one.run is not None and one.run.has("passes") else one.data
        for one in several
    ]
    return _assembled(job, results, reports)


def _assembled(job: StitchJob, results: Sequence[Trajectories], reports: Sequence[FitReport]) -> Trajectories:
    """Return the data set that the job's config asks for, from the results of its stitchings."""
    return assemble(job.data, results, keep_original=job.config.keeps_original, doubts=hidden_state(reports))


def _check(jobs: Sequence[StitchJob]) -> None:
    """Raise for jobs that can't be done, and record in their runs what is done there."""
    for job in jobs:
        check_seeds(job.seed, job.seeds)
        check_bounds(job.config)
        job.config.check_seeds(job.numbers)
        if job.run is None or not job.run.has("passes"):
            check_memory(job.data, job.config)
        if job.run is not None:
            keep_job(job.run, job.data, job.config, job.seed, job.seeds)


def _stitch_once(jobs: Sequence[StitchJob]) -> list[list[Stitched]]:
    """Make one stitching of each job: changed trajectories are in the original's place."""
    several = [Stages(job) for job in jobs]
    reasons = [stages.reason() for stages in several]
    due = [stages for stages, reason in zip(several, reasons, strict=True) if reason is None and not stages.finished]
    if due:
        _improve(due)
    outcomes = []
    for stages, reason in zip(several, reasons, strict=True):
        results = [(stages.job.data, [])] * stages.job.seeds if reason else stages.results()
        facts = (reason, stages.columns, stages.reports(), stages.seconds)
        outcomes.append([Stitched(stages.job.data, after, passes, *facts) for after, passes in results])
    return outcomes


def _joined(job: StitchJob, stitchings: Sequence[Stitched]) -> Stitched:
    """Return the outcome of a job's stitchings together, with the data set that the config asks for."""
    passes, seconds, several = [], {}, len(stitchings) > 1
    for seed, one in enumerate(stitchings, job.seed):
        passes += [{"seed": seed, **facts} for facts in one.passes] if several else one.passes
        for stage, took in one.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + took
        if one.reason is not None:
            by = f" by the stitching with seed {seed}" if several else ""
            logger.warning(f"the data is left unchanged{by}: {one.reason}")
    reports = [report for one in stitchings for report in one.reports]
    after = _assembled(job, [one.after for one in stitchings], reports)
    record = StitchRecord.of(after.metadata)
    for doubt in () if record is None else record.warnings:
        logger.warning(doubt)
    return Stitched(
        before=job.data,
        after=after,
        passes=passes,
        reason=stitchings[0].reason if all(one.reason is not None for one in stitchings) else None,
        columns=stitchings[0].columns,
        reports=reports,
        seconds=seconds,
    )


def split_key(seed: int) -> Key[Array, "2"]:
    """Return a seed's two keys: of the models, and of what is its own when several seeds share the models."""
    return jax.random.split(jax.random.key(seed))


class Stages:
    """A job's stages: each is made once and kept, in memory or in a run."""

    def __init__(self, job: StitchJob) -> None:
        self.job, self.config, self.run = job, job.config, job.run
        whole = rescale_for_float32(job.data)
        roles = job.config.columns.roles(whole)
        own_roles, relevant = roles.without_irrelevant()
        names = np.array(column_names(job.data))
        self.names = names[relevant]
        self.columns = {kind: names[getattr(roles, kind)].tolist() for kind in ("fixed", "exogenous", "irrelevant")}
        """The columns that actions don't control, by role."""
        for kind in filter(self.columns.get, self.columns):
            logger.info(f"columns that are {kind}: {listed(self.columns[kind], most=8)}")
        self.observed = replace(whole, observations=whole.observations[:, relevant]), own_roles
        """The data as it was observed, without irrelevant columns, and the columns' roles."""
        self._see(StepBefore())
        self.models_key = split_key(job.seed)[0]
        self.seconds: dict[str, float] = {}
        if self.run is not None and self.run.has("seconds"):
            with damaged(self.run.path("seconds.json")):
                self.seconds = {stage: float(took) for stage, took in self.run.read_json("seconds").items()}
        self._memory: dict[str, Any] = {}

    def _see(self, step_before: StepBefore) -> None:
        """Let models see this of the step before, beside what was observed."""
        self.step_before = step_before
        self.recorded, self.roles = step_before.shown(*self.observed)
        """The data as models see it, and the roles of its columns."""
        self.data = self.recorded.filled()
        """The data as walks see it: the state before it stands for a final state that was not recorded."""

    def _kept(self, name: str, make: Callable[[], T], read: Callable[[Run], T], write: Callable[[Run, T], None]) -> T:
        """Return the stage of this name: from memory, read from the run, or made and kept."""
        if name not in self._memory:
            if self.run is not None and self.run.has(name):
                self._memory[name] = read(self.run)
            else:
                self.job.before_stage(name)
                start = time.monotonic()
                self._memory[name] = make()
                if self.run is not None:
                    write(self.run, self._memory[name])
                self.took(name, start)
        return self._memory[name]

    def took(self, stage: str, start: float) -> None:
        """Add the time since `start` to a stage's."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - start
        if self.run is not None:
            self.run.write_json("seconds", self.seconds)

    def reason(self) -> str | None:
        """Return why the data is left unchanged, if it is; this may fit the models."""
        data, roles = self.observed
        reason = gate.single_trajectory(data)
        if reason or not self.config.gate:
            return reason
        return (
            gate.separate_contexts(data.filled(), roles, self.names)
            or gate.random_surroundings(data, roles, self.names)
            or gate.invisible_ends(data)
            or gate.uninformative_models(self.models()[1])
        )

    def models(self) -> tuple[Models, list[FitReport]]:
        found = self._kept("models", self._fit_models, self._read_models, self._write_models)
        if self.run is not None:
            for name in self._model_names:
                self.run.path(f"model-{name}.safetensors").unlink(missing_ok=True)
        return found

    @property
    def _model_names(self) -> list[str]:
        first, *others = self.config.tests
        return [first, "inverse", "reward", *others]

    def _fit_models(self) -> tuple[Models, list[FitReport]]:
        names = self._model_names
        keys = dict(zip(names, jax.random.split(self.models_key, len(names)), strict=True))
        stages = {name: number for number, name in enumerate((*self.config.tests, "inverse", "reward"), 1)}
        found: dict[str, tuple[Any, FitReport | None]] = {}
        while left := [name for name in stages if name not in found]:
            with in_stage(stages[left[0]], len(names) + 2):
                found[left[0]] = self._fitted(left[0], keys[left[0]])
            report = found[left[0]][1]
            needed = StepBefore() if report is None else StepBefore.needed(report.metrics)
            if needed and not self.step_before:
                # The tests alone are fitted so far: they are fitted again, and the others see it too.
                logger.info(f"part of the state is hidden ({needed.told:.0%} of the changes): models see {needed} too")
                self._see(needed)
                found = {}
        reports = [report for name in names if (report := found[name][1]) is not None]
        for report in reports:
            logger.info(str(report))
        tests = {name: found[name][0] for name in self.config.tests}
        return Models(found["inverse"][0], found["reward"][0], tests), reports

    def _fitted(self, name: str, key: PRNGKeyArray) -> tuple[Any, FitReport | None]:
        """Return one model, fitted or read; in a run it is kept as soon as it is fitted, until all are."""
        file = f"model-{name}"
        if self.run is not None and self.run.has(file):
            _, facts = self.run.read(file)
            with damaged(self.run.path(f"{file}.safetensors")):
                stored, seen = json.loads(facts["report"]), _step_before(facts)
                report = None if stored is None else FitReport.from_json(stored)
            if seen and not self.step_before:
                self._see(seen)
            if seen == self.step_before:
                like = untrained_models(self.config, self.data, self.models_key)
                return self.run.read_tree(file, _model(like, name)), report
        model, report = fit_model(self.config, name, self.recorded, key, self.roles)
        if report is not None and TOLD in report.metrics:
            report = replace(report, metrics=report.metrics | self.step_before.metrics)
        if self.run is not None:
            kept, seen = None if report is None else asdict(report), asdict(self.step_before)
            self.run.write_tree(file, model, report=json.dumps(kept), step_before=json.dumps(seen))
        return model, report

    def reports(self) -> list[FitReport]:
        """Return the models' fit reports, if they have been fitted."""
        made = "models" in self._memory or (self.run is not None and self.run.has("models"))
        return self.models()[1] if made else []

    def _read_models(self, run: Run) -> tuple[Models, list[FitReport]]:
        _, facts = run.read("models")
        with damaged(run.path("models.safetensors")):
            reports = [FitReport.from_json(report) for report in json.loads(facts["reports"])]
            self._see(_step_before(facts))
        return run.read_tree("models", like=untrained_models(self.config, self.data, self.models_key)), reports

    def _write_models(self, run: Run, found: tuple[Models, list[FitReport]]) -> None:
        reports = json.dumps([asdict(report) for report in found[1]])
        run.write_tree("models", found[0], reports=reports, step_before=json.dumps(asdict(self.step_before)))

    # The graph

    def scorer(self) -> EdgeScorer:
        if "scorer" not in self._memory:
            context = self.roles.contexts(self.data.observations)
            self._memory["scorer"] = EdgeScorer(self.models()[0], self.config.tests, self.recorded, context)
        return self._memory["scorer"]

    def graph(self) -> StitchGraph:
        return self._kept(
            "graph",
            self._build_graph,
            lambda run: read_graph(run, "", self.data),
            lambda run, graph: keep_graph(run, graph),
        )

    def _build_graph(self) -> StitchGraph:
        scorer, models = self.scorer(), len(self.config.tests) + 2
        with in_stage(models + 1, models + 2):
            places = replace(self.data, observations=self.data.observations[:, ~self.roles.irrelevant])
            return build_graph(places, scorer, self.config.neighbours, self.job.workers)

    # The passes

    def tasks(self) -> list[StitchingTask]:
        """Return what each seed's passes work on."""
        graph = self.graph()
        scorer = self.scorer().knowing(graph.neighbours, graph.logged)
        return [StitchingTask(self.data, scorer, graph, split_key(seed)[1]) for seed in self.job.numbers]

    def begun(self) -> list[Progress]:
        """Return how far each seed's passes are."""
        if self.run is None or not self.run.has("progress"):
            return [Progress(Paths.of(self.data))] * self.job.seeds
        file = self.run.path("progress.safetensors")
        tensors, facts = self.run.read("progress")
        with damaged(file):
            summaries = json.loads(facts["summaries"])
            found = [
                Progress.of(under(tensors, f"{seed}/"), own, self.data, self.config, str(file))
                for seed, own in zip(self.job.numbers, summaries, strict=True)
            ]
        logger.info(f"{self.run.folder}: resuming after pass {len(found[0].summaries)}")
        return found

    def keep_progress(self, several: Sequence[Progress]) -> None:
        """Keep what the passes so far have come to."""
        if self.run is None:
            return
        tensors = {
            f"{seed}/{name}": array
            for seed, one in zip(self.job.numbers, several, strict=True)
            for name, array in one.arrays().items()
        }
        summaries = [[asdict(summary) for summary in one.summaries] for one in several]
        self.run.write_tensors("progress", tensors, summaries=json.dumps(summaries))

    # The result

    @property
    def places(self) -> list[str]:
        """Where each seed's own files are."""
        return [f"seed-{seed}/" if self.job.seeds > 1 else "" for seed in self.job.numbers]

    @property
    def finished(self) -> bool:
        return self.run is not None and all(self.run.has(f"{where}passes") for where in self.places)

    def finish(self, several: Sequence[Progress]) -> None:
        """Keep each seed's stitched data, and what each pass did."""
        made = []
        for one, where in zip(several, self.places, strict=True):
            after = replace(one.paths, data=self.job.data).trajectories()  # every column, as it was
            passes = [asdict(summary) for summary in one.summaries]
            if self.run is not None:
                keep_result(self.run, where, after, passes)
            made.append((after, passes))
        self._memory["results"] = made

    def results(self) -> list[tuple[Trajectories, list[dict[str, Any]]]]:
        """Return each seed's stitched data, and what each pass did."""
        if "results" not in self._memory:
            run = self.run
            assert run is not None
            self._memory["results"] = [read_result(run, where, self.job.data) for where in self.places]
        return self._memory["results"]


def fit_model(
    config: StitchConfig, name: str, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles
) -> tuple[Any, FitReport | None]:
    """Fit one of the models that stitching needs: `inverse`, `reward`, or a jump test's by the test's name."""
    if name == "inverse":
        return fit_inverse(config.inverse, data, key)
    if name == "reward":
        return fit_reward(config.reward, data, key)
    return config.tests[name].fit(data, key, roles)


def untrained_models(config: StitchConfig, data: Trajectories, key: PRNGKeyArray) -> Models:
    """Return models of the shapes that fitting gives, to read trained ones into."""
    tests = {name: test.untrained(data, key) for name, test in config.tests.items()}
    return Models(config.inverse.init(key, data), config.reward.untrained(key, data), tests)


def _step_before(facts: dict[str, str]) -> StepBefore:
    """Return what the models of a file saw of the step before: nothing, if the file is from before they could."""
    return StepBefore(**json.loads(facts.get("step_before", "{}")))


def _model(models: Models, name: str) -> Any:
    return models.tests[name] if name in models.tests else getattr(models, name)


def _improve(several: Sequence[Stages]) -> None:
    """Plan or make the greedy passes of several jobs together, and keep the results."""
    config = several[0].config
    assert all(replace(stages.config, neighbours=config.neighbours) == config for stages in several)
    tasks = [task for stages in several for task in stages.tasks()]
    begun = [progress for stages in several for progress in stages.begun()]
    for stages in several:
        stages.job.before_stage("passes")
    start = time.monotonic()

    def parts(all_progress: Sequence[Progress]) -> Iterator[tuple[Stages, Sequence[Progress]]]:
        at = 0
        for stages in several:
            yield stages, all_progress[at : at + stages.job.seeds]
            at += stages.job.seeds

    def after_pass(all_progress: list[Progress]) -> None:
        nonlocal start
        for stages, part in parts(all_progress):
            stages.keep_progress(part)
            stages.took("passes", start)
        start = time.monotonic()

    count = len(config.tests) + 4
    with in_stage(count, count):
        improved = improve_together(config, tasks, begun, after_pass)
    for stages, part in parts(improved):
        stages.finish(part)
        stages.took("passes", start)
