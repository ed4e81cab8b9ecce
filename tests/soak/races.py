"""Races: jobs that start together on one new target, on one run's folder, or beside a dying job's leftovers.

A case is a number: it says which race, and how long each job waits. `python -m soak.races FIRST COUNT` tries cases and
prints a line of JSON for each.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from soak.kills import in_child
from soak.samples import logged
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.storage.runs import Run

RACERS = 3


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: int
    race: str
    verdict: str
    """`one won` or `failed`."""
    detail: str = ""


def _save(uri: str, *, force: bool) -> Callable[[Path, int], int]:
    """Save one, two or three episodes to one target."""

    def racer(folder: Path, number: int) -> int:
        try:
            save(logged()[np.arange(number + 1)], uri.replace("@", str(folder)), force=force)
        except InputError as error:
            return 2 if "another job wrote it meanwhile" in str(error) or "exists already" in str(error) else 3
        return 0

    return racer


def _run(folder: Path, number: int) -> int:
    """Work in one run's folder, each with a job of its own."""
    try:
        run = Run.start(folder / "run", "train", {"seed": number}, resume=True)
    except InputError:
        return 2
    for step in range(5):
        run.log(step=step, seed=number)
        run.write_json("scores", {"seed": number})
        time.sleep(0.002)
    return 0 if {line["seed"] for line in run.metrics()} == {run.config["seed"]} else 3


URIS = {"NPZ": "npz:@/log.npz", "CSV": "table:@/log.csv", "D4RL": "d4rl:@/log.hdf5", "Minari": "minari:my/log-v0"}
RACES = {
    **{f"new {name}": _save(uri, force=False) for name, uri in URIS.items()},
    **{f"replaced {name}": _save(uri, force=True) for name, uri in URIS.items()},
    "run": _run,
}


def attempt(case: int) -> Outcome:
    """Let jobs race, and look at who won and what is there."""
    random, name = np.random.default_rng((2, case)), list(RACES)[case % len(RACES)]
    folder = Path(mkdtemp(prefix="race-"))
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    start = time.monotonic() + 0.05
    waits = random.uniform(0, 0.02, RACERS)

    def racer(number: int) -> int:
        time.sleep(max(0.0, start + waits[number] - time.monotonic()))
        return RACES[name](folder, number)

    try:
        children = []
        for number in range(RACERS):
            child = os.fork()
            if child == 0:
                os._exit(in_child(lambda number=number: racer(number), folder / f"said-{number}"))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return Outcome(case, name, *_verdict(name, codes, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _verdict(name: str, codes: list[int], folder: Path) -> tuple[str, str]:
    winners = [number for number, code in enumerate(codes) if code == 0]
    if not winners or set(codes) - {0, 2}:
        said = [path.read_text()[-300:] for path in sorted(folder.glob("said-*"))]
        return "failed", f"codes {codes}: {said}"
    if name == "run":
        return ("one won", "") if winners else ("failed", f"codes {codes}")
    if name.startswith("new") and len(winners) > 1:
        return "failed", f"{len(winners)} jobs saved one new target"
    try:
        episodes = len(load(URIS[name.partition(" ")[2]].replace("@", str(folder))))
    except InputError as error:
        return "failed", f"codes {codes}: {error}"
    if episodes - 1 not in winners:
        return "failed", f"{episodes} episodes are there, but the winners are {winners}"
    left = [path.name for path in folder.rglob(".trajstitch-*")]
    return ("failed", f"left {left}") if left else ("one won", "")


def main() -> None:
    first, count = map(int, sys.argv[1:])
    for case in range(first, first + count):
        print(json.dumps(asdict(attempt(case))), flush=True)


if __name__ == "__main__":
    main()
