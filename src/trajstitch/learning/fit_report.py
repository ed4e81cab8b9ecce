"""What a fitted model is worth, measured on steps it was not fitted to."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FitReport:
    """A model's marks, and whether it beats a guess that has learned nothing."""

    model: str
    learned: bool
    facts: dict[str, float]
    """Named measures, such as `log_likelihood` beside `baseline`."""

    def __str__(self) -> str:
        facts = ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in self.facts.items())
        return f"{self.model}: {facts}{'' if self.learned else ' (it learned nothing)'}"


def explained(error: float, baseline: float, size: float = 0.01) -> float:
    """R²: the share of the baseline's squared error that is gone.

    Of a constant, next to the mean square `size` of what is predicted, it is 1 if it is met to a hundredth, and else 0.
    """
    return 1 - error / baseline if baseline > 1e-12 * size else float(error <= 1e-4 * size)
