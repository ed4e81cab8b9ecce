"""Results as a table of data sets by methods, and which method is better where by more than chance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Draws, Interval, interquartile_mean, probability_of_improvement
from trajstitch.experiments.cells import Result, best_score, score

NONE = "–"
"""Stands for what is not measured."""
TRIALS = 200
"""Comparisons of equal methods by which `false_alarms` measures the test."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of all policies by (data set, method)."""

    scores: dict[tuple[str, str], Draws]
    sets: tuple[str, ...]
    """Every data set, in the order of the page."""

    def common(self, *methods: str) -> list[str]:
        """Return the sets on which all of these methods are measured."""
        return [name for name in self.sets if all((name, method) in self.scores for method in methods)]

    def total(self, method: str, sets: Sequence[str]) -> Interval | None:
        """Return the interquartile mean of a method over these sets, or None if it lacks one of them."""
        if not sets or set(sets) - set(self.common(method)):
            return None
        return interquartile_mean(*(self.scores[name, method] for name in sets))

    @cache  # noqa: B019
    def better(self, ours: str, theirs: str, *sets: str) -> Interval:
        """Return the probability that a policy of `ours` scores higher than one of `theirs` on these sets."""
        return probability_of_improvement(
            [self.scores[name, ours] for name in sets], [self.scores[name, theirs] for name in sets]
        )

    @cached_property
    def between_stitchings(self) -> float:
        """Which share of the variance of scores, on one set and by one method, lies between stitchings."""
        several = [one for one in self.scores.values() if one.ndim > 1 and min(one.shape) > 1]
        within = np.array([one.var(axis=1, ddof=1).mean() for one in several])
        of_means = np.array([one.mean(1).var(ddof=1) for one in several])
        between = np.maximum(of_means - within / [one.shape[1] for one in several], 0) if several else np.zeros(0)
        total = float((between + within).sum())
        return float(between.sum()) / total if total > 0 else 0.0

    def verdicts(self, ours: str, theirs: str) -> dict[str, list[str]]:
        """Return the sets on which `ours` is worse, better, and neither by more than chance."""
        found = {name: verdict(self.better(ours, theirs, name)) for name in self.common(ours, theirs)}
        return {kind: [name for name in found if found[name] == kind] for kind in ("worse", "better", "neither")}

    def best(self, name: str, methods: Sequence[str]) -> set[str]:
        """Return the method with the highest mean on a set, and those it doesn't beat by more than chance."""
        found = {method: self.scores[name, method].mean() for method in methods if (name, method) in self.scores}
        if not found:
            return set()
        top = max(found, key=lambda method: found[method])
        return {one for one in found if one == top or verdict(self.better(top, one, name)) != "better"}


def verdict(improvement: Interval) -> str:
    """Return "better" or "worse" if the interval of a probability of improvement excludes 0.5, else "neither"."""
    if improvement.low is None or improvement.high is None:
        return "neither"
    return "better" if improvement.low > 0.5 else "worse" if improvement.high < 0.5 else "neither"


def probability(improvement: Interval) -> str:
    """Return a probability of improvement as text, with its interval."""
    bounds = "" if improvement.low is None else f" [{improvement.low:.2f}, {improvement.high:.2f}]"
    return f"{improvement.value:.2f}{bounds}"


@cache
def false_alarms(stitchings: int, seeds: int, between: float) -> float:
    """Return how often `verdict` calls one of two equal methods better, with policies of this many stitchings.

    `between` is the share of the first method's variance that lies between stitchings.
    """
    equals = np.random.default_rng(0).normal(size=(TRIALS, 2, stitchings, seeds))
    of_stitchings = np.random.default_rng(1).normal(size=(TRIALS, stitchings, 1))
    equals[:, 0] = between**0.5 * of_stitchings + (1 - between) ** 0.5 * equals[:, 0]
    called = [verdict(probability_of_improvement([one], [other.ravel()])) != "neither" for one, other in equals]
    return float(np.mean(called))


class Table:
    """Results by data set and method. A result names both, as `set` and `method`."""

    def __init__(self, results: Iterable[Result], methods: Sequence[str]) -> None:
        """Make a table of results, those of one stitching after those of another; `methods` are in the page's order."""
        self.results = list(results)
        if not self.results:
            raise InputError("nothing is measured yet")
        self.cells: dict[tuple[str, str], list[Result]] = {}
        """The results of each set and method."""
        for result in self.results:
            self.cells.setdefault((result["set"], result["method"]), []).append(result)
        self.sets = tuple(dict.fromkeys(result["set"] for result in self.results))
        measured = {method for _, method in self.cells}
        self.methods = tuple(method for method in methods if method in measured)
        for name in ("episodes", "checkpoints"):
            values = sorted({result["config"][name] for result in self.results})
            if len(values) > 1:
                raise InputError(f"cells with different {name} ({', '.join(map(str, values))}) make no table")
        self.last = Scores({place: draws(some, score) for place, some in self.cells.items()}, self.sets)
        """Scores of the last checkpoints, by which methods are ranked."""
        self.best = Scores({place: draws(some, best_score) for place, some in self.cells.items()}, self.sets)
        """Scores of each policy's best checkpoint."""

    @property
    def common(self) -> list[str]:
        """The sets on which every method is measured."""
        return self.last.common(*self.methods)

    @property
    def totals(self) -> list[list[str]]:
        """The sets to take means over: all, if any method is measured on all; and those that every method has."""
        found = [[*self.sets]] if any(self.last.common(method) == [*self.sets] for method in self.methods) else []
        return found if self.common in ([], *found) else [*found, self.common]

    @cached_property
    def stitchings(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """What stitching did, by its name and the set: a list with one record per seed of the stitching."""
        found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
        for result in self.results:
            if result["stitched"]:
                stitching = result["config"]["stitching"]
                by_seed = found.setdefault(stitching["name"], {}).setdefault(result["set"], {})
                by_seed.setdefault(stitching["seed"], result["stitched"])
        return {name: {one: [*some.values()] for one, some in found[name].items()} for name in found}

    def records(self, name: str, method: str) -> list[dict[str, Any]]:
        """Return what the stitchings of a method did to a set."""
        some = self.cells.get((name, method), [])
        by_seed = {one["config"]["stitching"]["seed"]: one["stitched"] for one in some if one["stitched"]}
        return [*by_seed.values()]


def draws(results: Sequence[Result], score: Any) -> Draws:
    """Return the scores of results: in one row, or in a row for each stitching."""
    rows: dict[int, list[float]] = {}
    for result in results:
        stitching = result["config"]["stitching"]
        rows.setdefault(-1 if stitching is None else stitching["seed"], []).append(score(result))
    if len({len(row) for row in rows.values()}) > 1:
        raise InputError("stitchings with different numbers of policies make no table")
    return np.array([*rows.values()]).squeeze(0) if len(rows) == 1 else np.array([*rows.values()])
