"""Walking every trajectory anew by the decisions of a pass, all at once; `passes` says what a walk is."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer

from trajstitch.stitching.graph import Edges, StitchGraph
from trajstitch.stitching.paths import Paths


@dataclass(frozen=True)
class Decisions:
    """The jump that each kind of step is replaced by: a row of `edges`, or -1."""

    choice: Integer[np.ndarray, " kinds"]
    edges: Edges
    margin: Float[np.ndarray, " edges"]
    value_gain: Float[np.ndarray, " edges"]


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
    together = max(1, VISITED_SLOTS // Visited.slots(horizon + 1))
    for start in range(0, episodes, together):
        walker = np.arange(start, min(start + together, episodes))
        at = first[walker]
        met = Visited(start, len(walker), horizon + 1)
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
    return in_order(steps, paths.node[first], terminated, truncated)


VISITED_SLOTS = 2**26
"""Slots of memory for what the walks have met: 256 MiB."""


def in_order(
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


class Visited:
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
