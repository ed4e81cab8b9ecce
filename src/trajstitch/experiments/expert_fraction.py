"""Expert fraction: clones of noisy expert data in which a few trajectories are clean (the paper's second experiment).

Of the paper's three figures this measures the first, the returns. The KL divergences to the expert's trajectories and
the action errors on its states are not measured.
"""

from pathlib import Path

from trajstitch.benchmark import sets
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.figures import Lines, draw_lines, tasks_of
from trajstitch.experiments.methods import Method, unchanged

TASKS = ("hopper", "walker2d")

METHODS = {
    "bc": Method("BC"),
    "paper-ts-bc": Method("paper's TS + BC", stitched=unchanged, preset="paper"),
    "ts-bc": Method("TS + BC", stitched=unchanged),
}


def draw(table: Table, experiment: Experiment, path: Path) -> None:
    scores = table.last.scores
    lines: Lines = {}
    for task, names in tasks_of(table.sets).items():
        percent = {name: sets.built_in(name).expert_percent or 0.0 for name in names if name in sets.NAMES}
        lines[task] = {
            experiment.label(method): [
                (percent[name], scores[name, method]) for name in percent if (name, method) in scores
            ]
            for method in table.methods
        }
    draw_lines(lines, "clean expert trajectories, %", path)


EXPERIMENT = Experiment(
    name="expert-fraction",
    title="Expert fraction: clones of noisy expert data with a few clean trajectories",
    about=(
        "Sets of noisy expert trajectories, of which a growing share is clean. The paper's other two figures, KL "
        "divergences to the expert's trajectories and errors of actions on its states, are not measured here."
    ),
    methods=METHODS,
    sets=tuple(f"{task}/noisy-expert-{percent:g}" for task in TASKS for percent in sets.EXPERT_FRACTIONS),
    pairs=(("ts-bc", "bc"), ("paper-ts-bc", "bc"), ("ts-bc", "paper-ts-bc")),
    draw=draw,
)
