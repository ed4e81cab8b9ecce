"""Measure the cells of an experiment: what is in its folder is kept and not made again, by any process.

    cells/KEY.json                  a cell's result
    data/NAME.json, NAME.npz        facts about a data set; the set itself where it was collected for the experiment
    stitched/NAME/                  the run of a stitching, with what it did to the data in stitched.json
    policies/NAME.safetensors       a trained policy; its earlier checkpoints are NAME-STEPS.safetensors
    training/NAME.safetensors       the state of a training that the time limit stopped
    locks/                          held by the process that makes a thing

A name holds a hash of the config of what it names. Cells that can be trained in one call are measured together, which
on an accelerator takes little longer than measuring one of them.
"""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from filelock import FileLock, Timeout

import trajstitch
from trajstitch import formats
from trajstitch.benchmark.collect import Collect, collect
from trajstitch.data.environments import reference
from trajstitch.data.trajectories import Trajectories
from trajstitch.engines.ray_cluster import RayCluster, RaySettings
from trajstitch.errors import InputError
from trajstitch.evaluation.evaluate import FIRST_SEED, evaluate
from trajstitch.experiments.cells import Cell, Data, Result, Stitching, digest, rounded, score
from trajstitch.experiments.expert_distance import beside_expert
from trajstitch.experiments.provenance import now, this_call
from trajstitch.experiments.stitched import World, borrow, learned_from, stitch_together
from trajstitch.learning.bounds import Bounds, check_bounds
from trajstitch.learning.fit import State
from trajstitch.policies.policy import Policy, load_policies, save_policies
from trajstitch.policies.train import CHUNK, deploy_each, schedule, train_together
from trajstitch.policies.training_data import TrainingData
from trajstitch.progress import logger
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.pipeline import StitchJob, fit_models_together
from trajstitch.storage.runs import Run, write_json
from trajstitch.storage.tensors import read_tensors, save_tensors
from trajstitch.storage.trees import tensors_of, tree_from

SAVE_SECONDS = 60
"""The state of a training is saved this often."""

NAMED = ("set", "method")
"""What a table adds to its results."""

Until = Literal["data", "models", "stitchings", "end"]
"""What is made last: the logged data, the models of all stitchings, the stitched data, or all results."""

Measure = Callable[[list[Cell]], list[str]]
"""Measures a group of cells and returns what failed, a line each."""


@runtime_checkable
class Engine(Protocol):
    """What measures groups of cells: one after the other, or on several machines that share the folder."""

    def __call__(self, measure: Measure, groups: list[list[Cell]], /) -> list[str]:
        """Call `measure` with each group, and return all failures."""
        ...


def on_ray(settings: RaySettings) -> Engine:
    """Return the engine that measures each group in a task of a Ray cluster, whose machines share the folder."""
    cluster = RayCluster(settings)
    return lambda measure, groups: cluster.run(measure, groups)


def local(measure: Measure, groups: list[list[Cell]], /) -> list[str]:
    """Measure one group after the other in this process."""
    return [failure for group in groups for failure in measure(group)]


def run(
    cells: Iterable[Cell],
    folder: Path,
    time_limit: float | None = None,
    engine: Engine = local,
    worlds: Mapping[str, World] | None = None,
    until: Until = "end",
) -> list[str]:
    """Measure the cells that have no result in the folder, and return what failed, a line each.

    After `time_limit` seconds nothing else is started, and a training saves its state and stops; the next call resumes
    it. A failure costs no cells but its own. Several processes may share the folder. The data of a cell may be that of
    one of the `worlds`, by its name. `until` ends the work before policies are trained; several processes that make the
    same stitchings divide them.
    """
    Bounds(0).check("time_limit", time_limit)
    cells = list(dict.fromkeys(cells))
    for cell in cells:
        check_bounds(cell)
    deadline = float("inf") if time_limit is None else time.time() + time_limit
    bench = Bench(folder.absolute(), deadline, this_call(), worlds or {}, until)  # for processes that start elsewhere
    missing = [cell for cell in cells if not bench.result(cell).exists()]
    sizes: dict[Data, tuple[int, int]] = {}
    failures = []
    for data, some in _by(missing, lambda cell: cell.data).items():
        failures += bench.attempt(some[:1], lambda _, data=data: sizes.update({data: bench.sizes(data)}))
    failures += engine(bench.measure, groups([cell for cell in missing if cell.data in sizes], sizes))
    done = sum(bench.result(cell).exists() for cell in cells)
    logger.info(f"{folder}: {done} of {len(cells)} cells are measured")
    return failures


def adopt(results: Iterable[Result], cells: Iterable[Cell], folder: Path) -> None:
    """Put results that were measured elsewhere into the folder, those of these cells that have none there."""
    keys = {cell.key for cell in cells}
    for result in results:
        place = folder / "cells" / f"{digest(result['config'])}.json"
        if place.stem in keys and not place.exists():
            write_json(place, {name: value for name, value in result.items() if name not in NAMED})


def groups(cells: Iterable[Cell], sizes: dict[Data, tuple[int, int]]) -> list[list[Cell]]:
    """Divide cells into groups that can each be stitched and trained in one call.

    `sizes` are those of each data set's observations and actions.
    """

    def kind(cell: Cell) -> Hashable:
        how = cell.stitching and replace(cell.stitching, seed=0)
        return cell.learner.algorithm, how, cell.checkpoints, sizes[cell.data]

    return list(_by(cells, kind).values())


class OutOfTimeError(Exception):
    """The time limit is reached."""


@dataclass(frozen=True)
class Bench:
    """The folder of an experiment, until when to work in it, and what is recorded of this call."""

    folder: Path
    deadline: float
    """By `time.time()`."""
    call: dict[str, Any]
    worlds: Mapping[str, World] = field(default_factory=dict)
    until: Until = "end"

    def result(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.key}.json"

    def measure(self, group: list[Cell]) -> list[str]:
        """Measure a group of cells, except those that another process is measuring; return what failed."""
        if self.until != "end":
            return self.attempt(group, self._prepare)
        with ExitStack() as held:
            mine = [cell for cell in group if self._claim(held, cell) and not self.result(cell).exists()]
            return self.attempt(mine, self._measure)

    def attempt(self, cells: list[Cell], do: Callable[[list[Cell]], None]) -> list[str]:
        """Call `do` with all cells; if that fails, with those of each data set, then with each. Return what failed."""
        try:
            if cells:
                do(cells)
        except OutOfTimeError as late:
            logger.info(str(late))
        except Exception as error:
            if len(cells) > 1:
                logger.warning(f"{len(cells)} cells failed together ({error}): trying them apart")
                parts = list(_by(cells, lambda cell: cell.data).values())
                parts = parts if len(parts) > 1 else [[cell] for cell in cells]
                return [failure for part in parts for failure in self.attempt(part, do)]
            failure = f"{cells[0]}: {type(error).__name__}: {error}"
            logger.warning(failure, exc_info=not isinstance(error, InputError))
            return [failure]
        return []

    def _prepare(self, cells: list[Cell]) -> None:
        """Make what cells learn from, as far as `until` says."""
        logged = self._logged(cells)
        if self.until == "models":
            self._fit_models(_stitchings(cells), logged)
        elif self.until == "stitchings":
            self._stitched(_stitchings(cells), logged)

    def _logged(self, cells: list[Cell]) -> dict[Data, Trajectories]:
        return {data: self.load(data) for data in dict.fromkeys(cell.data for cell in cells)}

    def _measure(self, cells: list[Cell]) -> None:
        logged = self._logged(cells)
        stitched = self._stitched(_stitchings(cells), logged)
        sources: dict[Cell, Cell] = {}
        for cell in cells:
            job = _stitching_of(cell)
            # Where stitching left the data unchanged, the policy is the one trained on the logged data.
            same = job is not None and stitched[job][1]["reason"] is not None
            sources[cell] = replace(cell, stitching=None) if same else cell

        def data_of(cell: Cell) -> Trajectories:
            job = _stitching_of(cell)
            data = logged[cell.data]
            if job is not None and cell.stitching is not None:
                data = learned_from(cell.stitching.gives, data, *stitched[job])
            return data.best(cell.learner.top) if cell.learner.top < 1 else data

        policies = self._trained(list(dict.fromkeys(sources.values())), data_of)
        for (data, episodes), some in _by(cells, lambda cell: (cell.data, cell.episodes)).items():
            self._check_time(f"evaluation on {data.source}")
            start = time.monotonic()
            # Cells that share a policy, where stitching left the data unchanged, share its episodes.
            due = list(dict.fromkeys(sources[cell] for cell in some))
            played = [policy for cell in due for policy in policies[cell]]
            rows = iter(rounded(self._returns(data, played, logged[data], episodes).tolist()))
            returns = {cell: [{"steps": one.steps, "returns": next(rows)} for one in policies[cell]] for cell in due}
            seconds = (time.monotonic() - start) / len(some)
            for cell in some:
                job, found = _stitching_of(cell), returns[sources[cell]]
                facts = {"returns": found[-1]["returns"], "checkpoints": found, "stitched": job and stitched[job][1]}
                if cell.beside_expert:
                    facts |= rounded(beside_expert(policies[sources[cell]][-1], data.source))
                self._write_result(cell, facts, logged[data], policies[sources[cell]][-1].config, seconds)

    def _returns(self, data: Data, policies: list[Policy], logged: Trajectories, episodes: int) -> np.ndarray:
        """Return the returns of each policy's episodes; every policy has the same episode seeds."""
        world = self.worlds.get(data.source)
        if world is None:
            return evaluate(policies, logged.metadata, episodes)
        return np.array([world.score(policy.act, episodes, FIRST_SEED) for policy in policies])

    def _write_result(
        self, cell: Cell, facts: dict[str, Any], data: Trajectories, training: dict[str, Any], seconds: float
    ) -> None:
        commits = {self.call["commit"], *training["commits"], *(facts["stitched"] or {"commits": ()})["commits"]}
        known = json.loads(self._facts(cell.data).read_text())
        result = {
            "config": cell.config,
            **facts,
            "reference": reference(data.metadata),
            "transitions": data.steps,
            "seconds": rounded({"load": known["seconds"], "train": training["seconds"], "evaluate": seconds}),
            "together": training["together"],
            "commits": sorted(commits),
            "measured": now(),
            "call": self.call,
        }
        write_json(self.result(cell), result)
        logger.info(f"{cell}: {score(result):.1f}")

    def sizes(self, data: Data) -> tuple[int, int]:
        """Return the sizes of a data set's observations and actions, from its facts if they are there."""
        if not self._facts(data).exists():
            self.load(data)
        facts = json.loads(self._facts(data).read_text())
        return facts["observation_size"], facts["action_size"]

    def load(self, data: Data) -> Trajectories:
        """Return a data set, collected if it has to be; raise if it has changed since its facts were written."""
        file = self._facts(data)
        with self._lock(data.name):
            self._check_time(f"loading {data.source}")
            start = time.monotonic()
            if data.source in self.worlds:
                loaded = self.worlds[data.source].collect(data.seed)
            elif data.transitions is None and data.seed == 0:
                loaded = trajstitch.load(data.source)
            else:
                path = file.with_suffix(".npz")
                if not path.exists():
                    formats.save(collect(Collect(data.source, data.transitions, data.seed)), f"npz:{path}")
                loaded = formats.load(f"npz:{path}")
            if not file.exists():
                facts = {name: getattr(loaded, name) for name in ("observation_size", "action_size", "fingerprint")}
                write_json(file, rounded({**data.facts, **facts, "seconds": time.monotonic() - start}))
            if json.loads(file.read_text())["fingerprint"] != loaded.fingerprint:
                raise InputError(f"{data.source} has changed since {file} was written: measure in another folder")
        return loaded

    def _facts(self, data: Data) -> Path:
        return self.folder / "data" / f"{data.name}.json"

    def _stitched(
        self, jobs: list[tuple[Data, Stitching]], logged: dict[Data, Trajectories]
    ) -> dict[tuple[Data, Stitching], tuple[Trajectories, dict[str, Any]]]:
        """Return the stitched data of each job, and what stitching did to it; greedy passes are made together."""
        found = {}
        if self.until != "end":
            jobs = [job for job in jobs if not (self.folder / "stitched" / _name(job) / "stitched.json").exists()]
        elif jax.default_backend() != "cpu":
            self._fit_models(jobs, logged)
        configs = {job: job[1].config_for(logged[job[0]]) for job in jobs}
        for some in _by(jobs, lambda job: job if configs[job].plan else None).values():
            with ExitStack() as held:
                # Processes that make the same stitchings divide them, unless this one goes on to learn from them.
                mine = some if self._take(held, some, wait=self.until == "end") else []
                outcomes = stitch_together(
                    [self._stitch_job(job, logged) for job in mine], [self.worlds.get(job[0].source) for job in mine]
                )
                found |= dict(zip(mine, outcomes, strict=True))
        return found

    def _fit_models(self, jobs: list[tuple[Data, Stitching]], logged: dict[Data, Trajectories]) -> None:
        """Fit the models of all jobs at the same time, except those that another process is making."""
        with ExitStack() as held:
            mine = [job for job in sorted(jobs, key=_name) if self._take(held, [job], wait=False)]
            fit_models_together([self._stitch_job(job, logged) for job in mine])

    def _take(self, held: ExitStack, jobs: list[tuple[Data, Stitching]], *, wait: bool) -> bool:
        """Take stitchings for this process; return whether all could be taken."""
        try:
            for job in sorted(jobs, key=_name):  # in one order, so that no two processes wait for each other
                held.enter_context(self._lock(_name(job), wait=wait))
        except OutOfTimeError:
            if wait:
                raise
            return False
        return True

    def _stitch_job(self, job: tuple[Data, Stitching], logged: dict[Data, Trajectories]) -> StitchJob:
        data, stitching = job
        config = stitching.config_for(logged[data])
        run = self._stitching_run(job, config)
        return StitchJob(logged[data], config, stitching.seed, run=run, before_stage=self._check_stage)

    def _stitching_run(self, job: tuple[Data, Stitching], config: StitchConfig) -> Run:
        """Start or resume the run of a stitching, and add this commit to those that made it, unless it is finished."""
        facts = {"data": job[0].name, "seed": job[1].seed, "config": asdict(config)}
        run = Run.start(self.folder / "stitched" / _name(job), "stitch", facts, resume=True)
        borrow(run, self.folder / "stitched")
        commits = run.read_json("commits", list) if run.has("commits") else []
        if not run.has("stitched") and self.call["commit"] not in commits:
            run.write_json("commits", [*commits, self.call["commit"]])
        return run

    def _trained(self, cells: Sequence[Cell], data_of: Callable[[Cell], Trajectories]) -> dict[Cell, list[Policy]]:
        """Return the checkpoints of each cell's policy; those that are missing are trained, in one call if possible."""
        missing = [cell for cell in cells if not all(path.exists() for path in self._checkpoints(cell))]
        by_data = _by(missing, lambda cell: replace(cell, seed=0, episodes=1, beside_expert=False)).values()
        ranges = {tuple(some): (min(each.seed for each in some), max(each.seed for each in some)) for some in by_data}
        for count, parts in _by(ranges, lambda some: ranges[some][1] - ranges[some][0] + 1).items():
            names = [self._policy(cell).stem for part in parts for cell in part]
            state = self.folder / "training" / f"{digest(names)}.safetensors"
            self._train(parts, data_of, [ranges[part][0] for part in parts], count, state)
            state.unlink(missing_ok=True)
        return {cell: [load_policies(path)[0] for path in self._checkpoints(cell)] for cell in cells}

    def _policy(self, cell: Cell, steps: int | None = None) -> Path:
        """Return where a cell's policy is, or a checkpoint of it before the last."""
        steps = None if steps == cell.learner.algorithm.steps else steps
        return self.folder / "policies" / f"{cell.policy_name}{'' if steps is None else f'-{steps:09}'}.safetensors"

    def _checkpoints(self, cell: Cell) -> list[Path]:
        """Return where the checkpoints of a cell's policy are, the last one last."""
        return [self._policy(cell, steps) for steps in _marks(cell)]

    def _train(
        self,
        parts: Sequence[Sequence[Cell]],
        data_of: Callable[[Cell], Trajectories],
        first: list[int],
        seeds: int,
        path: Path,
    ) -> None:
        """Train and keep the policies of several parts, each cells of one data set with seeds from its `first` on.

        A state in `path` is resumed from. Every checkpoint records the facts about the training so far.
        """
        cells = [part[0] for part in parts]
        algorithm = cells[0].learner.algorithm
        title = f"{type(algorithm).__name__}, {len(cells)} × {seeds} policies"
        self._check_time(title)
        before, start, commits = 0.0, time.monotonic(), {self.call["commit"]}
        saved, made = start, []
        marks = _marks(cells[0])
        every = schedule(algorithm.steps)[0] if len(marks) > 1 else CHUNK

        def training_data(data: Trajectories) -> TrainingData:
            made.append(algorithm.training_data(data))
            kept, made[-1] = made[-1], made[-1]._replace(samples=None)
            return kept

        def keep(found: Sequence[Sequence[Policy]]) -> None:
            facts = {"seconds": before + time.monotonic() - start, "together": seeds * len(cells)}
            facts |= {"commits": sorted(commits)}
            for part, number, policies in zip(parts, first, found, strict=True):
                for cell in part:
                    policy = policies[cell.seed - number]
                    save_policies([policy], self._policy(cell, policy.steps), policy.config | facts)

        def resumed(state: State) -> State:
            nonlocal before
            if not path.exists():
                return state
            tensors, facts = read_tensors(path)
            before, state = float(facts["seconds"]), tree_from(tensors, state, str(path))
            commits.update(json.loads(facts["commits"]))
            logger.info(f"{title}: resuming from step {int(state.step):,}")
            return state

        def each(state: State, metrics: dict[str, float]) -> None:
            nonlocal saved
            if int(state.step) in marks[:-1]:
                keep(deploy_each(algorithm, state, made, first, seeds))
            late = time.time() >= self.deadline and int(state.step) < algorithm.steps
            if late or time.monotonic() - saved > SAVE_SECONDS:
                saved = time.monotonic()
                facts = {"seconds": str(before + saved - start), "commits": json.dumps(sorted(commits))}
                save_tensors(tensors_of(state), path, facts)
            if late:
                raise OutOfTimeError(
                    f"{title}: time limit reached, stopped at step {int(state.step):,} of {algorithm.steps:,}"
                )

        sets = [data_of(cell) for cell in cells]
        keep(
            train_together(
                sets, algorithm, seeds, first, resumed=resumed, each=each, every=every, training_data=training_data
            )
        )

    def _check_stage(self, stage: str) -> None:
        self._check_time(f"{stage} of a stitching")

    def _check_time(self, what: str) -> None:
        if time.time() >= self.deadline:
            raise OutOfTimeError(f"{what}: not started, the time limit is reached")

    def _claim(self, held: ExitStack, cell: Cell) -> bool:
        """Take a cell for this process, if no other has it."""
        try:
            held.enter_context(self._lock(f"cell-{cell.key}", wait=False))
        except OutOfTimeError:
            return False
        return True

    @contextmanager
    def _lock(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold a lock that other processes respect, after waiting for it until the time limit."""
        path = self.folder / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock, left = FileLock(path), max(self.deadline - time.time(), 0)
        try:
            lock.acquire(timeout=0 if not wait else -1 if left == float("inf") else left)
        except Timeout as error:
            raise OutOfTimeError(f"{name}: another process has not finished it") from error
        try:
            yield
        finally:
            lock.release()


def _stitching_of(cell: Cell) -> tuple[Data, Stitching] | None:
    """Return what is stitched for a cell, whatever of the result it learns from."""
    return None if cell.stitching is None else (cell.data, replace(cell.stitching, gives="replaced"))


def _stitchings(cells: Iterable[Cell]) -> list[tuple[Data, Stitching]]:
    """Return all that is stitched for some cells."""
    return list(dict.fromkeys(job for job in map(_stitching_of, cells) if job))


def _marks(cell: Cell) -> list[int]:
    """Return the steps after which a cell's policy is evaluated."""
    return sorted(schedule(cell.learner.algorithm.steps)[1])[-cell.checkpoints :]


def _name(job: tuple[Data, Stitching]) -> str:
    """A file name that says what is stitched, and how."""
    data, stitching = job
    return f"{data.name}-{stitching.name}-{digest(stitching.facts)}"


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def _by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, both in the order of their first appearance."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
