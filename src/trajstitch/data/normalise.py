"""Standardising and rescaling of columns: every mean and standard deviation of the project, in NumPy."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from trajstitch.data.spaces import flat_bounds
from trajstitch.data.trajectories import Trajectories

ROUNDING = 1e-6
"""Relative size of differences that may be rounding alone: float32 keeps 6e-8."""
FAR, SMALL = 1e4, 1e-5
"""A column is far from zero if its mean is FAR times its standard deviation: float32 would merge its values. It is
small if its standard deviation is below SMALL: it would count as constant."""

WIDEST = 1000
"""A bound that is further from the logged actions than this many times their range (or 1) is ignored: a network whose
output spans it could not resolve them."""


def varies(std: Any, size: Any, rounding: float = ROUNDING) -> Bool[np.ndarray, "..."]:
    """Return whether a standard deviation exceeds the rounding error of numbers of this size; a constant's doesn't."""
    return std > rounding * size


def recorded(rows: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
    """Return the rows that are not NaN in every column: those stand for states that were not recorded."""
    if not rows.shape[1] or not np.isnan(rows[:, 0]).any():
        return rows
    return rows[~np.isnan(rows).all(1)]


class Normaliser(NamedTuple):
    """Mean and standard deviation of each column; a constant column has the standard deviation 1.

    Arrays may be NumPy's or JAX's.
    """

    mean: Any
    std: Any

    @classmethod
    def of(cls, rows: Float[np.ndarray, "rows columns"], epsilon: float = 0.0) -> "Normaliser":
        """Compute them in double precision; `epsilon` is added to the standard deviation of columns that vary.

        Rows of states that were not recorded don't count.
        """
        rows = recorded(rows)
        mean, std = rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
        return cls(mean, np.where(varies(std, 1 + np.abs(mean)), std + epsilon, 1.0))

    def apply(self, rows: Any) -> Any:
        return (rows - self.mean) / self.std

    def undo(self, rows: Any) -> Any:
        return rows * self.std + self.mean


class Float32Loss(NamedTuple):
    """Columns that lose information in float32: far from zero (time stamps, map coordinates) or very small."""

    mean: Float[np.ndarray, " columns"]
    std: Float[np.ndarray, " columns"]
    far: Bool[np.ndarray, " columns"]
    small: Bool[np.ndarray, " columns"]

    @classmethod
    def of(cls, states: Float[np.ndarray, "rows columns"]) -> "Float32Loss":
        states = recorded(states)
        mean, std = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64)
        changes = varies(std, np.abs(states).max(0), 1000 * float(np.finfo(states.dtype).eps))
        return cls(mean, std, changes & (np.abs(mean) > FAR * std), changes & (std < SMALL))

    def avoid(self, normaliser: Normaliser) -> Normaliser:
        """Return the normaliser with double-precision mean and standard deviation for columns that float32 loses."""
        lost = self.far | self.small
        if not lost.any():
            return normaliser
        return Normaliser(np.where(lost, self.mean, normaliser.mean), np.where(lost, self.std, normaliser.std))


def rescale_for_float32(data: Trajectories) -> Trajectories:
    """Return the data as float32 with far columns shifted and small ones scaled up, so that nothing is lost.

    Data without such columns is returned unchanged.
    """
    loss = Float32Loss.of(data.observations)
    if not (loss.far | loss.small).any():
        return data
    states = (data.observations - np.where(loss.far, loss.mean, 0)) / np.where(loss.small, loss.std, 1)
    return replace(data, observations=states.astype(np.float32))


def action_bounds(data: Trajectories) -> tuple[Float[np.ndarray, " action"], Float[np.ndarray, " action"]]:
    """Return the action space's bounds, or the range of the logged actions where it has none or very wide ones."""
    low, high = data.actions.min(0).astype(np.float64), data.actions.max(0).astype(np.float64)
    if data.metadata.action_space is not None:
        space_low, space_high = flat_bounds(data.metadata.action_space)
        far = WIDEST * np.maximum(high - low, 1)
        low, high = (
            np.where(np.abs(bound - seen) <= far, bound, seen) for bound, seen in ((space_low, low), (space_high, high))
        )
    high = np.where(high > low, high, low + 1)
    return low.astype(np.float32), high.astype(np.float32)
