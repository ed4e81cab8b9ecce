"""What D4RL's sets hold, and how far a set of ours is from its original.

The facts are those of D4RL v2 as public run logs print them. Those of medium-expert follow from its two halves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

TOLERANCES = {"transitions": 0.1, "trajectories": 0.1, "mean": 0.05, "sd": 0.3, "best": 0.1}
"""How far, as a share of the original's, each fact of a twin may be from it."""


@dataclass(frozen=True)
class SetFacts:
    """The size of a set, and the returns of its trajectories."""

    trajectories: int
    transitions: int
    mean: float
    sd: float
    worst: float
    best: float

    @classmethod
    def of(cls, returns: Float[np.ndarray, " episodes"], transitions: int) -> "SetFacts":
        """Return the facts of a set with trajectories of these returns."""
        return cls(
            len(returns),
            transitions,
            float(returns.mean()),
            float(returns.std()),
            float(returns.min()),
            float(returns.max()),
        )

    def __add__(self, other: "SetFacts") -> "SetFacts":
        """Return the facts of both sets together."""
        count = self.trajectories + other.trajectories
        mean = (self.trajectories * self.mean + other.trajectories * other.mean) / count
        squares = sum(one.trajectories * (one.sd**2 + one.mean**2) for one in (self, other)) / count
        return SetFacts(
            count,
            self.transitions + other.transitions,
            mean,
            math.sqrt(squares - mean**2),
            min(self.worst, other.worst),
            max(self.best, other.best),
        )


_FACTS = {
    "hopper/medium": SetFacts(2186, 999_906, 1422, 379, 316, 3222),
    "hopper/medium-replay": SetFacts(2041, 402_000, 467, 511, -1, 3193),
    "hopper/expert": SetFacts(1027, 999_494, 3511, 329, 1645, 3759),
    "halfcheetah/medium": SetFacts(1000, 1_000_000, 4770, 356, -310, 5309),
    "halfcheetah/medium-replay": SetFacts(202, 202_000, 3093, 1681, -638, 4985),
    "halfcheetah/expert": SetFacts(1000, 1_000_000, 10656, 442, 2046, 11252),
    "walker2d/medium": SetFacts(1190, 999_995, 2852, 1095, -7, 4227),
    "walker2d/medium-replay": SetFacts(1093, 302_000, 683, 896, -50, 4132),
    "walker2d/expert": SetFacts(1000, 999_214, 4921, 136, 763, 5012),
}
_TASKS = ("hopper", "walker2d", "halfcheetah")
D4RL: Mapping[str, SetFacts] = _FACTS | {
    f"{task}/medium-expert": _FACTS[f"{task}/medium"] + _FACTS[f"{task}/expert"] for task in _TASKS
}


def scaled(ours: SetFacts, original: SetFacts) -> SetFacts:
    """Return the facts of a set with as many trajectories and transitions as it had at the original's size.

    Where less than half of the original is collected, the size says nothing, but the length of the trajectories does.
    """
    ratio = original.transitions / ours.transitions
    if ratio < 2:
        return ours
    return replace(ours, trajectories=round(ours.trajectories * ratio), transitions=original.transitions)


def misses(ours: SetFacts, original: SetFacts, *names: str) -> dict[str, float]:
    """Return how far these facts (all that have a tolerance, if none are named) are off, as shares of the original's.

    A positive share is too much.
    """
    return {name: getattr(ours, name) / getattr(original, name) - 1 for name in names or TOLERANCES}


def distance(ours: SetFacts, original: SetFacts, *names: str) -> float:
    """Return the sum of the misses, each in units of its tolerance."""
    return sum(abs(miss) / TOLERANCES[name] for name, miss in misses(ours, original, *names).items())
