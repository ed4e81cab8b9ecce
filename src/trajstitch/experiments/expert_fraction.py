"""Expert fraction: clones of noisy expert data in which a few trajectories are clean (the paper's second experiment).

Three figures, as in the paper: the scores; the KL divergence of trajectory distributions to the expert, by which clones
of stitched data are nearer; and the mean squared error of actions in the expert's states.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from trajstitch.benchmark import sets
from trajstitch.evaluation.scores import Draws
from trajstitch.experiments.comparison import NONE, Table, draws
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.figures import Lines, draw_lines, tasks_of
from trajstitch.experiments.methods import Change, Method, unchanged
from trajstitch.policies.bc import BC
from trajstitch.stitching.config import StitchConfig
from trajstitch.storage.markdown import markdown_table

TASKS = ("hopper", "walker2d")
MOST_JUMPS = 9
"""Jumps of a pass in an accepted trajectory at most, in the paper's experiments on Walker2d."""


def few_jumps(config: StitchConfig) -> StitchConfig:
    """Accept only trajectories with at most nine jumps."""
    return replace(config, rules=replace(config.rules, max_jumps=MOST_JUMPS))


PAPER_ON: dict[str, Change] = {"walker2d": few_jumps}
GAUSSIAN = BC(gaussian=True)

METHODS = {
    "bc": Method("BC", beside_expert=True),
    "paper-ts-bc": Method("paper's TS + BC", stitched=unchanged, preset="paper", on_task=PAPER_ON, beside_expert=True),
    "ts-bc": Method("TS + BC", stitched=unchanged, beside_expert=True),
    "gaussian-bc": Method("Gaussian BC", GAUSSIAN, beside_expert=True),
    "gaussian-paper-ts-bc": Method(
        "paper's TS + Gaussian BC",
        GAUSSIAN,
        stitched=unchanged,
        preset="paper",
        on_task=PAPER_ON,
        beside_expert=True,
    ),
    "gaussian-ts-bc": Method("TS + Gaussian BC", GAUSSIAN, stitched=unchanged, beside_expert=True),
}
DENSE = ("gaussian-bc", "gaussian-paper-ts-bc", "gaussian-ts-bc")
"""Methods whose policies have a density, the logged data's first."""
PLAIN = ("bc", "paper-ts-bc", "ts-bc")


def measured(table: Table, distance: str) -> dict[tuple[str, str], Draws]:
    """Return a distance of all policies to the expert, by set and method."""
    return {
        place: draws(some, lambda one: one[distance])
        for place, some in table.cells.items()
        if all(distance in one for one in some)
    }


def scaled_divergences(table: Table) -> dict[tuple[str, str], float]:
    """Return the mean KL divergence by set and method, scaled so that each task's least is 0 and its largest 1."""
    means = {place: float(np.mean(some)) for place, some in measured(table, "kl").items()}
    found = {}
    for names in tasks_of(table.sets).values():
        own = {place: mean for place, mean in means.items() if place[0] in names}
        least, span = min(own.values(), default=0.0), np.ptp([*own.values()]) if own else 0.0
        found |= {place: (mean - least) / span if span else 0.0 for place, mean in own.items()}
    return found


def nearer(table: Table) -> dict[tuple[str, str], float]:
    """Return by how much the scaled KL divergence of clones of stitched data is smaller than that of the logged."""
    scaled = scaled_divergences(table)
    return {
        (name, method): scaled[name, DENSE[0]] - scaled[name, method]
        for name in table.sets
        for method in DENSE[1:]
        if (name, method) in scaled and (name, DENSE[0]) in scaled
    }


def percent_of(name: str) -> float:
    return sets.built_in(name).expert_percent or 0.0


def lines_of(table: Table, experiment: Experiment, values: dict[tuple[str, str], Draws], methods: tuple) -> Lines:
    """Return a panel for each task, and in it a line for each method over the share of clean trajectories."""
    return {
        task: {
            experiment.label(method): [
                (percent_of(name), values[name, method]) for name in names if (name, method) in values
            ]
            for method in methods
            if any((name, method) in values for name in names)
        }
        for task, names in tasks_of(tuple(name for name in table.sets if name in sets.NAMES)).items()
    }


def draw(table: Table, experiment: Experiment, path: Path) -> None:
    axis = "clean expert trajectories, %"
    draw_lines(lines_of(table, experiment, table.last.scores, tuple(METHODS)), axis, path)
    if errors := measured(table, "action_error"):
        lines = lines_of(table, experiment, errors, PLAIN)
        draw_lines(lines, axis, path.with_stem(f"{path.stem}-error"), "mean squared error of actions", log=True)
    if gains := nearer(table):
        single = {place: np.array([gain]) for place, gain in gains.items()}
        lines = lines_of(table, experiment, single, DENSE[1:])
        draw_lines(lines, axis, path.with_stem(f"{path.stem}-kl"), "nearer to the expert (scaled KL)")


def more(table: Table, experiment: Experiment) -> str | None:
    """Return the section about the distance to the expert."""
    parts = [
        part
        for part in (
            _section(
                table,
                experiment,
                measured(table, "action_error"),
                "### Errors of actions",
                f"Mean squared error of actions in the states of ten trajectories of the expert; mean ± standard "
                f"deviation over policies.\n\n![Errors of actions]({experiment.name}-error.svg)",
            ),
            _section(
                table,
                experiment,
                measured(table, "kl"),
                "### KL divergence to the expert",
                "E[log π*(a|s) − log π(a|s)] over the expert's states and actions, in nats, of policies that are "
                "Gaussian, learned by maximum likelihood; the expert is N(π*(s), 0.01²). Mean ± standard deviation "
                "over policies.",
            ),
            _nearer_section(table, experiment),
        )
        if part
    ]
    return "\n\n".join(["## Distance to the expert", *parts]) if parts else None


def _section(
    table: Table, experiment: Experiment, values: dict[tuple[str, str], Draws], title: str, about: str
) -> str | None:
    methods = [method for method in table.methods if any((name, method) in values for name in table.sets)]
    if not methods:
        return None
    rows = [[name, *(_shown(values.get((name, method))) for method in methods)] for name in table.sets]
    return "\n\n".join([title, about, markdown_table(["set", *map(experiment.label, methods)], rows)])


def _shown(values: Draws | None) -> str:
    if values is None:
        return NONE
    spread = f" ± {values.std():.2g}" if values.size > 1 else ""
    return f"{values.mean():.4g}{spread}"


def _nearer_section(table: Table, experiment: Experiment) -> str | None:
    gains = nearer(table)
    if not gains:
        return None
    methods = [method for method in DENSE[1:] if any((name, method) in gains for name in table.sets)]
    rows = [
        [name, *(f"{gains[name, method]:+.2f}" if (name, method) in gains else NONE for method in methods)]
        for name in table.sets
    ]
    about = (
        "The mean divergences scaled to 0..1 by the least and largest of each task, as in the paper: by how much that "
        f"of Gaussian BC of the logged data is larger. Above 0, clones of stitched data are nearer to the expert.\n\n"
        f"![Nearer to the expert]({experiment.name}-kl.svg)"
    )
    return "\n\n".join([about, markdown_table(["set", *map(experiment.label, methods)], rows)])


EXPERIMENT = Experiment(
    name="expert-fraction",
    title="Expert fraction: clones of noisy expert data with a few clean trajectories",
    about=(
        "Sets of noisy expert trajectories, of which a growing share is clean. Gaussian BC learns a standard deviation "
        "too, by maximum likelihood, for the KL divergence. On Walker2d, the paper's TS accepts only trajectories with "
        "at most nine jumps."
    ),
    methods=METHODS,
    sets=tuple(f"{task}/noisy-expert-{percent:g}" for task in TASKS for percent in sets.EXPERT_FRACTIONS),
    pairs=(
        ("ts-bc", "bc"),
        ("paper-ts-bc", "bc"),
        ("ts-bc", "paper-ts-bc"),
        ("gaussian-ts-bc", "gaussian-bc"),
        ("gaussian-paper-ts-bc", "gaussian-bc"),
    ),
    draw=draw,
    more=more,
)
