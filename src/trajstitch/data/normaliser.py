"""Mean and standard deviation of columns. Needs NumPy alone: policies are deployed with it."""

from typing import Any, NamedTuple

import numpy as np

ROUNDING = 1e-6
"""Relative size of differences that may be rounding alone: float32 keeps 6e-8."""


def varies(std: Any, size: Any, rounding: Any = ROUNDING) -> np.ndarray:
    """Return whether a standard deviation exceeds the rounding error of numbers of this size; a constant's doesn't.

    No size is absolute: a column may be in any unit.
    """
    return std > rounding * size


def recorded(rows: np.ndarray) -> np.ndarray:
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
    def of(cls, rows: np.ndarray, epsilon: float = 0.0) -> "Normaliser":
        """Compute them in double precision; `epsilon` is added to the standard deviation of columns that vary.

        Rows of states that were not recorded don't count.
        """
        rows = recorded(rows)
        mean, std = mean_and_std(rows)
        return cls(mean, np.where(varies(std, np.abs(mean)), std + epsilon, 1.0))

    @classmethod
    def of_changes(cls, changes: np.ndarray, states: np.ndarray) -> "Normaliser":
        """Return the normaliser of changes; a column that never changes is in units of its states' spread.

        In raw units, the smallest error in a column of tiny units would outweigh all others.
        """
        mean, std = mean_and_std(recorded(changes))
        return cls(mean, np.where(varies(std, np.ptp(recorded(states), axis=0)), std, cls.of(states).std))

    def apply(self, rows: Any) -> Any:
        return (rows - self.mean) / self.std

    def undo(self, rows: Any) -> Any:
        return rows * self.std + self.mean


def mean_and_std(rows: np.ndarray) -> tuple[Any, Any]:
    """Return each column's, in double precision."""
    return rows.mean(0, dtype=np.float64), rows.std(0, dtype=np.float64)
