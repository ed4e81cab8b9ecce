"""Statistics of scores over seeds, with confidence intervals.

A score is a seed's mean over its episodes: training is what varies, so the seeds are the sample. Intervals are 95 %
bootstrap intervals that resample the seeds within each set (Agarwal et al. 2021); those of means are Student's, since
the bootstrap of three seeds is half as wide as it should be. Fewer than three seeds have none: a quarter of the
resamples of two are one of them twice, so the interval would be the two scores themselves. A probability of improvement
needs four on either side: two runs of three seeds each that are equally good are apart in every pair one time in ten.

Where each of several stitchings of a set has policies of its own, both vary, and policies of one stitching are no
independent sample. Such scores are given as one row per stitching, and the bootstrap is hierarchical: it draws
stitchings, and then policies within each.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import bootstrap, trim_mean
from scipy.stats import t as student

RESAMPLES = 10_000
CONFIDENCE = 0.95
FEWEST = 3
"""Seeds of a set that an interval needs."""
FEWEST_APART = 4
"""Seeds of a set that the interval of a probability of improvement needs."""

Seeds = Float[np.ndarray, " _seeds"]
"""The scores of all seeds on one set; sets may differ in their number."""
Draws = Seeds | Float[np.ndarray, "_stitchings _seeds"]
"""The scores on one set, by seed or by stitching and seed."""


class Interval(NamedTuple):
    """An estimate and its bounds; None if there are too few seeds."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:.1f}" + ("" if self.low is None else f" [{self.low:.1f}, {self.high:.1f}]")


def interquartile_mean(*sets: Draws) -> Interval:
    """Return the mean of the middle half of all seeds' scores on one set or several."""

    def statistic(*sets: np.ndarray, axis: int) -> np.ndarray | np.floating:
        return trim_mean(np.concatenate(sets, axis=axis), 0.25, axis=axis)

    return _with_interval(statistic, sets)


def mean_score(scores: Draws) -> Interval:
    """Return the mean score, with Student's interval; of one row a seed and one column an episode, over the seeds."""
    value, variance, count = _mean(scores)
    return _students(value, variance, count - 1, CONFIDENCE) if count >= FEWEST else Interval(value, None, None)


def mean_difference(ours: Draws, theirs: Draws, confidence: float = CONFIDENCE) -> Interval:
    """Return by how much our mean score is higher than theirs, with Welch's interval; rows are as of `mean_score`."""
    value, variance, count = _mean(ours)
    other, varies, number = _mean(theirs)
    if min(count, number) < FEWEST:
        return Interval(value - other, None, None)
    both = variance + varies
    freedom = both**2 / (variance**2 / (count - 1) + varies**2 / (number - 1)) if both > 0 else 1.0
    return _students(value - other, both, freedom, confidence)


def _mean(scores: Draws) -> tuple[float, float, int]:
    """Return the mean over seeds, its variance, and how many seeds there are."""
    seeds = scores.mean(1) if scores.ndim > 1 else scores
    variance = float(seeds.var(ddof=1)) / len(seeds) if len(seeds) > 1 else 0.0
    return float(seeds.mean()), variance, len(seeds)


def _students(value: float, variance: float, freedom: float, confidence: float) -> Interval:
    wide = float(student.ppf((1 + confidence) / 2, freedom)) * variance**0.5
    return Interval(value, value - wide, value + wide)


def probability_of_improvement(ours: Sequence[Draws], theirs: Sequence[Draws]) -> Interval:
    """Return the probability that a seed of ours scores higher than one of theirs on the same set; ties count half.

    Both hold the scores for each set; all sets count the same.
    """
    count = len(ours)

    def statistic(*sets: np.ndarray, axis: int) -> np.ndarray | np.floating:
        sets = tuple(np.moveaxis(one, axis, -1) for one in sets)
        pairs = [
            np.sign(our[..., :, None] - their[..., None, :])
            for our, their in zip(sets[:count], sets[count:], strict=True)
        ]
        return np.mean([(1 + pair.mean((-2, -1))) / 2 for pair in pairs], axis=0)

    return _with_interval(statistic, (*ours, *theirs), FEWEST_APART)


def _with_interval(
    statistic: Callable[..., np.ndarray | np.floating], sets: Sequence[Draws], fewest: int = FEWEST
) -> Interval:
    value = float(statistic(*map(np.ravel, sets), axis=-1))
    if min(one.size for one in sets) < fewest:
        return Interval(value, None, None)
    if any(one.ndim > 1 and len(one) > 1 for one in sets):
        random = np.random.default_rng(0)
        drawn = statistic(*(_resampled(np.atleast_2d(one), random) for one in sets), axis=-1)
        low, high = np.quantile(drawn, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
        return Interval(value, float(low), float(high))
    sets = [one.ravel() for one in sets]
    found = bootstrap(
        tuple(sets),
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        random_state=np.random.default_rng(0),  # pyright: ignore[reportCallIssue]  # `rng` came with scipy 1.15
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def _resampled(
    scores: Float[np.ndarray, "stitchings seeds"], random: np.random.Generator
) -> Float[np.ndarray, "resamples draws"]:
    """Return resamples of scores: stitchings are drawn, and then seeds within each."""
    stitchings, seeds = scores.shape
    stitching = random.integers(stitchings, size=(RESAMPLES, stitchings, 1))
    seed = random.integers(seeds, size=(RESAMPLES, stitchings, seeds))
    return scores[stitching, seed].reshape(RESAMPLES, -1)


@dataclass(frozen=True)
class Summary:
    """The seeds' scores on one set."""

    scores: tuple[float, ...]
    """One for each seed."""
    mean: float
    std: float | None
    """Standard deviation over seeds; None for one seed."""
    iqm: Interval

    @classmethod
    def of(cls, scores: Draws) -> "Summary":
        std = float(scores.std(ddof=1)) if scores.size > 1 else None
        return cls(tuple(scores.ravel().tolist()), float(scores.mean()), std, interquartile_mean(scores))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"iqm": self.iqm._asdict()}

    @classmethod
    def from_json(cls, part: dict[str, Any]) -> "Summary":
        """Return what `to_json` gave."""
        return cls(tuple(map(float, part["scores"])), part["mean"], part["std"], Interval(**part["iqm"]))

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.std is None else f" ± {self.std:.1f}")


def last_and_best(scores: Float[np.ndarray, "checkpoints seeds"]) -> tuple[Summary, Summary]:
    """Summarise the last checkpoint, by which methods are ranked, and each seed's best.

    The best one is chosen by evaluating in the environment, which offline RL may not do.
    """
    return Summary.of(scores[-1]), Summary.of(scores.max(0))
