"""The first table's columns, its page, and the README's summary of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajstitch.benchmark import sets
from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Summary
from trajstitch.experiments import pages
from trajstitch.experiments.comparison import NONE, TRIALS, Scores, Table, false_alarms, probability
from trajstitch.experiments.figures import Look
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import Algorithm
from trajstitch.storage.markdown import markdown_table

TWELVE = sets.NAMES[:12]
"""The sets of the table, in its order."""


@dataclass(frozen=True)
class Method:
    """A column of the table."""

    title: str
    algorithm: Algorithm
    top: float = 1.0
    preset: str | None = None
    """Learn from stitched data: of the preset `paper`, or (`default`) of the one asked for."""


PAPER_BC = BC(standardise=False)
"""As in the paper, and as measured before standardising became the default."""

METHODS = {
    "bc": Method("BC", PAPER_BC),
    "top-bc": Method("10 % BC", PAPER_BC, top=0.1),
    "ts-bc": Method("TS + BC", PAPER_BC, preset="default"),
    "ts-top-bc": Method("TS + 10 % BC", PAPER_BC, top=0.1, preset="default"),
    "paper-ts-bc": Method("paper's TS + BC", PAPER_BC, preset="paper"),
    "paper-ts-top-bc": Method("paper's TS + 10 % BC", PAPER_BC, top=0.1, preset="paper"),
    "weighted-bc": Method("weighted BC", WeightedBC(standardise=False)),
    "td3-bc": Method("TD3+BC", TD3BC()),
    "iql": Method("IQL", IQL(standardise=False)),
}
CORE = ("bc", "top-bc", "ts-bc", "ts-top-bc")
"""Totals are over the sets on which all of these are measured."""
PAIRS = (("ts-bc", "bc"), ("ts-top-bc", "top-bc"), ("paper-ts-bc", "bc"), ("paper-ts-top-bc", "top-bc"))
"""Stitched data against the logged data, for the same learner."""
BASELINES = ("paper-ts-bc", "top-bc", "td3-bc", "iql")
"""What TS + BC is compared with, too."""
SHOWN = {
    "bc": Look("BC", "#8b949e", "o"),
    "top-bc": Look("10 % BC", "#8b949e", "D", filled=False),
    "paper-ts-bc": Look("paper's TS + BC", "#b565a7", "o"),
    "ts-bc": Look("TS + BC", "#1a9e6e", "o"),
    "ts-top-bc": Look("TS + 10 % BC", "#1a9e6e", "D", filled=False),
    "td3-bc": Look("TD3+BC", "#d97706", "s"),
    "iql": Look("IQL", "#5b7fe0", "^"),
}
"""The methods of the figure and of the README: equal data, equal colour; hollow markers are its best tenth."""
GOOD_JUMP = 0.2
"""The median jump should miss its target by less than this share of its length."""


def method_of(config: dict[str, Any]) -> str:
    """Return the column that a cell of this config belongs to."""
    preset = config["stitching"] and ("paper" if config["stitching"]["name"] == "paper" else "default")
    found = config["learner"]["policy"], config["learner"]["top"], preset
    for name, method in METHODS.items():
        if found == (type(method.algorithm).__name__, method.top, method.preset):
            return name
    raise InputError(f"no column of the table has {' '.join(map(str, found))}")


def page(table: Table, stem: str) -> str:
    """Return the page about the table."""
    calls = [result["call"] for result in (*table.results, *table.replaced)]
    return pages.render(
        "table1.md.j2",
        **introduction(table),
        figure=f"{stem}.svg",
        scores=score_table(table, tuple(METHODS)),
        improvements=improvement_table(table),
        trials=TRIALS,
        false_alarms=false_alarms(table.seeds),
        losses=losses(table, tuple(METHODS)),
        measured_again=measured_again(table),
        stitchings=[stitching_table(table, preset) for preset in table.stitchings],
        stages=stage_table(table),
        training=training_table(table),
        missing=missing(table),
        machines=unique(call["machine"] for call in calls),
        commits=unique(commit for result in table.results for commit in result["commits"]),
        versions=unique(", ".join(f"{name} {one}" for name, one in call["versions"].items()) for call in calls),
        commands=sorted(unique(call["command"] for call in calls)),
    )


def summary(table: Table) -> str:
    """Return the README's part."""
    shown = tuple(SHOWN)
    facts = introduction(table) | {"scores": score_table(table, shown), "losses": losses(table, shown)}
    return pages.render("table1-summary.md.j2", **facts).strip()


def introduction(table: Table) -> dict[str, Any]:
    """Return what both pages say about the table as a whole."""
    changed = {
        preset: {name: len(some) for name, some in by_set.items() if any(one["reason"] is None for one in some)}
        for preset, by_set in table.stitchings.items()
    }
    own = [
        f"`{preset}` {listed([name for name, count in counts.items() if count > 1])}"
        for preset, counts in changed.items()
        if max(counts.values(), default=0) > 1
    ]
    return {
        "full_size": all(
            result["transitions"] >= sets.built_in(result["config"]["data"]["source"]).transitions
            for result in table.results
        ),
        "seeds": table.seeds,
        "episodes": table.episodes,
        "presets": [preset for preset in table.stitchings if preset != "paper"] or ["default"],
        "own_stitchings": own,
        "shared_stitchings": not own and any(changed.values()),
        "core": [METHODS[method].title for method in CORE],
        "core_sets": len(table.scores.common(*CORE)),
        "sets": len(table.sets),
    }


def score_table(table: Table, methods: Sequence[str]) -> str:
    scores, rows = table.scores, []
    for name in table.sets:
        best = scores.best(name, methods)
        shown = {one: str(Summary.of(scores.scores[name, one])) for one in methods if (name, one) in scores.scores}
        rows.append([name, *(f"**{shown[one]}**" if one in best else shown.get(one, NONE) for one in methods)])
    totals = [str(scores.total(method, scores.common(*CORE)) or NONE) for method in methods]
    return markdown_table(["set", *(METHODS[one].title for one in methods)], [*rows, ["IQM [95 %]", *totals]])


def improvement_table(table: Table) -> str:
    scores = table.scores
    pairs = [pair for pair in PAIRS if scores.common(*pair)]

    def row(name: str, sets: Sequence[str]) -> list[str]:
        found = [(pair, [one for one in scores.common(*pair) if one in sets]) for pair in pairs]
        return [name, *(probability(scores.better(*pair, *some)) if some else NONE for pair, some in found)]

    head = [f"{METHODS[ours].title} over {METHODS[theirs].title}" for ours, theirs in pairs]
    rows = [*(row(name, [name]) for name in table.sets), row("all measured", table.sets)]
    return markdown_table(["set", *head], rows) if pairs else NONE


def losses(table: Table, methods: Sequence[str]) -> list[str]:
    """Return in words what came out worse, and what did not."""
    lines = []
    for ours, theirs in (*PAIRS, *(("ts-bc", baseline) for baseline in BASELINES)):
        if {ours, theirs} <= set(methods) and table.scores.common(ours, theirs):
            found = table.scores.verdicts(ours, theirs)
            lines.append(
                f"{METHODS[ours].title} against {METHODS[theirs].title}: worse by more than chance "
                f"{listed(found['worse'])}; better {listed(found['better'])}; neither on {len(found['neither'])} sets."
            )
    for preset, by_set in table.stitchings.items():
        rows = [(name, one, one["simulator_check"]) for name, some in by_set.items() for one in some]
        fell = [
            f"{name} ({one['before']:.1f} to {one['after']:.1f})"
            for name, one, _ in rows
            if one["after"] < one["before"]
        ]
        missed = [
            f"{name} ({checked['median_ratio']:.2f})"
            for name, _, checked in rows
            if checked["steps"] and checked["median_ratio"] >= GOOD_JUMP
        ]
        unchanged = unique(name for name, one, _ in rows if one["reason"])
        lines.append(
            f"The data of {len(by_set)} sets, stitched with the `{preset}` preset: its mean return fell "
            f"{listed(fell)}; the median jump misses by {GOOD_JUMP} of its length or more {listed(missed)}"
            + (f"; nothing was stitched {listed(unchanged)}." if unchanged else ".")
        )
    return lines


def measured_again(table: Table) -> str | None:
    """Return a table of the cells that were measured more than once, before and now."""
    before, now = table.before, table.scores
    methods = [method for method in METHODS if before.common(method)]
    if not methods:
        return None
    rows = []
    for name in [name for name in table.sets if any((name, method) in before.scores for method in methods)]:
        pairs = [
            (one.scores[name, m] if (name, m) in before.scores else None) for m in methods for one in (before, now)
        ]
        rows.append([name, *(NONE if some is None else str(Summary.of(some)) for some in pairs)])
    core = now.common(*CORE)
    as_before = Scores(now.scores | before.scores, table.sets)
    totals = [str(one.total(method, core) or NONE) for method in methods for one in (as_before, now)]
    head = [f"{METHODS[method].title}{when}" for method in methods for when in (", before", "")]
    return markdown_table(["set", *head], [*rows, ["IQM [95 %]", *totals]])


def stitching_table(table: Table, preset: str) -> str:
    """Return what stitching did to each set; of several stitchings, the mean."""
    head = ["return predictability", "before", "after", "accepted", "changed", "jumps", "states kept"]
    head = [f"`{preset}`", *head, "error / length", "reward error"]
    rows = []
    for name in table.sets:
        some = table.stitchings[preset].get(name)
        if some is None:
            rows.append([name, *[NONE] * (len(head) - 1)])
            continue
        accepted, proposed, changed, jumps, kept = (
            float(np.mean([one[key] for one in some]))
            for key in ("accepted", "proposed", "changed", "jumps", "states_kept")
        )
        checks = [one["simulator_check"] for one in some if one["simulator_check"]["steps"]]
        errors = [np.mean([one[key] for one in checks]) for key in ("median_ratio", "median_reward_error") if checks]
        predictability = some[0].get("return_predictability")
        rows.append(
            [
                name,
                NONE if predictability is None else f"{predictability:.2f}",
                f"{some[0]['before']:.1f}",
                str(Summary.of(np.array([one["after"] for one in some], float))),
                f"{accepted:,.0f} of {proposed:,.0f}" if proposed else "none made",
                f"{changed:,.0f} of {some[0]['trajectories']:,}",
                f"{jumps:.2%}",
                f"{kept:.0%}",
                *([f"{error:.3f}" for error in errors] or ["no jumps"] * 2),
            ]
        )
    return markdown_table(head, rows)


def stage_table(table: Table) -> str | None:
    """Return the seconds of loading and of stitching by set, and the memory held by then."""
    columns = [(preset, stage) for preset in table.stitchings for stage in ("models", "graph", "passes")]
    if not columns:
        return None
    rows = []
    for name in table.sets:
        loaded = [one["seconds"]["load"] for one in table.results if one["config"]["data"]["source"] == name][:1]
        stages = [
            [one["seconds"][stage] for one in table.stitchings[preset].get(name, []) if stage in one["seconds"]]
            for preset, stage in columns
        ]
        peaks = [one["peak_bytes"] for by_set in table.stitchings.values() for one in by_set.get(name, [])]
        seconds = [f"{np.mean(some):.0f}" if some else NONE for some in (loaded, *stages)]
        rows.append([name, *seconds, [NONE, *(f"{peak / 2**30:.1f}" for peak in peaks if peak)][-1]])
    return markdown_table(["stitching", "load", *(f"`{preset}`: {stage}" for preset, stage in columns), "GiB"], rows)


def training_table(table: Table) -> str:
    """Return the seconds of training and of evaluating a cell's policies, by method."""
    rows = []
    for method, about in METHODS.items():
        some = [results for (_, one), results in table.cells.items() if one == method]
        if some:
            train = np.median([results[0]["seconds"]["train"] for results in some])
            play = np.median([sum(one["seconds"]["evaluate"] for one in results) for results in some])
            together = sorted({one["together"] for results in some for one in results})
            steps = sorted({f"{one['config']['learner']['steps']:,}" for results in some for one in results})
            count = " to ".join(map(str, unique((together[0], together[-1]))))
            rows.append([about.title, " or ".join(steps), count, f"{train:.0f}", f"{play:.0f}"])
    return markdown_table(["policies", "steps", "policies at once", "train, median", "evaluate, median"], rows)


def missing(table: Table) -> list[str]:
    found: dict[tuple[str, ...], list[str]] = {}
    for method, about in METHODS.items():
        lacks = tuple(name for name in table.sets if (name, method) not in table.cells)
        found.setdefault(lacks, []).append(about.title)
    return [
        f"{', '.join(titles)}: {', '.join(names) if len(names) < len(table.sets) else 'all sets'}"
        for names, titles in found.items()
        if names
    ]


def listed(names: Sequence[str]) -> str:
    return f"on {', '.join(names)}" if names else "nowhere"


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
