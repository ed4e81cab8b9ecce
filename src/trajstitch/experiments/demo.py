"""The whole line on built-in data, in minutes: collect, inspect, stitch, clone both, evaluate, show what improved.

python -m trajstitch.experiments.demo run                     what `make demo` does
python -m trajstitch.experiments.demo report demo*/demo.json  docs/results/demo.md, from several runs
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.table import Table
from tyro.conf import Positional

from trajstitch import formats
from trajstitch.cli.inspect import render
from trajstitch.cli.output import stdout
from trajstitch.data.environments import normalised
from trajstitch.data.summary import inspect
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.scores import Summary
from trajstitch.storage.atomic import replacing
from trajstitch.storage.runs import machine, versions

PAGE = Path("docs/results/demo.md")
POLICIES = {"bc": "BC", "top": "BC of the best 10 %"}


@dataclass(frozen=True)
class Run:
    """Collect hopper/medium-replay, stitch it, clone the original and the stitched data, and let all play."""

    to: Path = Path("demo")
    """The folder that gets the data, the run, the figure and the numbers."""
    set: str = "hopper/medium-replay"
    """The built-in set."""
    transitions: int = 50_000
    """Of the set."""
    seed: int = 0
    """Of everything."""
    seeds: int = 3
    """Policies cloned from each data set."""
    steps: int = 8_000
    """Gradient steps of each."""
    episodes: int = 10
    """Episodes that each plays."""


def run(config: Run) -> None:
    from trajstitch.benchmark.collect import Collect, collect
    from trajstitch.evaluation.evaluate import evaluate
    from trajstitch.policies.bc import BC
    from trajstitch.policies.train import train
    from trajstitch.stitching.pipeline import stitch

    start = time.monotonic()
    logged = collect(Collect(config.set, config.transitions, config.seed))
    render(inspect(logged), stdout())
    stitched = stitch(logged, "quick", config.seed)
    data = {"logged": logged, "stitched": stitched}
    formats.save(logged, f"npz:{config.to / 'logged.npz'}", force=True)
    formats.save(stitched, f"npz:{config.to / 'stitched.npz'}", force=True)
    scores: dict[str, dict[str, list[float]]] = {}
    for name, some in data.items():
        for policy, part in (("bc", some), ("top", some.best(0.1))):
            policies = train(part, BC(steps=config.steps), seeds=config.seeds, seed=config.seed * config.seeds)
            returns = evaluate(policies, logged.metadata, config.episodes)
            scores.setdefault(policy, {})[name] = normalised(returns, logged.metadata).mean(1).tolist()
    facts = {
        **{key: value for key, value in asdict(config).items() if key != "to"},
        "data": {name: float(normalised(some.returns, logged.metadata).mean()) for name, some in data.items()},
        "jumps": float(np.mean(stitched.provenance.stitched)) if stitched.provenance else 0.0,
        "scores": scores,
        "seconds": round(time.monotonic() - start),
        "machine": machine(),
        "versions": versions(),
    }
    with replacing(config.to / "demo.json", force=True) as fresh:
        fresh.write_text(json.dumps(facts, indent=1) + "\n")
    draw(facts, data, config.to / "demo.png")
    show(facts, config.to)


def show(facts: dict[str, Any], folder: Path) -> None:
    out = stdout()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("score (0 random, 100 expert)", "logged", "stitched"):
        table.add_column(name, justify="left" if "(" in name else "right", no_wrap=True)
    before, after = (facts["data"][name] for name in ("logged", "stitched"))
    table.add_row("the data's own trajectories", f"{before:.1f}", f"{after:.1f}")
    for policy, title in POLICIES.items():
        cells = [str(Summary.of(np.array(facts["scores"][policy][name])).iqm) for name in ("logged", "stitched")]
        table.add_row(f"{title} [95 %]", *cells)
    out.print(table)
    ours, theirs = (np.mean(facts["scores"]["bc"][name]) for name in ("stitched", "logged"))
    out.print(
        f"\nA policy cloned from the stitched data scored {ours:.1f}, one cloned from the logged data {theirs:.1f}. "
        f"{facts['jumps']:.2%} of the stitched data's steps are jumps; all else is logged. {facts['seconds']} seconds.",
        soft_wrap=True,
    )
    out.print(f"Data, figure and numbers are in {folder}/; open {folder / 'demo.png'}", soft_wrap=True)


def draw(facts: dict[str, Any], data: dict[str, Trajectories], path: Path) -> None:
    """Returns of the trajectories before and after, and the policies' scores."""
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
    """Write the page about several runs of the demo, one a seed."""

    runs: Positional[tuple[Path, ...]]
    """Their demo.json files."""
    to: Path = PAGE
    """The page."""


def report(config: Report) -> None:
    rows = sorted((json.loads(path.read_text()) for path in config.runs), key=lambda row: row["seed"])
    first = rows[0]
    means = [{policy: {k: np.mean(v) for k, v in row["scores"][policy].items()} for policy in POLICIES} for row in rows]
    gained = {policy: sum(one[policy]["stitched"] > one[policy]["logged"] for one in means) for policy in POLICIES}
    lines = [
        "# The demo, again and again",
        "",
        f"`make demo` with {len(rows)} seeds: {first['set']}, {first['transitions']:,} transitions, `quick` preset, "
        f"{first['seeds']} policies of {first['steps']:,} steps from each data set, {first['episodes']} episodes each. "
        "Mean ± standard deviation of the normalised score over the policies. Written by `python -m "
        "trajstitch.experiments.demo report` from the runs' own numbers.",
        "",
        "StitchConfig raised the mean score of "
        + " and ".join(f"{title} in {gained[policy]} of {len(rows)} runs" for policy, title in POLICIES.items())
        + ".",
        "",
        "| seed | data, logged | stitched | BC, logged | stitched | best 10 % BC, logged | stitched |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        data = [f"{row['data'][name]:.1f}" for name in ("logged", "stitched")]
        cells = [
            str(Summary.of(np.array(row["scores"][policy][name])))
            for policy in POLICIES
            for name in ("logged", "stitched")
        ]
        lines.append(f"| {row['seed']} | {' | '.join(data + cells)} |")
    found = ", ".join(f"{name} {number}" for name, number in first["versions"].items())
    lines += ["", f"Command: `python -m trajstitch.experiments.demo run --seed SEED`. Machine: {first['machine']}.", ""]
    lines += [f"Median time of a run: {np.median([row['seconds'] for row in rows]):.0f} s.", ""]
    with replacing(config.to, force=True) as fresh:
        fresh.write_text("\n".join([*lines, f"Versions: {found}.", ""]))
    print(config.to)


def main() -> None:
    asked = tyro.extras.subcommand_cli_from_dict({"run": Run, "report": Report})
    run(asked) if isinstance(asked, Run) else report(asked)


if __name__ == "__main__":
    main()
