"""`trajstitch stitch SRC DST`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from trajstitch.cli.charts import chart
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.data.environments import normalised, reference
from trajstitch.data.trajectories import Trajectories
from trajstitch.stitching.pipeline import Stitch, Stitched, place, stitch_run

BINS = 48


@dataclass(frozen=True, kw_only=True)
class Command(Stitch, ColumnFlags):
    """Rebuild each trajectory by jumping, where it pays, to observed states of others; save the better data set.

    Example: trajstitch stitch hopper/medium-replay minari:my/hopper-stitched-v0 --preset quick

    With several seeds: trajstitch stitch npz:log.npz npz:better-{seed}.npz --preset paper --seeds 3
    """

    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        done = stitch_run(self, self.mapping(self.source))
        run, facts = done[0].run, [summary(one) for one in done]
        for seed, one in zip(self.numbers, facts, strict=True):
            run.write_json(f"{place(run, seed)}summary", one)
        if self.json:
            named = zip(self.numbers, self.targets, facts, strict=True)
            seeds = [{"seed": seed, "saved": target, **one} for seed, target, one in named]
            print_json({"run": str(run.folder), **(seeds[0] if self.seeds == 1 else {"seeds": seeds})})
            return
        names = [f"Seed {seed}" for seed in self.numbers] if self.seeds > 1 else [""]
        show(done, facts, names, self.targets)


def summary(done: Stitched) -> dict[str, Any]:
    """What changed, as plain JSON values."""
    origin = done.after.provenance
    return {
        "before": _facts(done.before),
        "after": _facts(done.after),
        "stitched_steps": 0 if origin is None else int(origin.stitched.sum()),
        "passes": done.passes,
        "left_alone": done.left_alone,
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
        "score": float(normalised(returns.mean(), data.metadata)) if reference(data.metadata) else None,
    }


def show(done: Sequence[Stitched], facts: Sequence[dict[str, Any]], names: Sequence[str], targets: list[str]) -> None:
    """A table of the passes and the returns before and after, for each seed if there are several."""
    out = stdout()
    for name, one in zip(names, facts, strict=True):
        if name:
            out.print(name, style="bold")
        out.print(passes(one))
        out.print()
    sets = [("before", done[0].before)]
    sets += [(f"after{name and f', {name.lower()}'}", one.after) for name, one in zip(names, done, strict=True)]
    low, high = (pick(pick(data.returns) for _, data in sets) for pick in (min, max))
    for title, data in sets:
        counts, _ = np.histogram(data.returns, BINS, (low, high if high > low else low + 1))
        out.print(f"Returns {title}")
        for line in chart({"counts": counts.tolist(), "low": float(low), "high": float(high)}, out.width):
            out.print(line, markup=False)
        out.print()
    for name, one, target in zip(names, facts, targets, strict=True):
        before, after = one["before"], one["after"]
        score = "" if after["score"] is None else f" (score {before['score']:.1f} → {after['score']:.1f})"
        out.print(
            f"{name and f'{name}: '}Mean return of the data {before['mean_return']:,.0f} → "
            f"{after['mean_return']:,.0f}{score}; {one['stitched_steps'] / max(after['steps'], 1):.2%} of the steps "
            f"are jumps. Saved {target}",
            soft_wrap=True,
        )
    if done[0].left_alone is not None:
        out.print(f"NOTHING WAS STITCHED: {done[0].left_alone}", soft_wrap=True)
    out.print(f"The run is in {done[0].run.folder}", soft_wrap=True)
    out.print(f"clone the data with: trajstitch train bc {targets[0]}", soft_wrap=True)


def passes(facts: dict[str, Any]) -> Table:
    before = facts["before"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "rebuilt", "accepted", "jumps", "return", "best 10 %", "length", "states kept"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    row = (before["mean_return"], before["top_return"], before["mean_length"])
    table.add_row("logged", "", "", "", *(f"{value:,.0f}" for value in row), "100.0 %")
    for number, one in enumerate(facts["passes"], 1):
        table.add_row(
            f"pass {number}",
            f"{one['proposed']:,}",
            f"{one['accepted']:,}",
            f"{one['jumps']:,}",
            *(f"{one[name]:,.0f}" for name in ("mean_return", "top_return", "mean_length")),
            f"{one['states_kept']:.1%}".replace("%", " %"),
        )
    return table
