"""The results table: every method on every built-in set, measured in pieces that fit a machine lent by the minute.

python -m trajstitch.experiments.table measure --sets hopper/medium --to A.json --work DIR --seconds 540
python -m trajstitch.experiments.table report A.json B.json ...

`measure` adds to its file, cell by cell, and goes on from what is there; several may run side by side on other sets or
methods, with files of their own and one folder. `report` merges their files into docs/results/first-table.json and
writes the page, the picture and the README's summary from it.

The accelerator fits models and policies; meanwhile, one thing after the other in a second thread, processes on the
cores collect the next set, ask the simulator about jumps and roll out the policies that are ready.
"""

import itertools
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro

from trajstitch.benchmark import sets
from trajstitch.data.environments import normalised
from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Summary
from trajstitch.experiments.table_report import Report, report
from trajstitch.experiments.table_results import METHODS, TWELVE, Cell, Results, Row, digest, scores, this_call
from trajstitch.progress import logger
from trajstitch.stitching.config import PRESETS, Preset

if TYPE_CHECKING:
    from trajstitch.benchmark.collect import Collect
    from trajstitch.data.trajectories import Metadata, Trajectories
    from trajstitch.policies.policy import Policy
    from trajstitch.policies.train import Algorithm
    from trajstitch.stitching.pipeline import Stitched

EVALUATION_SECONDS = 5.0
"""What a cell's evaluation takes, until one has been seen; a training stops in time for its own."""


@dataclass(frozen=True)
class Measure:
    """Measure the cells (set, method) that are not in the file yet."""

    sets: tuple[str, ...] = TWELVE
    """The built-in sets, in the order of work."""
    methods: tuple[str, ...] = tuple(METHODS)
    """The methods, in the order of work on each set; the paper's stitching, td3-bc and iql come last, for all sets of
    one size at once."""
    transitions: int | None = None
    """Of each set; its full size if not given."""
    seed: int = 0
    """Of the data."""
    run: int = 0
    """The seed of the stitching, and the first of the policies' seeds. Runs of one policy each, with files of their
    own, make up a cell whose policies have each a stitching of its own, so that its spread is that of both."""
    preset: Preset = "default"
    """Of the stitching; the paper's own columns have theirs."""
    steps: int | None = None
    """Gradient steps of each policy at most; each method's own number if not given."""
    seeds: int = 5
    """Policies trained for each cell."""
    episodes: int = 20
    """Episodes that each of them plays."""
    to: Path = Path("table.json")
    """The measurements are added to this file."""
    prepare: bool = False
    """Collect, fit the models of stitching and build its graphs, but measure nothing: several processes may prepare a
    set each for one that then measures them all."""
    work: Path = Path("runs/table")
    """The folder for data, stitched data, policies and half-done trainings; what is there is used."""
    seconds: float | None = None
    """Begin nothing that would not be ready by then, and stop long trainings in time, to go on in another call."""

    def check(self) -> None:
        for name in self.sets:
            sets.built_in(name)
        for name in self.methods:
            if name not in METHODS:
                raise InputError(f"unknown method {name!r}; the methods are {', '.join(METHODS)}")
        for name in ("transitions", "steps", "seeds", "episodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name} must be at least 1, not {value}")

    def collection(self, name: str) -> "Collect":
        from trajstitch.benchmark.collect import Collect

        return Collect(name, self.transitions, self.seed)

    def algorithm(self, method: str) -> "Algorithm":
        from trajstitch.policies import algorithm_class

        made = algorithm_class(METHODS[method].policy)()
        names = [name for name in ("steps", "value_steps") if hasattr(made, name)]
        return made if self.steps is None else replace(made, **{n: min(self.steps, getattr(made, n)) for n in names})

    def preset_of(self, method: str) -> str | None:
        asked = METHODS[method].preset
        return self.preset if asked == "default" else asked

    def cell_config(self, cell: Cell) -> Row:
        """What a cell's policies depend on, beside the code."""
        algorithm, preset = self.algorithm(cell.method), self.preset_of(cell.method)
        return {
            "transitions": self.transitions or sets.built_in(cell.set).transitions,
            "seed": self.seed,
            "run": self.run,
            "seeds": self.seeds,
            "top": METHODS[cell.method].top,
            "preset": preset,
            "stitching": preset and digest(asdict(PRESETS[preset])),
            **asdict(algorithm),  # pyright: ignore[reportArgumentType]
        }


class Measurement:
    """One call of `measure`."""

    def __init__(self, config: Measure) -> None:
        from trajstitch.experiments.table_work import Clock, Work

        config.check()
        self.config = config
        self.call = this_call()
        self.clock = Clock(config.seconds)
        self.work = Work(config.work, self.clock, self.call["commit"])
        self.results = Results(config.to)
        self.cores = ThreadPoolExecutor(1)
        self.background: list[Future[None]] = []
        self.collections: dict[str, Future[Path]] = {}
        self.failed: list[str] = []
        self.evaluation = EVALUATION_SECONDS

    def run(self) -> list[Cell]:
        """Work through the jobs; the cells that are still missing then."""
        jobs = self.jobs()
        with self.cores:
            for job, following in itertools.zip_longest(jobs, jobs[1:], fillvalue=[]):
                self.collect(job)
                self.collect(following)
                self.attempt(lambda job=job: self.measure(job), str(job[0]))
        for future in self.background:
            self.attempt(future.result, "in the background")
        return self.missing

    @property
    def missing(self) -> list[Cell]:
        asked = [Cell(name, method) for name in self.config.sets for method in self.config.methods]
        return [cell for cell in asked if not self.measured(cell)]

    def measured(self, cell: Cell) -> bool:
        config = self.config.cell_config(cell) | {"episodes": self.config.episodes}
        return self.results.has("policies", cell._asdict() | {"run": self.config.run}, config)

    def jobs(self) -> list[list[Cell]]:
        """The missing cells, those together that one training serves: all methods that clone one data set or parts of
        it, and of the long methods, which come last, all sets with states and actions of the same sizes.

        Set by set otherwise, so that the first keeps the accelerator busy while the next is collected.
        """
        from trajstitch.benchmark.exploration import environment

        def sizes(name: str) -> tuple[int, int]:
            made = environment(sets.built_in(name).task)
            return made.observations, len(made.bound)

        found: dict[Any, list[Cell]] = {}
        for cell in self.missing:
            method = METHODS[cell.method]
            key = (method.policy, method.preset, sizes(cell.set) if method.long else cell.set)
            found.setdefault(key, []).append(cell)
        return sorted(found.values(), key=lambda job: METHODS[job[0].method].long)

    def attempt(self, do: Callable[[], Any], what: str) -> None:
        """One failure must not cost what else could be measured."""
        from trajstitch.experiments.table_work import OutOfTimeError

        try:
            do()
        except OutOfTimeError as late:
            logger.info(str(late))
        except Exception:
            logger.info(f"{what}: failed\n{traceback.format_exc()}")
            self.failed.append(what)

    def collect(self, job: list[Cell]) -> None:
        """Have the job's sets collected in the background."""
        for cell in job:
            if cell.set not in self.collections:
                asked = self.config.collection(cell.set)
                self.collections[cell.set] = self.cores.submit(self.work.collected, asked)

    def measure(self, job: list[Cell]) -> None:
        """Train what the cells need, and leave the rest of the work on them to the background."""
        data: dict[str, Trajectories] = {}
        logged: dict[str, Metadata] = {}
        for cell in job:
            self.collections[cell.set].result()
        preset = self.config.preset_of(job[0].method)
        if self.config.prepare:
            if preset is not None:
                for name in dict.fromkeys(cell.set for cell in job):
                    self.work.prepare(self.config.collection(name), preset, self.config.run)
            return
        names: dict[Cell, str] = {}
        by_set = dict(groupby(job, lambda cell: cell.set))
        for (name, cells), (source, changed) in zip(by_set.items(), self.sources([*by_set], preset), strict=True):
            logged[name] = source.metadata
            for cell in cells:
                names[cell] = self.name_of(cell if changed else Cell(name, unstitched(cell.method)))
                top = METHODS[cell.method].top
                data[names[cell]] = source.best(top) if top < 1 else source
        algorithm = self.config.algorithm(job[0].method)
        title = f"{METHODS[job[0].method].title}, {len(job)} × {self.config.seeds} policies"
        numbers = range(self.config.run, self.config.run + self.config.seeds)
        policies = self.work.trained(algorithm, data, numbers, len(job) * self.evaluation, title)
        for name, cells in groupby(job, lambda cell: cell.set):
            mine = {cell: policies[names[cell]] for cell in cells}
            self.later(lambda mine=mine, known=logged[name]: self.evaluate(mine, known))

    def later(self, do: Callable[[], None]) -> None:
        self.background.append(self.cores.submit(do))

    def name_of(self, cell: Cell) -> str:
        return f"{cell.set.replace('/', '-')}-{cell.method}-{digest(self.config.cell_config(cell))}"

    def sources(self, names: list[str], preset: str | None) -> "Iterator[tuple[Trajectories, bool]]":
        """Sets as they were logged, or stitched, and whether that changed them; the first time, it is also measured."""
        every = [self.config.collection(name) for name in names]
        if preset is None:
            yield from ((self.work.logged(asked), True) for asked in every)
            return
        for asked, stitched in zip(every, self.work.stitched(every, preset, self.config.run), strict=True):
            config = {key: stitched.run.facts["config"][key] for key in ("transitions", "data_seed", "stitching")}
            key = {"set": asked.set, "preset": preset, "run": self.config.run}
            if not self.results.has("stitchings", key, config):
                row = key | {"config": config}
                self.later(lambda row=row, made=stitched, asked=asked: self.tell(row, made, asked))
            yield stitched.after, stitched.left_alone is None

    def tell(self, row: Row, stitched: "Stitched", asked: "Collect") -> None:
        self.results.add("stitchings", row | self.about(stitched, asked), self.call)

    def about(self, stitched: "Stitched", asked: "Collect") -> Row:
        """What stitching did to a data set, and what the simulator says of it."""
        from trajstitch.evaluation.simulator_check import check_jumps

        before, after, passes = stitched.before, stitched.after, stitched.passes
        assert after.provenance is not None
        jumps = after.provenance.stitched
        began = time.monotonic()
        truth = check_jumps(before, after).summary()
        seconds = {
            "collect": self.work.collection_seconds(asked),
            **stitched.seconds,
            "truth": time.monotonic() - began,
        }
        return rounded(
            {
                "before": normalised(before.returns, before.metadata).mean(),
                "after": normalised(after.returns, before.metadata).mean(),
                "trajectories": len(after),
                "changed": len(np.unique(after.episode_of_step[jumps])),
                "steps": after.steps,
                "jumps": jumps.mean(),
                "states_kept": passes[-1]["states_kept"] if passes else 1.0,
                "left_alone": stitched.left_alone,
                "return_predictability": stitched.run.read_json("quality")["return_predictability"],
                "truth": truth,
                "commits": stitched.run.read_json("commits"),
                "worths": stitched.run.read_json("models") if stitched.run.has("models") else [],
                "passes": passes,
                "seconds": seconds,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )

    def evaluate(self, policies: "dict[Cell, list[Policy]]", metadata: "Metadata") -> None:
        """Let the last checkpoints of one set's cells play, and record every return."""
        from trajstitch.evaluation.evaluate import evaluate

        self.clock.require(0, f"evaluation of {', '.join(map(str, policies))}")
        began = time.monotonic()
        every = [policy for some in policies.values() for policy in some]
        returns = evaluate(every, metadata, self.config.episodes)
        seconds = (time.monotonic() - began) / len(policies)
        self.evaluation = max(self.evaluation, seconds)
        for (cell, some), part in zip(policies.items(), np.split(returns, len(policies)), strict=True):
            row = {
                **cell._asdict(),
                "run": self.config.run,
                "config": self.config.cell_config(cell) | {"episodes": self.config.episodes},
                "returns": part.round(1).tolist(),
                "seconds": rounded({"train": some[0].config["seconds"], "evaluate": seconds}),
                "together": some[0].config["together"],
                "commits": some[0].config["commits"],
                "measured": time.strftime("%Y-%m-%d", time.gmtime()),
            }
            self.results.add("policies", row, self.call)
            logger.info(f"{cell}: {Summary.of(scores(row))}")


def unstitched(method: str) -> str:
    """The method that does the same with the data as it was logged."""
    asked = METHODS[method]
    wanted = asked.policy, asked.top, None
    return next(name for name, one in METHODS.items() if (one.policy, one.top, one.preset) == wanted)


def groupby(cells: list[Cell], key: Callable[[Cell], Any]) -> list[tuple[Any, list[Cell]]]:
    found: dict[Any, list[Cell]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return list(found.items())


def rounded(value: Any) -> Any:
    """Plain JSON values, numbers to five digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float | np.floating) else value


def measure(config: Measure) -> None:
    measurement = Measurement(config)
    missing = measurement.run()
    asked = len(config.sets) * len(config.methods)
    logger.info(f"{config.to}: {asked - len(missing)} of {asked} cells are measured")
    if measurement.failed:
        raise SystemExit(f"failed: {'; '.join(measurement.failed)}")
    if missing:
        logger.info("the same command goes on")


def main() -> None:
    asked = tyro.extras.subcommand_cli_from_dict({"measure": Measure, "report": Report})
    try:
        measure(asked) if isinstance(asked, Measure) else report(asked)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
