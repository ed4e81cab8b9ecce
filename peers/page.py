"""The page of the comparison, from its measurements alone."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Interval, Summary, probability_of_improvement
from trajstitch.experiments.comparison import probability
from trajstitch.experiments.comparison import verdict as against_chance
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table

TITLES = {"bc": "BC", "td3-bc": "TD3+BC", "iql": "IQL"}
FOLDER = Path("build/peers")
SETTING = ("transitions", "steps", "episodes")
GOAL = 2.0
"""The goal: this many times d3rlpy's updates per second."""

DIFFERENCES = """\
## What differs

Read in the source of d3rlpy 2.8.1, and in that of the methods' authors. The hyper-parameters are the published ones in
both libraries: two hidden layers of 256, batches of 256, Adam, γ = 0.99, target rate 0.005; BC and TD3+BC clone by the
mean squared error of a tanh; learning rates of 0.001 (BC) and 0.0003; TD3+BC with α = 2.5, noise 0.2 clipped at 0.5, a
policy update every second step and standardised observations; IQL with expectile 0.7, temperature 3, weights up to
100, rewards scaled to a span of returns of 1000, and a cosine for the actor's learning rate. Of d3rlpy's own defaults
only BC's batch of 100 had to be changed, the scalings and the cosine asked for, and IQL's standard deviation started at
1, as published, instead of e^-1.5. That last was changed after first scores from d3rlpy's own start, which were lower
than ours; they are in docs/results/peers-iql-own-start.json. Both start from PyTorch's initial weights. And TD3+BC on
walker2d/medium-replay has twenty seeds instead of five, since the first five of each seemed more than chance (0.04
[0.00, 0.24] that ours is higher) and no cause was found. Five more gave 0.44; the ten together were still more than
chance (0.23 [0.03, 0.47]), so ten more were decided on, to be the last: alone they give 0.58 [0.32, 0.84].

An update of BC and of TD3+BC is then the same in both, so that only the draw of first weights, batches and noise parts
their scores. d3rlpy departs from the authors' code in these, where we do not:

- TD3+BC moves the actor at its first step and every second one after it; published, at the second.
- IQL's logarithm of the standard deviation is a sigmoid of a parameter between its bounds; published, it is the clipped
  parameter.
- IQL moves Q and V together, Q towards the V before that move, and then the actor; published, V, the actor and Q move
  in turn, each by the V just moved.

An episode that was cut off by its time limit loses its last step in d3rlpy, whose data has no observation after it, as
in D4RL's own loader; we keep it, and bootstrap from what was observed. Both libraries start IQL
from PyTorch's weights, where its authors' are orthogonal.
"""


@dataclass(frozen=True)
class Report:
    """Write the page from the measurements."""

    scores: Path = FOLDER / "scores.json"
    """What `scores` wrote."""
    speed: Path = FOLDER / "speed.json"
    """What `speed` wrote; left out if it isn't there."""
    alike: Path = FOLDER / "alike.json"
    """What `alike` wrote; left out if it isn't there."""
    again: Path = FOLDER / "again.json"
    """Scores of ours alone from another machine, as `scores` writes them; left out if they aren't there."""
    to: Path = FOLDER / "peers.md"
    """The page."""


class Pair(NamedTuple):
    """One set and algorithm by both libraries."""

    set: str
    algorithm: str
    ours: Summary
    theirs: Summary
    better: Interval
    """The probability that a seed of ours scores higher."""
    errors: tuple[str, str]
    """The mean squared distance of each library's actions from the logged ones."""

    @property
    def agree(self) -> bool | None:
        """Whether the 95 % intervals have a score in common; None if there are none, for one seed."""
        ours, theirs = self.ours.iqm, self.theirs.iqm
        if ours.low is None or ours.high is None or theirs.low is None or theirs.high is None:
            return None
        return ours.low <= theirs.high and theirs.low <= ours.high

    def __str__(self) -> str:
        return f"{TITLES[self.algorithm]} on {self.set}"


def report(config: Report) -> None:
    if not config.scores.exists():
        raise InputError(f"{config.scores} isn't there: `python peers/compare.py scores` writes it")
    rows = json.loads(config.scores.read_text())
    optional = (config.speed, config.alike, config.again)
    speed, alike, again = (json.loads(path.read_text()) if path.exists() else None for path in optional)
    with replacing(config.to, force=True) as fresh:
        fresh.write_text(page(rows, speed, alike, again))
    print(config.to)


def page(
    rows: list[dict[str, Any]],
    speed: dict[str, Any] | None,
    alike: dict[str, Any] | None,
    again: list[dict[str, Any]] | None = None,
) -> str:
    settings = sorted({tuple(row[name] for name in SETTING) for row in rows}, key=lambda found: found[1])
    of_setting = [[row for row in rows if tuple(row[name] for name in SETTING) == setting] for setting in settings]
    pairs = [paired(some) for some in of_setting]
    if not pairs or not all(pairs):
        raise InputError(
            "nothing has been measured with both libraries yet: go on with `python peers/compare.py scores`"
        )
    lines = [
        "# Beside d3rlpy",
        "",
        "BC, TD3+BC and IQL by trajstitch and by d3rlpy: the same data files, hyper-parameters and steps, and one "
        "evaluator that plays both libraries' policies from the same episode seeds. Written by "
        "`python peers/compare.py report` from the measurements.",
        "",
        verdict(pairs[-1], settings[-1]) + unpaired(of_setting[-1], pairs[-1]),
        *([] if speed is None else ["", speed_verdict(speed)]),
        "",
        "## Scores",
        "",
        "Normalised score of the last policy: mean ± standard deviation over seeds, and the interquartile mean over "
        "seeds with its 95 % bootstrap interval; then the probability that a seed of ours scores higher than one of "
        "d3rlpy's, with its interval. The error is the mean squared distance from the logged actions: it varies "
        "far less between seeds than the score, and so tells smaller differences.",
    ]
    for setting, some, found in zip(settings, of_setting, pairs, strict=True):
        lines += ["", *scores_table(setting, some, found)]
    if again is not None:
        lines += ["", *again_table(rows, again)]
    if speed is not None:
        lines += ["", *speed_table(speed)]
    if alike is not None:
        lines += ["", *alike_table(alike)]
    return "\n".join([*lines, "", DIFFERENCES, *how(rows, speed)])


def paired(rows: list[dict[str, Any]]) -> list[Pair]:
    """Return every set and algorithm that both libraries were measured on."""
    pairs = []
    for name in dict.fromkeys(row["set"] for row in rows):
        for algorithm in TITLES:
            both = [
                [row for row in rows if (row["library"], row["set"], row["algorithm"]) == (library, name, algorithm)]
                for library in ("trajstitch", "d3rlpy")
            ]
            if all(both):
                ours, theirs = (np.array([row["score"] for row in some]) for some in both)
                errors = [np.array([row["action_error"] for row in some]) for some in both]
                ours_error, theirs_error = (f"{one.mean():.4f} ± {one.std(ddof=len(one) > 1):.4f}" for one in errors)
                better = probability_of_improvement([ours], [theirs])
                found = (Summary.of(ours), Summary.of(theirs), better, (ours_error, theirs_error))
                pairs.append(Pair(name, algorithm, *found))
    return pairs


def verdict(pairs: list[Pair], setting: tuple[int, ...]) -> str:
    """Return whether the scores of the longest training agree, and name those that don't."""
    compared = [pair for pair in pairs if pair.agree is not None]
    if not compared:
        return "Scores: there are too few seeds to say whether the libraries agree."
    apart = [f"{pair}: ours {pair.ours.iqm}, d3rlpy {pair.theirs.iqm}" for pair in compared if not pair.agree]
    sharper = [
        f"{pair}, {probability(pair.better)}"
        for pair in compared
        if pair.agree and against_chance(pair.better) != "neither"
    ]
    said = "**The final scores do not all agree**" if apart or sharper else "**The final scores agree**"
    agreeing = f"the 95 % intervals overlap in {len(compared) - len(apart)} of {len(compared)} comparisons"
    named = f" Apart are {'; '.join(apart)}." if apart else ""
    if sharper:
        named += (
            " Where they overlap, the probability that a seed of ours scores higher still leaves out 0.5 for "
            f"{'; '.join(sharper)}."
        )
    return f"{said} after {setting[1]:,} steps: {agreeing}.{named}"


def unpaired(rows: list[dict[str, Any]], pairs: list[Pair]) -> str:
    """Return in words what only one library has been measured on."""
    there = {(pair.set, pair.algorithm) for pair in pairs}
    asked = dict.fromkeys((row["set"], row["algorithm"]) for row in rows)
    missing = [f"{TITLES[algorithm]} on {name}" for name, algorithm in asked if (name, algorithm) not in there]
    return f" Not compared yet: {'; '.join(missing)}." if missing else ""


def scores_table(setting: tuple[int, ...], rows: list[dict[str, Any]], pairs: list[Pair]) -> list[str]:
    transitions, steps, episodes = setting
    heads = ("set", "policy", "seeds", "ours", "d3rlpy", "ours, IQM", "d3rlpy, IQM", "overlap", "ours higher")
    body = []
    for pair in pairs:
        answer = {True: "yes", False: "**no**", None: "one seed"}[pair.agree]
        counts = dict.fromkeys(str(len(summary.scores)) for summary in (pair.ours, pair.theirs))
        name = (pair.set, TITLES[pair.algorithm], " and ".join(counts) + " (unfinished)" * (len(counts) > 1))
        found = (pair.ours, pair.theirs, pair.ours.iqm, pair.theirs.iqm, answer, probability(pair.better))
        body.append([*map(str, (*name, *found)), *pair.errors])
    told = (
        f"{steps:,} steps on {transitions:,} transitions, {episodes} episodes a seed; "
        f"{'; '.join(sorted({row['machine'] for row in rows}))}:"
    )
    return [told, "", markdown_table((*heads, "error, ours", "d3rlpy"), body)]


def again_table(rows: list[dict[str, Any]], again: list[dict[str, Any]]) -> list[str]:
    """Compare ours from another machine with d3rlpy's from this one."""
    settings = {tuple(row[name] for name in SETTING) for row in again}
    theirs = [row for row in rows if row["library"] == "d3rlpy" and tuple(row[name] for name in SETTING) in settings]
    machines = "; ".join(dict.fromkeys(row["machine"] for row in again))
    body = []
    for pair in paired([*again, *theirs]):
        name = (pair.set, TITLES[pair.algorithm], len(pair.ours.scores))
        body.append([*map(str, (*name, pair.ours, pair.ours.iqm, probability(pair.better)))])
    told = f"Ours once more, on {machines} ({_versions(again)}), beside the same of d3rlpy's:"
    return [told, "", markdown_table(("set", "policy", "seeds", "ours", "ours, IQM", "ours higher"), body)]


def ratios(speed: dict[str, Any]) -> dict[str, tuple[float, float, str]]:
    """Return by algorithm our median rate, d3rlpy's at the better number of threads, and that number."""
    found = {}
    for algorithm, rates in speed["rates"].items():
        medians = {name: float(np.median(values)) for name, values in rates.items()}
        ours = medians.pop("ours")
        threads = max(medians, key=lambda name: medians[name])
        found[algorithm] = (ours, medians[threads], threads)
    return found


def speed_verdict(speed: dict[str, Any]) -> str:
    found = {algorithm: ours / theirs for algorithm, (ours, theirs, _) in ratios(speed).items()}
    shown = ", ".join(f"{TITLES[algorithm]} {ratio:.1f}×" for algorithm, ratio in found.items())
    slow = [TITLES[algorithm] for algorithm, ratio in found.items() if ratio < GOAL]
    goal = f"at least {GOAL:g}× d3rlpy's for each"
    said = f"**Updates a second are {goal}**" if not slow else f"**Updates a second are not {goal}**"
    return f"{said} on {speed['cores']} cores: {shown}." + (f" Short of it: {', '.join(slow)}." if slow else "")


def speed_table(speed: dict[str, Any]) -> list[str]:
    rounds = max(len(rates["ours"]) for rates in speed["rates"].values())
    lines = [
        "## Speed",
        "",
        f"Updates a second of one seed on {speed['set']}, drawing the batch included, compilation and set-up not: "
        f"medians of {rounds} rounds (lowest to highest), in which the libraries took turns on the same "
        f"{speed['cores']} cores of {speed['machine']}. d3rlpy was measured with one thread and with "
        f"{speed['cores']}; the better counts. The machine's load average before was {speed['load_before']:.1f}.",
        "",
    ]
    rows = []
    for algorithm, (ours, theirs, threads) in ratios(speed).items():
        rates = speed["rates"][algorithm]
        cells = [
            f"{one:,.0f} ({min(all_):,.0f}–{max(all_):,.0f})"
            for one, all_ in ((ours, rates["ours"]), (theirs, rates[threads]))
        ]
        rows.append([TITLES[algorithm], *cells, threads, f"{ours / theirs:.1f}×"])
    return [*lines, markdown_table(("policy", "ours", "d3rlpy", "its threads", "ratio"), rows)]


def alike_table(alike: dict[str, Any]) -> list[str]:
    rows = [
        [TITLES[algorithm], *(f"{row['apart']:.0e}" for row in found), f"{found[-1]['moved']:.2f}"]
        for algorithm, found in alike["differences"].items()
    ]
    return [
        "## The same steps",
        "",
        "From the same weights, on the same batches and without "
        "noise on target actions: how far apart the two policies' actions are, and how far the updates have moved "
        "ours, as root mean squares over states of "
        f"{alike['set']}. Actions span 2. Equal rules leave rounding, which training amplifies.",
        "",
        markdown_table(("policy", *(f"after {mark} updates" for mark in alike["marks"]), "moved"), rows),
    ]


def how(rows: list[dict[str, Any]], speed: dict[str, Any] | None) -> list[str]:
    """Return the commands, and what they ran with."""
    last = max(rows, key=lambda row: row["steps"])
    flags = " ".join(f"--{name} {last[name]}" for name in ("transitions", "steps", "episodes"))
    seeds: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["set"], row["algorithm"]
        seeds[key] = max(seeds.get(key, 0), row["seed"] + 1)
    usual = Counter(seeds.values()).most_common(1)[0][0]
    commands = [f"scores {flags} --seeds {usual}"]
    for (name, algorithm), count in seeds.items():
        if count != usual:
            commands.append(f"scores {flags} --seeds {count} --sets {name} --algorithms {algorithm}")
    commands += [] if speed is None else [f"speed --set {speed['set']} --cores {speed['cores']}"]
    return [
        "## Again",
        "",
        "`make peers` does all of it at a small size. These numbers come from:",
        "",
        *(f"    python peers/compare.py {command}" for command in (*commands, "alike", "report")),
        "",
        f"Versions: {_versions([*rows, *([] if speed is None else [speed])])}.",
        "",
    ]


def _versions(measured: list[dict[str, Any]]) -> str:
    """Return the versions that the measurements ran with, each once."""
    found = (", ".join(f"{name} {number}" for name, number in one["versions"].items()) for one in measured)
    return "; ".join(dict.fromkeys(found))
