"""Small jobs of every verb that writes, for kills: what is prepared, and the command that is killed and repeated."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import point
import trajstitch
from test_damaged_runs import swings
from test_ladder import TINY, tiny
from test_stitching import SMALL
from trajstitch import IQL, cli
from trajstitch.benchmark.expert import expert
from trajstitch.stitching import config
from trajstitch.storage.runs import Run

Command = Callable[[], int]


@dataclass(frozen=True)
class Job:
    """A job in the current folder, in which the inputs are."""

    command: Command
    before: Command | None = None
    """What is done before it, undisturbed."""


def write_inputs(folder: Path) -> int:
    """Write what jobs read."""
    folder.mkdir()
    os.chdir(folder)
    log = point.collect(episodes=30, length=20)
    trajstitch.save(log, "npz:log.npz")
    trajstitch.save(log[np.arange(10)], "npz:other.npz")
    trajstitch.save(swings(), "npz:swings.npz")
    return 0


def enter(folder: Path, command: Command, compiled: Path) -> int:
    """Do a job in a folder. In `compiled` is what was compiled for jobs before: most of their time went into that."""
    os.chdir(folder)
    jax.config.update("jax_compilation_cache_dir", str(compiled))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    config.PRESETS["quick"] = SMALL
    sys.argv = ["trajstitch", "job"]
    return command()


def verb(*words: str) -> Command:
    return lambda: cli.run(words)


def convert(target: str, *flags: str) -> Command:
    return verb("convert", "npz:log.npz", target, *flags)


def instead(target: str) -> Job:
    """Replace a data set by another."""
    return Job(convert(target, "--force"), before=verb("convert", "npz:other.npz", target))


def stitch(target: str, *flags: str) -> Command:
    small = ("--preset", "quick", "--run", "run", "--resume")
    return verb("stitch", "npz:log.npz", target, *small, *flags)


def train(policy: str, steps: int = 20, *flags: str) -> Command:
    small = ("--steps", str(steps), "--seeds", "2", "--hidden", "8", "--run", "clone", "--resume")
    return verb("train", policy, "npz:swings.npz", *small, *flags)


def learn() -> int:
    settings = {"config": SMALL, "steps": 20, "seeds": 2, "episodes": 1}
    trajstitch.learn("npz:log.npz", "1m", run="learned", resume=True, **settings)
    return 0


def fit() -> int:
    """Train by the library, in a run that is made by hand."""
    run = Run.start(Path("fitted"), "train", {}, resume=True)
    trajstitch.train(trajstitch.load("npz:swings.npz"), IQL(steps=20, hidden=(8,)), 1, run=run)
    return 0


def collect(target: str) -> Command:
    return verb("collect", "maze/mixed", "--transitions", "1200", "--to", target)


def stitched_maze() -> int:
    """Stitch what the simulator can check."""
    small = ("--preset", "quick", "--run", "run")
    return collect("npz:maze.npz")() or verb("stitch", "npz:maze.npz", "npz:better.npz", *small)()


def ladder() -> int:
    """Train a ladder of policies by the library, as tiny as can be."""
    expert(tiny(Path("ladder"), resume=Path("ladder/run.json").exists()), TINY)
    return 0


def reproduce() -> Command:
    """Measure two cells of an experiment."""
    few = ("--sets", "maze/mixed", "--transitions", "1200", "--methods", "bc", "ts-bc", "--stitchings", "1")
    small = ("--size", "small", "--seeds", "1", "--episodes", "1", "--checkpoints", "1")
    return verb("reproduce", "table1", *small, *few, "--folder", "measured", "--to", "pages")


TRAINED = train("bc")

JOBS = {
    "convert to NPZ": Job(convert("npz:new/made.npz")),
    "convert to D4RL": Job(convert("d4rl:made.hdf5")),
    "convert to Parquet": Job(convert("table:made.parquet")),
    "convert to CSV": Job(convert("table:made.csv")),
    "convert to Minari": Job(convert("minari:my/point/log-v0")),
    "replace NPZ": instead("npz:made.npz"),
    "replace CSV": instead("table:made.csv"),
    "replace Minari": instead("minari:my/point/log-v0"),
    "train BC": Job(TRAINED),
    "train IQL": Job(train("iql")),
    "train more steps": Job(train("bc", 40), before=TRAINED),
    "train in Python": Job(fit),
    "stitch": Job(stitch("npz:better.npz")),
    "stitch into Minari": Job(stitch("minari:my/better-v0")),
    "stitch into CSV twice": Job(stitch("table:better.csv", "--stitchings", "2")),
    "evaluate": Job(verb("evaluate", "clone", "--episodes", "1", "--processes", "1"), before=TRAINED),
    "report": Job(verb("report", "clone"), before=TRAINED),
    "learn": Job(learn),
    "collect": Job(collect("npz:maze.npz")),
    "collect into Minari": Job(collect("minari:my/maze-v0")),
    "export": Job(verb("export", "clone", "policy.safetensors"), before=TRAINED),
    "export to ONNX": Job(verb("export", "clone", "policy.onnx"), before=TRAINED),
    "simulate": Job(verb("simulate", "run"), before=stitched_maze),
    "expert": Job(ladder),
    "reproduce": Job(reproduce()),
}
"""Each job ends in the same files each time."""
