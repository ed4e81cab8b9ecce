"""The tables of an experiment's page, from its results alone: scores, comparisons, data, times, and how it was made."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trajstitch.benchmark import sets
from trajstitch.evaluation.scores import Summary
from trajstitch.experiments.cells import Result, best_score, is_stale, score
from trajstitch.experiments.comparison import NONE, TRIALS, Scores, Table, false_alarms, probability
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.expert_distance import DISTANCES
from trajstitch.storage.markdown import markdown_table

SHORT = 3
"""Sets of which a summary shows the scores."""
GOOD_JUMP = 0.2
"""The median jump should miss its target by less than this share of its length."""


def facts(table: Table, experiment: Experiment) -> dict[str, Any]:
    """Return everything that a page says about results."""
    calls = [result["call"] for result in table.results]
    return {
        **conditions(table, experiment),
        "scores": score_table(table.last, table, experiment),
        "best_scores": score_table(table.best, table, experiment),
        "paper": paper_table(table, experiment),
        "improvements": improvement_table(table, experiment),
        "trials": TRIALS,
        "false_alarms": alarms(table),
        "between": table.last.between_stitchings,
        "losses": losses(table, experiment),
        "stitchings": [stitching_table(table, name) for name in table.stitchings],
        "claims": claim_table(table, experiment),
        "stages": stage_table(table),
        "training": training_table(table, experiment),
        "missing": missing(table, experiment),
        "more": experiment.more(table, experiment),
        "machines": unique(call["machine"] for call in calls),
        "commits": unique(commit for result in table.results for commit in result["commits"]),
        "versions": unique(", ".join(f"{name} {one}" for name, one in call["versions"].items()) for call in calls),
        "commands": sorted(unique(call["command"] for call in calls)),
    }


def conditions(table: Table, experiment: Experiment) -> dict[str, Any]:
    """Return what the numbers depend on: sizes, seeds, steps."""
    data = [result["config"]["data"] for result in table.results]
    shapes = {method: shape(table, method) for method in table.methods}
    grouped: dict[tuple[int, int], list[str]] = {}
    for method, one in shapes.items():
        grouped.setdefault(one, []).append(experiment.label(method))
    steps: dict[str, list[str]] = {}
    for method in table.methods:
        some = {one["config"]["learner"]["steps"] for one in table.results if one["method"] == method}
        full = experiment.methods[method].algorithm.steps
        for one in sorted(some):
            text = f"{one:,} steps" if one == full else f"{one:,} of the usual {full:,} steps"
            steps.setdefault(text, []).append(experiment.label(method))
    presets = unique(result["config"]["stitching"]["name"] for result in table.results if result["config"]["stitching"])
    return {
        "built_in": all(one["source"] in sets.NAMES for one in data),
        "stale": any(map(is_stale, table.results)),
        "full_size": all(
            result["config"]["data"]["source"] in sets.NAMES
            and result["transitions"] >= sets.built_in(result["config"]["data"]["source"]).transitions
            for result in table.results
        ),
        "transitions": sorted({result["transitions"] for result in table.results}),
        "data_seeds": sorted({one["seed"] for one in data}),
        "shapes": [f"{', '.join(some)}: {_shape_text(*one)}" for one, some in grouped.items()],
        "steps": [f"{', '.join(some)}: {text}" for text, some in steps.items()],
        "episodes": table.results[0]["config"]["episodes"],
        "checkpoints": table.results[0]["config"]["checkpoints"],
        "presets": presets,
        "sets": len(table.sets),
        "dates": sorted({result["measured"][:10] for result in table.results}),
        "version": unique(one for result in table.results if (one := result["call"]["versions"].get("trajstitch"))),
    }


def shape(table: Table, method: str) -> tuple[int, int]:
    """Return the numbers of stitchings and of policies for each, of a method; (0, policies) for logged data."""
    some = next(some for (_, name), some in table.cells.items() if name == method)
    stitchings = {one["config"]["stitching"]["seed"] for one in some if one["config"]["stitching"]}
    return (len(stitchings), len(some) // len(stitchings)) if stitchings else (0, len(some))


def _shape_text(stitchings: int, policies: int) -> str:
    count = f"{policies} {'policy' if policies == 1 else 'policies'}"
    return f"{stitchings} stitchings × {count}" if stitchings else count


def alarms(table: Table) -> list[str]:
    """Return in words how often the test of a comparison is wrong about equal methods."""
    shapes = unique(one for one in (shape(table, method) for method in table.methods) if one[0])
    return [
        f"{_shape_text(*one)}: {false_alarms(*one, round(table.last.between_stitchings, 2)):.0%}"
        for one in shapes
        if one[0] * one[1] > 1
    ]


def summary_facts(table: Table, experiment: Experiment) -> dict[str, Any]:
    """Return what a summary says: scores on three sets of the first task, by the methods that are measured on those,
    and on all sets that these methods are measured on."""
    task = table.sets[0].partition("/")[0]
    names = [name for name in table.sets if name.partition("/")[0] == task][:SHORT]
    methods = [method for method in table.methods if all((name, method) in table.cells for name in names)]
    whole = [name for name in table.sets if all((name, method) in table.cells for method in methods)]
    some = Table([one for one in table.results if one["method"] in methods and one["set"] in whole], methods)
    pairs = [(ours, theirs) for ours, theirs in measured_pairs(table, experiment) if {ours, theirs} <= {*methods}]
    short = score_table(some.last, some, experiment, names)
    return {"short": short, "whole": len(whole), "main_losses": losses(some, experiment, pairs)}


def score_table(scores: Scores, table: Table, experiment: Experiment, names: Sequence[str] | None = None) -> str:
    """Return the scores on each set, or on those named, and over all sets (see `Table.totals`)."""
    shown, names = {}, table.sets if names is None else names
    for name in names:
        best = scores.best(name, table.methods)
        for method in table.methods:
            found = scores.scores.get((name, method))
            text = NONE if found is None else str(Summary.of(found))
            shown[name, method] = f"**{text}**" if method in best else text
    totals = {
        f"IQM of {'all ' if some == [*table.sets] else ''}{len(some)} sets [95 %]": [
            str(scores.total(method, some) or NONE) for method in table.methods
        ]
        for some in table.totals
    }
    titles = [experiment.label(method) for method in table.methods]
    if experiment.by_method:
        rows = [
            [
                experiment.label(method),
                *(shown[name, method] for name in names),
                *(total[at] for total in totals.values()),
            ]
            for at, method in enumerate(table.methods)
        ]
        return markdown_table(["method", *names, *totals], rows)
    rows = [[name, *(shown[name, method] for method in table.methods)] for name in names]
    return markdown_table(["set", *titles], [*rows, *([name, *total] for name, total in totals.items())])


def paper_table(table: Table, experiment: Experiment) -> str | None:
    """Return the paper's numbers beside ours."""
    methods = unique(method for _, method in experiment.paper)
    names = [name for name in table.sets if any((name, method) in experiment.paper for method in methods)]
    if not names:
        return None

    def ours(name: str, method: str) -> str:
        found = table.last.scores.get((name, method))
        return NONE if found is None else str(Summary.of(found))

    whose = (", paper on D4RL", ", ours on ours")
    head = [f"{experiment.label(method)}{one}" for method in methods for one in whose]
    pairs = {(name, m): (experiment.paper.get((name, m), NONE), ours(name, m)) for name in names for m in methods}
    rows = [[name, *(text for method in methods for text in pairs[name, method])] for name in names]
    return markdown_table(["set", *head], rows)


def improvement_table(table: Table, experiment: Experiment) -> str | None:
    scores, pairs = table.last, measured_pairs(table, experiment)
    if not pairs:
        return None

    def cell(pair: tuple[str, str], among: Sequence[str]) -> str:
        some = [name for name in scores.common(*pair) if name in among]
        return probability(scores.better(*pair, *some)) if some else NONE

    places = [*((name, [name]) for name in table.sets), ("all measured", [*table.sets])]
    titles = [f"{experiment.label(ours)} over {experiment.label(theirs)}" for ours, theirs in pairs]
    if experiment.by_method:
        rows = [[title, *(cell(pair, some) for _, some in places)] for title, pair in zip(titles, pairs, strict=True)]
        return markdown_table(["comparison", *(name for name, _ in places)], rows)
    return markdown_table(["set", *titles], [[name, *(cell(pair, some) for pair in pairs)] for name, some in places])


def measured_pairs(table: Table, experiment: Experiment) -> list[tuple[str, str]]:
    return [pair for pair in experiment.pairs if table.last.common(*pair)]


def losses(table: Table, experiment: Experiment, pairs: Sequence[tuple[str, str]] | None = None) -> list[str]:
    """Return in words what came out worse, and what did not; with `pairs`, of these methods alone."""
    lines = []
    for ours, theirs in measured_pairs(table, experiment) if pairs is None else pairs:
        found = table.last.verdicts(ours, theirs)
        same = len(found["neither"])
        means = [
            float(np.mean([table.last.scores[name, one].mean() for name in table.last.common(ours, theirs)]))
            for one in (ours, theirs)
        ]
        lines.append(
            f"{experiment.label(ours)} against {experiment.label(theirs)}: worse by more than chance "
            f"{listed(found['worse'])}; better {listed(found['better'])}; neither on {same} set{'s' * (same != 1)}; in "
            f"the mean of the sets {means[0]:.1f} against {means[1]:.1f}."
        )
    for name, by_set in table.stitchings.items():
        rows = [(place, one, one["simulator_check"]) for place, some in by_set.items() for one in some]
        missed = unique(
            f"{place} ({checked['median_ratio']:.2f})"
            for place, _, checked in rows
            if checked["steps"] and checked["median_ratio"] >= GOOD_JUMP
        )
        unstitched = unique(place for place, one, _ in rows if one["reason"])
        lines.append(
            f"The data of {len(by_set)} sets, stitched with `{name}`: the median jump misses by {GOOD_JUMP} of its "
            f"length or more {listed(missed)}"
            + (f"; nothing was stitched {listed(unstitched)}." if unstitched else ".")
        )
    return lines


def stitching_table(table: Table, stitching: str) -> str:
    """Return what stitching did to each set; of several stitchings, the mean."""
    head = ["before", "after", "accepted", "changed", "jumps", "states kept", "error / length", "reward error"]
    rows = []
    for name in table.sets:
        some = table.stitchings[stitching].get(name)
        if some is None:
            continue
        accepted, proposed, changed, jumps, kept = (
            float(np.mean([one[key] for one in some]))
            for key in ("accepted", "proposed", "changed", "jumps", "states_kept")
        )
        checks = [one["simulator_check"] for one in some if one["simulator_check"]["steps"]]
        errors = [np.mean([one[key] for one in checks]) for key in ("median_ratio", "median_reward_error") if checks]
        rows.append(
            [
                name,
                f"{some[0]['before']:.1f}",
                str(Summary.of(np.array([one["after"] for one in some], float))),
                f"{accepted:,.0f} of {proposed:,.0f}" if proposed else "none made",
                f"{changed:,.0f} of {some[0]['trajectories']:,}",
                f"{jumps:.2%}",
                f"{kept:.0%}",
                *([f"{error:.3f}" for error in errors] or [NONE] * 2),
            ]
        )
    return markdown_table([f"`{stitching}`", *head], rows)


def claim_table(table: Table, experiment: Experiment) -> str:
    """Return the mean return that each method's stitched data claims, and the truth where it is known."""
    methods = [
        method
        for method in table.methods
        if experiment.methods[method].stitched is not None and experiment.methods[method].gives == "replaced"
    ]

    def cell(name: str, method: str) -> str:
        some = table.records(name, method)
        if not some:
            return NONE
        claimed, kept = (float(np.mean([one[key] for one in some])) for key in ("after", "states_kept"))
        true = [one["true"] for one in some if "true" in one]
        text = f"{claimed:.1f}" + (f", truly {np.mean(true):.1f}" if true else "")
        return "unchanged" if all(one["reason"] for one in some) else f"{text} ({kept:.0%})"

    def before(name: str) -> str:
        some = [one for method in methods for one in table.records(name, method)]
        return f"{some[0]['before']:.1f}" if some else NONE

    rows = [[experiment.label(method), *(cell(name, method) for name in table.sets)] for method in methods]
    logged = ["the logged data", *map(before, table.sets)]
    return markdown_table(["data", *table.sets], [logged, *rows]) if rows else NONE


def stage_table(table: Table) -> str | None:
    """Return the seconds of loading and of stitching by set, and the memory held by then."""
    columns = [(name, stage) for name in table.stitchings for stage in ("models", "graph", "passes")]
    if not columns:
        return None
    rows = []
    for place in table.sets:
        loaded = [one["seconds"]["load"] for one in table.results if one["set"] == place][:1]
        stages = [
            [one["seconds"][stage] for one in table.stitchings[name].get(place, []) if stage in one["seconds"]]
            for name, stage in columns
        ]
        peaks = [one["peak_bytes"] for by_set in table.stitchings.values() for one in by_set.get(place, [])]
        seconds = [f"{np.mean(some):.0f}" if some else NONE for some in (loaded, *stages)]
        rows.append([place, *seconds, [NONE, *(f"{peak / 2**30:.1f}" for peak in peaks if peak)][-1]])
    return markdown_table(["stitching", "load", *(f"`{name}`: {stage}" for name, stage in columns), "GiB"], rows)


def training_table(table: Table, experiment: Experiment) -> str:
    """Return the seconds of training and of evaluating the policies of a set, by method."""
    rows = []
    for method in table.methods:
        some = [results for (_, one), results in table.cells.items() if one == method]
        train = np.median([results[0]["seconds"]["train"] for results in some])
        play = np.median([sum(one["seconds"]["evaluate"] for one in results) for results in some])
        together = sorted({one["together"] for results in some for one in results})
        steps = sorted({f"{one['config']['learner']['steps']:,}" for results in some for one in results})
        count = " to ".join(map(str, unique((together[0], together[-1]))))
        rows.append([experiment.label(method), " or ".join(steps), count, f"{train:.0f}", f"{play:.0f}"])
    return markdown_table(["policies", "steps", "policies at once", "train, median", "evaluate, median"], rows)


def missing(table: Table, experiment: Experiment) -> list[str]:
    """Return in words which methods are not measured on which sets."""
    places = unique((*experiment.sets, *table.sets))
    found: dict[tuple[str, ...], list[str]] = {}
    for method in experiment.methods:
        lacks = tuple(name for name in places if (name, method) not in table.cells)
        found.setdefault(lacks, []).append(experiment.label(method))
    return [
        f"{', '.join(titles)}: {', '.join(names) if len(names) < len(places) else 'all sets'}"
        for names, titles in found.items()
        if names
    ]


def as_csv(results: Sequence[Result], experiment: Experiment) -> str:
    """Return one line for each policy."""
    text = io.StringIO()
    head = ("set", "method", "stitching", "policy", "last", "best", "data_before", "data_after", "states_kept", "steps")
    measured = [name for name in DISTANCES if any(name in one for one in results)]
    write = csv.writer(text, lineterminator="\n").writerow
    write((*head, *measured))
    for one in results:
        config, stitched = one["config"], one["stitched"] or {}
        stitching = config["stitching"]["seed"] if config["stitching"] else ""
        numbers = [f"{score(one):.2f}", f"{best_score(one):.2f}"]
        data = [stitched.get(key, "") for key in ("before", "after", "states_kept")]
        title = experiment.label(one["method"])
        more = [one.get(name, "") for name in measured]
        write([one["set"], title, stitching, config["seed"], *numbers, *data, config["learner"]["steps"], *more])
    return text.getvalue()


def as_latex(table: Table, experiment: Experiment) -> str:
    """Return the table of scores for a paper, bold as on the page."""

    def escaped(text: str) -> str:
        for sign, instead in (("%", r"\%"), ("&", r"\&"), ("_", r"\_"), ("±", r"$\pm$"), (NONE, "--")):
            text = text.replace(sign, instead)
        return text

    lines = [line.strip("| ").split(" | ") for line in score_table(table.last, table, experiment).splitlines()]
    head, _, *rows = [[escaped(cell) for cell in line] for line in lines]
    bold = [[rf"\textbf{{{cell.strip('*')}}}" if cell.startswith("**") else cell for cell in row] for row in rows]
    body = "\n".join(" & ".join(row) + r" \\" for row in bold)
    begin, line = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\hline"
    return "\n".join((begin, line, " & ".join(head) + r" \\", line, body, line, r"\end{tabular}", ""))


def listed(names: Sequence[str]) -> str:
    return f"on {', '.join(names)}" if names else "nowhere"


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
