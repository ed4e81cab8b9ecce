"""`trajstitch learn SRC`."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from trajstitch.cli.charts import number
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.scores import Interval
from trajstitch.learning.bounds import SEED
from trajstitch.storage.runs import slug
from trajstitch.storage.stopping import resumable
from trajstitch.workflow.learn import Learned, learn

COMMON = ("run", "budget", "compare", "environment", "seed", "resume", "json")


@dataclass(frozen=True, kw_only=True)
class Command(ColumnFlags):
    """Find the best policy that a log supports: check, stitch, train, evaluate or estimate, choose, report.

    Policies are cloned from the logged and the stitched data, and from the best tenth of each; where time allows, they
    are learned by IQL too. One is chosen, and a page shows everything.

    Example: trajstitch learn hopper/medium-replay --run hopper --budget 30m

    Your own log: trajstitch learn table:log.csv --run log --budget 5m

    Does stitching pay? trajstitch learn npz:log.npz --run log --compare
    """

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """What was logged: a URI, or the name of a built-in set."""
    run: Path | None = None
    """Folder that keeps the data, the policies and the page; runs/learn-SRC if not given."""
    budget: str = "30m"
    """About how long it may take, such as 5m, 30m or 2h: it decides the models' size, the steps and which methods are
    tried."""
    compare: bool = False
    """Only clone, so that all of the time goes into one verdict: does stitching pay, beside the original data and its
    best tenth under equal settings?"""
    environment: str | None = None
    """Environment to roll out in, if the data names none or another one: a Gymnasium id such as Hopper-v5, or your own
    as MODULE:NAME, where NAME is a class or an id that the module registers. Without any, returns are estimated from
    the data."""
    seed: Annotated[int, SEED] = 0
    """Seed of the stitching, and the first of the policies'."""
    resume: bool = False
    """Continue the run in that folder after its last finished stage."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        with resumable("the same command with --resume continues"):
            found = learn(
                self.source,
                self.budget,
                run=self.run or Path("runs") / slug(f"learn-{self.source}"),
                resume=self.resume,
                environment=self.environment,
                allow_large=self.allow_large,
                **self.reading(self.source),
                seed=self.seed,
                compare=self.compare,
            )
        print_json(_facts(found)) if self.json else show(found)


def _facts(found: Learned) -> dict[str, object]:
    assert found.folder is not None
    return {
        **json.loads((found.folder / "result.json").read_text()),
        "run": str(found.folder),
        "policy": str(found.policy_file),
        "page": found.report and str(found.report),
    }


def show(found: Learned) -> None:
    """Print the table, the choice and why, and where everything is."""
    out = stdout()
    table = Table(box=None, pad_edge=False, header_style="bold")
    verdicts = any(row.than_logged for row in found.table)
    for title in ("", "learns from", f"{found.unit} [95 %]", "error", *(["than logged"] if verdicts else [])):
        table.add_column(title, justify="left" if title in ("", "learns from") else "right", no_wrap="[" in title)
    for row in found.table:
        name = "the data" if row.name == LOGGED else row.name
        cells = [f"→ {name}" if row.chosen else f"  {name}", row.learns_from, _interval(row.result)]
        cells += ["" if row.action_error is None else f"{row.action_error:.3f}", row.than_logged or ""]
        table.add_row(*cells[: len(table.columns)], style="bold" if row.chosen else None)
    out.print(table)
    if found.horizon is not None:
        out.print(f"{found.unit}: over {found.horizon:,} steps, the usual length of an episode", soft_wrap=True)
    out.print("error: distance of the actions from logged ones, scaled to ±1\n", soft_wrap=True)
    if found.verdict is not None:
        out.print(f"{found.verdict}\n", soft_wrap=True)
    out.print(found.why, soft_wrap=True)
    out.print(f"policy  {found.policy_file}", soft_wrap=True)
    if found.report is not None:
        out.print(f"page    {found.report}: open it in any browser", soft_wrap=True)
    folder = shlex.quote(str(found.folder))
    out.print(f"deploy  trajstitch export {folder} policy.onnx (or .safetensors)", soft_wrap=True)
    out.print(f"\n{found.code}", soft_wrap=True, end="")


def _interval(found: Interval | None) -> str:
    if found is None:
        return "unknown"
    bounds = "" if found.low is None or found.high is None else f" [{number(found.low)}, {number(found.high)}]"
    return f"{number(found.value)}{bounds}"
