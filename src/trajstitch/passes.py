"""Algorithm 1 on the graph: decide, walk, accept, K times.

What the algorithm means from the second pass on, when D_k is itself stitched:

*States.* Every state of D_k is an observed one, a node. D_k is a list of trajectories, each a sequence of visits to
nodes; a node may have many visits, but no trajectory visits one twice. A step (u, v) of D_k is either logged, with
v = u + 1, or a jump of an earlier pass, with the action and reward it was given then.

*Candidates.* For a step (u, v) of D_k, as for logged data: the nodes that some step of D_k leads to from a node
near u, and the nodes near v that D_k still visits. Near is a matter of the observed states, so it never changes.
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

from trajstitch.graph import Edges, Judge, StitchGraph
from trajstitch.trajectories import Provenance, Trajectories


@dataclass(frozen=True)
class Rules:
    """How a pass decides and accepts; the graph's tests say which jumps it may choose from."""

    threshold: float = 0.1
    """p̃: a rebuilt trajectory must be better by this share of the old return's size."""
    value_test: bool = True
    """Jump only to a higher V; else to the likeliest candidate, and accept every trajectory that changed."""
    most_changes: int | None = None
    """Accept only trajectories with at most this many jumps made in the pass."""
    horizon: int | None = None
    """Longest trajectory that a walk may make; the data's longest if not given."""


@dataclass(frozen=True)
class Jumps:
    """The jumps that D_k is made with, one a row."""

    source: Integer[np.ndarray, " jumps"]
    target: Integer[np.ndarray, " jumps"]
    mean: Float[np.ndarray, " jumps"]
    """logmeanexp over e of log p_e(target|source): the bar for who would replace the jump."""
    action: Float[np.ndarray, "jumps action"]
    reward: Float[np.ndarray, " jumps"]
    margin: Float[np.ndarray, " jumps"]
    """log-likelihood over that of the step the jump replaced."""
    value_gain: Float[np.ndarray, " jumps"]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Paths:
    """D_k: trajectories as visits to the source data's states. Rows and offsets are as in `Trajectories`.

    A step's kind is u where it is the step logged at node u, or the number of nodes plus a jump's number.
    """

    data: Trajectories
    node: Integer[np.ndarray, " rows"]
    kind: Integer[np.ndarray, " steps"]
    offsets: Integer[np.ndarray, " episodes+1"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]
    jumps: Jumps

    @classmethod
    def of(cls, data: Trajectories) -> "Paths":
        """D_0."""
        nothing = np.zeros(0, np.float32)
        none = np.zeros(0, np.int32)
        return cls(
            data,
            node=np.arange(len(data.observations), dtype=np.int32),
            kind=data.state_rows.astype(np.int32),
            offsets=data.offsets,
            terminated=data.episode_terminated,
            truncated=data.episode_truncated,
            jumps=Jumps(none, none, nothing, np.zeros((0, data.action_size), np.float32), nothing, nothing, nothing),
        )

    @property
    def nodes(self) -> int:
        return len(self.data.observations)

    @property
    def lengths(self) -> Integer[np.ndarray, " episodes"]:
        return np.diff(self.offsets)

    @property
    def rewards(self) -> Float[np.ndarray, " steps"]:
        """Each step's reward, in double precision."""
        return self._of_steps(self.data.rewards, self.jumps.reward)

    @property
    def returns(self) -> Float[np.ndarray, " episodes"]:
        return _sums(self.rewards, self.lengths)

    def trajectories(self) -> Trajectories:
        """D_k as a data set, with each step's provenance."""
        data, jumps = self.data, self.jumps
        stitched = self.kind >= self.nodes
        start = np.delete(self.node, self.offsets[1:] + np.arange(len(self.lengths)))
        episode = np.repeat(np.arange(len(data), dtype=np.int32), data.lengths + 1)
        inside = np.arange(self.nodes, dtype=np.int32) - np.repeat(data.first_rows, data.lengths + 1).astype(np.int32)

        def only_jumps(values: np.ndarray) -> np.ndarray:
            return self._of_steps(np.full(data.steps, np.nan, np.float32), values).astype(np.float32)

        actions = np.empty((len(self.kind), data.action_size), data.actions.dtype)
        actions[~stitched] = data.actions[self._logged_steps()]
        actions[stitched] = jumps.action[self.kind[stitched] - self.nodes]
        ends = np.zeros((2, len(self.kind)), bool)
        filled = self.lengths > 0
        ends[:, self.offsets[1:][filled] - 1] = self.terminated[filled], self.truncated[filled]
        return replace(
            data,
            observations=data.observations[self.node],
            actions=actions,
            rewards=self.rewards.astype(data.rewards.dtype),
            terminated=ends[0],
            truncated=ends[1],
            offsets=self.offsets,
            provenance=Provenance(
                source_episode=episode[start],
                source_step=inside[start],
                stitched=stitched,
                margin=only_jumps(jumps.margin),
                value_gain=only_jumps(jumps.value_gain),
                predicted_reward=only_jumps(jumps.reward),
            ),
        )

    def _of_steps(self, logged: np.ndarray, jumps: np.ndarray) -> Float[np.ndarray, " steps"]:
        values = np.empty(len(self.kind))
        stitched = self.kind >= self.nodes
        values[~stitched] = logged[self._logged_steps()]
        values[stitched] = jumps[self.kind[stitched] - self.nodes]
        return values

    def _logged_steps(self) -> Integer[np.ndarray, " logged"]:
        """The source data's step behind each logged one: its node less one final row for each episode before."""
        step_of_node = np.zeros(self.nodes, np.int64)
        step_of_node[self.data.state_rows] = np.arange(self.data.steps)
        return step_of_node[self.kind[self.kind < self.nodes]]


@dataclass(frozen=True)
class Decisions:
    """The jump that each kind of step is replaced by: a row of `edges`, or -1."""

    choice: Integer[np.ndarray, " kinds"]
    edges: Edges
    margin: Float[np.ndarray, " edges"]
    value_gain: Float[np.ndarray, " edges"]


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
    paths: Paths, graph: StitchGraph, judge: Judge, value: Valuer, rules: Rules, key: PRNGKeyArray | None = None
) -> tuple[Paths, Summary]:
    """D_k to D_{k+1}, given V. With a key, each jump's latent is drawn from (key, source, target)."""
    return rebuild(paths, graph, decide(paths, graph, judge, value, rules), judge, rules, key)


def decide(paths: Paths, graph: StitchGraph, judge: Judge, value: Valuer, rules: Rules) -> Decisions:
    """The best jump for each kind of step in D_k."""
    nodes, jumps = len(graph), paths.jumps
    kinds = nodes + len(jumps)
    visited, alive = np.zeros(nodes, bool), np.zeros(kinds, bool)
    visited[paths.node] = True
    alive[paths.kind] = True

    edges = graph.edges
    there = (graph.by_successor & alive[np.maximum(edges.target - 1, 0)]) | (graph.by_neighbour & visited[edges.target])
    usable = np.flatnonzero(there & alive[edges.source])
    found, kind = edges.take(usable), edges.source[usable].astype(np.int64)
    bar = graph.logged[found.source]
    if alive[nodes:].any():
        more_kind, target = _new_candidates(paths, graph, visited, alive)
        source = np.concatenate((np.arange(nodes), jumps.source))[more_kind]
        more_bar = np.concatenate((graph.logged, jumps.mean))[more_kind]
        more, kept = judge.edges(source, target, more_bar, graph.reach)
        found = Edges(
            *(np.concatenate((getattr(found, item.name), getattr(more, item.name))) for item in fields(Edges))
        )
        kind, bar = np.concatenate((kind, more_kind[kept])), np.concatenate((bar, more_bar[kept]))

    following = np.concatenate((np.minimum(np.arange(nodes) + 1, nodes - 1), jumps.target))
    matters = np.zeros(nodes, bool)
    matters[found.target] = matters[following[kind]] = True
    values = np.zeros(nodes, np.float32)
    values[matters] = value(np.flatnonzero(matters))
    values[graph.terminal] = 0
    gain = values[found.target] - values[following[kind]]
    score = values[found.target] if rules.value_test else found.low
    best = best_of(kind, score, found.target, kinds)
    if rules.value_test:
        chosen = np.flatnonzero(best >= 0)
        best[chosen[~(values[found.target[best[chosen]]] > values[following[chosen]])]] = -1
    return Decisions(best, found, found.low - bar, gain)


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
    top = top[np.lexsort((target[top], kind[top]))]
    best = np.full(kinds, -1, np.int64)
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


def rebuild(
    paths: Paths,
    graph: StitchGraph,
    decisions: Decisions,
    judge: Judge,
    rules: Rules,
    key: PRNGKeyArray | None = None,
) -> tuple[Paths, Summary]:
    """Walk every trajectory by the decisions and accept what is better."""
    horizon = rules.horizon or int(paths.data.lengths.max(initial=0))
    walks = walk(paths, graph, decisions, horizon)

    used = np.unique(walks.edge[walks.edge >= 0])
    edges = decisions.edges.take(used)
    action, reward = judge.imagine(edges.source, edges.target, key)
    made = Jumps(
        edges.source,
        edges.target,
        edges.mean,
        action,
        reward,
        decisions.margin[used].astype(np.float32),
        decisions.value_gain[used].astype(np.float32),
    )
    number = np.full(len(decisions.edges), -1, np.int64)
    number[used] = paths.nodes + len(paths.jumps) + np.arange(len(used))
    jumps = Jumps(
        *(np.concatenate((getattr(paths.jumps, item.name), getattr(made, item.name))) for item in fields(Jumps))
    )
    kind = walks.kind.astype(np.int32)
    kind[walks.edge >= 0] = number[walks.edge[walks.edge >= 0]]
    new = Paths(paths.data, walks.node, kind, walks.offsets, walks.terminated, walks.truncated, jumps)

    changes = _sums((walks.edge >= 0).astype(float), new.lengths).astype(int)
    old_return, new_return = paths.returns, new.returns
    better = new_return > old_return + rules.threshold * np.abs(old_return)
    accepted = better if rules.value_test else changes > 0
    if rules.most_changes is not None:
        accepted &= changes <= rules.most_changes
    result = _without_idle_jumps(_choose(replace(paths, jumps=jumps), new, accepted))
    returns = result.returns
    top = np.sort(returns)[-max(1, round(0.1 * len(returns))) :]
    return result, Summary(
        proposed=int((changes > 0).sum()),
        accepted=int(accepted.sum()),
        jumps=int(changes[accepted].sum()),
        mean_return=float(returns.mean()),
        top_return=float(top.mean()),
        mean_length=float(result.lengths.mean()),
        states_kept=float(len(np.unique(result.node)) / result.nodes),
    )


@dataclass(frozen=True)
class Walks:
    """What came of every trajectory's walk; rows and offsets are as in `Paths`."""

    node: Integer[np.ndarray, " rows"]
    kind: Integer[np.ndarray, " steps"]
    """The step as it stood in D_k, whether taken or replaced by a jump."""
    edge: Integer[np.ndarray, " steps"]
    """The jump taken: a row of the decisions' edges, or -1."""
    offsets: Integer[np.ndarray, " episodes+1"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]


def walk(paths: Paths, graph: StitchGraph, decisions: Decisions, horizon: int) -> Walks:
    """All walks at once, step by step together (or as many at once as the memory of what they met allows)."""
    episodes = len(paths.lengths)
    first = paths.offsets[:-1] + np.arange(episodes)
    ends = np.zeros(len(paths.node), bool)
    ends[first + paths.lengths] = True
    trajectory = np.repeat(np.arange(episodes), paths.lengths + 1)
    kind = np.full(len(paths.node), -1, np.int64)
    kind[~ends] = paths.kind
    edge = np.where(ends, -1, decisions.choice[kind])
    landing = _landings(paths, ends)
    targets = decisions.edges.target
    terminated, truncated = paths.terminated.copy(), paths.truncated.copy()
    steps: list[tuple[np.ndarray, ...]] = []
    together = max(1, MET_SLOTS // _Met.slots(horizon + 1))
    for start in range(0, episodes, together):
        walker = np.arange(start, min(start + together, episodes))
        at = first[walker]
        met = _Met(start, len(walker), horizon + 1)
        met.add(walker, paths.node[at])
        walker, at = walker[~ends[at]], at[~ends[at]]
        for time in range(horizon):
            if not len(walker):
                break
            jump = edge[at]
            wanted = jump >= 0
            wanted[wanted] = ~met.has(walker[wanted], targets[jump[wanted]])
            onward = at + 1
            onward[wanted] = landing[targets[jump[wanted]]]
            node = paths.node[onward]
            stuck = ~met.add(walker, node)
            if stuck.any():
                terminated[walker[stuck]], truncated[walker[stuck]] = False, True
                walker, at, jump, onward, wanted, node = (
                    part[~stuck] for part in (walker, at, jump, onward, wanted, node)
                )
            steps.append((walker, np.full(len(walker), time), kind[at], np.where(wanted, jump, -1), node))

            done = ends[onward]
            if done.any():
                jumped, stepped = done & wanted, done & ~wanted
                terminated[walker[jumped]] = graph.terminal[node[jumped]]
                truncated[walker[jumped]] = ~graph.terminal[node[jumped]]
                joined = trajectory[onward[stepped]]
                terminated[walker[stepped]], truncated[walker[stepped]] = (
                    paths.terminated[joined],
                    paths.truncated[joined],
                )
                walker, onward = walker[~done], onward[~done]
            at = onward
        terminated[walker], truncated[walker] = False, True  # the horizon
    return _in_order(steps, paths.node[first], terminated, truncated)


MET_SLOTS = 2**26
"""Slots of memory for what the walks have met: 256 MiB."""


def _in_order(
    steps: list[tuple[np.ndarray, ...]], first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> Walks:
    """Put steps (walker, time, kind, edge, node) into the order of trajectories."""
    episodes = len(first)
    nothing = (np.zeros(0, np.int64),) * 5
    walker, time, kind, edge, node = (np.concatenate(part) for part in zip(nothing, *steps, strict=True))
    lengths = np.bincount(walker, minlength=episodes)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    place = offsets[walker] + time
    by_place = np.empty(len(place), np.int64)
    by_place[place] = np.arange(len(place))
    nodes = np.empty(len(place) + episodes, np.int32)
    nodes[offsets[:-1] + np.arange(episodes)] = first
    nodes[place + walker + 1] = node
    return Walks(nodes, kind[by_place], edge[by_place], offsets, terminated, truncated)


def _landings(paths: Paths, ends: Bool[np.ndarray, " rows"]) -> Integer[np.ndarray, " nodes"]:
    """The visit that a jump to each node lands on: the first that goes on, or else the first; -1 without a visit."""
    landing = np.full(paths.nodes, -1, np.int64)
    for visits in (np.flatnonzero(ends), np.flatnonzero(~ends)):
        landing[paths.node[visits[::-1]]] = visits[::-1]
    return landing


class _Met:
    """Which nodes each walk has met: one small hash table a walk, probed for all walks at once."""

    def __init__(self, first: int, walks: int, most: int) -> None:
        """For the walks from number `first` on, which meet at most so many nodes."""
        self.first, self.size = first, self.slots(most)
        self.table = np.full(walks * self.size, -1, np.int32)

    @staticmethod
    def slots(most: int) -> int:
        return 1 << int(2 * most - 1).bit_length()

    def _slot(self, walks: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slot that holds each node, or the free one where it belongs; and whether it is held."""
        base = (walks - self.first) * self.size
        probe = (nodes.astype(np.int64) * 2_654_435_761 >> 7) & (self.size - 1)
        slot = base + probe
        held = self.table[slot]
        pending = np.flatnonzero((held != nodes) & (held >= 0))
        while len(pending):
            probe[pending] = (probe[pending] + 1) & (self.size - 1)
            slot[pending] = base[pending] + probe[pending]
            held[pending] = self.table[slot[pending]]
            pending = pending[(held[pending] != nodes[pending]) & (held[pending] >= 0)]
        return slot, held == nodes

    def has(self, walks: np.ndarray, nodes: np.ndarray) -> Bool[np.ndarray, " walks"]:
        return self._slot(walks, nodes)[1]

    def add(self, walks: np.ndarray, nodes: np.ndarray) -> Bool[np.ndarray, " walks"]:
        """Whether each node is new to its walk; from now on it is met."""
        slot, held = self._slot(walks, nodes)
        self.table[slot] = nodes
        return ~held


def _choose(old: Paths, new: Paths, accepted: Bool[np.ndarray, " episodes"]) -> Paths:
    """Trajectory by trajectory, the new one where accepted."""
    lengths = np.where(accepted, new.lengths, old.lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    node = np.empty(offsets[-1] + len(lengths), np.int32)
    kind = np.empty(offsets[-1], np.int32)
    for source, chosen in ((old, ~accepted), (new, accepted)):
        for extra, into, values in ((1, node, source.node), (0, kind, source.kind)):
            shift = np.arange(len(lengths)) * extra
            count = (lengths + extra)[chosen]
            inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            here = np.repeat((offsets[:-1] + shift)[chosen], count) + inside
            into[here] = values[np.repeat((source.offsets[:-1] + shift)[chosen], count) + inside]
    return replace(
        old,
        node=node,
        kind=kind,
        offsets=offsets,
        terminated=np.where(accepted, new.terminated, old.terminated),
        truncated=np.where(accepted, new.truncated, old.truncated),
    )


def _without_idle_jumps(paths: Paths) -> Paths:
    """Forget the jumps that no trajectory makes any more."""
    used, number = np.unique(paths.kind[paths.kind >= paths.nodes] - paths.nodes, return_inverse=True)
    kind = paths.kind.copy()
    kind[kind >= paths.nodes] = paths.nodes + number
    jumps = Jumps(*(getattr(paths.jumps, item.name)[used] for item in fields(Jumps)))
    return replace(paths, kind=kind, jumps=jumps)


def _sums(values: Float[np.ndarray, " steps"], lengths: Integer[np.ndarray, " episodes"]) -> np.ndarray:
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths), values, minlength=len(lengths))
