"""How well each jump test tells real jumps from others: candidates of all three tasks, checked by the simulator.

    python benchmarks/simulator_check.py --json simulator-check.json
    python benchmarks/simulator_check.py --write-docs simulator-check.json

For each task, the models of a preset are fitted to a built-in set, and all candidates of the graph are kept, also those
that fail the tests. The simulator is set to a sample of their states and takes their actions; by how much it misses the
candidate, over the jump's length, is compared with the scores by the likelihood and by the forward ensemble.
`--write-docs` measures nothing: it writes docs/results/simulator-check.md and its figure from a file of measurements.
"""

import argparse
import json
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import stdout
from trajstitch.evaluation import simulator_check
from trajstitch.experiments.figures import svg
from trajstitch.stitching.config import PRESETS
from trajstitch.stitching.graph import EdgeScorer, build_graph
from trajstitch.stitching.improve import improve_together
from trajstitch.stitching.jump_tests import Consistency, JumpTest, Likelihood
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.storage.circumstances import command_line, machine, versions
from trajstitch.storage.markdown import markdown_table

TASKS = ("hopper", "walker2d", "halfcheetah")
GREEN, ORANGE = "#1a9e6e", "#d97706"


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one set."""
    start = time.monotonic()
    data, config = collect(Collect(name, options.transitions, options.seed)), PRESETS[options.preset]
    stages = Stages(StitchJob(data, config, options.seed))
    models, reports = stages.models()
    stitched = improve_together(config, stages.tasks())[0].paths.trajectories()
    jumps = simulator_check.check_jumps(data, stitched, options.steps)
    tests = {name: without_limit(test) for name, test in config.tests.items()}
    everything = build_graph(data, EdgeScorer(models, tests, data), config.neighbours)
    return {
        "set": name,
        "transitions": data.steps,
        "candidates": len(everything.edges),
        "passing": len(stages.graph().edges),
        "simulator_check": simulator_check.report(data, jumps, everything, options.steps),
        "fit_reports": [{"model": one.model, **one.metrics} for one in reports],
        "seconds": time.monotonic() - start,
    }


def without_limit(test: JumpTest) -> JumpTest:
    """Return a jump test that scores all candidates and lets them pass."""
    match test:
        case Likelihood():
            return replace(test, margin=None)
        case Consistency():
            return replace(test, limit=None)
        case _:
            return test


HEAD = ("set", "candidates", "median error", "by consistency", "by likelihood", "jumps made", "their median error")


def row(one: dict[str, Any]) -> list[str]:
    checked = one["simulator_check"]
    candidates, ranks = checked.get("edges", {}), checked.get("rank_correlation", {})
    return [
        one["set"],
        f"{one['candidates']:,}",
        number(candidates.get("median_ratio"), 3),
        number(ranks.get("consistency"), 2),
        number(ranks.get("likelihood"), 2),
        f"{checked['jumps']['steps']:,}",
        number(checked["jumps"].get("median_ratio"), 3),
    ]


def number(value: float | None, digits: int) -> str:
    """Return a number as the table shows it; a dash if nothing was there to measure."""
    return "–" if value is None else f"{value:.{digits}f}"


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
        "the candidate by some share of the jump's length: 0 is real, 1 is as wrong as staying put. Before a jump is "
        "made, this error must be predicted from the data alone. The paper predicts it by the likelihood of the next "
        "state under p(s'|s), compared with that of the logged step; the default preset by consistency, how far the "
        "action misses according to a forward ensemble f(s, a). The table shows the rank correlation of each score "
        "with the simulator's error, over all candidates, also those that fail the tests; and the error of the jumps "
        "that stitching made of those that pass.",
        "",
        markdown_table(HEAD, [row(one) for one in rows]),
        "",
        "![The simulator's error of candidates by either score](simulator-check.svg)",
        "",
        "The candidates in tenths, from the least to the most suspicious by either score: median error, with the "
        "quartiles as a band. A score that predicts the error rises from left to right.",
    ]
    for key, title in (("by_consistency", "consistency"), ("by_margin", "likelihood margin")):
        parts = [one["simulator_check"].get(key, []) for one in rows]
        found = sorted(chain(*parts), key=lambda part: -np.inf if part["from"] is None else part["from"])
        kinds = list(dict.fromkeys(map(bounds, found)))
        lines += ["", f"Median error (and number of candidates) by {title}:", ""]
        body = []
        for one, some in zip(rows, parts, strict=True):
            by = {bounds(part): f"{part['median_ratio']:.2f} ({part['edges']:,})" for part in some}
            body.append([one["set"], *(by.get(kind, "–") for kind in kinds)])
        lines.append(markdown_table(["set", *kinds], body))
    lines += [
        "",
        f"{facts['transitions']:,} transitions of each set, data and model seed {facts['seed']}, models of the "
        f"`{facts['preset']}` preset, {facts['steps']:,} candidates of each checked. Written by "
        "`python benchmarks/simulator_check.py --write-docs` from a measurement by the same script "
        f"(`{facts['asked']}`) on {facts['machine']}. Versions: {known}.",
    ]
    return "\n".join(lines) + "\n"


def draw(facts: dict[str, Any], path: Path) -> None:
    with svg(path, len(facts["sets"]), (10, 3.2)) as (figure, panels):
        for axes, one in zip(panels, facts["sets"], strict=True):
            for key, colour in (("consistency", GREEN), ("likelihood", ORANGE)):
                tenths = one["simulator_check"].get("tenths", {}).get(key, [])
                low, middle, high = np.reshape(tenths, (-1, 3)).T  # a set without candidates draws nothing
                place = np.arange(1, len(middle) + 1)
                axes.fill_between(place, low, high, color=colour, alpha=0.18, linewidth=0)
                axes.plot(place, middle, color=colour, marker="o", markersize=4, label=key)
            axes.set_title(one["set"], fontsize=11)
            axes.set_yscale("log")
            axes.set_xticks([1, 5, 10])
        panels[0].set_ylabel("simulator's error / length")
        panels[1].set_xlabel("candidates in tenths, the least suspicious first")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", default="medium-replay", help="which set of each task")
    parser.add_argument("--transitions", type=int, default=50_000)
    able = [name for name, preset in PRESETS.items() if "consistency" in preset.tests]
    parser.add_argument("--preset", default="quick", choices=able)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20_000, help="check at most this many candidates and jumps")
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
