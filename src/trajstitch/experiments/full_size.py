"""The experiments at full size, in pieces that end before a time limit: the same call goes on where the last one ended.

python -m trajstitch.experiments.full_size plan
python -m trajstitch.experiments.full_size run --minutes 9

The pieces are commands of this package that resume. A ladder's training is interrupted and resumes from its last
snapshot; experiments stop by themselves, and share one folder, so that data, stitchings and policies are made once.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tyro.conf import Positional

from trajstitch.benchmark.ladder import SHIPPED, TASKS, Ladder, load_ladder, save_ladder, shipped
from trajstitch.errors import InputError
from trajstitch.experiments.command import run_command
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
    """A command, which is called again until it is done."""

    name: str
    command: tuple[str, ...]
    minutes: float
    """Estimated, on an H200 with 16 cores."""
    why: str
    """What the estimate comes from."""
    limited: bool = True
    """Whether the command takes --time-limit; otherwise it is interrupted, and resumes with --resume."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    folder: Path = Path("runs/full")
    """Holds all that is made."""
    only: tuple[str, ...] = ()
    """Names of the pieces to work on; all if none are named."""
    small: bool = False
    """Rehearse: tiny trainings and experiments, whose numbers mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Plan(Size):
    """Print the pieces with their estimated minutes and what is done."""


@dataclass(frozen=True, kw_only=True)
class Run(Size):
    """Work on the pieces that are not done, in order, until the time is over."""

    minutes: Annotated[float, Bounds(0)] = 9.0
    """Minutes that this call may take."""


@dataclass(frozen=True, kw_only=True)
class Ship:
    """Put the SAC ladders that were trained where the built-in sets find them; of those tasks' TD3 ladders, only the
    expert stays, from which the expert-fraction sets are made."""

    folder: Positional[Path]
    """The folder of the trainings."""


def pieces(asked: Size) -> list[Piece]:
    """Return all pieces, in order: what comes first is needed by what follows."""
    folder, small = asked.folder, asked.small
    train = ["--steps", "3000000", "--seeds", "5", "--evaluators", "8"]
    if small:
        train = ["--steps", "12000", "--checkpoint-every", "2000", "--snapshot-every", "2000", "--episodes", "1"]
    experts = [
        Piece(
            f"expert-{task}",
            ("trajstitch", "expert", task, "--algorithm", "sac", *train, "--run", str(folder / f"sac-{task}")),
            17.0,
            "3M steps of 5 seeds: updates as five TD3+BC (128 s a million) and 1.4 times that, beside the environments "
            "(5,000 steps/s a process)",
            limited=False,
        )
        for task in TASKS
    ]
    size = ["--size", "small", "--sets", "hopper/medium-replay", "--methods"] if small else []
    sizes = {
        "table1": (210.0, "20 TD3+BC in 402 s, 20 IQL in 590 s, stitchings and clones as first-table.md has them"),
        "expert-fraction": (
            150.0,
            "96 stitchings, of which the paper's take a third of table 1's a set (200,000 steps)",
        ),
        "iterations": (120.0, "greedy passes of 12 sets, 850 s for four sets' five passes together"),
        "ablation": (90.0, "17 rows on four sets; models are shared by most"),
    }
    tries = {"table1": ["bc", "ts-bc"], "iterations": ["0", "1"], "ablation": ["ts-bc", "filtered"]}
    experiments = [
        Piece(
            name,
            (
                *("trajstitch", "reproduce", name, "--folder", str(folder)),
                *(([*size, *tries[name]] if name in tries else _noisy()) if small else []),
            ),
            *estimate,
        )
        for name, estimate in sizes.items()
    ]
    found = [*experts, *experiments]
    unknown = set(asked.only) - {piece.name for piece in found}
    if unknown:
        raise InputError(f"no piece {sorted(unknown)[0]!r}: choose from {', '.join(piece.name for piece in found)}")
    return [piece for piece in found if not asked.only or piece.name in asked.only]


def _noisy() -> list[str]:
    return ["--size", "small", "--sets", "hopper/noisy-expert-40", "--methods", "bc", "--checkpoints", "1"]


def plan(asked: Plan) -> None:
    rows = [
        [piece.name, "done" if done else "", f"{piece.minutes:.0f}", piece.why, f"`{' '.join(piece.command)}`"]
        for piece, done in _with_progress(asked)
    ]
    print(markdown_table(["piece", "", "minutes", "estimated from", "command"], rows))
    left = sum(piece.minutes for piece, done in _with_progress(asked) if not done)
    print(f"\nAbout {left:.0f} minutes of an H200 are left, in calls of `run --minutes 9`.")


def run(asked: Run) -> None:
    end = time.monotonic() + 60 * asked.minutes
    for piece, done in _with_progress(asked):
        left = end - time.monotonic()
        if done:
            continue
        if left < LEAST_SECONDS:
            break
        start = time.monotonic()
        finished = work(piece, left)
        known = _progress(asked.folder)
        seconds = known.get(piece.name, {}).get("seconds", 0.0) + time.monotonic() - start
        write_json(asked.folder / "progress.json", known | {piece.name: {"done": finished, "seconds": round(seconds)}})
        print(f"{piece.name}: {'done' if finished else 'not done yet'} after {seconds / 60:.1f} minutes in all")
    undone = [piece.name for piece, done in _with_progress(asked) if not done]
    print(f"left: {', '.join(undone) or 'nothing'}")


def work(piece: Piece, seconds: float) -> bool:
    """Work on a piece for this long; return whether it is done. Raise if its command failed."""
    command = [sys.executable, "-m", *piece.command]
    if piece.limited:
        command += ["--time-limit", str(max(seconds - RESERVE_SECONDS, 1.0))]
        result = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(result.stderr)
        _require_success(piece, result.returncode)
        counts = re.search(r"([\d,]+) of ([\d,]+) cells are measured", result.stderr)
        return counts is not None and counts[1] == counts[2]
    if (Path(piece.command[-1]) / "run.json").exists():
        command.append("--resume")
    process = subprocess.Popen(command)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()
        return False
    _require_success(piece, code)
    return True


def _require_success(piece: Piece, code: int) -> None:
    if code:
        raise InputError(f"{piece.name} failed with exit code {code}: {' '.join(piece.command)}")


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
