"""`trajstitch simulate RUN`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from trajstitch.benchmark.sources import reload_source
from trajstitch.cli.output import print_json, stdout
from trajstitch.data import environments
from trajstitch.errors import InputError
from trajstitch.evaluation.simulator_check import check_jumps, report
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.stitching.layout import place, read_graph, read_result
from trajstitch.storage.runs import Run
from trajstitch.workflow.parts import stitching_of


@dataclass(frozen=True, kw_only=True)
class Command:
    """Check a run's jumps in the simulator: set it to each state, take the jump's action, compare.

    For MuJoCo tasks whose observation shows the whole state, such as Hopper, Walker2d and HalfCheetah, and for every
    environment with a method `set_state(state)` that puts it into the state that an observation shows. The error is
    divided by the jump's length: 0 is exact, 1 is as wrong as not moving.

    Example: trajstitch simulate runs/stitch-hopper-medium-replay-default-seed-0
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The folder of a `trajstitch stitch` run, or of `trajstitch learn`."""
    seed: Annotated[int, SEED] | None = None
    """Which seed of a run of several seeds or stitchings; the first if not given."""
    steps: Annotated[int, Bounds(1)] = 20_000
    """Number of jumps, and of edges of the graph, to check at most. Larger is slower and more precise."""
    trust_environment: bool = False
    """Start the environment that the data names even if that runs code that Gymnasium's registry doesn't have. Only for
    data of people you trust."""
    allow_large: bool = False
    """Load the data even if its file declares far more than it holds."""
    environment: str | None = None
    """Environment to check in: a Gymnasium id, or your own as MODULE:NAME. If not given, what the data names."""
    json: bool = False
    """Print JSON instead of tables."""

    def execute(self) -> None:
        run = Run.open(stitching_of(self.run), "stitch")
        shared, own = place(run, self.seed)
        if not run.has(f"{own}passes"):
            summary = "summary" if shared else f"{own}summary"  # stitchings have one in common
            reason = run.read_json(summary).get("unchanged_because") if run.has(summary) else None
            why = f"the data was left unchanged: {reason}" if reason else "not finished: continue it with `resume=True`"
            raise InputError(f"{self.run}: {why}")
        run.require_writable()
        data = reload_source(run, allow_large=self.allow_large)
        if self.environment is not None:
            data = replace(data, metadata=environments.with_environment(data.metadata, self.environment))
        if self.trust_environment:
            environments.trust(data.metadata)
        stitched, _ = read_result(run, own, data)
        graph = read_graph(run, shared, data)
        jumps = check_jumps(data, stitched, self.steps)
        facts = report(data, jumps, graph, self.steps)
        found = {"step": jumps.index, "ratio": jumps.ratio, "reward_error": jumps.reward_error}
        run.write_tensors(f"{own}simulator-check", found)
        run.write_json(f"{own}simulator-check", facts)
        if self.json:
            print_json(facts)
        else:
            show(facts)


def show(facts: dict[str, Any]) -> None:
    out = stdout()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "steps", "error / length", "quartiles", "reward error"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, title in (("logged", "logged steps"), ("jumps", "jumps made"), ("edges", "all edges")):
        one = facts.get(name, {"steps": 0})
        if one["steps"]:
            low, high = one["quartiles"]
            row = (f"{one['median_ratio']:.3f}", f"{low:.3f} to {high:.3f}", f"{one['median_reward_error']:.3f}")
            table.add_row(title, f"{one['steps']:,}", *row)
    out.print(table)
    for key, title in (("by_consistency", "consistency"), ("by_margin", "likelihood margin")):
        if facts.get(key):
            table = Table(box=None, pad_edge=False, header_style="bold")
            for name in (title, "edges", "error / length"):
                table.add_column(name, justify="right" if name != title else "left", no_wrap=True)
            for row in facts[key]:
                low, high = ("…" if bound is None else f"{bound:g}" for bound in (row["from"], row["to"]))
                table.add_row(f"{low} to {high}", f"{row['edges']:,}", f"{row['median_ratio']:.3f}")
            out.print()
            out.print(table)
    ranks = {name: value for name, value in facts.get("rank_correlation", {}).items() if value is not None}
    if ranks:
        listed = ", ".join(f"{name} {value:.2f}" for name, value in ranks.items())
        out.print(f"\nRank correlation of the true error with each jump test: {listed}", soft_wrap=True)
