"""Algorithm 1 on the graph: decide, walk, accept, K times.

This is what the algorithm means from the second pass on, when D_k is itself stitched:

*States.* Every state of D_k is an observed one, a node. D_k is a list of trajectories, each a sequence of visits to
nodes; a node may have many visits, but no trajectory visits one twice. A step (u, v) of D_k is either logged, with
v = u + 1, or a jump of an earlier pass, with the action and reward it was given then.

*Candidates.* For a step (u, v) of D_k, as for logged data: the nodes that some step of D_k leads to from a node near u,
and the nodes near v that D_k still visits. What is near depends on the observed states alone, so it never changes. The
candidate must come from another episode of the source data than u, and must not be v.

*Decision.* Of the candidates that pass the jump tests against the step (u, v) as it is now, the one with the highest V
(the lowest node on a tie), if its V exceeds that of v. V is 0 where an episode terminated. So the decision depends on
the step (u, v), not on the trajectory being walked.

*Walk.* Every trajectory of D_k is walked from its first visit. A jump lands on a visit of its target: the first in D_k
from which a step leaves, or else the first. From there the walk follows that visit's trajectory until it jumps again. A
jump to a node that the walk has visited is not taken, and the step is taken instead; if that too leads to a visited
node, the walk ends there. It also ends where a trajectory does, and at the horizon. It is terminated if it ends in a
state after a termination, otherwise truncated.

*Acceptance.* The walk replaces its trajectory if its return exceeds the old one by the threshold's share of the old
one's size (the paper's formula would accept any change to a trajectory of negative return).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from trajstitch.data import ragged
from trajstitch.stitching.acceptance import ChosenEdges, Rules, Summary, marked, propose, replaced_scores
from trajstitch.stitching.graph import Edges, EdgeScorer, StitchGraph
from trajstitch.stitching.jump_tests import likelihood_margin
from trajstitch.stitching.paths import Paths, choose, without_unused_jumps
from trajstitch.stitching.walk import Visited, walk

EDGES = 2**22
"""Edges that are worked on together: this bounds the memory."""

Valuer = Callable[[Integer[np.ndarray, " some"]], Float[np.ndarray, " some"]]
"""V of some nodes; a pass asks only for those that a jump may join or leave out."""


@dataclass(frozen=True)
class Decisions:
    """The jump that replaces each kind of step: a row of the chosen edges, or -1."""

    choice: Integer[np.ndarray, " kinds"]
    chosen: ChosenEdges


def one_pass(
    paths: Paths, graph: StitchGraph, scorer: EdgeScorer, value: Valuer, rules: Rules, key: PRNGKeyArray | None = None
) -> tuple[Paths, Summary]:
    """Return D_{k+1} of D_k, given V. With a key, each jump's latent is drawn from (key, source, target)."""
    return rebuild(paths, graph, decide(paths, graph, scorer, value), scorer, rules, key)


def decide(paths: Paths, graph: StitchGraph, scorer: EdgeScorer, value: Valuer) -> Decisions:
    """Return the best jump for each kind of step in D_k."""
    nodes, jumps = len(graph), paths.jumps
    kinds = nodes + len(jumps)
    visited, alive = marked(paths.node, nodes), marked(paths.kind, kinds)

    edges, usable = graph.edges, _usable(graph, visited, alive)
    kind, more = np.zeros(0, np.int64), edges.take(np.zeros(0, np.int64))
    if alive[nodes:].any():
        kind, target = _new_candidates(paths, graph, visited, alive)
        source = np.concatenate((np.arange(nodes), jumps.edges.source))[kind]
        more, kept = scorer.edges(source, target, replaced_scores(graph, jumps, kind))
        kind = kind[kept]

    following = np.concatenate((np.minimum(np.arange(nodes) + 1, nodes - 1), jumps.edges.target))
    asking, matters = np.zeros(kinds, bool), np.zeros(nodes, bool)
    asking[edges.source[usable]] = asking[kind] = True
    matters[edges.target[usable]] = matters[more.target] = matters[following[asking]] = True
    values = np.zeros(nodes, np.float32)
    values[matters] = value(np.flatnonzero(matters))
    values[graph.terminal] = 0

    # The graph has many edges: only the best of each source is kept.
    winners = [np.zeros(0, np.int64)]
    for start in range(0, len(edges), EDGES):
        rows = start + np.flatnonzero(usable[start : start + EDGES])
        best = best_of(edges.source[rows], values[edges.target[rows]], edges.target[rows], nodes)
        winners.append(rows[best[best >= 0]])
    found = edges.take(np.concatenate(winners))
    kind = np.concatenate((found.source.astype(np.int64), kind))
    found = Edges.concatenate((found, more))
    best = best_of(kind, values[found.target], found.target, kinds)
    chosen = np.flatnonzero(best >= 0)
    best[chosen[~(values[found.target[best[chosen]]] > values[following[chosen]])]] = -1
    margin = likelihood_margin(found.scores, replaced_scores(graph, jumps, kind), len(found))
    return Decisions(best, ChosenEdges(found, margin, values[found.target] - values[following[kind]]))


def _usable(graph: StitchGraph, visited: np.ndarray, alive: np.ndarray) -> Bool[np.ndarray, " edges"]:
    """Return which edges have a source that still takes its logged step and a target that is still a candidate."""
    usable = np.empty(len(graph.edges), bool)
    for start in range(0, len(usable), EDGES):
        some = slice(start, start + EDGES)
        target = graph.edges.target[some]
        usable[some] = graph.by_successor[some] & alive[np.maximum(target - 1, 0)]
        usable[some] |= graph.by_neighbour[some] & visited[target]
        usable[some] &= alive[graph.edges.source[some]]
    return usable


def best_of(
    kind: Integer[np.ndarray, " edges"],
    score: Float[np.ndarray, " edges"],
    target: Integer[np.ndarray, " edges"],
    kinds: int,
) -> Integer[np.ndarray, " kinds"]:
    """Return for each kind the row of its highest score, on a tie of the lowest target; -1 if it has none."""
    highest = np.full(kinds, -np.inf, score.dtype)
    np.maximum.at(highest, kind, score)
    top = np.flatnonzero(score == highest[kind])
    best = np.full(kinds, -1, np.int64)
    best[kind[top]] = top
    tied = top[best[kind[top]] != top]
    if len(tied):
        top = top[marked(kind[tied], kinds)[kind[top]]]
        top = top[np.lexsort((target[top], kind[top]))]
        best[kind[top][::-1]] = top[::-1]
    return best


def _new_candidates(
    paths: Paths, graph: StitchGraph, visited: np.ndarray, alive: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the candidates that earlier passes' jumps add: (kind of step, target), each pair once.

    For every step from u these are the targets of jumps from nodes near u. For jumps they are all the candidates of the
    module's definition, since the graph's edges cover logged steps only.
    """
    nodes, jumps = len(graph), paths.jumps
    numbers = np.flatnonzero(alive[nodes:])
    source, target = jumps.edges.source[numbers], jumps.edges.target[numbers]
    order = np.argsort(source, kind="stable")
    starts = np.searchsorted(source[order], np.arange(nodes + 1))

    def jump_targets(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs (position in `near`, target of a jump from that node)."""
        count = starts[near + 1] - starts[near]
        return ragged.owners(count), target[order[ragged.rows_of(starts[near], count)]]

    leaves = np.zeros(nodes, bool)
    leaves[source] = True
    pairs = np.flatnonzero(leaves[graph.neighbours.index])
    near_to = np.searchsorted(graph.neighbours.offsets, pairs, side="right") - 1
    position, reached = jump_targets(graph.neighbours.index[pairs])
    still_logged = alive[near_to[position]]
    found = [(near_to[position][still_logged], reached[still_logged])]  # a logged step's kind is the node it leaves

    owner, near_source = graph.neighbours.of(source)
    goes_on = alive[near_source]
    found.append((nodes + numbers[owner[goes_on]], near_source[goes_on] + 1))
    position, reached = jump_targets(near_source)
    found.append((nodes + numbers[owner[position]], reached))
    owner, near_target = graph.neighbours.of(target)
    there = visited[near_target]
    found.append((nodes + numbers[owner[there]], near_target[there]))

    kind, reached = (np.concatenate([one[side] for one in found]).astype(np.int64) for side in (0, 1))
    unique = np.unique(kind * nodes + reached)
    kind, reached = unique // nodes, unique % nodes
    leaving = np.concatenate((np.arange(nodes), jumps.edges.source))[kind]
    stands = np.concatenate((np.arange(nodes) + 1, jumps.edges.target))[kind]
    allowed = (graph.episode[reached] != graph.episode[leaving]) & (reached != stands)
    return kind[allowed], reached[allowed]


@dataclass(frozen=True)
class FollowDecisions:
    """Chooses how walks go on by the decisions of a pass."""

    edge: Integer[np.ndarray, " rows"]
    """The jump decided on at each row of D_k, or -1."""
    target: Integer[np.ndarray, " edges"]
    landing: Integer[np.ndarray, " nodes"]
    """The visit that a jump to each node lands on."""

    @classmethod
    def of(cls, paths: Paths, decisions: Decisions) -> "FollowDecisions":
        ends = np.zeros(len(paths.node), bool)
        ends[paths.offsets[1:] + np.arange(len(paths.lengths))] = True
        edge = np.full(len(paths.node), -1, np.int64)
        edge[~ends] = decisions.choice[paths.kind]
        landing = np.full(paths.nodes, -1, np.int64)
        for visits in (np.flatnonzero(ends), np.flatnonzero(~ends)):  # those that a step leaves take precedence
            landing[paths.node[visits[::-1]]] = visits[::-1]
        return cls(edge, decisions.chosen.edges.target, landing)

    def __call__(
        self, walker: np.ndarray, slot: np.ndarray, row: np.ndarray, visited: Visited
    ) -> tuple[np.ndarray, np.ndarray]:
        edge, onward = self.edge[row], row + 1
        jumps = edge >= 0
        jumps[jumps] = ~visited.has(slot[jumps], self.target[edge[jumps]])
        onward[jumps] = self.landing[self.target[edge[jumps]]]
        return np.where(jumps, edge, -1), onward


def rebuild(
    paths: Paths,
    graph: StitchGraph,
    decisions: Decisions,
    scorer: EdgeScorer,
    rules: Rules,
    key: PRNGKeyArray | None = None,
) -> tuple[Paths, Summary]:
    """Walk every trajectory by the decisions and accept what is better."""
    walks = walk(paths, graph, FollowDecisions.of(paths, decisions), rules.longest(paths))
    new = propose(paths, walks, decisions.chosen, scorer, rules, key)
    result = without_unused_jumps(choose(replace(paths, jumps=new.paths.jumps), new.paths, new.accepted))
    proposed, accepted = int((new.jumps > 0).sum()), int(new.accepted.sum())
    return result, Summary.of(result, proposed, accepted, int(new.jumps[new.accepted].sum()))
