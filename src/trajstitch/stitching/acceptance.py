"""From walks to D_{k+1}: fill in the jumps, and accept the rebuilt trajectories that are better."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from trajstitch.data import ragged
from trajstitch.data.ranking import with_missing_costs
from trajstitch.learning.bounds import Bounds
from trajstitch.stitching.graph import Edges, EdgeScorer, StitchGraph
from trajstitch.stitching.jump_tests import Scores, likelihood_margin
from trajstitch.stitching.paths import Jumps, Paths
from trajstitch.stitching.rewards import PlanRewards
from trajstitch.stitching.walk import Walks


@dataclass(frozen=True)
class Rules:
    """How jumps are chosen and rebuilt trajectories accepted."""

    threshold: Annotated[float, Bounds()] = 0.1
    """Share of the old return's size that a rebuilt trajectory must gain to be accepted (the paper's p̃). Larger accepts
    fewer."""
    value_test: bool = True
    """On: jump only to states of higher value. Off (greedy passes only): keep all trajectories and add likely,
    different ones, which makes the data more varied instead of better."""
    max_jumps: Annotated[int, Bounds(0)] | None = None
    """Accept only trajectories with at most this many jumps made in a pass; None: any number."""
    horizon: Annotated[int, Bounds(1)] | None = None
    """Longest trajectory that a walk may make; None: the length that one in a hundred trajectories of the data has, and
    at least two, so that one that is very long does not set it for all."""

    def longest(self, paths: Paths) -> int:
        """Return the horizon for a data set."""
        lengths = np.sort(paths.data.lengths)[::-1]
        return self.horizon or int(lengths[min(max(1, len(lengths) // 100), len(lengths) - 1)])


@dataclass(frozen=True)
class ChosenEdges:
    """The edges that walks may take, and what each gains over the step it replaces."""

    edges: Edges
    margin: Float[np.ndarray, " edges"]
    """Log-likelihood over that of the step replaced."""
    value_gain: Float[np.ndarray, " edges"]
    """V of the target less V of the next state replaced."""

    def take(self, index: Integer[np.ndarray, " some"]) -> "ChosenEdges":
        """Return some of the edges."""
        return ChosenEdges(self.edges.take(index), self.margin[index], self.value_gain[index])


@dataclass(frozen=True)
class PlannedEdges:
    """All edges of a graph, by the V of a plan: what one gains is computed when it is taken, as few ever are."""

    graph: StitchGraph
    values: Float[np.ndarray, " nodes"]

    @property
    def edges(self) -> Edges:
        return self.graph.edges

    def take(self, index: Integer[np.ndarray, " some"]) -> ChosenEdges:
        """Return some of the edges, compared with the steps logged in their place."""
        return _compared(self.graph, self.graph.edges.take(index), self.values)


@dataclass(frozen=True)
class Summary:
    """What a pass did."""

    proposed: int
    """Trajectories whose walk made a jump."""
    accepted: int
    jumps: int
    """Jumps of this pass in the accepted trajectories."""
    mean_return: float
    top_return: float
    """Mean return of the best tenth."""
    mean_length: float
    states_kept: float
    """Share of the source data's states that the result still visits."""
    cut: int = 0
    """Accepted trajectories that end before a reward that they might miss."""

    @classmethod
    def of(cls, result: Paths, proposed: int, accepted: int, jumps: int, cut: int = 0) -> "Summary":
        returns = result.returns
        top = np.sort(returns)[-max(1, round(0.1 * len(returns))) :]
        return cls(
            proposed=proposed,
            accepted=accepted,
            jumps=jumps,
            mean_return=float(returns.mean()),
            top_return=float(top.mean()),
            mean_length=float(result.lengths.mean()),
            states_kept=float(marked(result.node, result.nodes).mean()),
            cut=cut,
        )

    def __str__(self) -> str:
        ends = f" ({self.cut:,} up to a reward that they might miss)" if self.cut else ""
        return (
            f"{self.accepted:,} of {self.proposed:,} rebuilt trajectories accepted{ends}, {self.jumps:,} jumps, mean "
            f"return {self.mean_return:,.1f}, best tenth {self.top_return:,.1f}"
        )


@dataclass(frozen=True)
class Proposal:
    """What every trajectory would become."""

    paths: Paths
    jumps: Integer[np.ndarray, " episodes"]
    """Jumps that each walk made."""
    accepted: Bool[np.ndarray, " episodes"]
    """Whether the rules accept it."""


def propose(
    paths: Paths,
    walks: Walks,
    chosen: ChosenEdges | PlannedEdges,
    scorer: EdgeScorer,
    rules: Rules,
    key: PRNGKeyArray | None = None,
    jumps: Jumps | None = None,
    rewards: PlanRewards | None = None,
) -> Proposal:
    """Return the trajectories that walks make. Their jumps are added to `jumps`, or to those of the paths.

    With `rewards`, jumps are paid within the range of similar logged steps, and returns are compared as predicted.
    """
    before = paths.jumps if jumps is None else jumps
    jumped = walks.edge >= 0
    used = np.flatnonzero(marked(walks.edge[jumped], len(chosen.edges)))
    taken = chosen.take(used)
    edges = taken.edges
    action, reward = scorer.synthesise(edges.source, edges.target, key)
    if rewards is not None:
        reward = rewards.allowed.clip(edges.source, edges.target, reward).astype(np.float32)
    made = Jumps(
        replace(edges, action=action, reward=reward),
        taken.margin.astype(np.float32),
        taken.value_gain.astype(np.float32),
    )
    kind = walks.kind.astype(np.int32)
    kind[jumped] = paths.nodes + len(before) + np.searchsorted(used, walks.edge[jumped])
    together = before.followed_by(made)
    new = Paths(paths.data, walks.node, kind, walks.offsets, walks.terminated, walks.truncated, together)

    count = ragged.sums(jumped.astype(float), new.lengths).astype(int)
    accepted = count > 0
    if rules.value_test:
        by_node = None if rewards is None else rewards.logged
        accepted = _is_better(paths, new, rules.threshold, by_node)
    if rules.max_jumps is not None:
        accepted &= count <= rules.max_jumps
    return Proposal(new, count, accepted)


def _is_better(
    old: Paths, new: Paths, threshold: float, rewards: Float[np.ndarray, " nodes"] | None = None
) -> Bool[np.ndarray, " episodes"]:
    """Return which trajectories gain more than the threshold's share of their return, or of the returns' spread.

    `rewards` counts instead of the logged reward at each node.
    """
    old_return, new_return = old.returns_by(rewards), new.returns_by(rewards)
    spread = float(old.data.returns.std()) if len(old.data) else 0.0
    # A walk that is only cut off sooner has not saved the costs of the steps it lacks; nor has a trajectory that was
    # cut off earned less than a walk that merely lasts longer.
    new_return = with_missing_costs(new_return, new.lengths, new.terminated, old.lengths)
    old_return = -with_missing_costs(-old_return, old.lengths, old.terminated, new.lengths)
    return new_return > old_return + threshold * np.maximum(np.abs(old_return), spread)


def replaced_scores(graph: StitchGraph, jumps: Jumps, kind: Integer[np.ndarray, " steps"]) -> Scores:
    """Return the scores that jumps are compared with, of steps of these kinds: logged steps or earlier jumps.

    A score that jumps don't have is NaN.
    """
    unknown = np.full(len(jumps), np.nan, np.float32)
    return {
        name: np.concatenate((logged, jumps.edges.scores.get(name, unknown)))[kind]
        for name, logged in graph.logged.items()
    }


def edges_of_graph(graph: StitchGraph, values: Float[np.ndarray, " nodes"]) -> ChosenEdges:
    """Return all edges of the graph, compared with the steps logged in their place; `values` is V of every node."""
    return _compared(graph, graph.edges, values)


def _compared(graph: StitchGraph, edges: Edges, values: Float[np.ndarray, " nodes"]) -> ChosenEdges:
    replaced = {name: logged[edges.source] for name, logged in graph.logged.items()}
    following = np.minimum(edges.source + 1, len(graph) - 1)
    following = np.where(graph.last[edges.source], edges.source, following)
    gain = values[edges.target] - values[following]
    return ChosenEdges(edges, likelihood_margin(edges.scores, replaced, len(edges)), gain)


def marked(index: np.ndarray, size: int) -> Bool[np.ndarray, " size"]:
    """Return which of the numbers below `size` are in the index."""
    marks = np.zeros(size, bool)
    marks[index] = True
    return marks
