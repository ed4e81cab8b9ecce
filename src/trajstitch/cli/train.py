"""`trajstitch train POLICY SRC`."""

from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, Positional, arg, subcommand

from trajstitch.benchmark import sources
from trajstitch.benchmark.sources import describe_source, load_original
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.estimates import print_estimates
from trajstitch.cli.output import print_json, stdout
from trajstitch.data import environments
from trajstitch.data.stitch_record import describe_stitching
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.compare_runs import compare_runs
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.policies import POLICIES, algorithm_class, name_of
from trajstitch.policies.policy import checkpoints, load_policies
from trajstitch.policies.train import check_training, train_run
from trajstitch.progress import logger
from trajstitch.storage.runs import Run, slug
from trajstitch.storage.stopping import resumable

Method = TypeVar("Method")

DESCRIPTION = """Train a policy on a data set, all seeds at once; `trajstitch evaluate RUN` scores it.

Example: trajstitch train bc hopper/medium-replay --seeds 5 --top 0.1

`trajstitch train bc --help` shows what can be set."""
CHOICES = {
    "table": "trajstitch.policies:POLICIES",
    "command": "Train",
    "parameter": "Method",
    "description": """{summary}; `trajstitch evaluate RUN` scores it.

Example: trajstitch train {name} hopper/medium-replay --seeds 5""",
}
"""The table of what the first argument may be, the command whose parameter it fills, and its description."""
COMMON = ("policy", "seeds", "top", "run", "resume")


@dataclass(frozen=True, kw_only=True)
class Train(ColumnFlags, Generic[Method]):
    """Train one kind of policy."""

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """The data set: a URI, or the name of a built-in set."""
    seeds: Annotated[int, Bounds(1)] = 5
    """Policies to train, all at once, one for each seed."""
    seed: Annotated[int, SEED] = 0
    """The first seed."""
    top: float = 1.0
    """Fraction of the episodes to learn from, the best by return; of stitched data, the best for their starts."""
    hold_out: float | None = None
    """Share of the episodes to measure the action error on; if not given, 0.1 where no environment is known, else 0."""
    run: Path | None = None
    """The run's folder; by default runs/POLICY-SRC."""
    resume: bool = False
    """Continue the run in that folder; with more --steps than before, it is trained on."""
    force: bool = False
    """Start again if the training exists: what it made in its folder is removed."""
    against: tuple[Path, ...] = ()
    """Without an environment: trained runs to compare with, such as a clone of the original data."""
    data: str | None = None
    """Without an environment: the logged data to estimate on, if SRC is stitched and doesn't know its original."""
    policy: OmitArgPrefixes[Method]
    """The method's own settings."""
    json: bool = False
    """Print JSON instead of text."""

    def folder(self, policy: str) -> Path:
        words = (policy, self.source, *([f"top-{self.top:g}"] if self.top < 1 else []))
        return self.run or Path("runs") / slug("-".join(words))

    def check_fields(self, prefix: str) -> None:
        """Raise for settings that make no sense."""
        algorithm: Any = self.policy
        check_training(algorithm, self.seeds, self.seed, self.top, self.hold_out)

    def execute(self) -> None:
        algorithm: Any = self.policy
        reading = self.reading(self.source)
        data = self.load(self.source)
        if stitching := describe_stitching(data):
            logger.info(f"stitched data: {stitching}")
        original = self._original(data)
        with resumable("the same command with --resume continues"):
            run = train_run(
                data,
                algorithm,
                self.folder(name_of(algorithm)),
                self.seeds,
                self.seed,
                top=self.top,
                hold_out=self.hold_out,
                source=describe_source(self.source, data=data, **reading),
                resume=self.resume,
                force=self.force,
            )
        found = checkpoints(run.folder)
        last = (run.metrics() or [{}])[-1]
        errors = run.read_json("action-error")
        estimate = None if original is None else compare_runs([run.folder, *self.against], original)
        if self.json:
            facts = {"checkpoints": [str(path) for path in found], "metrics": last, "action_error": errors}
            print_json({"run": str(run.folder), **facts, **({"estimate": estimate} if estimate else {})})
            return
        numbers = {name: value for name, value in last.items() if isinstance(value, float)}
        shown = ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in numbers.items())
        policies = "policy" if self.seeds == 1 else "policies"
        stdout().print(
            f"{run.folder}: {self.seeds} {policies} after {algorithm.steps:,} steps{shown and f' ({shown})'}\n"
            f"action error {sum(errors['action_error']) / self.seeds:.3g} on "
            f"{'held-out' if errors['held_out'] else 'training'} steps; always the mean action has "
            f"{errors['baseline']:.3g}",
            soft_wrap=True,
        )
        if estimate is not None:
            print_estimates(estimate)
        others = " OTHER-RUN" if estimate is not None else ""
        again = "compare them with those of another run" if others else "score them"
        stdout().print(f"{again} with: trajstitch evaluate {run.folder}{others}", soft_wrap=True)

    def _original(self, data: Trajectories) -> Trajectories | None:
        """Return the logged data to estimate on; None where there is an environment, or the original isn't known."""
        if environments.environment_id(data.metadata) is not None:
            if self.against or self.data is not None:
                raise InputError(
                    "`against` and `data` go with data that names no environment: `trajstitch evaluate` scores others"
                )
            return None
        for folder in self.against:
            load_policies(Run.open(folder, "train").folder)
        if self.data is not None:
            data = sources.load(self.data, allow_large=self.allow_large, **self.reading(self.data))
            return load_original(data, allow_large=self.allow_large)
        try:
            return load_original(data, allow_large=self.allow_large)
        except InputError as error:
            logger.warning(f"no estimate: {error}")
            return None


def choose(policy: str) -> tuple[Any, str]:
    """Return the command that trains this policy, and its description."""
    kind = algorithm_class(policy)
    return Train[kind], CHOICES["description"].format(summary=_summary(kind), name=policy)


def _summary(kind: type[Any]) -> str:
    """Return the first sentence of an algorithm's docstring."""
    return (kind.__doc__ or "").strip().partition("\n")[0].removesuffix(".")


def subcommands() -> Any:
    """Return a subcommand for each policy of the table, whose help is the first line of the algorithm's docstring."""
    found = []
    for name in POLICIES:
        kind = algorithm_class(name)
        found.append(Annotated[Train[kind], subcommand(name, description=_summary(kind))])
    return OmitSubcommandPrefixes[reduce(or_, found)]


Command = subcommands()
