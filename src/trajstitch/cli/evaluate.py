"""`trajstitch evaluate RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from trajstitch.benchmark import sources
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.estimates import original_data, print_estimates
from trajstitch.cli.output import print_json, stdout
from trajstitch.data import environments
from trajstitch.errors import InputError
from trajstitch.evaluation.compare_runs import compare_runs
from trajstitch.evaluation.evaluate import Evaluate, baseline_scores, evaluate_run, known_metadata, needs_data
from trajstitch.evaluation.film import film, require_video
from trajstitch.evaluation.scores import Interval, Summary, probability_of_improvement
from trajstitch.policies.policy import load_policy
from trajstitch.storage.runs import Run
from trajstitch.workflow.parts import held_out_by, knowing_data, trainings_of

COMMON = ("episodes", "last", "offline", "environment", "against", "data", "video", "seed", "json")


@dataclass(frozen=True, kw_only=True)
class Command(ColumnFlags, Evaluate):
    """Roll runs' policies out in the environment of their data, and score every checkpoint.

    Methods are ranked by the last checkpoint. The best one is shown too, but choosing it needs the environment.

    Of data that names no environment, or with --offline, the last checkpoints' returns are estimated from what was
    logged, side by side, and one sentence says which run to deploy or that the data can't tell.

    Example: trajstitch evaluate runs/bc-hopper-medium-replay --episodes 10

    Without an environment: trajstitch evaluate runs/bc-log runs/bc-stitched runs/iql-stitched
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Folders of `trajstitch train`; one of `trajstitch learn` stands for all trainings in it."""
    against: Path | None = None
    """Another run to compare with. With an environment it must be evaluated already: print the probability that a
    policy of this run scores higher. Without, it is one more run whose return is estimated."""
    data: str | None = None
    """Without an environment: the logged data to estimate on, where the runs' data is stitched and doesn't know its
    original."""
    video: Path | None = None
    """Film one episode of the first seed's last policy into this file (mp4 or gif)."""
    trust_environment: bool = False
    """Start the environment that the data names even if that runs code that Gymnasium's registry doesn't have. Only for
    data of people you trust."""
    json: bool = False
    """Print JSON instead of a table."""

    def execute(self) -> None:
        if not self.runs:
            raise InputError("name a run: the folder of a `trajstitch train` or `trajstitch learn`")
        trainings = trainings_of(self.runs)
        if any(needs_data(Run.open(folder, "train"), self) for folder in trainings):
            self._estimate(trainings)
            return
        if len(trainings) > 1 and self.video is not None:
            raise InputError("`video` films one run: name one")
        results = []
        for folder in trainings:
            if len(trainings) > 1 and not self.json:
                stdout().print(str(folder), style="bold", soft_wrap=True)
            results.append(self._score(folder))
        if self.json:
            print_json(results[0] if len(results) == 1 else {"runs": results})

    def _estimate(self, trainings: list[Path]) -> None:
        if self.video is not None:
            raise InputError("without an environment nothing can be filmed: leave `video` out")
        others = [] if self.against is None else [self.against]
        if self.data is None:
            data = original_data(knowing_data([*self.runs, *others]), allow_large=self.allow_large)
        else:
            data = sources.load(self.data, allow_large=self.allow_large, **self.reading(self.data))
            data = sources.load_original(data, allow_large=self.allow_large)
        apart = held_out_by(self.runs[0], data) if len(self.runs) == 1 and not others else None
        result = compare_runs([*trainings, *trainings_of(others)], data, apart)
        print_json(result) if self.json else print_estimates(result)

    def _score(self, folder: Path) -> dict[str, Any]:
        """Score a run by rollouts, and print its scores unless JSON is asked for."""
        known = known_metadata(Run.open(folder, "train"), self)
        if self.trust_environment:
            environments.trust(known)
        theirs = None if self.against is None else baseline_scores(folder, self, self.against)
        if self.video is not None:
            require_video(self.video, known)
        result = evaluate_run(folder, self)
        if theirs is not None:
            better = probability_of_improvement([_scores(result)], [_scores(theirs)])
            result["against"] = {"run": str(self.against), "probability_of_improvement": better._asdict()}
        if not self.json:
            _print_scores(result)
        if self.video is not None:
            total = film(load_policy(folder), known, self.video, self.seed)
            result["video"] = {"file": str(self.video), "return": total}
            if not self.json:
                stdout().print(f"{self.video}: an episode of return {total:,.0f}", soft_wrap=True)
        return result


def _scores(result: dict[str, Any]) -> Any:
    import numpy as np

    return np.array(result["last"]["scores"])


def _print_scores(result: dict[str, Any]) -> None:
    out = stdout()
    unit = "return" if result["reference"] is None else "score"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("checkpoint")
    table.add_column(f"{unit}, mean ± std over seeds", justify="right")
    table.add_column("interquartile mean [95 %]", justify="right")
    rows = [(f"{checkpoint['steps']:,} steps", checkpoint) for checkpoint in result["checkpoints"]]
    rows += [(name, result[key]) for name, key in (("last", "last"), ("best of each seed", "best")) if key in result]
    for name, part in rows:
        found = Summary.from_json(part)
        table.add_row(name, str(found), str(found.iqm), style="bold" if name == "last" else None)
    out.print(table)
    out.print(
        f"{len(result['seeds'])} seeds × {result['episodes']} episodes in {result['environment']}; the data's mean "
        f"{unit} is {result['data']['score']:.1f}",
        soft_wrap=True,
    )
    if "against" in result:
        better, other = Interval(**result["against"]["probability_of_improvement"]), result["against"]["run"]
        if better.low is None:
            interval = ", but so few seeds tell too little about chance for an interval"
        else:
            interval = f" [{better.low:.2f}, {better.high:.2f}]"
        out.print(f"better than {other} with probability {better.value:.2f}{interval}", soft_wrap=True)
    if result["steps"] < result["of_steps"]:
        out.print(f"UNFINISHED: trained for {result['steps']:,} of {result['of_steps']:,} steps so far", soft_wrap=True)
