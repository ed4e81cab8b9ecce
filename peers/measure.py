"""Final scores of both libraries, cell by cell in parallel processes; an interrupted measurement can be resumed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cell import LIBRARIES, TITLES, Cell

from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing

FOLDER = Path("build/peers")
SETS = ("hopper/medium-expert", "walker2d/medium-replay")
ON_CPU = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A process's environment. One thread for torch and NumPy; jax has a pool of its own, as large as its cores."""


@dataclass(frozen=True)
class Scores:
    """Train with both libraries on the same data, evaluate both alike, and add each cell's scores to a file."""

    to: Path = FOLDER / "scores.json"
    """The scores; those that are there are not measured again."""
    data: Path = FOLDER
    """Folder of the data files, which are collected where they are missing."""
    sets: tuple[str, ...] = SETS
    """The built-in sets."""
    algorithms: tuple[str, ...] = tuple(TITLES)
    """Algorithms to train."""
    libraries: tuple[str, ...] = LIBRARIES
    """Libraries to train with."""
    transitions: int = 100_000
    """Transitions of each set."""
    steps: int = 2_000
    """Gradient steps of each policy; whole thousands, if over one."""
    seeds: int = 5
    """Policies of each library, set and algorithm."""
    episodes: int = 10
    """Episodes that each policy is evaluated in, from the same seeds."""
    processes: int = os.cpu_count() or 1
    """Cores to use. A process of d3rlpy's has one thread; one of ours a thread per seed, if there are enough cores."""
    seconds: float = float("inf")
    """Stop after this many seconds; the same command resumes."""


@dataclass(frozen=True)
class Job:
    cell: Cell
    data: Path
    width: int
    """Cores it holds."""

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.cell.seeds))
        return f"{self.cell.library} {TITLES[self.cell.algorithm]} on {self.cell.set}, seed {seeds}"


def measure(config: Scores) -> bool:
    """Measure what is missing, and return whether all of it is there now."""
    deadline = time.monotonic() + config.seconds
    rows = json.loads(config.to.read_text()) if config.to.exists() else []

    def finished(job: Job, found: list[dict[str, Any]]) -> None:
        rows.extend(found)
        with replacing(config.to, force=True) as fresh:
            fresh.write_text(json.dumps(rows, indent=1) + "\n")
        shown = ", ".join(f"{row['score']:.1f}" for row in found)
        logger.info(f"{job}: {shown} ({sum(row['seconds'] for row in found):.0f} s)")

    jobs = missing(config, rows)
    for name in {job.cell.set for job in jobs}:
        data_file(config.data, name, config.transitions, config.processes)
    left = run(jobs, config.processes, deadline, finished)
    for job in left:
        logger.info(f"not done: {job}")
    return not left


def missing(config: Scores, rows: list[dict[str, Any]]) -> list[Job]:
    """Return what is yet to be measured, in the order to start it: the widest first, then the longest."""
    there = {
        tuple(row[name] for name in ("library", "set", "algorithm", "transitions", "steps", "episodes", "seed"))
        for row in rows
    }
    jobs = []
    for algorithm in sorted(config.algorithms, key=list(TITLES).index, reverse=True):
        for name in config.sets:
            path = data_path(config.data, name, config.transitions)
            for library in config.libraries:
                whole = Cell(library, name, algorithm, config.transitions, config.steps, config.episodes, ())
                key = (library, name, algorithm, config.transitions, config.steps, config.episodes)
                seeds = tuple(seed for seed in range(config.seeds) if (*key, seed) not in there)
                if library == "d3rlpy":
                    jobs += [Job(replace(whole, seeds=(seed,)), path, 1) for seed in seeds]
                elif seeds:
                    jobs.append(Job(replace(whole, seeds=seeds), path, min(len(seeds), config.processes)))
    return sorted(jobs, key=lambda job: -job.width)


def data_path(folder: Path, name: str, transitions: int) -> Path:
    return folder / f"{name.replace('/', '-')}-{transitions}.npz"


def data_file(folder: Path, name: str, transitions: int, processes: int | None = None) -> Path:
    """Return the file of the set, the same for both libraries, and collect it if it isn't there."""
    from trajstitch import save
    from trajstitch.benchmark.collect import Collect, collect

    path = data_path(folder, name, transitions)
    if not path.exists():
        save(collect(Collect(name, transitions, processes=processes)), f"npz:{path}")
    return path


def run(
    jobs: list[Job], processes: int, deadline: float, finished: Callable[[Job, list[dict[str, Any]]], None]
) -> list[Job]:
    """Run jobs side by side on `processes` cores until the deadline, and return those left over.

    A job starts when enough cores are free, unless one like it has taken longer than there is time.
    """
    cores = all_cores()
    free = [cores[number % len(cores)] for number in range(processes)]
    waiting, taken = list(jobs), {}
    with TemporaryDirectory() as folder, ended() as running:
        while (waiting or running) and time.monotonic() < deadline:
            for job in list(waiting):
                if job.width <= len(free) and time.monotonic() + taken.get(kind(job), 0) < deadline:
                    waiting.remove(job)
                    cores, free = free[: job.width], free[job.width :]
                    result = Path(folder) / f"{len(jobs) - len(waiting)}.json"
                    running.append((started(job, cores, result), job, cores, result, time.monotonic()))
            if not running:
                break
            time.sleep(0.1)
            for one in [one for one in running if one[0].poll() is not None]:
                process, job, cores, result, begun = one
                running.remove(one)
                free += cores
                if process.returncode:
                    raise SystemExit(f"{job} failed:\n{result.with_suffix('.log').read_text()[-3000:]}")
                taken[kind(job)] = time.monotonic() - begun
                finished(job, json.loads(result.read_text()))
        return [*(one[1] for one in running), *waiting]


def kind(job: Job) -> tuple[str, str]:
    return job.cell.library, job.cell.algorithm


def all_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@contextmanager
def ended() -> Iterator[list[Any]]:
    """Yield a list whose items start with a running process; none of these outlives the block."""
    running: list[Any] = []
    try:
        yield running
    finally:
        for process, *_ in running:
            process.kill()
            process.wait()


def started(job: Job, cores: list[int], result: Path) -> subprocess.Popen[bytes]:
    asked = result.with_suffix(".job")
    asked.write_text(json.dumps({"cell": asdict(job.cell), "data": str(job.data), "cores": cores}))
    command = [sys.executable, str(Path(__file__).with_name("cell.py")), str(asked), str(result)]
    environment = os.environ | ON_CPU
    with result.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)
