"""`trajstitch inspect URI`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from trajstitch.benchmark import sources
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.data.summary import inspect, render


@dataclass(frozen=True)
class Command(ColumnFlags):
    """Show what is in a data set, and every check with its verdict; exits with 2 if a check finds bad data.

    Example: trajstitch inspect minari:mujoco/hopper/medium-v0
    """

    uri: Annotated[Positional[str], arg(metavar="URI")]
    """The data set, as a URI."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> int:
        report = inspect(sources.load(self.uri, columns=self.mapping(self.uri), allow_nonfinite=True))
        if self.json:
            print_json(report)
        else:
            render(report, stdout())
        return 2 if any(check["verdict"] == "bad" for check in report["checks"]) else 0
