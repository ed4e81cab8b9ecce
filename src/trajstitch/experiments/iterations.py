"""Iterations: the score and the data's return after each of the paper's greedy passes (the paper's K)."""

from pathlib import Path

import numpy as np

from trajstitch.benchmark import sets
from trajstitch.evaluation.scores import Draws, Summary
from trajstitch.experiments.ablation import configured, greedy
from trajstitch.experiments.comparison import NONE, Table
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.figures import Lines, draw_lines, tasks_of
from trajstitch.experiments.methods import Change, Method
from trajstitch.stitching.config import StitchConfig
from trajstitch.storage.markdown import markdown_table

MOST = 5


def passes(count: int) -> Change:
    """Return the change that makes this many greedy passes; presets that plan make them instead of planning."""

    def change(config: StitchConfig) -> StitchConfig:
        return configured(passes=count)(config if config.plan is None else greedy(config))

    return change


METHODS = {
    "0": Method("0 passes (BC)"),
    **{str(count): Method(f"{count} pass{'es' * (count > 1)}", stitched=passes(count)) for count in range(1, MOST + 1)},
}


def data_returns(table: Table) -> dict[tuple[str, str], Draws]:
    """Return the mean score of the data after each number of passes, of every stitching."""
    found = {}
    for name in table.sets:
        for count in METHODS:
            if records := table.records(name, count):
                found[name, count] = np.array([one["after"] for one in records], float)
                found.setdefault((name, "0"), np.array([records[0]["before"]], float))
    return found


def lines_of(table: Table, values: dict[tuple[str, str], Draws]) -> Lines:
    """Return a panel for each task, and in it a line for each set over the number of passes."""
    return {
        task: {
            name: [(float(count), values[name, count]) for count in METHODS if (name, count) in values]
            for name in names
        }
        for task, names in tasks_of(table.sets).items()
    }


def draw(table: Table, experiment: Experiment, path: Path) -> None:
    draw_lines(lines_of(table, table.last.scores), "greedy passes", path)
    if returns := data_returns(table):
        title = "mean score of the data"
        draw_lines(lines_of(table, returns), "greedy passes", path.with_stem(f"{path.stem}-data"), title)


def more(table: Table, experiment: Experiment) -> str | None:
    """Return the section about the data's return after each pass."""
    returns = data_returns(table)
    if not returns:
        return None
    counts = [count for count in METHODS if any((name, count) in returns for name in table.sets)]
    rows = [
        [name, *(str(Summary.of(returns[name, count])) if (name, count) in returns else NONE for count in counts)]
        for name in table.sets
    ]
    about = (
        "The mean score of the data's trajectories after each pass: mean ± standard deviation over stitchings.\n\n"
        f"![Mean score of the data after each pass]({experiment.name}-data.svg)"
    )
    return "\n\n".join(["## The data after each pass", about, markdown_table(["set", *counts], rows)])


EXPERIMENT = Experiment(
    name="iterations",
    title="Iterations: clones after each greedy pass",
    about=(
        "Policies are cloned from the data after 0 to 5 greedy passes with a learned V, which is fitted again before "
        "each: the paper's figure. With the preset `paper` these are the paper's settings; other presets make the "
        "passes in place of their plan."
    ),
    methods=METHODS,
    sets=sets.LIKE_D4RL,
    pairs=tuple((str(count), str(count - 1)) for count in range(1, MOST + 1)),
    draw=draw,
    more=more,
)
