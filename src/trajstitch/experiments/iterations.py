"""Iterations: the score and the data's return after each of the paper's greedy passes (the paper's K)."""

from pathlib import Path

from trajstitch.benchmark import sets
from trajstitch.experiments.ablation import configured, greedy
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.figures import Lines, draw_lines, tasks_of
from trajstitch.experiments.methods import Change, Method
from trajstitch.stitching.config import StitchConfig

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


def draw(table: Table, experiment: Experiment, path: Path) -> None:
    scores = table.last.scores
    lines: Lines = {
        task: {
            name: [(float(count), scores[name, count]) for count in METHODS if (name, count) in scores]
            for name in names
        }
        for task, names in tasks_of(table.sets).items()
    }
    draw_lines(lines, "greedy passes", path)


EXPERIMENT = Experiment(
    name="iterations",
    title="Iterations: clones after each greedy pass",
    about=(
        "Policies are cloned from the data after 0 to 5 greedy passes with a learned V, which is fitted again before "
        "each: the paper's figure. With the preset `paper` these are the paper's settings; other presets make the "
        "passes in place of their plan."
    ),
    methods=METHODS,
    sets=sets.NAMES[:12],
    pairs=tuple((str(count), str(count - 1)) for count in range(1, MOST + 1)),
    draw=draw,
)
