"""`trajstitch reproduce NAME`."""

from dataclasses import dataclass

from tyro.conf import Positional

from trajstitch.experiments.reproduce import Reproduce, reproduce


@dataclass(frozen=True, kw_only=True)
class Command(Reproduce):
    """Measure one of the paper's experiments and write its page: table1, ablation, iterations or expert-fraction.

    What is measured already is kept; the same command resumes.

    Example: trajstitch reproduce table1 --size small --folder runs/try --to runs/try/pages
    """

    name: Positional[str]
    """The experiment."""

    def execute(self) -> None:
        reproduce(self.name, self)
