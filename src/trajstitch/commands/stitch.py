"""`trajstitch stitch SRC DST`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from trajstitch import console
from trajstitch.commands import print_json
from trajstitch.commands.columns import ColumnFlags
from trajstitch.environments import normalised
from trajstitch.inspection import chart
from trajstitch.stitch_run import Stitch, Stitched, stitch_run
from trajstitch.trajectories import Trajectories

BINS = 48


@dataclass(frozen=True, kw_only=True)
class Command(Stitch, ColumnFlags):
    """Rebuild each trajectory by jumping, where it pays, to observed states of others; save the better data set.

    Example: trajstitch stitch hopper/medium-replay minari:my/hopper-stitched-v0 --preset quick
    """

    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        done = stitch_run(self, self.mapping(self.source))
        facts = summary(done)
        done.run.write_json("summary", facts)
        if self.json:
            print_json({"saved": self.target, "run": str(done.run.folder), **facts})
            return
        show(done, facts, self.target)


def summary(done: Stitched) -> dict[str, Any]:
    """What changed, as plain JSON values."""
    origin = done.after.provenance
    return {
        "before": _facts(done.before),
        "after": _facts(done.after),
        "stitched_steps": 0 if origin is None else int(origin.stitched.sum()),
        "passes": done.passes,
        "failed_models": done.failed,
        "seconds": done.seconds,
    }


def _facts(data: Trajectories) -> dict[str, Any]:
    returns = data.returns
    top = np.sort(returns)[-max(1, round(0.1 * len(returns))) :]
    return {
        "episodes": len(data),
        "steps": data.steps,
        "mean_return": float(returns.mean()),
        "top_return": float(top.mean()),
        "mean_length": float(data.lengths.mean()),
        "score": normalised(returns.mean(), data.metadata),
    }


def show(done: Stitched, facts: dict[str, Any], target: str) -> None:
    out = console.stdout()
    before, after = facts["before"], facts["after"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "rebuilt", "accepted", "jumps", "return", "best 10 %", "length", "states kept"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    row = (before["mean_return"], before["top_return"], before["mean_length"])
    table.add_row("logged", "", "", "", *(f"{value:,.0f}" for value in row), "100.0 %")
    for number, one in enumerate(done.passes, 1):
        table.add_row(
            f"pass {number}",
            f"{one['proposed']:,}",
            f"{one['accepted']:,}",
            f"{one['jumps']:,}",
            *(f"{one[name]:,.0f}" for name in ("mean_return", "top_return", "mean_length")),
            f"{one['states_kept']:.1%}".replace("%", " %"),
        )
    out.print(table)
    low = min(done.before.returns.min(), done.after.returns.min())
    high = max(done.before.returns.max(), done.after.returns.max())
    for title, data in (("before", done.before), ("after", done.after)):
        counts, _ = np.histogram(data.returns, BINS, (low, high if high > low else low + 1))
        out.print(f"\nReturns {title}")
        for line in chart({"counts": counts.tolist(), "low": float(low), "high": float(high)}, out.width):
            out.print(line, markup=False)
    score = "" if after["score"] is None else f" (score {before['score']:.1f} → {after['score']:.1f})"
    out.print(
        f"\nMean return of the data {before['mean_return']:,.0f} → {after['mean_return']:,.0f}{score}; "
        f"{facts['stitched_steps'] / max(after['steps'], 1):.2%} of the steps are jumps.",
        soft_wrap=True,
    )
    out.print(f"Saved {target}; the run is in {done.run.folder}", soft_wrap=True)
