"""The page about the ladders of policies that the built-in sets are collected with.

python -m trajstitch.experiments.ladders report
"""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from trajstitch.benchmark.ladder import TASKS
from trajstitch.benchmark.ladder_report import write_report
from trajstitch.experiments.command import run_command


@dataclass(frozen=True)
class Report:
    """Write the page."""

    ladders: Positional[tuple[str, ...]] = tuple(TASKS)
    """Ladders, by task or file."""
    to: Path = Path("docs/results/ladders.md")
    """The page."""


def report(asked: Report) -> None:
    write_report(asked.ladders, asked.to)
    print(asked.to)


if __name__ == "__main__":
    run_command({Report: report})
