"""`trajstitch convert SRC DST`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from trajstitch import formats
from trajstitch.benchmark import sources
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.progress import logger

COMMON = ("environment", "force", "json")


@dataclass(frozen=True)
class Command(ColumnFlags):
    """Copy a data set from one format to another. The source is never changed.

    Example: trajstitch convert d4rl:hopper-medium-v2.hdf5 minari:my/hopper-medium-v0
    """

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """The data set to read: a URI, or the name of a built-in set."""
    target: Annotated[Positional[str], arg(metavar="DST")]
    """Where to write it: a URI, or a file's path."""
    force: bool = False
    """Overwrite the target if it exists."""
    json: bool = False
    """Print JSON instead of a line of text."""

    def execute(self) -> None:
        sources.require_apart(self.source, self.target)
        formats.require_free(self.target, force=self.force)
        data = self.load(self.source)
        for finding in data.metadata.findings:
            logger.info(f"{self.source}: {finding.detail}")
        formats.save(data, self.target, force=self.force)
        if self.json:
            print_json({"saved": self.target, **data.summary()})
            return
        stdout().print(f"{self.target}: {data.steps:,} transitions in {len(data):,} episodes", soft_wrap=True)
