"""Statistics of scores over seeds, with confidence intervals.

A score is a seed's mean over its episodes: training is what varies, so the seeds are the sample. Intervals are 95 %
bootstrap intervals that resample the seeds within each set (Agarwal et al. 2021); one seed has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import bootstrap, trim_mean

RESAMPLES = 10_000
CONFIDENCE = 0.95

Seeds = Float[np.ndarray, " _seeds"]
"""The scores of all seeds on one set; sets may differ in their number."""


class Interval(NamedTuple):
    """An estimate and its bounds; None if there are too few seeds."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:.1f}" + ("" if self.low is None else f" [{self.low:.1f}, {self.high:.1f}]")


def interquartile_mean(*sets: Seeds) -> Interval:
    """Return the mean of the middle half of all seeds' scores on one set or several."""

    def statistic(*sets: np.ndarray, axis: int) -> np.ndarray | np.floating:
        return trim_mean(np.concatenate(sets, axis=axis), 0.25, axis=axis)

    return _with_interval(statistic, sets)


def probability_of_improvement(ours: Sequence[Seeds], theirs: Sequence[Seeds]) -> Interval:
    """Return the probability that a seed of ours scores higher than one of theirs on the same set; ties count half.

    Both hold the seeds' scores for each set; all sets count the same.
    """
    count = len(ours)

    def statistic(*sets: np.ndarray, axis: int) -> np.ndarray | np.floating:
        sets = tuple(np.moveaxis(one, axis, -1) for one in sets)
        pairs = [
            np.sign(our[..., :, None] - their[..., None, :])
            for our, their in zip(sets[:count], sets[count:], strict=True)
        ]
        return np.mean([(1 + pair.mean((-2, -1))) / 2 for pair in pairs], axis=0)

    return _with_interval(statistic, (*ours, *theirs))


def _with_interval(statistic: Callable[..., np.ndarray | np.floating], sets: Sequence[Seeds]) -> Interval:
    value = float(statistic(*sets, axis=-1))
    if min(map(len, sets)) < 2:
        return Interval(value, None, None)
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
    def of(cls, scores: Seeds) -> "Summary":
        std = float(scores.std(ddof=1)) if len(scores) > 1 else None
        return cls(tuple(scores.tolist()), float(scores.mean()), std, interquartile_mean(scores))

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
