"""Algorithm 1 on the graph: decide, walk, accept, K times.

What the algorithm means from the second pass on, when D_k is itself stitched:

*States.* Every state of D_k is an observed one, a node. D_k is a list of trajectories, each a sequence of visits to
nodes; a node may have many visits, but no trajectory visits one twice. A step (u, v) of D_k is either logged, with
v = u + 1, or a jump of an earlier pass, with the action and reward it was given then.

*Candidates.* For a step (u, v) of D_k, as for logged data: the nodes that some step of D_k leads to from a node
near u, and the nodes near v that D_k still visits. What is near depends on the
observed states alone, so it never changes.
The candidate must come from another episode of the source data than u, and must not be v.

*Decision.* Of the candidates that pass the tests against the step (u, v) as it now stands, the one with the highest
V (the lowest node on a tie), if its V exceeds that of v. V is 0 where an episode terminated. So the decision belongs
to the step (u, v), whichever trajectory is being walked.

*Walk.* Every trajectory of D_k is walked from its first visit. A jump lands on a visit of its target: the first in
D_k from which a step leaves, or else the first. From there the walk follows that visit's trajectory until it jumps
again. A jump to a node that the walk has met already is not taken, and the step as it stands is; if that too leads
to a node already met, the walk ends there. It also ends where a trajectory does, and at the horizon. It is
terminated if it ends in a state after a termination, or else truncated.

*Acceptance.* The walk replaces its trajectory if its return exceeds the old one by the threshold's share of the old
one's size (the paper's formula would accept any change to a trajectory of negative return).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from trajstitch.stitching.graph import Edges, EdgeScorer, StitchGraph
from trajstitch.stitching.paths import Jumps, Paths, choose, sums, without_idle_jumps
from trajstitch.stitching.walk import Decisions, Walks, walk


@dataclass(frozen=True)
class Rules:
    """How a pass decides and accepts; the graph's tests say which jumps it may choose from."""

    threshold: float = 0.1
    """p̃: a rebuilt trajectory must be better by this share of the old return's size."""
    value_test: bool = True
    """Jump only to a higher V; else to the likeliest candidate, and accept every trajectory that changed."""
    max_jumps: int | None = None
    """Accept only trajectories with at most this many jumps made in the pass."""
    horizon: int | None = None
    """Longest trajectory that a walk may make; the data's longest if not given."""


@dataclass(frozen=True)
class Summary:
    """What a pass did."""

    proposed: int
    """Trajectories whose walk made a jump."""
    accepted: int
    jumps: int
    """Jumps in the accepted trajectories that this pass made."""
    mean_return: float
    top_return: float
    """Mean return of the best tenth."""
    mean_length: float
    states_kept: float
    """Share of the source data's states that the result still visits."""


Valuer = Callable[[Integer[np.ndarray, " some"]], Float[np.ndarray, " some"]]
"""V of some nodes; a pass asks it of those alone that a jump may join or leave out."""


def one_pass(
    paths: Paths, graph: StitchGraph, judge: EdgeScorer, value: Valuer, rules: Rules, key: PRNGKeyArray | None = None
) -> tuple[Paths, Summary]:
    """D_k to D_{k+1}, given V. With a key, each jump's latent is drawn from (key, source, target)."""
    return rebuild(paths, graph, decide(paths, graph, judge, value, rules), judge, rules, key)


def decide(paths: Paths, graph: StitchGraph, judge: EdgeScorer, value: Valuer, rules: Rules) -> Decisions:
    """The best jump for each kind of step in D_k."""
    nodes, jumps = len(graph), paths.jumps
    kinds = nodes + len(jumps)
    visited, alive = _marked(paths.node, nodes), _marked(paths.kind, kinds)

    edges, usable = graph.edges, _usable(graph, visited, alive)
    kind, more, bar = np.zeros(0, np.int64), edges.take(np.zeros(0, np.int64)), np.zeros(0, np.float32)
    if alive[nodes:].any():
        kind, target = _new_candidates(paths, graph, visited, alive)
        source = np.concatenate((np.arange(nodes), jumps.source))[kind]
        bar = np.concatenate((graph.logged, jumps.mean))[kind]
        more, kept = judge.edges(source, target, bar, graph.reach)
        kind, bar = kind[kept], bar[kept]

    following = np.concatenate((np.minimum(np.arange(nodes) + 1, nodes - 1), jumps.target))
    asking, matters = np.zeros(kinds, bool), np.zeros(nodes, bool)
    asking[edges.source[usable]] = asking[kind] = True
    matters[edges.target[usable]] = matters[more.target] = matters[following[asking]] = True
    values = np.zeros(nodes, np.float32)
    values[matters] = value(np.flatnonzero(matters))
    values[graph.terminal] = 0

    # Of the graph's edges, which are many, those alone go on that are the best of their source.
    winners = [np.zeros(0, np.int64)]
    for start in range(0, len(edges), EDGES):
        rows = start + np.flatnonzero(usable[start : start + EDGES])
        score = values[edges.target[rows]] if rules.value_test else edges.low[rows]
        best = best_of(edges.source[rows], score, edges.target[rows], nodes)
        winners.append(rows[best[best >= 0]])
    found = edges.take(np.concatenate(winners))
    kind = np.concatenate((found.source.astype(np.int64), kind))
    bar = np.concatenate((graph.logged[found.source], bar))
    found = Edges(*(np.concatenate((getattr(found, item.name), getattr(more, item.name))) for item in fields(Edges)))
    gain = values[found.target] - values[following[kind]]
    best = best_of(kind, values[found.target] if rules.value_test else found.low, found.target, kinds)
    if rules.value_test:
        chosen = np.flatnonzero(best >= 0)
        best[chosen[~(values[found.target[best[chosen]]] > values[following[chosen]])]] = -1
    return Decisions(best, found, found.low - bar, gain)


EDGES = 2**22
"""Edges that are looked at together: what bounds the memory."""


def _usable(graph: StitchGraph, visited: np.ndarray, alive: np.ndarray) -> Bool[np.ndarray, " edges"]:
    """The edges whose source still takes its logged step and whose target is still a candidate."""
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
    """For each kind the row of its highest score, on a tie of the lowest target; -1 where it has none."""
    highest = np.full(kinds, -np.inf, score.dtype)
    np.maximum.at(highest, kind, score)
    top = np.flatnonzero(score == highest[kind])
    best = np.full(kinds, -1, np.int64)
    best[kind[top]] = top
    tied = top[best[kind[top]] != top]
    if len(tied):
        top = top[_marked(kind[tied], kinds)[kind[top]]]
        top = top[np.lexsort((target[top], kind[top]))]
        best[kind[top][::-1]] = top[::-1]
    return best


def _new_candidates(
    paths: Paths, graph: StitchGraph, visited: np.ndarray, alive: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The candidates that the earlier passes' jumps bring: (kind of step, target), each pair once.

    For every step from u: the targets of jumps from nodes near u. For jumps, moreover, all the candidates of the
    module's definition; those of logged steps are the graph's edges.
    """
    nodes, jumps = len(graph), paths.jumps
    numbers = np.flatnonzero(alive[nodes:])
    source, target = jumps.source[numbers], jumps.target[numbers]
    order = np.argsort(source, kind="stable")
    starts = np.searchsorted(source[order], np.arange(nodes + 1))

    def jump_targets(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of the nodes: (its position, the target of a jump from it)."""
        count = starts[near + 1] - starts[near]
        position = np.repeat(np.arange(len(near)), count)
        inside = np.arange(len(position)) - np.repeat(np.cumsum(count) - count, count)
        return position, target[order[starts[near][position] + inside]]

    leaves = np.zeros(nodes, bool)
    leaves[source] = True
    pairs = np.flatnonzero(leaves[graph.near.index])
    near_to = np.searchsorted(graph.near.offsets, pairs, side="right") - 1
    position, reached = jump_targets(graph.near.index[pairs])
    still_logged = alive[near_to[position]]
    found = [(near_to[position][still_logged], reached[still_logged])]  # a logged step's kind is the node it leaves

    owner, near_source = graph.near.of(source)
    goes_on = alive[near_source]
    found.append((nodes + numbers[owner[goes_on]], near_source[goes_on] + 1))
    position, reached = jump_targets(near_source)
    found.append((nodes + numbers[owner[position]], reached))
    owner, near_target = graph.near.of(target)
    there = visited[near_target]
    found.append((nodes + numbers[owner[there]], near_target[there]))

    kind, reached = (np.concatenate([one[side] for one in found]).astype(np.int64) for side in (0, 1))
    unique = np.unique(kind * nodes + reached)
    kind, reached = unique // nodes, unique % nodes
    leaving = np.concatenate((np.arange(nodes), jumps.source))[kind]
    stands = np.concatenate((np.arange(nodes) + 1, jumps.target))[kind]
    allowed = (graph.episode[reached] != graph.episode[leaving]) & (reached != stands)
    return kind[allowed], reached[allowed]


@dataclass(frozen=True)
class Proposal:
    """What every trajectory would become."""

    paths: Paths
    changes: Integer[np.ndarray, " episodes"]
    """Jumps that each walk made."""
    accepted: Bool[np.ndarray, " episodes"]
    """Whether the rules accept it."""


def rebuild(
    paths: Paths,
    graph: StitchGraph,
    decisions: Decisions,
    judge: EdgeScorer,
    rules: Rules,
    key: PRNGKeyArray | None = None,
) -> tuple[Paths, Summary]:
    """Walk every trajectory by the decisions and accept what is better."""
    walks = walk(paths, graph, decisions, longest(paths, rules))
    new = propose(paths, walks, decisions, judge, rules, key)
    result = without_idle_jumps(choose(replace(paths, jumps=new.paths.jumps), new.paths, new.accepted))
    return result, summary(
        result, int((new.changes > 0).sum()), int(new.accepted.sum()), int(new.changes[new.accepted].sum())
    )


def longest(paths: Paths, rules: Rules) -> int:
    return rules.horizon or int(paths.data.lengths.max(initial=0))


def propose(
    paths: Paths,
    walks: Walks,
    decisions: Decisions,
    judge: EdgeScorer,
    rules: Rules,
    key: PRNGKeyArray | None = None,
    jumps: Jumps | None = None,
) -> Proposal:
    """The trajectories that walks make; their jumps are added to `jumps`, those of the paths unless told."""
    before = paths.jumps if jumps is None else jumps

    used = np.flatnonzero(_marked(walks.edge[walks.edge >= 0], len(decisions.edges)))
    edges = decisions.edges.take(used)
    action, reward = judge.synthesise(edges.source, edges.target, key)
    made = Jumps(
        edges.source,
        edges.target,
        edges.mean,
        action,
        reward,
        decisions.margin[used].astype(np.float32),
        decisions.value_gain[used].astype(np.float32),
    )
    both = Jumps(*(np.concatenate((getattr(before, item.name), getattr(made, item.name))) for item in fields(Jumps)))
    kind = walks.kind.astype(np.int32)
    jumped = walks.edge >= 0
    kind[jumped] = paths.nodes + len(before) + np.searchsorted(used, walks.edge[jumped])
    new = Paths(paths.data, walks.node, kind, walks.offsets, walks.terminated, walks.truncated, both)

    changes = sums(jumped.astype(float), new.lengths).astype(int)
    old_return, new_return = paths.returns, new.returns
    # A walk that is only cut off sooner has not saved the costs of the steps it lacks.
    lacking = np.where(new.terminated, 0, np.maximum(paths.lengths - new.lengths, 0))
    new_return = new_return + lacking * np.minimum(new_return / np.maximum(new.lengths, 1), 0)
    better = new_return > old_return + rules.threshold * np.abs(old_return)
    accepted = better if rules.value_test else changes > 0
    if rules.max_jumps is not None:
        accepted &= changes <= rules.max_jumps
    return Proposal(new, changes, accepted)


def _marked(index: np.ndarray, size: int) -> Bool[np.ndarray, " size"]:
    """Which of so many are in the index."""
    marks = np.zeros(size, bool)
    marks[index] = True
    return marks


def summary(result: Paths, proposed: int, accepted: int, jumps: int) -> Summary:
    returns = result.returns
    top = np.sort(returns)[-max(1, round(0.1 * len(returns))) :]
    return Summary(
        proposed=proposed,
        accepted=accepted,
        jumps=jumps,
        mean_return=float(returns.mean()),
        top_return=float(top.mean()),
        mean_length=float(result.lengths.mean()),
        states_kept=float(_marked(result.node, result.nodes).mean()),
    )
