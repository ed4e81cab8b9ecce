"""The whole pipeline on built-in data, in minutes: collect, inspect, stitch, clone, evaluate, show what improved.

python -m trajstitch.experiments.demo run                     what `make demo` does
python -m trajstitch.experiments.demo report demo*/demo.json  docs/results/demo.md, from several runs
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from tyro.conf import Positional

import trajstitch
from trajstitch.data.environments import normalised
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Summary
from trajstitch.experiments import pages
from trajstitch.experiments.command import run_command
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.policies.bc import BC
from trajstitch.progress import SafeConsole
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.runs import damaged, machine, versions

POLICIES = {"bc": "BC", "top": "BC of the best 10 %"}
DATA = ("logged", "stitched")


@dataclass(frozen=True)
class Run:
    """Collect a built-in set, stitch it, clone the logged and the stitched data, and evaluate the policies."""

    to: Path = Path("demo")
    """Folder of the data, the figure and the numbers."""
    set: str = "hopper/medium-replay"
    """The built-in set."""
    transitions: Annotated[int, Bounds(1)] = 50_000
    """Transitions to collect."""
    seed: Annotated[int, SEED] = 0
    """Seed of the data and of the stitching; the policies' seeds start at `seed` × `seeds`."""
    seeds: Annotated[int, Bounds(1)] = 3
    """Policies cloned from each data set."""
    steps: Annotated[int, Bounds(1)] = 8_000
    """Gradient steps of each policy."""
    episodes: Annotated[int, Bounds(1)] = 10
    """Episodes that each policy is evaluated in."""


def run(config: Run) -> None:
    start = time.monotonic()
    logged = trajstitch.collect(trajstitch.Collect(config.set, config.transitions, config.seed))
    show_data(logged)
    stitched = trajstitch.stitch(logged, "quick", config.seed)
    data = {"logged": logged, "stitched": stitched}
    for name, some in data.items():
        trajstitch.save(some, f"npz:{config.to / f'{name}.npz'}", force=True)

    learned = {(policy, name): data[name] for name in DATA for policy in POLICIES}
    parts = [some.best(0.1) if policy == "top" else some for (policy, _), some in learned.items()]
    found = trajstitch.train_together(parts, BC(steps=config.steps), config.seeds, config.seed * config.seeds)
    returns = trajstitch.evaluate([policy for some in found for policy in some], logged.metadata, config.episodes)
    of_each = np.split(normalised(returns, logged.metadata).mean(1), len(found))
    scores = {policy: {} for policy in POLICIES}
    for (policy, name), some in zip(learned, of_each, strict=True):
        scores[policy][name] = some.tolist()

    facts = {
        **{key: value for key, value in asdict(config).items() if key != "to"},
        "data": {name: float(normalised(some.returns, logged.metadata).mean()) for name, some in data.items()},
        "jumps": float(np.mean(stitched.provenance.stitched)) if stitched.provenance else 0.0,
        "scores": scores,
        "seconds": round(time.monotonic() - start),
        "machine": machine(),
        "versions": versions(),
    }
    pages.write(config.to / "demo.json", json.dumps(facts, indent=1) + "\n")
    draw(facts, data, config.to / "demo.png")
    show(facts, config.to)


def show_data(data: Trajectories) -> None:
    """Print what was collected, and what the checks find."""
    facts, out = trajstitch.inspect(data), SafeConsole()
    out.print(f"{facts['name']}: {facts['episodes']:,} episodes, {facts['steps']:,} steps", style="bold")
    out.print(f"mean return {facts['returns']['mean']:,.0f}, best {facts['returns']['max']:,.0f}\n\nChecks")
    for check in facts["checks"]:
        out.print(f"  {check['verdict']:4}  {check['check']}: {check['detail']}", soft_wrap=True)
    out.print()


def show(facts: dict[str, Any], folder: Path) -> None:
    """Print what improved, and where the files are."""
    out = SafeConsole()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("score (0 random, 100 expert)", *DATA):
        table.add_column(name, justify="left" if "(" in name else "right", no_wrap=True)
    table.add_row("the data's own trajectories", *(f"{facts['data'][name]:.1f}" for name in DATA))
    for policy, title in POLICIES.items():
        cells = [str(Summary.of(np.array(facts["scores"][policy][name])).iqm) for name in DATA]
        table.add_row(f"{title} [95 %]", *cells)
    out.print(table)
    logged, stitched = (np.mean(facts["scores"]["bc"][name]) for name in DATA)
    out.print(
        f"\nA policy cloned from the stitched data scored {stitched:.1f}, one cloned from the logged data {logged:.1f}."
        f" {facts['jumps']:.2%} of the stitched data's steps are jumps; all others are logged. "
        f"{facts['seconds']} seconds.",
        soft_wrap=True,
    )
    out.print(f"Data, figure and numbers are in {folder}/; open {folder / 'demo.png'}", soft_wrap=True)


def draw(facts: dict[str, Any], data: dict[str, Trajectories], path: Path) -> None:
    """Draw the returns of the trajectories before and after, and the policies' scores."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"logged": "#b8c0c8", "stitched": "#2a7f62"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    values = {name: normalised(some.returns, some.metadata) for name, some in data.items()}
    every = np.concatenate(list(values.values()))
    bins = np.linspace(every.min(), every.max(), 40)
    for name, some in values.items():
        left.hist(some, bins.tolist(), color=colours[name], alpha=0.85, label=name)
    left.set(xlabel="score of a trajectory", ylabel="trajectories", title="The data", yscale="log")
    left.legend(frameon=False)
    for index, policy in enumerate(POLICIES):
        for offset, name in ((-0.2, "logged"), (0.2, "stitched")):
            scores = facts["scores"][policy][name]
            right.bar(index + offset, np.mean(scores), 0.38, color=colours[name])
            right.plot([index + offset] * len(scores), scores, ".", color="#30363c", markersize=4)
    right.set_xticks(range(len(POLICIES)), list(POLICIES.values()))
    right.set(ylabel="score of a policy", title=f"Policies cloned from it, {facts['seeds']} seeds")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


@dataclass(frozen=True)
class Report:
    """Write the page about several runs of the demo, one per seed."""

    runs: Positional[tuple[Path, ...]]
    """Their demo.json files."""
    to: Path = Path("docs/results/demo.md")
    """The page."""


def read(path: Path) -> dict[str, Any]:
    """Return the numbers of a run; raise if the file doesn't hold them."""
    with damaged(path, "`python -m trajstitch.experiments.demo run` writes a demo.json"):
        facts = json.loads(path.read_text())
        for name in DATA:
            float(facts["data"][name])
            for policy in POLICIES:
                np.array(facts["scores"][policy][name], float).mean()
        facts |= {"seed": int(facts["seed"]), "seconds": float(facts["seconds"])}
    return facts


def report(config: Report) -> None:
    if not config.runs:
        raise InputError("`runs` must name at least one demo.json")
    runs = sorted(map(read, config.runs), key=lambda facts: facts["seed"])

    def gain(policy: str) -> str:
        scores = [facts["scores"][policy] for facts in runs]
        count = sum(np.mean(one["stitched"]) > np.mean(one["logged"]) for one in scores)
        return f"{POLICIES[policy]} in {count} of {len(runs)} runs"

    rows = [
        [
            str(facts["seed"]),
            *(f"{facts['data'][name]:.1f}" for name in DATA),
            *(str(Summary.of(np.array(facts["scores"][policy][name]))) for policy in POLICIES for name in DATA),
        ]
        for facts in runs
    ]
    head = ["seed", "data, logged", "stitched", "BC, logged", "stitched", "best 10 % BC, logged", "stitched"]
    known = {
        "runs": runs,
        "gains": [gain(policy) for policy in POLICIES],
        "table": markdown_table(head, rows),
        "median_seconds": np.median([facts["seconds"] for facts in runs]),
    }
    pages.write(config.to, pages.render("demo.md.j2", **runs[0], **known))
    print(config.to)


def main() -> None:
    run_command({Run: run, Report: report})


if __name__ == "__main__":
    main()
