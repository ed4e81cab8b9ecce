"""What `make demo` does: `learn` on the built-in set that needs nothing but the base install, in minutes.

python -m trajstitch.experiments.demo run                   one seed, with its page
python -m trajstitch.experiments.demo measure --seeds 10    docs/results/demo.md, from the same with several seeds
python -m trajstitch.experiments.demo draw                  the README's picture: the same data before and after
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.table import Table

import trajstitch
from trajstitch.data.environments import normalised
from trajstitch.data.maze import GOAL, START, TIP
from trajstitch.errors import InputError
from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.scores import Interval
from trajstitch.experiments import pages
from trajstitch.experiments.command import run_command
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.progress import SafeConsole
from trajstitch.stitching.config import preset
from trajstitch.storage.atomic import replacing
from trajstitch.storage.circumstances import machine, versions
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.runs import damaged
from trajstitch.workflow.budget import with_share
from trajstitch.workflow.learn import Learned

SET = "maze/mixed"
CLONES = 5
"""Clones of each data set: of three, a difference would have to be huge to be told from chance."""
NAMES = {
    LOGGED: "the data itself",
    "bc": "clone of the original",
    "best-tenth": "clone of its best tenth",
    "ts-bc": "clone of the stitched data",
    "ts-best-tenth": "clone of its best tenth, stitched",
}


COLOURS = {"logged": "#8c959f", "stitched": "#2da44e"}
GREY = "#848d97"
"""Of lines and text: readable on white and on black."""


@dataclass(frozen=True)
class Run:
    """Collect the set, then check, stitch, clone, evaluate, choose and report, as `trajstitch learn` does."""

    to: Path = Path("demo")
    """Folder of the data, the policies and the page."""
    seed: Annotated[int, SEED] = 0
    """Seed of the data, the stitching and the policies."""


def run(config: Run) -> None:
    found = learned(config.to, config.seed)
    out = SafeConsole()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column(f"{found.unit} [95 %]", justify="right", no_wrap=True)
    for row in found.table:
        table.add_row(NAMES[row.name], str(row.result), style="bold" if row.chosen else None)
    out.print(table)
    out.print(f"\n{found.verdict}\n{found.why}\n\npolicy  {found.policy_file}", soft_wrap=True)
    out.print(f"page    {found.report}: open it in any browser ({found.seconds:.0f} s)", soft_wrap=True)


def learned(folder: Path, seed: int) -> Learned:
    """Return what `learn` finds; its amounts are fixed, so that every machine shows the same."""
    place = f"npz:{folder / 'log.npz'}"
    data = trajstitch.collect(trajstitch.Collect(SET, seed=seed))
    trajstitch.save(data, place, force=True)
    config = with_share(preset("quick"), 0.5)
    amounts: dict[str, Any] = {"steps": 1_000, "seeds": CLONES, "episodes": 5, "compare": True}
    return trajstitch.learn(place, run=folder / f"seed-{seed}", resume=True, seed=seed, config=config, **amounts)


@dataclass(frozen=True)
class Measure:
    """Run the demo with several seeds and write the page about them; seeds that its folder holds are kept."""

    seeds: Annotated[int, Bounds(1)] = 10
    """Number of seeds, from 0 on."""
    results: Path = Path("runs/demo")
    """Folder of each seed's results."""
    to: Path = Path("docs/results/demo.md")
    """The page."""


def measure(config: Measure) -> None:
    for seed in range(config.seeds):
        if not _place(config, seed).is_file():
            with tempfile.TemporaryDirectory(prefix="trajstitch-") as folder:
                found = learned(Path(folder), seed)
            facts = {
                "seed": seed,
                "scores": {row.name: row.result and row.result._asdict() for row in found.table},
                "chosen": found.chosen,
                "verdict": found.verdict,
                "seconds": found.seconds,
                "machine": machine(),
                "versions": versions(),
            }
            pages.write(_place(config, seed), json.dumps(facts, indent=1) + "\n")
        write_page(config, [read(_place(config, one)) for one in range(seed + 1)])
    print(config.to)


def _place(config: Measure, seed: int) -> Path:
    return config.results / f"seed-{seed}.json"


def read(path: Path) -> dict[str, Any]:
    """Return the numbers of a seed; raise if the file doesn't hold them."""
    with damaged(path, "remove it, and measure again"):
        facts = json.loads(path.read_text())
        scores = {name: Interval(**facts["scores"][name]) for name in NAMES if name in facts["scores"]}
        if not {"bc", "best-tenth"} <= scores.keys():
            raise InputError(f"{path}: lacks a method's score: remove it, and measure again")
        return facts | {"scores": scores, "seed": int(facts["seed"]), "seconds": float(facts["seconds"])}


def write_page(config: Measure, seeds: Sequence[dict[str, Any]]) -> None:
    shown = [name for name in NAMES if any(name in facts["scores"] for facts in seeds)]
    rows = [[str(facts["seed"]), *(str(facts["scores"].get(name, "–")) for name in shown)] for facts in seeds]

    def wins(name: str) -> int:
        """Return in how many seeds the clone of stitched data is better; it is not where stitching changed nothing."""
        each = [(facts["scores"].get("ts-bc"), facts["scores"][name]) for facts in seeds]
        return sum(stitched is not None and stitched.value > other.value for stitched, other in each)

    known = {
        "set": SET,
        "seeds": CLONES,
        "count": len(seeds),
        "original": wins("bc"),
        "tenth": wins("best-tenth"),
        "pays": sum(str(facts["verdict"]).startswith("Stitching pays:") for facts in seeds),
        "losses": [facts for facts in seeds if not str(facts["verdict"]).startswith("Stitching pays:")],
        "table": markdown_table(["seed", *(NAMES[name] for name in shown)], rows),
        "seconds": float(np.median([facts["seconds"] for facts in seeds])),
        "machine": seeds[0]["machine"],
        "versions": seeds[0]["versions"],
    }
    pages.write(config.to, pages.render("demo.md.j2", **known))


@dataclass(frozen=True)
class Draw:
    """Stitch the demo's data, and draw it before and after."""

    to: Path = Path("docs/images/before-after.svg")
    """The picture; it has no background, for light and dark pages."""
    episodes: Annotated[int, Bounds(1)] = 60
    """Trajectories whose paths are drawn, the first ones."""


def draw(config: Draw) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "trajstitch", "font.size": 11, "text.color": GREY}
    import matplotlib.pyplot as plt

    logged = trajstitch.collect(trajstitch.Collect(SET))
    sets = {"logged": logged, "stitched": trajstitch.stitch(logged, with_share(preset("quick"), 0.5))}
    figure, panels = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", width_ratios=(1, 1, 1.5))
    scores = {name: normalised(data.returns, data.metadata) for name, data in sets.items()}
    bins = np.linspace(min(map(np.min, scores.values())), max(map(np.max, scores.values())), 40).tolist()
    for panel, (name, data) in zip(panels, sets.items(), strict=False):
        for place in (data.observations[rows] for rows in _rows(data, config.episodes)):
            panel.plot(*place.T, color=COLOURS[name], alpha=0.35, linewidth=0.8)
        panel.plot([TIP[0]] * 2, [-1, TIP[1]], color=GREY, linewidth=4)
        for where, label in ((START, "start"), (GOAL, "goal")):
            panel.annotate(label, (where[0], -0.9), color=GREY, ha="center", va="center", weight="bold")
        panel.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal", xticks=[], yticks=[], title=f"Trajectories, {name}")
        panels[2].hist(scores[name], bins, color=COLOURS[name], alpha=0.85, label=name)
    panels[2].set(xlabel="score of a trajectory (100: an expert)", ylabel="trajectories", title="The same data, scored")
    panels[2].legend(frameon=False, labelcolor=GREY)
    for panel in panels:
        panel.patch.set_alpha(0)
        panel.title.set_color(GREY)
        panel.tick_params(colors=GREY)
        panel.xaxis.label.set_color(GREY)
        panel.yaxis.label.set_color(GREY)
        for side, spine in panel.spines.items():
            spine.set(visible=panel is not panels[2] or side in ("left", "bottom"), color=GREY, alpha=0.5)
    with replacing(config.to, force=True) as fresh:
        figure.savefig(fresh, format="svg", transparent=True, metadata={"Date": None})
    plt.close(figure)
    print(config.to)


def _rows(data: trajstitch.Trajectories, count: int) -> list[np.ndarray]:
    """Return the rows of the first trajectories' observations."""
    return [
        np.arange(first, first + length + 1)
        for first, length in zip(data.first_rows[:count], data.lengths[:count], strict=True)
    ]


def main() -> None:
    run_command({Run: run, Measure: measure, Draw: draw})


if __name__ == "__main__":
    main()
