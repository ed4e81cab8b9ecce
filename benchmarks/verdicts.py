"""How often verdicts on policies, told from logged data alone, are true: on small worlds (tests/worlds.py) and on
built-in sets, whose environments show the truth.

    python benchmarks/verdicts.py
    python benchmarks/verdicts.py --worlds none
    python benchmarks/verdicts.py --seeds 1 --worlds wild-units --sets none

For each world or set and data seed: train policies, compare all pairs with `trajstitch.compare`, and play them for the
truth. Finished cells are kept as JSON and are not measured again as long as the code is the same. The page is written
once every set is measured, and every world: without worlds it is one of its own.
"""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import trajstitch
from trajstitch import BC, IQL, Policy, Trajectories, concatenate, train_together
from trajstitch.benchmark import sets
from trajstitch.cli.output import stdout
from trajstitch.data import environments
from trajstitch.evaluation.compare import CONFIDENCE, LOGGED, MOST_OUTSIDE, SMALLEST
from trajstitch.evaluation.estimates import horizon_of, logged_returns
from trajstitch.evaluation.rollouts import play_policy
from trajstitch.experiments import pages, provenance
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # before benchmarks/, which has a worlds.py too

from controllers import mean_action, scaled  # noqa: E402
from worlds import WORLDS  # noqa: E402

PAGES = ROOT / "docs" / "results"
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
SETS = (
    "maze/mixed",
    "hopper/medium-expert",
    "hopper/medium-replay",
    "walker2d/medium",
    "halfcheetah/medium-replay",
)
EPISODES = 20
"""Episodes of each policy that are played in the environment of a set, at first."""
MOST_EPISODES = 640
"""The same at most, where the truth about a pair that is told apart is not sure with fewer."""
SURE = 3.0
"""Standard errors by which the truth about two policies must differ from no difference to be sure."""
EQUAL = 1e-3
"""Difference of true returns that is none, in standard deviations of the logged returns."""
SEEDS_TOGETHER = 2
"""Policies of each name."""


@dataclass(frozen=True)
class Benchmark:
    """Compare policies on logged data, and count how often what is said about a pair is true."""

    seeds: int = 1
    """Data seeds of each world and set, from 0 on."""
    worlds: str = ""
    """Names of worlds, with commas between, or none; if not given, those that the method was not chosen on."""
    sets: str = ""
    """Names of built-in sets, with commas between, or none; if not given, five of them."""
    transitions: int = 10_000
    """Transitions of a built-in set."""
    steps: int = 1_000
    """Gradient steps of cloning; IQL takes twice as many."""
    finished: bool = False
    """Measure nothing, and show what is finished: places may then have fewer seeds than `seeds`."""
    cells: Path | None = None
    """Folder of finished cells; if not given, one for the code and settings, under benchmarks/results/verdicts."""
    json: Path | None = None
    """Write all cells here."""
    page: Path | None = None
    """Page to write, also if only some sets or worlds are named; if not given, docs/results/verdicts.md, or without
    worlds verdicts-sets.md."""


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


def measure(place: str, seed: int, config: Benchmark) -> dict[str, Any]:
    """Compare the policies of one world or set and data seed, and play them."""
    start = time.monotonic()
    world = WORLDS.get(place)
    which = trajstitch.Collect(place, config.transitions, seed, processes=1)
    data = world.collect(seed) if world else trajstitch.collect(which)
    policies = learned(data, config.steps, seed)
    trained = time.monotonic()
    found = trajstitch.compare(policies, data)
    compared = time.monotonic()
    horizon = horizon_of(data)
    returns = logged_returns(data, horizon)
    if world:
        # Every first state is played, so that nothing of the truth is left to chance but what a world draws.
        played = {
            name: [world.play_from(data, policy.act, horizon, seed).mean(keepdims=True) for policy in group]
            for name, group in policies.items()
        }
    else:
        played = play(data, policies, horizon, [pair for pair, said in found.verdicts.items() if said == "better"])
    truth = {name: mean_of(each) for name, each in played.items()}
    return {
        "place": place,
        "seed": seed,
        "rows": data.steps,
        "logged": len(data),
        "spread": float(returns.std()),
        "truth": {name: one[0] for name, one in truth.items()} | {LOGGED: float(returns.mean())},
        "error": {name: one[1] for name, one in truth.items()} | {LOGGED: 0.0},
        "episodes": {name: len(each[0]) for name, each in played.items()},
        "comparison": found.to_json(),
        "seconds": {"train": trained - start, "compare": compared - trained, "play": time.monotonic() - compared},
    }


def play(
    data: Trajectories, policies: dict[str, Sequence[Policy]], horizon: int, told: list[tuple[str, str]]
) -> dict[str, list[np.ndarray]]:
    """Return returns of each policy in the data's environment, over as many steps as the estimates are about.

    Policies of pairs that are told apart are played on until the truth about the pair is sure.
    """
    spec = replace(environments.spec(data.metadata), max_episode_steps=horizon)
    lanes = [environments.start(spec, disable_env_checker=True) for _ in range(EPISODES)]
    returns = logged_returns(data, horizon)
    spread, logged = float(returns.std()) or 1.0, float(returns.mean())
    played: dict[str, list[np.ndarray]] = {name: [np.empty(0) for _ in group] for name, group in policies.items()}
    more = set(policies)
    while more:
        for name in sorted(more):
            known = len(played[name][0])
            for number, policy in enumerate(policies[name]):
                for first in range(known, max(2 * known, EPISODES), EPISODES):
                    fresh = play_policy(policy, lanes, first, data.metadata.observation_space)
                    played[name][number] = np.append(played[name][number], fresh)
        truth = {name: mean_of(each) for name, each in played.items()} | {LOGGED: (logged, 0.0)}
        more = {
            one
            for name, than in told
            if not sure((truth[name][0] - truth[than][0]) / spread, np.hypot(truth[name][1], truth[than][1]) / spread)
            for one in (name, than)
            if one != LOGGED and len(played[one][0]) < MOST_EPISODES
        }
    return played


def mean_of(returns: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the mean of policies' mean returns, and its standard error."""
    variances = [each.var(ddof=1) / len(each) if len(each) > 1 else 0.0 for each in returns]
    return float(np.mean([each.mean() for each in returns])), float(np.sum(variances) ** 0.5 / len(returns))


def sure(gain: float, error: float) -> bool:
    """Return whether it is sure which of two policies is better, or that neither is, by more than is nothing."""
    return abs(gain) >= EQUAL + SURE * error or abs(gain) + SURE * error < EQUAL


def code() -> str:
    """Return a hash of the code that cells depend on."""
    rooms = ("data", "learning", "models", "stitching", "policies", "evaluation", "benchmark")
    files = [path for room in rooms for path in (ROOT / "src" / "trajstitch" / room).glob("*.py")]
    files += (ROOT / "src" / "trajstitch" / "benchmark" / "ladders").glob("*.safetensors")
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
    error: float
    """Standard error of that, of the episodes that were played."""
    covered: bool
    """Whether the data says how good both are."""

    @property
    def told(self) -> bool:
        return self.verdict != "can't tell"

    @property
    def sure(self) -> bool:
        """Whether enough episodes were played to know whether what was told is true."""
        return sure(self.gain, self.error)

    @property
    def wrong(self) -> bool:
        """Whether it was told, and is surely not true; where there is no difference, both are wrong."""
        gain = {"better": self.gain, "worse": -self.gain}.get(self.verdict)
        return gain is not None and self.sure and gain < EQUAL


def pairs(cell: dict[str, Any]) -> list[Pair]:
    said = {(one["name"], one["than"]): one["verdict"] for one in cell["comparison"]["verdicts"]}
    covered = {one["name"]: one["covered"] for one in cell["comparison"]["estimates"]} | {LOGGED: True}
    truth, error, spread = cell["truth"], cell["error"], cell["spread"] or 1.0
    return [
        Pair(
            f"{cell['place']}, seed {cell['seed']}",
            name,
            than,
            said[name, than],
            (truth[name] - truth[than]) / spread,
            float(np.hypot(error[name], error[than])) / spread,
            covered[name] and covered[than],
        )
        for name, than in combinations(truth, 2)
    ]


def within(cell: dict[str, Any]) -> list[bool]:
    """Return for each estimate whether the truth is within its interval."""
    found = [(one["name"], one["estimated"]) for one in cell["comparison"]["estimates"] if one["estimated"]]
    return [one["low"] <= cell["truth"][name] <= one["high"] for name, one in found]


def counts(some: list[Pair]) -> list[str]:
    """Return how many pairs there are, how many are told apart, and what of that is wrong."""
    told = [one for one in some if one.told]
    beyond = sum(not one.told and not one.covered for one in some)
    numbers = len(some), len(told), sum(one.wrong for one in told), sum(not one.sure for one in told)
    return [f"{number:,}" for number in (*numbers, len(some) - len(told), beyond)]


def by_verdict(some: list[Pair]) -> list[list[str]]:
    rows = []
    for verdict in ("better", "worse", "can't tell"):
        said = [one for one in some if one.verdict == verdict]
        truly = [sum(low < one.gain <= high for one in said) for low, high in BANDS]
        rows.append([verdict, f"{len(said):,}", *(f"{count:,}" for count in truly)])
    return rows


BANDS = ((-np.inf, -0.5), (-0.5, -SMALLEST), (-SMALLEST, SMALLEST), (SMALLEST, 0.5), (0.5, np.inf))
BAND_NAMES = ("worse by over 0.5", "worse", f"within {SMALLEST:g}", "better", "better by over 0.5")
COUNTS = ("pairs", "told apart", "wrong", "not sure", "can't tell", "of which beyond the data")
HEAD = ("seeds", "rows", "episodes", *COUNTS, "steps beyond the data", "true within interval", "seconds")
BROKEN = {"BC reversed", "mean action", "BC halved"}


def row(place: str, cells: list[dict[str, Any]]) -> list[str]:
    some = [pair for cell in cells for pair in pairs(cell)]
    inside = [one for cell in cells for one in within(cell)]
    seconds = np.mean([cell["seconds"]["compare"] for cell in cells])
    known = [one["outside"] for cell in cells for one in cell["comparison"]["estimates"] if one["estimated"]]
    shown = (f"{np.mean(known):.0%}", f"{sum(inside)} of {len(inside)}") if inside else ("nothing estimated", "")
    sizes = f"{len(cells)}", f"{cells[0]['rows']:,}", f"{cells[0]['logged']:,}"
    return [place, *sizes, *counts(some), *shown, f"{seconds:.0f}"]


def kinds(of: dict[str, list[Pair]]) -> str:
    """Return the table of how many pairs of each kind were told apart."""
    rows = []
    for name, some in of.items():
        rows.append([f"{name}: all", *counts(some)])
        rows.append([f"{name}: with the logged behaviour", *counts([p for p in some if LOGGED in (p.name, p.than)])])
        rows.append([f"{name}: with a broken controller", *counts([p for p in some if {p.name, p.than} & BROKEN])])
    return markdown_table(("pairs", *COUNTS), rows)


def chosen(given: str, usual: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return the names that a flag gives: the usual ones if it gives none."""
    names = [] if given == "none" else [name.strip() for name in given.split(",")] if given else [*usual]
    if unknown := sorted(set(names) - set(known)):
        sys.exit(f"error: unknown {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def page(cells: list[dict[str, Any]], config: Benchmark, call: dict[str, Any]) -> str:
    """Return the page on finished cells: of sets, of worlds, or of both, apart and together."""
    kept = {
        "built-in sets": [cell for cell in cells if cell["place"] not in WORLDS],
        "worlds": [cell for cell in cells if cell["place"] in WORLDS],
    }
    of = {name: [pair for cell in some for pair in pairs(cell)] for name, some in kept.items() if some}
    every = [pair for some in of.values() for pair in some]
    if len(of) > 1:
        of = {"together": every} | of

    places = dict.fromkeys(cell["place"] for cell in cells)
    told = {cell["place"] for cell in cells if any(pair.told for pair in pairs(cell))}

    def table(some: list[dict[str, Any]], what: str) -> str:
        places = dict.fromkeys(cell["place"] for cell in some)
        return markdown_table(
            (what, *HEAD), [row(place, [one for one in some if one["place"] == place]) for place in places]
        )

    return pages.render(
        "verdicts.md.j2",
        kinds=kinds(of),
        verdicts={name: markdown_table(("said", "pairs", *BAND_NAMES), by_verdict(some)) for name, some in of.items()},
        sets=table(kept["built-in sets"], "set"),
        worlds=table(kept["worlds"], "world"),
        seeds=sorted({sum(one["place"] == place for one in cells) for place in places}),
        has_sets=bool(kept["built-in sets"]),
        has_worlds=bool(kept["worlds"]),
        untold=[place for place in places if place not in told],
        wrong=[one for one in every if one.wrong],
        unsure=[one for one in every if one.told and not one.sure],
        chosen_on=CHOSEN_ON,
        config=config,
        confidence=2 * CONFIDENCE - 1,
        most_outside=MOST_OUTSIDE,
        smallest=SMALLEST,
        episodes=EPISODES,
        most_episodes=MOST_EPISODES,
        sure=SURE,
        call=call,
        command=call["command"].replace(" --finished", ""),
        commits=sorted({cell["commit"] for cell in cells}),
        known=", ".join(f"{package} {version}" for package, version in call["versions"].items()),
        minutes=sum(sum(cell["seconds"].values()) for cell in cells) / 60,
    )


def main(config: Benchmark) -> None:
    call = provenance.this_call()
    names = chosen(config.sets, SETS, sets.NAMES, "sets") + chosen(config.worlds, MEASURED_ON, [*WORLDS], "worlds")
    folder = config.cells or ROOT / "benchmarks/results/verdicts" / f"{code()}-{config.steps}-{config.transitions}"
    folder.mkdir(parents=True, exist_ok=True)
    cells: list[dict[str, Any]] = []
    for seed in range(config.seeds):
        for name in names:
            path = folder / f"{name.replace('/', '-')}-{seed}.json"
            if not path.exists() and config.finished:
                continue
            if not path.exists():
                with replacing(path, force=True) as fresh:
                    fresh.write_text(json.dumps(measure(name, seed, config) | {"commit": call["commit"]}) + "\n")
            cells.append(json.loads(path.read_text()))
            print(f"{name} {seed}: {' '.join(row(name, cells[-1:]))}", file=sys.stderr, flush=True)
    if config.json:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(call | {"cells": cells}, indent=1) + "\n")
    text = page(cells, config, call)
    stdout().print(text, soft_wrap=True)
    where = config.page or PAGES / ("verdicts-sets.md" if config.worlds == "none" else "verdicts.md")
    if config.page or names in ([*SETS], [*SETS, *MEASURED_ON]):
        pages.write(where, text)
    else:
        print(f"{where}: not written, since not everything is measured", file=sys.stderr)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
