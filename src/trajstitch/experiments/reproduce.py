"""Reproduce an experiment: measure what its folder lacks, and write its page from what is measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trajstitch.experiments import grid, table1
from trajstitch.experiments.methods import Asked, cells_of
from trajstitch.learning.bounds import Bounds

EXPERIMENTS = {"table1": table1}


@dataclass(frozen=True, kw_only=True)
class Reproduce(Asked):
    """Where an experiment is measured and reported, beside what of it."""

    folder: Path | None = None
    """Holds the results and everything made on the way; several processes may share it. By default runs/NAME."""
    time_limit: Annotated[float, Bounds(0)] | None = None
    """Stop after this many seconds; the same command resumes."""


def reproduce(name: str, asked: Reproduce) -> None:
    """Measure an experiment's missing cells."""
    experiment = EXPERIMENTS[name]
    cells = cells_of(asked, experiment.METHODS, experiment.SETS)
    failures = grid.run(
        [cell for some in cells.values() for cell in some], asked.folder or Path("runs") / name, asked.time_limit
    )
    if failures:
        raise SystemExit("failed:\n" + "\n".join(failures))
