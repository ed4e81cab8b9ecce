"""Fit report: how well a model predicts steps it was not fitted to, and whether it beats its baseline."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class FitReport:
    """A model's held-out metrics, and whether it predicts better than its baseline."""

    model: str
    beats_baseline: bool
    metrics: dict[str, float]
    """Metrics by name, such as `log_likelihood` beside `baseline`."""
    calibration: tuple[tuple[float, ...], ...] = ()
    """Of an ensemble, for each tenth of the held-out steps by how far its members are apart: the median of that, and
    the quartiles of the true error."""

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "FitReport":
        return cls(**{**stored, "calibration": tuple(map(tuple, stored.get("calibration", ())))})

    def __str__(self) -> str:
        metrics = ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in self.metrics.items())
        return f"{self.model}: {metrics}{'' if self.beats_baseline else ' (no better than its baseline)'}"


def explained(error: float, baseline: float, size: float = 0.01) -> float:
    """Return R²: the share of the baseline's squared error that a model removes.

    Where the target is a constant, so that the baseline has no error, R² is 1 if the model's error is below a
    hundredth of the target (whose mean square is `size`), and 0 if not.
    """
    return 1 - error / baseline if baseline > 1e-12 * size else float(error < 1e-4 * size)


def tenths(suspicion: Float[np.ndarray, " steps"], error: Float[np.ndarray, " steps"]) -> list[list[float]]:
    """Return quartiles of the true error in each tenth of the steps, from the least to the most suspicious."""
    parts = np.array_split(error[np.argsort(suspicion, kind="stable")], 10)
    return [np.quantile(part, (0.25, 0.5, 0.75)).tolist() for part in parts if len(part)]
