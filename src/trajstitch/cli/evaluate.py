"""`trajstitch evaluate RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from trajstitch.benchmark.sources import reload_source
from trajstitch.cli.output import print_json, stdout
from trajstitch.evaluation.evaluate import Evaluate, baseline_scores, evaluate_run, needs_data, stored_metadata
from trajstitch.evaluation.film import film, require_video
from trajstitch.evaluation.scores import Interval, Summary, probability_of_improvement
from trajstitch.policies.policy import load_policy
from trajstitch.storage.runs import Run


@dataclass(frozen=True, kw_only=True)
class Command(Evaluate):
    """Roll a run's policies out in the environment of their data, and score every checkpoint.

    Methods are ranked by the last checkpoint. The best one is shown too, but choosing it needs the environment.

    Example: trajstitch evaluate runs/bc-hopper-medium-replay --episodes 10
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The folder of a `trajstitch train`."""
    against: Path | None = None
    """Another run, already evaluated: print the probability that a policy of this run scores higher."""
    video: Path | None = None
    """Film one episode of the first seed's last policy into this file (mp4 or gif)."""
    json: bool = False
    """Print JSON instead of a table."""

    def execute(self) -> None:
        run = Run.open(self.run, "train")
        known = stored_metadata(run)
        theirs = None if self.against is None else baseline_scores(self.run, self, self.against)
        if self.video is not None:
            require_video(self.video, known)
        result = evaluate_run(self.run, self, reload_source(run) if needs_data(run, self) else None)
        if theirs is not None:
            better = probability_of_improvement([_scores(result)], [_scores(theirs)])
            result["against"] = {"run": str(self.against), "probability_of_improvement": better._asdict()}
        if not self.json:
            _print_estimate(result) if result["environment"] is None else _print_scores(result)
        if self.video is not None:
            total = film(load_policy(self.run), known, self.video, self.seed)
            result["video"] = {"file": str(self.video), "return": total}
            if not self.json:
                stdout().print(f"{self.video}: an episode of return {total:,.0f}", soft_wrap=True)
        if self.json:
            print_json(result)


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
        better = Interval(**result["against"]["probability_of_improvement"])
        bounds = "" if better.low is None else f" [{better.low:.2f}, {better.high:.2f}]"
        out.print(f"better than {result['against']['run']} with probability {better.value:.2f}{bounds}", soft_wrap=True)
    _print_unfinished(result)


def _print_unfinished(result: dict[str, Any]) -> None:
    if result["steps"] < result["of_steps"]:
        stdout().print(
            f"UNFINISHED: trained for {result['steps']:,} of {result['of_steps']:,} steps so far", soft_wrap=True
        )


def _print_estimate(result: dict[str, Any]) -> None:
    out = stdout()
    errors, estimate = result["action_error"], result["estimate"]
    where = "held-out episodes" if errors["held_out"] else "the data it was trained on"
    if errors["held_out"] and errors["repeated"]:
        where = f"{errors['steps']:,} held-out steps ({errors['repeated']:,} others occur in the training too)"
    found = Summary.from_json(estimate["discounted_return"])
    out.print("no rollouts, so no scores: these are estimates from the data alone")
    out.print(
        f"action error on {where}: {sum(errors['action_error']) / len(errors['action_error']):.3f} of the action "
        f"bounds (always the mean action: {errors['baseline']:.3f})",
        soft_wrap=True,
    )
    out.print(
        f"discounted return (γ = {estimate['discount']}), an ESTIMATE by {estimate['method']}: {found}, where the "
        f"logged behaviour has {estimate['data']:.1f} by the same; it is no better than the data's coverage",
        soft_wrap=True,
    )
    _print_unfinished(result)
