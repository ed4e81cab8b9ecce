"""`trajstitch reproduce NAME`."""

from dataclasses import dataclass

from tyro.conf import Positional

from trajstitch.cli.output import stdout
from trajstitch.experiments.reproduce import Reproduce, experiment_named, reproduce
from trajstitch.progress import logger
from trajstitch.storage.stopping import resumable

COMMON = ("folder", "size", "sets", "methods", "data", "transitions", "preset", "stitchings", "seeds", "time_limit")


@dataclass(frozen=True, kw_only=True)
class Command(Reproduce):
    """Measure one of the paper's experiments and write its page: table1, ablation, iterations or expert-fraction.

    What its folder holds is not measured again, so the same command resumes. At full size this takes a GPU for hours.

    Example: trajstitch reproduce table1 --size small --folder runs/try
    """

    name: Positional[str]
    """The experiment."""

    def execute(self) -> int:
        with resumable("the same command continues after the cells that are measured"):
            page, failures = reproduce(experiment_named(self.name), self)
        for failure in failures:
            logger.warning(f"failed: {failure}")
        stopped = f"ended at --until {self.until}; without it, the same command goes on"
        nothing = "nothing is complete yet" if self.until == "end" else stopped
        stdout().print(nothing if page is None else str(page), soft_wrap=True)
        return 1 if failures else 0
