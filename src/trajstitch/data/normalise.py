"""Standardising and rescaling of the columns of data, in NumPy."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from trajstitch.data.normaliser import ROUNDING, Normaliser, mean_and_std, recorded, varies
from trajstitch.data.spaces import flat_bounds
from trajstitch.data.trajectories import Trajectories

FAR, SMALL, LARGE = 1e4, 1e-5, 1e15
"""A column is far from zero if its mean is FAR times its standard deviation: float32 would merge its values. It is odd
if its standard deviation is below SMALL or above LARGE: beside others it would vanish, or its squares overflow."""

HEAVY = 3.0
"""A column has heavy tails if its standard deviation is this many times that of its bulk: the few largest values would
make all others look alike."""
BULK = (0.05, 0.5, 0.95)
"""Quantiles of the bulk's ends and middle."""
BULK_WIDTH = 3.29
"""Standard deviations between the bulk's ends in a normal distribution."""
MOST_QUANTILE_ROWS = 100_000
"""Rows that the bulk is measured on, at most."""
IGNORED = 1e300
"""Standard deviation of a column that is ignored: divided by it, every number is 0 in float32."""

WIDEST = 1000
"""A bound that is further from the logged actions than this many times their range is ignored: a network whose output
spans it could not resolve them."""

PLAIN = (1e-3, 1e3)
"""Numbers whose largest is between these are of a size that a network can learn as they are."""


@np.errstate(over="ignore", invalid="ignore")
def robust_normaliser(rows: Float[np.ndarray, "rows columns"], epsilon: float = 0.0) -> Normaliser:
    """Return a normaliser that shows a network every column that varies, in any unit.

    - A column that is constant, but for rounding, is ignored: a network has learned nothing about another value of it.
    - A column with heavy tails is scaled by its bulk, from the 5 % to the 95 % quantile, around its median.
    - `epsilon` is added to standard deviations that exceed it.
    - Columns that float32 would lose are in double precision; if there are none, the arrays are float32.
    """
    rows = recorded(rows)
    lowest, highest = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
    size = np.maximum(np.abs(lowest), np.abs(highest))
    rounding = _rounding(rows, size)
    constant = ~(highest - lowest > rounding * size)
    mean, std = mean_and_std(rows)
    extreme = ~constant & ((size > 1e150) | (size < 1e-150))  # squares overflow or vanish
    mean[extreme], std[extreme] = (part * size[extreme] for part in mean_and_std(rows[:, extreme] / size[extreme]))
    low, middle, high = np.quantile(rows[:: 1 + len(rows) // MOST_QUANTILE_ROWS].astype(np.float64), BULK, axis=0)
    bulk = (high - low) / BULK_WIDTH
    heavy = ~constant & (HEAVY * bulk < std) & varies(high - low, np.maximum(np.abs(low), np.abs(high)), rounding)
    spread = np.where(heavy, bulk, np.where(std > epsilon, std + epsilon, std))
    exact = Normaliser(np.where(heavy, middle, mean), np.where(constant, IGNORED, spread))
    single = Normaliser(*(part.astype(np.float32) for part in exact))
    enough = ~constant & ~heavy & (std > max(SMALL, epsilon)) & (np.abs(mean) <= FAR * std) & np.isfinite(single.std)
    if enough.all():
        return single
    return Normaliser(*(np.where(enough, *parts) for parts in zip(single, exact, strict=True)))


def _rounding(
    rows: Float[np.ndarray, "rows columns"], size: Float[np.ndarray, " columns"]
) -> Float[np.ndarray, " columns"]:
    """Return the relative size of differences that may be rounding alone, by the precision of each column's values."""
    single = (rows == rows.astype(np.float32)).all(0)  # also of doubles that were float32 once
    counts = (rows == np.round(rows)).all(0) & (size < 1 << 24)  # whole numbers are exact
    return np.where(single & ~counts, ROUNDING, 1000 * float(np.finfo(np.float64).eps))


class Float32Loss(NamedTuple):
    """Columns that lose information in float32: far from zero (time stamps, map coordinates), very small or large."""

    mean: Float[np.ndarray, " columns"]
    std: Float[np.ndarray, " columns"]
    far: Bool[np.ndarray, " columns"]
    odd: Bool[np.ndarray, " columns"]

    @classmethod
    def of(cls, states: Float[np.ndarray, "rows columns"]) -> "Float32Loss":
        states = recorded(states)
        mean, std = mean_and_std(states)
        changes = varies(std, np.abs(states).max(0), 1000 * float(np.finfo(states.dtype).eps))
        return cls(mean, std, changes & (np.abs(mean) > FAR * std), changes & ((std < SMALL) | (std > LARGE)))

    def avoid(self, normaliser: Normaliser) -> Normaliser:
        """Return the normaliser with double-precision mean and standard deviation for columns that float32 loses."""
        lost = self.far | self.odd
        if not lost.any():
            return normaliser
        return Normaliser(np.where(lost, self.mean, normaliser.mean), np.where(lost, self.std, normaliser.std))


def rescale_for_float32(data: Trajectories) -> Trajectories:
    """Return the data with far columns shifted and odd ones scaled, so that nothing is lost in float32.

    They are scaled by powers of two: the same data in other units then gives the same bits.

    Data without such columns is returned unchanged.
    """
    loss = Float32Loss.of(data.observations)
    if not (loss.far | loss.odd).any():
        return data
    unit = np.exp2(np.floor(np.log2(np.where(loss.odd, loss.std, 1))))
    states = (data.observations - np.where(loss.far, loss.mean, 0)) / unit
    return replace(data, observations=states.astype(np.float32 if loss.far.any() else data.observations.dtype))


def action_bounds(data: Trajectories) -> tuple[Float[np.ndarray, " action"], Float[np.ndarray, " action"]]:
    """Return the action space's bounds, or the range of the logged actions where it has none or very wide ones."""
    low, high = data.actions.min(0).astype(np.float64), data.actions.max(0).astype(np.float64)
    if data.metadata.action_space is not None:
        space_low, space_high = flat_bounds(data.metadata.action_space)
        far = np.where(high > low, WIDEST * (high - low), np.inf)
        low, high = (
            np.where(np.isfinite(bound) & (np.abs(bound - seen) <= far), bound, seen)
            for bound, seen in ((space_low, low), (space_high, high))
        )
    high = np.where(high > low, high, low + np.where(low == 0, 1, np.abs(low)))
    return low.astype(np.float32), high.astype(np.float32)


def to_plain(values: Float[np.ndarray, " rows"]) -> float:
    """Return the power of ten that brings the largest value nearest to 1; 1 if the values are plain as they are.

    For numbers that are learned as they are, since a method was published so, but not in any unit.
    """
    size = float(np.abs(values).max(initial=0.0))
    if not np.isfinite(size) or size == 0 or PLAIN[0] <= size <= PLAIN[1]:
        return 1.0
    return float(10.0 ** -np.round(np.log10(size)))
