"""The measurements as a table: scores by set and method, their totals, and which method is better where."""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Interval, interquartile_mean, probability_of_improvement
from trajstitch.experiments.table_results import METHODS, TWELVE, Row, scores

CORE = ("bc", "top-bc", "ts-bc", "ts-top-bc")
"""Totals are over the sets on which all of these are measured."""


class Table:
    """The measurements by set and method."""

    def __init__(self, policies: list[Row], stitchings: list[Row], replaced: list[Row], calls: list[Row]) -> None:
        self.cells = by(policies, "method")
        """The runs of each (set, method)."""
        self.stitchings = by(stitchings, "preset")
        """The runs of each (set, preset)."""
        self.scores = pooled(self.cells)
        self.before = pooled(by(replaced, "method"))
        """The scores of cells that were measured again since, of all times before."""
        self.calls = calls
        for name, values in (
            ("seed", [row["config"]["seed"] for row in policies]),
            ("episodes", [row["config"]["episodes"] for row in policies]),
            ("seeds", [len(found) for found in self.scores.values()]),
        ):
            if len(found := sorted(set(values))) > 1:
                raise InputError(f"cells with different {name} ({', '.join(map(str, found))}) make no table")
        self.seeds, self.episodes = len(next(iter(self.scores.values()))), policies[0]["config"]["episodes"]
        self.sets = tuple(dict.fromkeys((*TWELVE, *(row["set"] for row in policies))))

    @property
    def presets(self) -> list[str]:
        return list(dict.fromkeys(preset for _, preset in self.stitchings))

    def missing(self, method: str) -> list[str]:
        return [name for name in self.sets if (name, method) not in self.cells]

    def common(self, *methods: str) -> list[str]:
        """The sets on which all of these are measured."""
        return [name for name in self.sets if all((name, method) in self.cells for method in methods)]

    def total(self, method: str, *, before: bool = False) -> Interval | None:
        """The interquartile mean over the sets of the core, if the method has them all: now, or with the cells that
        were measured again as they were before."""
        names = self.common(*CORE)
        if not names or set(names) - set(self.common(method)):
            return None
        found = self.scores | self.before if before else self.scores
        return interquartile_mean(*(found[name, method] for name in names))

    @cache  # noqa: B019
    def better(self, ours: str, theirs: str, *names: str) -> Interval:
        """The probability that a seed of ours scores higher than one of theirs on these sets."""
        return probability_of_improvement(
            [self.scores[name, ours] for name in names], [self.scores[name, theirs] for name in names]
        )

    def verdicts(self, ours: str, theirs: str) -> list[list[str]]:
        """The sets on which ours is worse, better, and neither by more than chance."""
        found = {name: verdict(self.better(ours, theirs, name)) for name in self.common(ours, theirs)}
        return [[name for name in found if found[name] == kind] for kind in ("worse", "better", "neither")]

    def best(self, name: str, methods: Sequence[str]) -> set[str]:
        """The highest mean of a set, and whatever that doesn't beat by more than chance."""
        found = {method: self.scores[name, method].mean() for method in methods if (name, method) in self.cells}
        if not found:
            return set()
        top = max(found, key=lambda method: found[method])
        return {one for one in found if one == top or verdict(self.better(top, one, name)) != "better"}

    def one_for_all(self, preset: str) -> tuple[list[str], list[str]]:
        """The sets that were stitched once for all policies of a cell, and those stitched for each."""
        methods = [method for method in METHODS if METHODS[method].preset == preset]
        changed = [name for name in self.sets if any(one["passes"] for one in self.stitchings.get((name, preset), []))]
        counts = {
            name: max(len(self.cells[name, one]) for one in methods if (name, one) in self.cells)
            for name in changed
            if any((name, one) in self.cells for one in methods)
        }
        return [name for name in counts if counts[name] == 1], [name for name in counts if counts[name] > 1]


def by(rows: Iterable[Row], kind: str) -> dict[tuple[str, str], list[Row]]:
    """The runs of each set, by their method or preset."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["set"], row[kind]), []).append(row)
    return found


def pooled(cells: dict[tuple[str, str], list[Row]]) -> dict[tuple[str, str], np.ndarray]:
    """The scores of all policies of each cell."""
    return {key: np.concatenate([scores(run) for run in runs]) for key, runs in cells.items()}


def verdict(found: Interval) -> str:
    """By whether the interval of a probability of improvement leaves out a half."""
    if found.low is None or found.high is None:
        return "neither"
    return "better" if found.low > 0.5 else "worse" if found.high < 0.5 else "neither"
