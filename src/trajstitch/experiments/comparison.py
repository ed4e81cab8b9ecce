"""Results as a table of data sets by methods, and which method is better where by more than chance."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Interval, Seeds, interquartile_mean, probability_of_improvement
from trajstitch.experiments.cells import Result, score

NONE = "–"
"""Stands for what is not measured."""
TRIALS = 200
"""Comparisons of equal methods by which `false_alarms` measures the test."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Each seed's score by (data set, method)."""

    scores: dict[tuple[str, str], Seeds]
    sets: tuple[str, ...]
    """Every data set, measured or not, in the order of the page."""

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
        """Return the probability that a seed of `ours` scores higher than one of `theirs` on these sets."""
        return probability_of_improvement(
            [self.scores[name, ours] for name in sets], [self.scores[name, theirs] for name in sets]
        )

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
def false_alarms(seeds: int) -> float:
    """Return how often `verdict` calls one of two equal methods better, with this number of seeds."""
    equals = np.random.default_rng(0).normal(size=(TRIALS, 2, seeds))
    called = [verdict(probability_of_improvement([one], [other])) != "neither" for one, other in equals]
    return float(np.mean(called))


class Table:
    """Results by data set and method, with those that were measured again since."""

    def __init__(self, results: Iterable[Result], method_of: Callable[[dict[str, Any]], str], sets: Sequence[str]):
        """Make a table of results, the oldest first; `method_of` gives the method of a cell's config.

        `sets` are the sets of the first rows, measured or not. Of two results for one seed, the later counts.
        """
        latest: dict[tuple[str, str, int], Result] = {}
        before: dict[tuple[str, str], list[float]] = {}
        self.replaced: list[Result] = []
        """Results that were measured again with the same settings: the difference shows what chance does."""
        for result in results:
            config = result["config"]
            name, method = config["data"]["source"], method_of(config)
            old = latest.get((name, method, config["seed"]), result)
            if old != result and _settings(old) == _settings(result):
                self.replaced.append(old)
                before.setdefault((name, method), []).append(score(old))
            latest[name, method, config["seed"]] = result
        if not latest:
            raise InputError("nothing is measured yet")
        self.sets = tuple(dict.fromkeys((*sets, *(name for name, _, _ in latest))))
        self.cells: dict[tuple[str, str], list[Result]] = {}
        """The results of each set and method, by seed."""
        for name, method, seed in sorted(latest, key=lambda place: (self.sets.index(place[0]), *place[1:])):
            self.cells.setdefault((name, method), []).append(latest[name, method, seed])
        self.results = [result for some in self.cells.values() for result in some]
        self.seeds = _one("seeds", map(len, self.cells.values()))
        self.episodes = _one("episodes", (result["config"]["episodes"] for result in self.results))
        _one("data seeds", (result["config"]["data"]["seed"] for result in self.results))
        self.scores = Scores({place: np.array([*map(score, some)]) for place, some in self.cells.items()}, self.sets)
        self.before = Scores({place: np.array(some) for place, some in before.items()}, self.sets)
        """The scores of cells that were measured again, as they were before."""

    @cached_property
    def stitchings(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """What stitching did, by its name and the set: a list with one record per seed of the stitching."""
        found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
        for result in self.results:
            if result["stitched"]:
                stitching, name = result["config"]["stitching"], result["config"]["data"]["source"]
                by_seed = found.setdefault(stitching["name"], {}).setdefault(name, {})
                by_seed.setdefault(stitching["seed"], result["stitched"])
        return {name: {one: [*some.values()] for one, some in found[name].items()} for name in sorted(found)}


def _settings(result: Result) -> dict[str, Any]:
    """Return what a result depends on, except for chance: which seed stitched the data is chance."""
    config = result["config"]
    return config | {"stitching": config["stitching"] and config["stitching"] | {"seed": None}}


def _one(name: str, values: Iterable[int]) -> int:
    found = sorted(set(values))
    if len(found) > 1:
        raise InputError(f"cells with different {name} ({', '.join(map(str, found))}) make no table")
    return found[0]
