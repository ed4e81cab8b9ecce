"""How well each test tells real jumps from others: the simulator's word on the candidates of all three tasks.

    python benchmarks/simulator_check.py --json truth.json
    python benchmarks/simulator_check.py --write-docs truth.json

For each task, the models of a preset are fitted to a built-in set, and all candidates of the graph are kept, whatever
the tests say of them. The simulator is set to a sample of their states and takes their actions; how far it misses the
candidate, over the jump's own length, is compared with what the likelihood and the forward ensemble said.
`--write-docs` measures nothing: it writes docs/results/simulator-check.md and its picture from a file of measurements.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import stdout
from trajstitch.evaluation import simulator_check
from trajstitch.experiments.figures import INK
from trajstitch.stitching.config import PRESETS, fit_models, improve, keys_of
from trajstitch.stitching.graph import Reach, build
from trajstitch.storage.markdown import markdown_table as markdown
from trajstitch.storage.runs import command_line, machine, versions

TASKS = ("hopper", "walker2d", "halfcheetah")
GREEN, ORANGE = "#1a9e6e", "#d97706"


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one set."""
    begun = time.monotonic()
    data, config = collect(Collect(name, options.transitions, options.seed)), PRESETS[options.preset]
    models_key, key = keys_of(options.seed)
    models, worths = fit_models(config, data, models_key)
    graph = build(data, models, config.near, config.reach)
    paths, _ = improve(config, data, models, graph, key)
    everything = build(data, models, config.near, Reach(None, None))
    return {
        "set": name,
        "transitions": data.steps,
        "candidates": len(everything.edges),
        "passing": len(graph.edges),
        "simulator_check": simulator_check.report(data, paths.trajectories(), everything, options.steps),
        "worths": [{"model": worth.model, **worth.facts} for worth in worths],
        "seconds": time.monotonic() - begun,
    }


HEAD = ("set", "candidates", "median error", "by consistency", "by likelihood", "jumps made", "their median error")


def row(one: dict[str, Any]) -> list[str]:
    checked = one["simulator_check"]
    ranks = checked["rank_correlation"]
    return [
        one["set"],
        f"{one['candidates']:,}",
        f"{checked['edges']['median_ratio']:.3f}",
        f"{ranks['consistency']:.2f}",
        f"{ranks['likelihood']:.2f}",
        f"{checked['jumps']['steps']:,}",
        f"{checked['jumps']['median_ratio']:.3f}" if checked["jumps"]["steps"] else "–",
    ]


def bounds(one: dict[str, Any]) -> str:
    low, high = ("…" if bound is None else f"{bound:g}" for bound in (one["from"], one["to"]))
    return f"{low} to {high}"


def page(facts: dict[str, Any]) -> str:
    rows = facts["sets"]
    known = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    lines = [
        "# How real is a jump?",
        "",
        "The simulator is set to a state, takes the action that the inverse model gives for a candidate, and misses "
        "the candidate by some share of the jump's own length: 0 is real, 1 is as wrong as staying put. Before a jump "
        "is made, this must be guessed from the data alone. The paper's guess is the likelihood of the next state "
        "under p(s'|s), beside that of the logged step; the default preset's is consistency, how far a forward "
        "ensemble f(s, a) finds the action to miss. The rank correlation of each guess with the simulator's own answer, over all "
        "candidates, whatever the tests say of them; and the error of the jumps that stitching made of those which "
        "passed.",
        "",
        markdown(HEAD, [row(one) for one in rows]),
        "",
        "![The true error of candidates by either guess](simulator-check.svg)",
        "",
        "The candidates in tenths, from the least to the most suspicious by either guess: median true error, with the "
        "quartiles as a band. A guess that knows rises from left to right.",
    ]
    for key, title in (("by_consistency", "consistency"), ("by_margin", "likelihood margin")):
        kinds = [bounds(one) for one in max((row["simulator_check"][key] for row in rows), key=len)]
        lines += ["", f"Median true error (and how many candidates) by {title}:", ""]
        counts = [
            {bounds(part): f"{part['median_ratio']:.2f} ({part['edges']:,})" for part in one["simulator_check"][key]}
            for one in rows
        ]
        found = zip(rows, counts, strict=True)
        lines += [
            markdown(["set", *kinds], [[one["set"], *(by.get(kind, "–") for kind in kinds)] for one, by in found])
        ]
    lines += [
        "",
        f"{facts['transitions']:,} transitions of each set, data and model seed {facts['seed']}, models of the "
        f"`{facts['preset']}` preset, {facts['steps']:,} candidates of each asked about. Written by "
        "`python benchmarks/simulator_check.py --write-docs` from a measurement by the same script "
        f"(`{facts['asked']}`) on {facts['machine']}. Versions: {known}.",
    ]
    return "\n".join(lines) + "\n"


def draw(facts: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with plt.rc_context({"svg.hashsalt": "trajstitch", **dict.fromkeys(inked, INK)}):  # pyright: ignore[reportArgumentType]
        figure, panels = plt.subplots(1, len(facts["sets"]), figsize=(10, 3.2), sharey=True, layout="constrained")
        for axes, one in zip(panels, facts["sets"], strict=True):
            for key, colour in (("consistency", GREEN), ("likelihood", ORANGE)):
                low, middle, high = np.array(one["simulator_check"]["tenths"][key]).T
                place = np.arange(1, len(middle) + 1)
                axes.fill_between(place, low, high, color=colour, alpha=0.18, linewidth=0)
                axes.plot(place, middle, color=colour, marker="o", markersize=4, label=key)
            axes.set_title(one["set"], fontsize=11)
            axes.set_yscale("log")
            axes.set_xticks([1, 5, 10])
            axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylabel("true error / length")
        panels[1].set_xlabel("candidates in tenths, the least suspicious first")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", default="medium-replay", help="which set of each task")
    parser.add_argument("--transitions", type=int, default=50_000)
    parser.add_argument("--preset", default="quick", choices=[name for name in PRESETS if PRESETS[name].forward])
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20_000, help="candidates and jumps asked about, at most")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write-docs", type=Path, metavar="JSON")
    options = parser.parse_args()
    if options.write_docs:
        facts = json.loads(options.write_docs.read_text())
        Path("docs/results/simulator-check.md").write_text(page(facts))
        draw(facts, Path("docs/results/simulator-check.svg"))
        return
    asked = command_line()
    sets = [measure(f"{task}/{options.quality}", options) for task in TASKS]
    table = Table(*HEAD, box=None, pad_edge=False)
    for one in sets:
        table.add_row(*row(one))
    stdout().print(table)
    facts = {name: getattr(options, name) for name in ("transitions", "preset", "seed", "steps")}
    facts |= {"asked": asked, "machine": machine(), "versions": versions(), "sets": sets}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
