"""The jumps of a stitched data set, one a row: where from, what was predicted, and how the tests scored them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from trajstitch.data import ragged
from trajstitch.data.trajectories import Trajectories
from trajstitch.stitching.graph import StitchGraph


@dataclass(frozen=True, eq=False)
class JumpTable:
    """Every jump of a stitched data set; NaN where a number is not known."""

    step: Integer[np.ndarray, " jumps"]
    """The step of the stitched data that it is."""
    reward: Float[np.ndarray, " jumps"]
    """The predicted reward."""
    logged_reward: Float[np.ndarray, " jumps"]
    """The reward logged in the same state, for the step that was taken there."""
    margin: Float[np.ndarray, " jumps"]
    """Log-likelihood over that of the step it replaces."""
    scores: dict[str, Float[np.ndarray, " jumps"]]
    """What each jump test measured, by name."""
    miss: Float[np.ndarray, " jumps"]
    """By which share of its length it misses its target in the simulator."""

    def __len__(self) -> int:
        return len(self.step)


def jump_table(
    before: Trajectories | None,
    after: Trajectories,
    graph: StitchGraph | None = None,
    misses: dict[str, np.ndarray] | None = None,
) -> JumpTable:
    """Return the jumps of a stitching of `before`; `misses` is what the simulator check found, by step."""
    origin = after.provenance
    step = np.zeros(0, np.int64) if origin is None else np.flatnonzero(origin.stitched)
    unknown = np.full(len(step), np.nan)
    logged, scores, miss = unknown.copy(), {}, unknown.copy()
    # In data that was stitched before, provenance tells the states of its source, not of the data itself.
    if origin is not None and before is not None and before.provenance is None:
        episode, within = origin.source_episode[step], origin.source_step[step]
        inside = within < before.lengths[episode]
        logged[inside] = before.rewards[before.offsets[episode[inside]] + within[inside]]
        if graph is not None:
            scores = _scores(graph, before, before.first_rows[episode] + within, _next_states(after, step))
    if misses is not None:
        at = np.searchsorted(step, misses["step"])
        ours = at < len(step)
        ours[ours] = step[at[ours]] == misses["step"][ours]
        miss[at[ours]] = misses["ratio"][ours]
    margin = unknown if origin is None else origin.margin[step].astype(np.float64)
    return JumpTable(step, after.rewards[step].astype(np.float64), logged, margin, scores, miss)


def _next_states(after: Trajectories, step: Integer[np.ndarray, " jumps"]) -> Float[np.ndarray, "jumps columns"]:
    return after.observations[after.state_rows[step] + 1]


def _scores(
    graph: StitchGraph, before: Trajectories, source: np.ndarray, arrival: Float[np.ndarray, "jumps columns"]
) -> dict[str, Float[np.ndarray, " jumps"]]:
    """Return the scores of the graph's edges that jumps took: from the same node, to a node with the state arrived at.

    A greedy pass also makes jumps that are no edges of the graph, from where an earlier one led: they stay NaN.
    """
    offsets = graph.offsets
    counts = (offsets[source + 1] - offsets[source]).astype(np.int64)
    edge = ragged.rows_of(offsets[source].astype(np.int64), counts)
    jump = ragged.owners(counts)
    found = np.full(len(source), -1, np.int64)
    states = before.filled().observations
    for first in range(0, len(edge), BLOCK):
        some = slice(first, first + BLOCK)
        same = (states[graph.edges.target[edge[some]]] == arrival[jump[some]]).all(1)
        found[jump[some][same]] = edge[some][same]
    known = found >= 0
    scores = {}
    for name, values in graph.edges.scores.items():
        scores[name] = np.full(len(source), np.nan)
        scores[name][known] = values[found[known]]
    return scores


BLOCK = 2**18
"""Edges that are compared at once, which bounds the memory."""
