"""What stitched data claims and what is true, on every world of the zoo (tests/worlds.py).

    python benchmarks/worlds.py --seeds 10
    python benchmarks/worlds.py --seeds 2 --worlds two-leg,sparse-goal
    python benchmarks/worlds.py --seeds 3 --unseen        # worlds that were made after the method

For each world and data seed: stitch, compare the returns of the stitched data with the true returns of the same
actions, and score policies cloned or learned from either. Finished cells are kept as JSON beside the results and are
not measured again, as long as the code they depend on is the same. docs/results/worlds.md is written once every world
is measured.
"""

import hashlib
import inspect
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.table import Table
from scipy import stats

import trajstitch
from trajstitch import BC, IQL, Policy, Trajectories, concatenate, train_together
from trajstitch.cli.output import stdout
from trajstitch.data import ragged
from trajstitch.evaluation.processes import evaluators
from trajstitch.experiments import pages, provenance
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from world import World  # noqa: E402
from worlds import ALL, UNSEEN, WORLDS  # noqa: E402

PAGES = ROOT / "docs" / "results"
EPISODES = 200
"""Episodes that score a policy."""
TOLERANCE = 0.05
"""Share of the returns' span by which stitched data may claim more than is true."""
PAIRS = (("TS + BC", "BC"), ("TS + best tenth", "best tenth"), ("IQL, union", "IQL"))
"""Policies learned with stitching, and their counterparts without."""
POLICIES = ("BC", "TS + BC", "best tenth", "TS + best tenth", "IQL", "IQL, union")


@dataclass(frozen=True)
class Benchmark:
    """Stitch every world of the zoo, and compare claims with the truth and policies with their counterparts."""

    seeds: int = 10
    """Data seeds of each world, from 0 on."""
    iql_seeds: int = 3
    """Of these, how many have IQL learned on them as well, which takes longer than everything else."""
    worlds: str = ""
    """Names of worlds, with commas between; all if not given."""
    unseen: bool = False
    """Measure the worlds that were made after the method, instead of those that it was made with."""
    preset: Literal["quick", "default", "paper"] = "quick"
    """Preset to stitch with."""
    steps: int = 5_000
    """Gradient steps of cloning; IQL takes four times as many."""
    time_limit: float = float("inf")
    """Start no cell after this many seconds; run the command again to continue."""
    processes: int = 2
    """Cells measured at the same time."""
    cells: Path | None = None
    """Folder of finished cells; if not given, one for the code and settings, under benchmarks/results/worlds."""
    json: Path | None = None
    """Write all cells here."""
    page: Path | None = None
    """Page to write; docs/results/worlds.md if not given, or unseen-worlds.md."""

    @property
    def among(self) -> dict[str, World]:
        """The worlds to choose from."""
        return UNSEEN if self.unseen else WORLDS


@dataclass(frozen=True)
class Cell:
    """One world and data seed to measure."""

    world: str
    seed: int
    preset: Literal["quick", "default", "paper"]
    steps: int
    iql: bool
    commit: str
    deadline: float
    path: Path


def measure(cell: Cell) -> dict[str, Any] | None:
    """Measure one cell and keep it; return None if it is too late to start."""
    if cell.path.exists():
        return json.loads(cell.path.read_text())
    if time.time() > cell.deadline:
        return None
    start = time.monotonic()
    world = ALL[cell.world]
    data = world.collect(cell.seed)
    with warnings() as said:
        stitched = trajstitch.stitch(data, cell.preset, cell.seed)
    seconds = {"stitch": time.monotonic() - start}
    result = {"world": cell.world, "seed": cell.seed, "preset": cell.preset, "steps": cell.steps}
    result["commit"] = cell.commit
    result |= {"claims": claims(world, data, stitched), "warnings": said, "optimum": world.optimum}
    policies = learned(data, stitched, cell)
    played = {name: world.play(policy.act, EPISODES, cell.seed) for name, policy in policies.items()}
    result["scores"] = {name: float(one.returns.mean()) for name, one in played.items()}
    result["success"] = {name: float(one.success.mean()) for name, one in played.items()} if world.has_goal else None
    seconds["all"] = time.monotonic() - start
    result["seconds"] = seconds
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(cell.path, force=True) as fresh:
        fresh.write_text(json.dumps(result, indent=1) + "\n")
    return result


def claims(world: World, data: Trajectories, stitched: Trajectories) -> dict[str, float]:
    """Return what stitched data claims, beside the truth about it and about the logged data."""
    assert stitched.provenance is not None
    jumps = ragged.sums(stitched.provenance.stitched, stitched.lengths)
    return {
        "episodes": len(data),
        "logged": float(data.returns.mean()),
        "logged_true": float(world.true_returns(data).mean()),
        "span": float(np.ptp(data.returns)),
        "claimed": float(stitched.returns.mean()),
        "true": float(world.true_returns(stitched).mean()),
        "replayed": float(world.replayed(stitched).mean()),
        "walked": float(world.walked(stitched).mean()),
        "jumps": int(jumps.sum()),
        "accepted": int((jumps > 0).sum()),
    }


def learned(data: Trajectories, stitched: Trajectories, cell: Cell) -> dict[str, Policy]:
    """Return the policies by name; those of one algorithm train together."""
    sets = (data, stitched, data.best(0.1), stitched.best(0.1))
    bc = BC(steps=cell.steps, hidden=(64, 64), standardise=True)
    found = train_together(sets, bc, seeds=1, seed=cell.seed)
    if cell.iql:
        # Training refuses returns that are all equal where it would scale by their span.
        scaled = bool(np.ptp(data.returns) > 0)
        iql = IQL(steps=4 * cell.steps, hidden=(64, 64), learning_rate=1e-3, standardise=True, scale_rewards=scaled)
        found += train_together((data, concatenate((data, stitched))), iql, seeds=1, seed=cell.seed)
    return {name: one for name, (one,) in zip(POLICIES, found, strict=False)}


@contextmanager
def warnings() -> Iterator[list[str]]:
    """Collect what the library warns of."""
    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logging.getLogger("trajstitch").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("trajstitch").removeHandler(handler)


def code() -> str:
    """Return a hash of the code that cells depend on."""
    rooms = ("data", "learning", "models", "stitching", "policies")
    files = [path for room in rooms for path in (ROOT / "src" / "trajstitch" / room).glob("*.py")]
    files += [ROOT / "tests" / f"{name}.py" for name in ("world", "worlds", "mazes", "plants", "gliders")]
    made = hashlib.blake2b(digest_size=5)
    for part in (measure, claims, learned):
        made.update(inspect.getsource(part).encode())
    for path in sorted(files):
        made.update(path.read_bytes())
    return made.hexdigest()


# The tables


class Summary:
    """The cells of one world."""

    def __init__(self, cells: Sequence[dict[str, Any]]) -> None:
        self.cells = cells
        self.world = ALL[cells[0]["world"]]

    def claim(self, name: str) -> float:
        return float(np.mean([cell["claims"][name] for cell in self.cells]))

    @property
    def excess(self) -> float:
        """How much more than the truth the data claims, beyond the luck in the logged data, as a share of the span."""
        each = [
            (one["claimed"] - one["true"] - (one["logged"] - one["logged_true"])) / (one["span"] or 1.0)
            for one in (cell["claims"] for cell in self.cells)
        ]
        return float(np.mean(each))

    def scores(self, policy: str, kind: str = "scores") -> np.ndarray:
        return np.array([cell[kind][policy] for cell in self.cells if policy in cell[kind]])

    def difference(self, ours: str, theirs: str) -> tuple[float, float | None]:
        """Return the mean paired difference over seeds, and half of its 95 % interval; None for one seed."""
        each = self.scores(ours) - self.scores(theirs)
        count = len(each)
        wide = float(stats.t.ppf(0.975, count - 1) * each.std(ddof=1) / np.sqrt(count)) if count > 1 else None
        return float(each.mean()), wide

    @property
    def unchanged(self) -> list[str]:
        """Why data was left unchanged, for each cell where it was."""
        return [
            "; ".join(cell["warnings"]) or "no trajectory was better"
            for cell in self.cells
            if not cell["claims"]["jumps"]
        ]

    @property
    def marks(self) -> list[str]:
        """What is wrong."""
        found = [f"claims {self.excess:.0%} of the span too much"] if self.excess > TOLERANCE else []
        for ours, theirs in PAIRS:
            if not len(self.scores(ours)):
                continue
            mean, wide = self.difference(ours, theirs)
            if wide is not None and mean + wide < 0:
                found.append(f"{ours} is worse than {theirs} by {number(-mean)} ± {number(wide)}")
        if not self.world.knowable and self.claim("jumps"):
            found.append("stitched where nothing can be known")
        if self.world.cloning_fails and (success := self.scores("TS + BC", "success").mean()) < 0.9:
            found.append(f"TS + BC reaches the goal in {success:.0%}")
        return found


RETURNS = ("logged", "span", "claimed", "true", "replayed", "walked")
CLAIMS = ("world", *RETURNS, "too much", "jumps", "accepted", "unchanged")


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def claims_row(one: Summary) -> list[str]:
    numbers = [number(one.claim(name)) for name in RETURNS]
    counts = [f"{one.claim('jumps'):.0f}", f"{one.claim('accepted'):.0f} of {one.claim('episodes'):.0f}"]
    too_much = f"**{one.excess:.1%}**" if one.excess > TOLERANCE else f"{one.excess:z.1%}"
    return [one.world.name, *numbers, too_much, *counts, f"{len(one.unchanged)} of {len(one.cells)}"]


def measured(summaries: Sequence[Summary]) -> list[str]:
    """Return the policies that were scored: without IQL's, if it learned on no data seed."""
    return [policy for policy in POLICIES if any(policy in cell["scores"] for one in summaries for cell in one.cells)]


def scores_row(one: Summary, policies: Sequence[str]) -> list[str]:
    cells = []
    for policy in policies:
        scores = one.scores(policy)
        shown = number(scores.mean()) + (f" ± {number(scores.std(ddof=1))}" if len(scores) > 1 else "")
        counterpart = dict(PAIRS).get(policy)
        if counterpart is not None:
            mean, wide = one.difference(policy, counterpart)
            sure = wide is not None and abs(mean) > wide
            shown += (" ▲" if mean > 0 else " ▼") if sure else ""
        cells.append(shown)
    return [one.world.name, *cells, number(float(np.mean([cell["optimum"] for cell in one.cells])))]


def success_row(one: Summary, policies: Sequence[str]) -> list[str]:
    return [one.world.name, *(f"{one.scores(policy, 'success').mean():.2f}" for policy in policies)]


def tables(summaries: Sequence[Summary]) -> dict[str, tuple[Sequence[str], list[list[str]]]]:
    """Return the head and the rows of each table."""
    policies, goals = measured(summaries), [one for one in summaries if one.world.has_goal]
    return {
        "claims": (CLAIMS, [claims_row(one) for one in summaries]),
        "scores": (("world", *policies, "optimum"), [scores_row(one, policies) for one in summaries]),
        "success": (("success", *policies), [success_row(one, policies) for one in goals]),
    }


def reasons(summaries: Sequence[Summary]) -> list[str]:
    """Return each reason to leave data unchanged that was given, with its world."""
    found = []
    for one in summaries:
        for reason in dict.fromkeys(one.unchanged):
            found.append(f"- {one.world.name}: {reason} ({one.unchanged.count(reason)} of {len(one.cells)})")
    return found


def page(summaries: Sequence[Summary], config: Benchmark, call: dict[str, Any], seconds: float) -> str:
    known = ", ".join(f"{package} {version}" for package, version in call["versions"].items())
    return pages.render(
        "worlds.md.j2",
        **{name: markdown_table(head, rows) for name, (head, rows) in tables(summaries).items()},
        marks=[f"{one.world.name}: {mark}" for one in summaries for mark in one.marks],
        reasons=reasons(summaries),
        worlds=[one.world for one in summaries],
        seeds=len(summaries[0].cells),
        config=config,
        episodes=EPISODES,
        tolerance=TOLERANCE,
        call=call,
        commits=sorted({cell["commit"] for one in summaries for cell in one.cells}),
        versions=known,
        minutes=seconds / 60,
    )


def show(summaries: Sequence[Summary]) -> None:
    out = stdout()
    out.width = max(out.width, 150)
    for head, rows in tables(summaries).values():
        table = Table(*head, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(cell.replace("**", "") for cell in row))
        out.print(table)
        out.print()
    for line in (*reasons(summaries), *(f"! {one.world.name}: {mark}" for one in summaries for mark in one.marks)):
        out.print(line, soft_wrap=True)


def main(config: Benchmark) -> None:
    call = provenance.this_call()
    names = [name.strip() for name in config.worlds.split(",")] if config.worlds else [*config.among]
    if unknown := set(names) - set(config.among):
        sys.exit(f"error: unknown worlds {', '.join(sorted(unknown))}; there are {', '.join(config.among)}")
    folder = config.cells or ROOT / "benchmarks/results/worlds" / f"{code()}-{config.preset}-{config.steps}"
    deadline = time.time() + config.time_limit
    cells = [
        Cell(
            name,
            seed,
            config.preset,
            config.steps,
            seed < config.iql_seeds,
            call["commit"],
            deadline,
            folder / f"{name}-{seed}.json",
        )
        for seed in range(config.seeds)
        for name in names
    ]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with evaluators(config.processes) as pool:
        for number, (cell, result) in enumerate(zip(cells, pool.map(measure, cells), strict=True), 1):
            if result is not None:
                found[cell.world].append(result)
                took = result["seconds"]["all"]
                print(f"{number}/{len(cells)} {cell.world} {cell.seed}: {took:.0f} s", file=sys.stderr, flush=True)
    summaries = [Summary(some) for some in found.values() if some]
    if not summaries:
        sys.exit("nothing is measured yet")
    show(summaries)
    everything = [cell for some in found.values() for cell in some]
    if config.json:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(call | {"cells": everything}, indent=1) + "\n")
    path = config.page or PAGES / ("unseen-worlds.md" if config.unseen else "worlds.md")
    if len(everything) == len(config.among) * config.seeds:
        pages.write(path, page(summaries, config, call, sum(cell["seconds"]["all"] for cell in everything)))
    else:
        print(f"{path}: not written, since not every world is measured", file=sys.stderr)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
