"""The page about the ladders of policies that the built-in sets are collected with.

python -m trajstitch.experiments.ladders report
"""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from trajstitch.benchmark.ladder import ALGORITHMS, TASKS, shipped
from trajstitch.benchmark.ladder_report import write_report
from trajstitch.experiments.command import run_command


@dataclass(frozen=True)
class Report:
    """Write the page."""

    ladders: Positional[tuple[str, ...]] = ()
    """Ladders, by task or file; all that are shipped, if none are named."""
    to: Path = Path("docs/results/ladders.md")
    """The page."""


def report(asked: Report) -> None:
    every = [path for name in ALGORITHMS[::-1] for task in TASKS if (path := shipped(task, name)).exists()]
    write_report(asked.ladders or every, asked.to)
    print(asked.to)


if __name__ == "__main__":
    run_command({Report: report})
