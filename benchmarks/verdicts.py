"""How often verdicts on policies, told from logged data alone, are true on the worlds of the zoo (tests/worlds.py).

    python benchmarks/verdicts.py
    python benchmarks/verdicts.py --seeds 1 --worlds wild-units

For each world and data seed: train policies, compare all pairs with `trajstitch.compare`, and play them for the truth.
Finished cells are kept as JSON and are not measured again as long as the code is the same. The page is written once
every world is measured.
"""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import trajstitch
from trajstitch import BC, IQL, Policy, Trajectories, concatenate, train_together
from trajstitch.cli.output import stdout
from trajstitch.evaluation.compare import CONFIDENCE, LOGGED, MOST_OUTSIDE, SMALLEST
from trajstitch.evaluation.estimates import horizon_of, logged_returns
from trajstitch.experiments import pages, provenance
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # before benchmarks/, which has a worlds.py too

from controllers import mean_action, scaled  # noqa: E402
from worlds import WORLDS  # noqa: E402

PAGE = ROOT / "docs" / "results" / "verdicts.md"
CHOSEN_ON = (
    "two-leg",
    "set-point",
    "costs",
    "pendulum",
    "sparse-goal",
    "noisy-reward-0.3",
    "payload",
    "slippery",
    "exogenous",
    "mountain-car",
)
"""Worlds that the method was chosen on; it is measured on others."""
MEASURED_ON = (
    "two-leg-steps",
    "sparse-once",
    "play-four-goals",
    "noisy-reward-0.6",
    "delayed-with-clock",
    "hidden-luck",
    "hidden-place",
    "mostly-zero",
    "irrelevant-noise",
    "wild-units",
    "one-policy",
    "one-long",
)
EQUAL = 1e-3
"""Difference of true returns that is none, in standard deviations of the logged returns."""
SEEDS_TOGETHER = 2
"""Policies of each name."""


@dataclass(frozen=True)
class Benchmark:
    """Compare policies on logged data, and count how often what is said about a pair is true."""

    seeds: int = 1
    """Data seeds of each world, from 0 on."""
    worlds: str = ""
    """Names of worlds, with commas between; if not given, those that the method was not chosen on."""
    steps: int = 1_000
    """Gradient steps of cloning; IQL takes twice as many."""
    cells: Path | None = None
    """Folder of finished cells; if not given, one for the code and settings, under benchmarks/results/verdicts."""
    json: Path | None = None
    """Write all cells here."""
    page: Path = PAGE
    """Page to write."""


def learned(data: Trajectories, steps: int, seed: int) -> dict[str, Sequence[Policy]]:
    """Return policies of all kinds by name, good and broken ones."""
    stitched = trajstitch.stitch(data, "quick", seed)
    sets = (data, stitched, data.best(0.1), stitched.best(0.1))
    names = ("BC", "TS + BC", "best tenth", "TS + best tenth", "IQL", "IQL, union")
    # Training refuses returns that are all equal where it would scale by their span.
    scale = bool(np.ptp(data.returns) > 0)
    iql = IQL(steps=2 * steps, hidden=(64, 64), learning_rate=1e-3, scale_rewards=scale)
    found = train_together(sets, BC(steps=steps, hidden=(64, 64)), SEEDS_TOGETHER, seed)
    found += train_together((data, concatenate((data, stitched))), iql, SEEDS_TOGETHER, seed)
    clones = found[0]
    return {
        **dict(zip(names, found, strict=True)),
        "mean action": [mean_action(data)],
        "BC reversed": [scaled(one, -1) for one in clones],
        "BC halved": [scaled(one, 0.5) for one in clones],
    }


def measure(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Compare the policies of one world and data seed, and play them."""
    start = time.monotonic()
    world = WORLDS[name]
    data = world.collect(seed)
    policies = learned(data, steps, seed)
    trained = time.monotonic()
    found = trajstitch.compare(policies, data)
    compared = time.monotonic()
    horizon = horizon_of(data)
    returns = logged_returns(data, horizon)
    truth = {
        one: float(np.mean([world.play_from(data, policy.act, horizon, seed).mean() for policy in group]))
        for one, group in policies.items()
    }
    truth[LOGGED] = float(returns.mean())
    return {
        "world": name,
        "seed": seed,
        "rows": data.steps,
        "spread": float(returns.std()),
        "truth": truth,
        "comparison": found.to_json(),
        "seconds": {"train": trained - start, "compare": compared - trained},
    }


def code() -> str:
    """Return a hash of the code that cells depend on."""
    rooms = ("data", "learning", "models", "stitching", "policies", "evaluation")
    files = [path for room in rooms for path in (ROOT / "src" / "trajstitch" / room).glob("*.py")]
    files += [ROOT / "tests" / f"{name}.py" for name in ("world", "worlds", "mazes", "plants", "controllers")]
    made = hashlib.blake2b(digest_size=5)
    for path in sorted(files):
        made.update(path.read_bytes())
    return made.hexdigest()


# The tables


@dataclass(frozen=True)
class Pair:
    """What was said about two policies, and what is true."""

    cell: str
    name: str
    than: str
    verdict: str
    gain: float
    """True return of the first less that of the second, in standard deviations of the logged returns."""

    @property
    def wrong(self) -> bool:
        """Whether it was told, and is not true; where there is no difference, both are wrong."""
        gain = {"better": self.gain, "worse": -self.gain}.get(self.verdict)
        return gain is not None and gain < EQUAL


def pairs(cell: dict[str, Any]) -> list[Pair]:
    said = {(one["name"], one["than"]): one["verdict"] for one in cell["comparison"]["verdicts"]}
    truth, spread = cell["truth"], cell["spread"] or 1.0
    return [
        Pair(
            f"{cell['world']}, seed {cell['seed']}", name, than, said[name, than], (truth[name] - truth[than]) / spread
        )
        for name, than in combinations(truth, 2)
    ]


def covered(cell: dict[str, Any]) -> list[bool]:
    """Return for each estimate whether the truth is within its interval."""
    found = [(cell["truth"][one["name"]], one["estimated"]) for one in cell["comparison"]["estimates"]]
    return [one["low"] <= true <= one["high"] for true, one in found if one is not None]


def counts(some: list[Pair]) -> list[str]:
    """Return how many pairs there are, how many are told apart, and what of that is wrong."""
    told = [one for one in some if one.verdict != "can't tell"]
    wrong = sum(one.wrong for one in told)
    return [f"{len(some):,}", f"{len(told):,}", f"{wrong:,}", f"{len(some) - len(told):,}"]


def by_verdict(some: list[Pair]) -> list[list[str]]:
    rows = []
    for verdict in ("better", "worse", "can't tell"):
        said = [one for one in some if one.verdict == verdict]
        truly = [sum(low < one.gain <= high for one in said) for low, high in BANDS]
        rows.append([verdict, f"{len(said):,}", *(f"{count:,}" for count in truly)])
    return rows


BANDS = ((-np.inf, -0.5), (-0.5, -SMALLEST), (-SMALLEST, SMALLEST), (SMALLEST, 0.5), (0.5, np.inf))
BAND_NAMES = ("worse by over 0.5", "worse", f"within {SMALLEST:g}", "better", "better by over 0.5")
HEAD = ("world", "rows", "pairs", "told apart", "wrong", "can't tell", "true within interval", "seconds")


def world_row(name: str, cells: list[dict[str, Any]]) -> list[str]:
    some = [pair for cell in cells for pair in pairs(cell)]
    inside = [one for cell in cells for one in covered(cell)]
    seconds = np.mean([cell["seconds"]["compare"] for cell in cells])
    shown = f"{sum(inside)} of {len(inside)}" if inside else "nothing estimated"
    return [name, f"{cells[0]['rows']:,}", *counts(some), shown, f"{seconds:.0f}"]


def main(config: Benchmark) -> None:
    call = provenance.this_call()
    names = [name.strip() for name in config.worlds.split(",")] if config.worlds else [*MEASURED_ON]
    if unknown := set(names) - set(WORLDS):
        sys.exit(f"error: unknown worlds {', '.join(sorted(unknown))}; there are {', '.join(WORLDS)}")
    folder = config.cells or ROOT / "benchmarks/results/verdicts" / f"{code()}-{config.steps}"
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(config.seeds):
        for name in names:
            path = folder / f"{name}-{seed}.json"
            if not path.exists():
                with replacing(path, force=True) as fresh:
                    fresh.write_text(json.dumps(measure(name, seed, config.steps) | {"commit": call["commit"]}) + "\n")
            found[name].append(json.loads(path.read_text()))
            print(f"{name} {seed}: {' '.join(world_row(name, found[name][-1:]))}", file=sys.stderr, flush=True)
    everything = [cell for cells in found.values() for cell in cells]
    if config.json:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(call | {"cells": everything}, indent=1) + "\n")
    every = [pair for cell in everything for pair in pairs(cell)]
    broken = [one for one in every if {one.name, one.than} & {"BC reversed", "mean action", "BC halved"}]
    text = pages.render(
        "verdicts.md.j2",
        verdicts=markdown_table(("said", "pairs", *BAND_NAMES), by_verdict(every)),
        kinds=markdown_table(
            ("pairs", *HEAD[2:6]),
            [
                ["all", *counts(every)],
                ["with the logged behaviour", *counts([one for one in every if LOGGED in (one.name, one.than)])],
                ["with a broken controller", *counts(broken)],
            ],
        ),
        worlds=markdown_table(HEAD, [world_row(name, cells) for name, cells in found.items()]),
        wrong=[one for one in every if one.wrong],
        chosen_on=CHOSEN_ON,
        config=config,
        confidence=2 * CONFIDENCE - 1,
        most_outside=MOST_OUTSIDE,
        smallest=SMALLEST,
        call=call,
        commits=sorted({cell["commit"] for cell in everything}),
        known=", ".join(f"{package} {version}" for package, version in call["versions"].items()),
        minutes=sum(sum(cell["seconds"].values()) for cell in everything) / 60,
    )
    stdout().print(text, soft_wrap=True)
    if names == [*MEASURED_ON]:
        pages.write(config.page, text)
    else:
        print(f"{config.page}: not written, since not every world is measured", file=sys.stderr)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
