"""Nearby: the logged steps at and near each node of the graph, which tell what jumps from there can be trusted."""

from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from trajstitch.data import ragged
from trajstitch.learning.buffer import padded
from trajstitch.models.forward import is_moving
from trajstitch.stitching.neighbours import Neighbours

MOST = 32
"""Neighbours of a node whose steps are looked at: the nearest."""
NEAREST = 0.1
"""Share of the logged steps whose precedents are as near as a jump's has to be."""


def nearest_precedent(logged: dict[str, np.ndarray]) -> float | None:
    """Return how near one in ten logged steps has a precedent, by their scores; None where these aren't known."""
    apart = logged.get("precedent", np.empty(0))
    apart = apart[~np.isnan(apart)]
    return float(np.quantile(apart, NEAREST)) if len(apart) else None


@dataclass(frozen=True)
class Nearby:
    """The logged steps at and near each node."""

    neighbours: Neighbours
    steps: Bool[np.ndarray, " nodes"]
    """Whether a step to a known next state was logged at the node."""
    error: Float[np.ndarray, " nodes"] | None = None
    """The largest error of the forward ensemble on the steps at and near the node, if it is known."""
    usual: float = 0.0
    """Its median over the length of the step logged there."""
    precedent: float = 0.0
    """How near one in ten logged steps has a logged step of another episode that does the same, over its length."""

    @classmethod
    def of(
        cls,
        neighbours: Neighbours,
        steps: Bool[np.ndarray, " nodes"],
        logged: dict[str, np.ndarray] | None = None,
        before: "Nearby | None" = None,
    ) -> "Nearby":
        """Return what is known from the scores of logged steps by node; `before` is what was known without them."""
        logged = logged or {}
        error, usual = None, 0.0
        if "error" in logged:
            own = np.nan_to_num(logged["error"])
            error = own.copy()
            np.maximum.at(error, ragged.owners(np.diff(neighbours.offsets)), own[neighbours.index])
            known = is_moving(np.nan_to_num(logged["length"]))
            usual = float(np.median(error[known] / logged["length"][known])) if known.any() else 0.0
        made = cls(neighbours, steps, error, usual, nearest_precedent(logged) or 0.0)
        if before is not None and before.neighbours is neighbours:
            vars(made)["table"] = before.table
        return made

    @cached_property
    def table(self) -> Integer[Array, "rows most"]:
        """Each node's nearest neighbours at which a step was logged, on the device; -1 where there are no more."""
        counts = np.diff(self.neighbours.offsets)
        rank = np.arange(len(self.neighbours.index)) - np.repeat(self.neighbours.offsets[:-1], counts)
        found = np.full((len(counts), int(min(max(counts, default=0), MOST))), -1, np.int32)
        kept = (rank < MOST) & self.steps[self.neighbours.index]
        found[ragged.owners(counts)[kept], rank[kept]] = self.neighbours.index[kept]
        return jax.device_put(padded(found))
