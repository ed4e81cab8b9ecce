"""The experiments at full size, in pieces that end before a time limit: the same call goes on where the last one ended.

python -m trajstitch.experiments.full_size plan
python -m trajstitch.experiments.full_size run --minutes 9 --processes 6

The pieces are commands of this package that resume and stop by themselves. They share one folder, so that data,
stitchings and policies are made once. What was measured on a machine that is gone is not measured again:
`trajstitch reproduce NAME --known FILE` takes it over.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tyro.conf import Positional

from trajstitch.benchmark.ladder import SHIPPED, TASKS, Ladder, load_ladder, save_ladder, shipped
from trajstitch.errors import InputError
from trajstitch.experiments.command import run_command
from trajstitch.experiments.methods import SIZES
from trajstitch.experiments.reproduce import EXPERIMENTS
from trajstitch.learning.bounds import Bounds
from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.runs import write_json

LEAST_SECONDS = 20.0
"""No piece is started with less time left."""
RESERVE_SECONDS = 40.0
"""Left for what an experiment does after its time limit: the page, and what can't be stopped."""


class Piece(NamedTuple):
    """An experiment, whose command is called again until it is done."""

    name: str
    command: tuple[str, ...]
    sets: tuple[str, ...]
    """Measured side by side, as far as there are processes for them."""
    minutes: float
    """Estimated, on an H200 with 16 cores and one process."""
    why: str
    """What the estimate comes from."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    folder: Path = Path("runs/full")
    """Holds all that is made."""
    only: tuple[str, ...] = ()
    """Names of the pieces to work on; all if none are named."""
    flags: str = ""
    """Further flags of `trajstitch reproduce` for every piece: --flags="--methods bc ts-bc --known earlier.json"."""
    small: bool = False
    """Rehearse: tiny experiments, whose numbers mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Plan(Size):
    """Print the pieces with their estimated minutes and what is done."""


@dataclass(frozen=True, kw_only=True)
class Run(Size):
    """Work on the pieces that are not done, in order, until the time is over."""

    minutes: Annotated[float, Bounds(0)] = 9.0
    """Minutes that this call may take."""
    processes: Annotated[int, Bounds(1)] = 1
    """Stitchings of an experiment that are planned side by side, which is work for the CPU. Before that, the models of
    all are fitted at the same time; after it, policies are trained one learner after the other. Trainings beside each
    other or beside graphs were several times slower, also with NVIDIA's MPS, which is used where it is installed."""


@dataclass(frozen=True, kw_only=True)
class Ship:
    """Put SAC ladders that were trained where the built-in sets find them; of those tasks' TD3 ladders, only the expert
    stays, from which the expert-fraction sets are made."""

    folder: Positional[Path]
    """The folder of the trainings, each of which is in sac-TASK."""


def pieces(asked: Size) -> list[Piece]:
    """Return all pieces, in order."""
    size, flags = ["--size", "small"] if asked.small else [], shlex.split(asked.flags)
    sizes = {
        "table1": (
            210.0,
            "1M steps of 20 policies: TD3+BC 240 s, IQL 360 s; clones of 4 sets with 3 stitchings each: 12 minutes",
        ),
        "expert-fraction": (
            150.0,
            "96 stitchings, of which the paper's take a third of table 1's a set (200,000 steps)",
        ),
        "iterations": (120.0, "greedy passes of 12 sets, 850 s for four sets' five passes together"),
        "ablation": (90.0, "17 rows on four sets; models are shared by most"),
    }
    tries = {
        "table1": ["--methods", "bc", "ts-bc"],
        "iterations": ["--methods", "0", "1"],
        "ablation": ["--methods", "ts-bc", "filtered"],
        "expert-fraction": ["--methods", "bc", "--checkpoints", "1"],
    }
    found = [
        Piece(
            name,
            ("trajstitch", "reproduce", name, "--folder", str(asked.folder), *(size and size + tries[name]), *flags),
            _small(name) if asked.small else tuple(EXPERIMENTS[name].sets),
            *estimate,
        )
        for name, estimate in sizes.items()
    ]
    unknown = set(asked.only) - {piece.name for piece in found}
    if unknown:
        raise InputError(f"no piece {sorted(unknown)[0]!r}: choose from {', '.join(piece.name for piece in found)}")
    return [piece for piece in found if not asked.only or piece.name in asked.only]


def _small(name: str) -> tuple[str, ...]:
    return ("hopper/noisy-expert-40",) if name == "expert-fraction" else ("hopper/medium-replay", "hopper/medium")


def plan(asked: Plan) -> None:
    rows = [
        [piece.name, "done" if done else "", f"{piece.minutes:.0f}", piece.why, f"`{' '.join(piece.command)}`"]
        for piece, done in _with_progress(asked)
    ]
    print(markdown_table(["piece", "", "minutes", "estimated from", "command"], rows))
    left = sum(piece.minutes for piece, done in _with_progress(asked) if not done)
    print(
        f"\nAbout {left:.0f} minutes of an H200 are left, in calls of `run --minutes 9`; less with several processes."
    )


def run(asked: Run) -> None:
    end = time.monotonic() + 60 * asked.minutes
    with shared_gpu() as environment:
        for piece, done in _with_progress(asked):
            left = end - time.monotonic()
            if done:
                continue
            if left < LEAST_SECONDS:
                break
            start = time.monotonic()
            finished = work(piece, left, asked.processes, environment)
            known = _progress(asked.folder)
            seconds = known.get(piece.name, {}).get("seconds", 0.0) + time.monotonic() - start
            write_json(
                asked.folder / "progress.json", known | {piece.name: {"done": finished, "seconds": round(seconds)}}
            )
            print(f"{piece.name}: {'done' if finished else 'not done yet'} after {seconds / 60:.1f} minutes in all")
    undone = [piece.name for piece, done in _with_progress(asked) if not done]
    print(f"left: {', '.join(undone) or 'nothing'}")


@contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Let several processes compute on one GPU at the same time; yield the variables that they need."""
    command = shutil.which("nvidia-cuda-mps-control")
    if command is None:
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | variables
        subprocess.run([command, "-d"], env=environment, check=False)
        try:
            yield variables | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        finally:
            subprocess.run([command], env=environment, input="quit\n", text=True, check=False)


def work(piece: Piece, seconds: float, processes: int = 1, environment: Mapping[str, str] | None = None) -> bool:
    """Work on a piece for this long; return whether it is done. Raise if its command failed."""
    end = time.monotonic() + seconds

    def call(sets: tuple[str, ...], until: str = "end") -> str:
        limit = max(end - time.monotonic() - RESERVE_SECONDS, 1.0)
        stage = () if until == "end" else ("--until", until)
        command = [sys.executable, "-m", *piece.command, "--sets", *sets, "--time-limit", str(limit), *stage]
        result = subprocess.run(
            command, check=False, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {})
        )
        sys.stderr.write(result.stderr)
        if result.returncode:
            raise InputError(
                f"{piece.name} failed with exit code {result.returncode}: {' '.join((*piece.command, '--sets', *sets))}"
            )
        return result.stderr

    if processes > 1:
        call(piece.sets, "data")
        call(piece.sets, "models")  # those of all sets of one size at the same time
        with ThreadPoolExecutor(processes) as pool:
            sets = [
                (name,) for name in piece.sets for _ in range(SIZES["full"].stitchings)
            ]  # each takes what others have not
            list(pool.map(lambda one: call(one, "stitchings"), sets))
    counts = re.search(r"([\d,]+) of ([\d,]+) cells are measured", call(piece.sets))
    return counts is not None and counts[1] == counts[2]


def ship(asked: Ship) -> None:
    for task in TASKS:
        ladder = asked.folder / f"sac-{task}" / "ladder.safetensors"
        if ladder.exists():
            with replacing(shipped(task, "sac"), force=True) as fresh:
                fresh.write_bytes(ladder.read_bytes())
            save_ladder(experts_alone(load_ladder(task)), shipped(task))
            print(f"{task}: shipped")
        else:
            logger.warning(f"{ladder}: not there yet")
    whole = sum(path.stat().st_size for path in SHIPPED.iterdir())
    print(f"all ladders together: {whole / 1e6:.1f} MB")


def experts_alone(ladder: Ladder) -> Ladder:
    """Return a ladder of the expert alone."""
    return replace(ladder, checkpoints=ladder.checkpoints[-1:], chosen_medium=None)


def _with_progress(asked: Size) -> Iterator[tuple[Piece, bool]]:
    known = _progress(asked.folder)
    for piece in pieces(asked):
        yield piece, bool(known.get(piece.name, {}).get("done"))


def _progress(folder: Path) -> dict[str, Any]:
    path = folder / "progress.json"
    return json.loads(path.read_text()) if path.exists() else {}


if __name__ == "__main__":
    run_command({Plan: plan, Run: run, Ship: ship})
