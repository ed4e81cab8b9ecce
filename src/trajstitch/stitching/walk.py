"""The walking loop: rebuild many trajectories at once, step by step together, visiting no state twice.

How a walk goes on is decided by a `Chooser`: by the decisions of a greedy pass (`greedy.FollowDecisions`), or by a plan
with capacity (`capacity.BestFreeAction`). What a walk is stands in `greedy`.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Integer

from trajstitch.data import ragged
from trajstitch.stitching.graph import StitchGraph
from trajstitch.stitching.paths import Paths

VISITED_SLOTS = 2**26
"""Slots of memory for the states that walks have visited: 256 MiB."""


@dataclass(frozen=True)
class Walks:
    """Every trajectory's walk; rows and offsets are as in `Paths`."""

    node: Integer[np.ndarray, " rows"]
    kind: Integer[np.ndarray, " steps"]
    """The kind of the step in D_k, taken or replaced by a jump."""
    edge: Integer[np.ndarray, " steps"]
    """The jump taken: a row of the chooser's edges, or -1."""
    offsets: Integer[np.ndarray, " episodes_plus_1"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]

    def cut(self, lengths: Integer[np.ndarray, " episodes"]) -> "Walks":
        """Return the walks ended after this many steps of each; those that lose steps are truncated."""
        before = np.diff(self.offsets)
        shorter = lengths < before
        steps = ragged.rows_of(self.offsets[:-1], lengths)
        rows = ragged.rows_of(self.offsets[:-1] + np.arange(len(lengths)), lengths + 1)
        return Walks(
            node=self.node[rows],
            kind=self.kind[steps],
            edge=self.edge[steps],
            offsets=ragged.offsets_of(lengths),
            terminated=self.terminated & ~shorter,
            truncated=self.truncated | shorter,
        )


@runtime_checkable
class Chooser(Protocol):
    """Decides how walks go on."""

    def __call__(
        self,
        walker: Integer[np.ndarray, " walks"],
        slot: Integer[np.ndarray, " walks"],
        row: Integer[np.ndarray, " walks"],
        visited: "Visited",
    ) -> tuple[Integer[np.ndarray, " walks"], Integer[np.ndarray, " walks"]]:
        """Return the edge that each walk jumps along (-1: it takes its step) and the row of D_k that it goes on from.

        `walker` is the number of the walk's trajectory, `slot` its place in `visited` and `row` where it stands in D_k.
        A row of -1 ends the walk; so does a row whose state it has visited.
        """
        ...


def walk(
    paths: Paths,
    graph: StitchGraph,
    choose: Chooser,
    horizon: int,
    walkers: Integer[np.ndarray, " walks"] | None = None,
    *,
    beyond_ends: bool = False,
) -> Walks:
    """Walk these trajectories (all, if not given) from their first states, for at most `horizon` steps.

    With `beyond_ends`, the chooser is also asked where a log breaks off: a walk may jump on from there.

    As many walk together as the memory for visited states allows. A trajectory that does not walk gets no steps.
    """
    walkers = np.arange(len(paths.lengths)) if walkers is None else walkers
    first = paths.offsets[:-1] + np.arange(len(paths.lengths))
    ends = np.zeros(len(paths.node), bool)
    ends[first + paths.lengths] = True
    trajectory = ragged.owners(paths.lengths + 1)
    kind = np.full(len(paths.node), -1, np.int64)
    kind[~ends] = paths.kind
    terminated, truncated = paths.terminated.copy(), paths.truncated.copy()
    steps: list[tuple[np.ndarray, ...]] = []
    together = max(1, VISITED_SLOTS // Visited.slots(horizon + 1))
    for start in range(0, len(walkers), together):
        walker = walkers[start : start + together]
        slot, row = np.arange(len(walker)), first[walker]
        visited = Visited(len(walker), horizon + 1)
        visited.add(slot, paths.node[row])
        walker, slot, row = (part[~ends[row]] for part in (walker, slot, row))
        for time in range(horizon):
            if not len(walker):
                break
            edge, onward = choose(walker, slot, row, visited)
            goes_on = onward >= 0
            node = paths.node[onward]
            goes_on[goes_on] = visited.add(slot[goes_on], node[goes_on])
            if not goes_on.all():
                terminated[walker[~goes_on]], truncated[walker[~goes_on]] = False, True
                walker, slot, row, edge, onward, node = (
                    part[goes_on] for part in (walker, slot, row, edge, onward, node)
                )
            steps.append((walker, np.full(len(walker), time), kind[row], edge, node))

            done = ends[onward] & (graph.terminal[node] | (not beyond_ends))
            if done.any():
                jumped, stepped = done & (edge >= 0), done & (edge < 0)
                terminated[walker[jumped]] = graph.terminal[node[jumped]]
                truncated[walker[jumped]] = ~graph.terminal[node[jumped]]
                joined = trajectory[onward[stepped]]
                terminated[walker[stepped]] = paths.terminated[joined]
                truncated[walker[stepped]] = paths.truncated[joined]
                walker, slot, onward = walker[~done], slot[~done], onward[~done]
            row = onward
        terminated[walker], truncated[walker] = False, True  # the horizon cuts them off
    return _in_order(steps, paths.node[first], terminated, truncated)


def _in_order(
    steps: list[tuple[np.ndarray, ...]], first: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> Walks:
    """Put steps (walker, time, kind, edge, node) into the order of trajectories."""
    episodes = len(first)
    nothing = (np.zeros(0, np.int64),) * 5
    walker, time, kind, edge, node = (np.concatenate(part) for part in zip(nothing, *steps, strict=True))
    offsets = ragged.offsets_of(np.bincount(walker, minlength=episodes))
    place = offsets[walker] + time
    by_place = np.empty(len(place), np.int64)
    by_place[place] = np.arange(len(place))
    nodes = np.empty(len(place) + episodes, np.int32)
    nodes[offsets[:-1] + np.arange(episodes)] = first
    nodes[place + walker + 1] = node
    return Walks(nodes, kind[by_place], edge[by_place], offsets, terminated, truncated)


class Visited:
    """The nodes that each walk has visited: one small hash table a walk, probed for all walks at once."""

    def __init__(self, walks: int, most: int) -> None:
        """Make room for this many walks that visit at most `most` nodes each."""
        self.walks, self.most, self.size = walks, most, self.slots(most)
        self.table = np.full(walks * self.size, -1, np.int32)

    @staticmethod
    def slots(most: int) -> int:
        return 1 << int(2 * most - 1).bit_length()

    def find(self, walks: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the place that holds each node, or the free one where it belongs; and whether it is held."""
        base = walks * self.size
        probe = (nodes.astype(np.int64) * 2_654_435_761 >> 7) & (self.size - 1)
        place = base + probe
        held = self.table[place]
        pending = np.flatnonzero((held != nodes) & (held >= 0))
        while len(pending):
            probe[pending] = (probe[pending] + 1) & (self.size - 1)
            place[pending] = base[pending] + probe[pending]
            held[pending] = self.table[place[pending]]
            pending = pending[(held[pending] != nodes[pending]) & (held[pending] >= 0)]
        return place, held == nodes

    def has(self, walks: np.ndarray, nodes: np.ndarray) -> Bool[np.ndarray, " walks"]:
        """Return whether each walk has visited its node."""
        return self.find(walks, nodes)[1]

    def add(self, walks: np.ndarray, nodes: np.ndarray) -> Bool[np.ndarray, " walks"]:
        """Mark each node as visited by its walk; return whether it was new."""
        place, held = self.find(walks, nodes)
        self.table[place] = nodes
        return ~held


class Furthest:
    """How far each walk has come in each episode that it has visited: a walk never goes back in an episode.

    Otherwise it would soon walk into states that it has visited, where it must end.
    """

    def __init__(self, walks: int, most: int, episode: Integer[np.ndarray, " nodes"]) -> None:
        """Make room for this many walks that visit at most `most` episodes each; `episode` is each node's."""
        self.seen, self.episode = Visited(walks, most), episode
        self.node = np.full(len(self.seen.table), -1, np.int32)

    def passed(self, walks: np.ndarray, nodes: np.ndarray) -> Bool[np.ndarray, " walks"]:
        """Return whether each walk has come to its node or further in the node's episode."""
        place, held = self.seen.find(walks, self.episode[nodes])
        return held & (self.node[place] >= nodes)

    def come(self, walks: np.ndarray, nodes: np.ndarray) -> None:
        """Note the nodes that walks have come to."""
        self.seen.add(walks, self.episode[nodes])
        place, _ = self.seen.find(walks, self.episode[nodes])
        self.node[place] = nodes
