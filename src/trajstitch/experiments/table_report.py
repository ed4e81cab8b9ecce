"""The page about the results table, its picture, and its summary in the README: all from the measurements alone."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from trajstitch.benchmark import sets
from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Interval, Summary, probability_of_improvement
from trajstitch.experiments.table_picture import LOOKS, draw
from trajstitch.experiments.table_results import METHODS, Row, merged, write
from trajstitch.experiments.table_scores import CORE, Table, verdict
from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing

RESULTS = Path("docs/results/first-table.json")
SHOWN = tuple(LOOKS)
"""The methods of the README's table and of the picture."""
PAIRS = (("ts-bc", "bc"), ("ts-top-bc", "top-bc"), ("paper-ts-bc", "bc"), ("paper-ts-top-bc", "top-bc"))
"""What stitching is compared with: the same cloning of the data as it was."""
RIVALS = ("paper-ts-bc", "top-bc", "td3-bc", "iql")
LIKELY_MISS = 0.2
"""The median jump should miss its target by less than this share of its length."""
TRIALS = 200
"""Comparisons of equals by which we judge the judgement."""
NONE = "–"
BEGIN, END = (
    "<!-- first-table: `python -m trajstitch.experiments.table report` writes this -->",
    "<!-- /first-table -->",
)


@dataclass(frozen=True)
class Report:
    """Write the page, the picture and the README's summary from the measurements."""

    sources: Positional[tuple[Path, ...]] = ()
    """Files of measurements; of two of the same cell, the later file's. None: those of the last report."""
    to: Path = RESULTS
    """Where they go together; the page and the picture are put beside it."""
    readme: Path = Path("README.md")
    """The summary goes between its two comments about the first table, where it has them."""


def report(config: Report) -> None:
    rows = merged(config.sources or (config.to,))
    if not rows["policies"]:
        raise InputError("nothing is measured yet: `python -m trajstitch.experiments.table measure` does")
    table = Table(**rows)
    write(rows, config.to)
    page = config.to.with_suffix(".md")
    with replacing(page, force=True) as fresh:
        fresh.write_text(text(table, config.to.stem))
    draw(table.scores, config.to.with_suffix(".svg"))
    if config.readme.exists():
        before = config.readme.read_text()
        after = with_summary(before, summary(table))
        if after != before:
            with replacing(config.readme, force=True) as fresh:
                fresh.write_text(after)
    print(page)


def with_summary(readme: str, lines: str) -> str:
    """The README with the summary in its place; as it is where it has none."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    if not re.search(pattern, readme, re.DOTALL):
        logger.info(f"the README has no place for the summary, which is between {BEGIN} and {END}")
    return re.sub(pattern, lambda _: f"{BEGIN}\n{lines}\n{END}", readme, flags=re.DOTALL)


def text(table: Table, stem: str) -> str:
    """The page."""
    parts = [
        ["# The first table"],
        [introduction(table)],
        [f"![Scores by set and method]({stem}.svg)"],
        ["Dots: interquartile mean of the seeds' scores, with its 95 % bootstrap interval."],
        ["## Scores"],
        [
            "Mean ± standard deviation over seeds of the normalised score (0 random, 100 expert). Bold: the highest "
            f"mean of a set and all that it doesn't beat by more than chance. {NONE}: not measured yet."
        ],
        score_table(table, tuple(METHODS)),
        [totals_note(table)],
        ["## Does stitching help?"],
        [
            "The probability that a seed trained on stitched data scores higher than one trained on the data as it "
            "was, with its 95 % interval; a tie counts half, and 0.5 is chance."
        ],
        improvement_table(table),
        ["## What got worse"],
        [chance_note(table)],
        [f"- {loss}" for loss in losses(table, tuple(METHODS))],
        *measured_again(table),
        ["## The data"],
        [
            "The share of the returns' variance that states foretell (the `default` preset stitches from 0.5 on), the "
            "mean score of the trajectories before and after, how many of the rebuilt trajectories of all passes were "
            "accepted, how many trajectories changed in the end, the share of steps that are jumps, the share of the "
            "logged states that the result still visits, and the simulator's word on the jumps: median error over the "
            "step's own length (0 is real, 1 is as wrong as staying put) and median reward error. Of several "
            "stitchings, the mean."
        ],
        *(data_table(table, preset) for preset in table.presets),
        ["## Times"],
        [
            "Seconds, of several stitchings their mean. Several measurements ran side by side on the machine, so these "
            "are not what each takes alone; the `paper` preset's passes are made for all sets of one size together, "
            "and each has the time of all. GiB: the most host memory that the measuring process had held by the end "
            "of that stitching, earlier ones included."
        ],
        stage_table(table),
        method_table(table),
        ["## Not measured yet"],
        not_measured(table),
        ["## How it was measured"],
        provenance(table),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def introduction(table: Table) -> str:
    rows = [run for runs in table.cells.values() for run in runs]
    reduced = [row for row in rows if row["config"]["transitions"] != full_size(row["set"])]
    size = "NOT at their full size" if reduced else "at full size"
    presets = sorted({row["config"]["preset"] for row in rows} - {None, "paper"})
    return (
        f"The built-in sets {size}, {table.seeds} policies a cell, the last checkpoint of each playing "
        f"{table.episodes} episodes. 10 %: of the trajectories, those of the highest return. TS: the data stitched "
        f"first, with the `{'`, `'.join(presets) or 'default'}` preset; paper's TS: with the `paper` preset. "
        f"{stitchings_note(table)}The sets follow D4RL's recipes but are not D4RL's data, so no number here compares "
        "with one measured on that. Written by `python -m trajstitch.experiments.table report` from the measurements "
        "beside it."
    )


def stitchings_note(table: Table) -> str:
    """Whether the policies' spread is that of the stitching too."""
    found = {preset: table.one_for_all(preset) for preset in table.presets}
    own = [f"`{preset}` {listed(each)}" for preset, (_, each) in found.items() if each]
    if own:
        return f"Each policy has a stitching of its own with {', '.join(own)}; others share one. "
    once = any(once for once, _ in found.values())
    return "A set is stitched once for all policies of a cell, whose spread is thus theirs alone. " if once else ""


def full_size(name: str) -> int:
    return sets.built_in(name).transitions


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def score_table(table: Table, methods: Sequence[str]) -> list[str]:
    rows = []
    for name in table.sets:
        best, cells = table.best(name, methods), []
        for method in methods:
            told = str(Summary.of(table.scores[name, method])) if (name, method) in table.cells else NONE
            cells.append(f"**{told}**" if method in best else told)
        rows.append([name, *cells])
    totals = [str(table.total(method) or NONE) for method in methods]
    return markdown(["set", *(METHODS[method].title for method in methods)], [*rows, ["IQM [95 %]", *totals]])


def totals_note(table: Table) -> str:
    names = table.common(*CORE)
    titles = ", ".join(METHODS[method].title for method in CORE)
    return (
        f"IQM: the interquartile mean over all seeds of {len(names)} of the {len(table.sets)} sets, those on which "
        f"{titles} are measured, with a stratified bootstrap 95 % interval; {NONE} for a method that lacks one of them."
    )


def improvement_table(table: Table) -> list[str]:
    pairs = [pair for pair in PAIRS if table.common(*pair)]

    def cells(names: Callable[[str, str], list[str]]) -> list[str]:
        found = [(pair, names(*pair)) for pair in pairs]
        return [probability(table.better(*pair, *some)) if some else NONE for pair, some in found]

    rows = [[name, *cells(lambda *pair, name=name: [name] * (name in table.common(*pair)))] for name in table.sets]
    counts = [f"{METHODS[ours].title} over {METHODS[theirs].title}" for ours, theirs in pairs]
    return markdown(["set", *counts], [*rows, ["all measured", *cells(table.common)]]) if pairs else [NONE]


def probability(found: Interval) -> str:
    return f"{found.value:.2f}" + ("" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]")


def losses(table: Table, methods: Sequence[str]) -> list[str]:
    """In words what came out worse, and what did not."""
    pairs = [*PAIRS, *(("ts-bc", rival) for rival in RIVALS)]
    known = [METHODS[method].preset for method in methods]
    return [
        *(comparison(table, *pair) for pair in pairs if set(pair) <= set(methods) and table.common(*pair)),
        *(data_losses(table, preset) for preset in table.presets if preset in known or preset != "paper"),
    ]


def data_losses(table: Table, preset: str) -> str:
    rows = [run for (_, which), runs in table.stitchings.items() if which == preset for run in runs]
    fell = [f"{row['set']} ({row['before']:.1f} to {row['after']:.1f})" for row in rows if row["after"] < row["before"]]
    missed = [
        f"{row['set']} ({row['truth']['median_ratio']:.2f})"
        for row in rows
        if row["truth"]["steps"] and row["truth"]["median_ratio"] >= LIKELY_MISS
    ]
    count = len({row["set"] for row in rows})
    alone = list(dict.fromkeys(row["set"] for row in rows if row["left_alone"]))
    return (
        f"The data of {count} sets, stitched with the `{preset}` preset: its mean return fell {listed(fell)}; "
        f"the median jump misses by {LIKELY_MISS} of its length or more {listed(missed)}"
        + (f"; nothing was stitched {listed(alone)}." if alone else ".")
    )


def comparison(table: Table, ours: str, theirs: str) -> str:
    """Where one method is better, worse and neither."""
    worse, better, neither = table.verdicts(ours, theirs)
    return (
        f"{METHODS[ours].title} against {METHODS[theirs].title}: worse by more than chance {listed(worse)}; better "
        f"{listed(better)}; neither on {len(neither)} sets."
    )


def chance_note(table: Table) -> str:
    """How often the test for more than chance errs, found by asking it about equals."""
    seeds = table.seeds
    equals = np.random.default_rng(0).normal(size=(TRIALS, 2, seeds))
    called = np.mean([verdict(probability_of_improvement([one], [other])) != "neither" for one, other in equals])
    return (
        "More than chance: the 95 % interval of the probability of improvement leaves out 0.5. Intervals from so few "
        f"seeds are too narrow: of {TRIALS} comparisons of {seeds} and {seeds} draws from one normal distribution, "
        f"{called:.0%} were called better or worse. Expect as large a share of the comparisons below to be called by "
        "chance alone."
    )


def listed(names: Sequence[str]) -> str:
    return f"on {', '.join(names)}" if names else "nowhere"


def measured_again(table: Table) -> list[list[str]]:
    """What the cells that were measured more than once were before."""
    methods = [method for method in METHODS if any(one == method for _, one in table.before)]
    if not methods:
        return []
    names = [name for name in table.sets if any((name, method) in table.before for method in methods)]
    rows = [[name, *(cell for one in methods for cell in before_and_now(table, name, one))] for name in names]
    totals = [str(table.total(method, before=before) or NONE) for method in methods for before in (True, False)]
    head = [f"{METHODS[method].title}{when}" for method in methods for when in (", before", "")]
    return [
        ["## Measured again"],
        [
            "These cells were measured before, by the same settings, with the data stitched anew each time: what they "
            "were then, and what they are above. Where all policies of a cell learn from one stitching, its interval "
            "leaves out how stitchings differ; here that shows."
        ],
        markdown(["set", *head], [*rows, ["IQM [95 %]", *totals]]),
    ]


def before_and_now(table: Table, name: str, method: str) -> tuple[str, str]:
    found = table.before.get((name, method)), table.scores[name, method]
    return (NONE, NONE) if found[0] is None else (str(Summary.of(found[0])), str(Summary.of(found[1])))


def mean(rows: Sequence[Row], key: str) -> float:
    return float(np.mean([row[key] for row in rows]))


def data_table(table: Table, preset: str) -> list[str]:
    head = [
        f"`{preset}`",
        "return_predictability",
        "before",
        "after",
        "accepted",
        "changed",
        "jumps",
        "states kept",
        "error / length",
        "reward error",
    ]
    rows = []
    for name in table.sets:
        runs = table.stitchings.get((name, preset))
        if runs is None:
            rows.append([name, *[NONE] * (len(head) - 1)])
            continue
        jumped = [run["truth"] for run in runs if run["truth"]["steps"]]
        errors = [mean(jumped, key) for key in ("median_ratio", "median_reward_error")] if jumped else []
        passes = [one for run in runs for one in run["passes"]]
        accepted, proposed = (sum(one[key] for one in passes) / len(runs) for key in ("accepted", "proposed"))
        return_predictability = runs[0]["return_predictability"]
        rows.append(
            [
                name,
                NONE if return_predictability is None else f"{return_predictability:.2f}",
                f"{runs[0]['before']:.1f}",
                str(Summary.of(np.array([run["after"] for run in runs]))),
                f"{accepted:,.0f} of {proposed:,.0f}" if proposed else "none made",
                f"{mean(runs, 'changed'):,.0f} of {runs[0]['trajectories']:,}",
                f"{mean(runs, 'jumps'):.2%}",
                f"{mean(runs, 'states_kept'):.0%}",
                *([f"{error:.3f}" for error in errors] or ["no jumps"] * 2),
            ]
        )
    return markdown(head, rows)


def stage_table(table: Table) -> list[str]:
    """Seconds of collection and of stitching by set, and the memory held by then."""
    columns = [(preset, stage) for preset in table.presets for stage in ("models", "graph", "passes")]
    if not columns:
        return []
    rows = []
    for name in table.sets:
        found = [run for preset in table.presets for run in table.stitchings.get((name, preset), [])]
        collected = [f"{one['seconds']['collect']:.0f}" for one in found][:1] or [NONE]
        taken = [
            [run["seconds"][stage] for run in table.stitchings.get((name, preset), []) if stage in run["seconds"]]
            for preset, stage in columns
        ]
        peaks = [f"{one['peak_bytes'] / 2**30:.1f}" for one in found if "peak_bytes" in one][-1:] or [NONE]
        rows.append([name, *collected, *(f"{np.mean(some):.0f}" if some else NONE for some in taken), *peaks])
    return markdown(["stitching", "collect", *(f"`{preset}`: {stage}" for preset, stage in columns), "GiB"], rows)


def method_table(table: Table) -> list[str]:
    """Seconds of training and evaluation by method."""
    rows = []
    for method, about in METHODS.items():
        cells = [run for name in table.common(method) for run in table.cells[name, method]]
        if cells:
            train, play = (np.median([row["seconds"][part] for row in cells]) for part in ("train", "evaluate"))
            together = sorted({row["together"] for row in cells})
            steps = sorted({f"{row['config']['steps']:,}" for row in cells})
            count = f"{together[0]}" if len(together) == 1 else f"{together[0]} to {together[-1]}"
            rows.append([about.title, " or ".join(steps), count, f"{train:.0f}", f"{play:.0f}"])
    return markdown(["policies", "steps", "policies at once", "train, median", "evaluate, median"], rows)


def not_measured(table: Table) -> list[str]:
    found: dict[tuple[str, ...], list[str]] = {}
    for method, about in METHODS.items():
        found.setdefault(tuple(table.missing(method)), []).append(about.title)
    lines = [
        f"- {', '.join(titles)}: {', '.join(names) if len(names) < len(table.sets) else 'all sets'}"
        for names, titles in found.items()
        if names
    ]
    return lines or ["Every cell is measured."]


def provenance(table: Table) -> list[str]:
    def every(key: str) -> list[str]:
        return list(dict.fromkeys(call[key] for call in table.calls))

    versions = dict.fromkeys(
        ", ".join(f"{name} {number}" for name, number in call["versions"].items()) for call in table.calls
    )
    made = [run for kind in (table.cells, table.stitchings) for runs in kind.values() for run in runs]
    commits = dict.fromkeys([*every("commit"), *(commit for row in made for commit in row["commits"])])
    return [
        f"- Machine: {'; '.join(every('machine'))}.",
        f"- Commits: {', '.join(commits)} (a plus: with changes that were not committed).",
        f"- Versions: {'; '.join(versions)}.",
        "",
        "Commands:",
        "",
        *(f"    {command}" for command in sorted(every("command"))),
    ]


def summary(table: Table) -> str:
    """The README's part."""
    lines = [
        introduction(table).replace(" from the measurements beside it", ""),
        "",
        *score_table(table, SHOWN),
        "",
        totals_note(table),
        "",
        *(f"- {loss}" for loss in losses(table, SHOWN)),
    ]
    return "\n".join(lines)
