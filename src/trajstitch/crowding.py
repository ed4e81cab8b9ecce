"""A plan for all trajectories together: no logged state may be crowded.

A plan alone sends every trajectory through the few best stretches of the data, and a policy cloned from the result
sees little else. Here only a small share of the trajectories may pass through a state.

The trajectories are rebuilt part by part, each by a plan around the states that are full by then. The walks of a part
go step by step together. At each state a walk takes the way that the plan finds best, of those that lead to a state
which it has not met and which still has room; its own logged states always have room for it. Where no way is left,
the walk ends, truncated. A walk that is better than its trajectory replaces it; else it gives back the room it took.
Those that were not rebuilt get one more chance, since others have left their places.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Integer, PRNGKeyArray

from trajstitch import console
from trajstitch.graph import Judge, StitchGraph
from trajstitch.passes import Rules, Summary, longest, propose, summary
from trajstitch.paths import Paths, choose, without_idle_jumps
from trajstitch.plan import Plan, Problem, provenance, solve
from trajstitch.trajectories import Trajectories
from trajstitch.walk import MET_SLOTS, Decisions, Met, Walks, in_order

FEWEST = 3
"""Trajectories that any state takes, however few there are."""
CHANCES = 2
"""Times that each trajectory may try."""


def spread(
    data: Trajectories, graph: StitchGraph, judge: Judge, config: Plan, rules: Rules, key: PRNGKeyArray | None = None
) -> tuple[Paths, Summary]:
    """Plan and rebuild, part by part."""
    problem = Problem.of(data, graph, config)
    solution = solve(problem, config)
    decisions = Decisions(solution.choice, graph.edges, *provenance(graph, solution.values))
    most = max(FEWEST, round(config.most_visits * len(data)))
    logged = result = Paths.of(data)
    free = np.ones(len(data), bool)
    proposed, changes = np.zeros(len(data), bool), np.zeros(len(data), int)
    parts = np.array_split(np.random.default_rng(0).permutation(len(data)), min(config.parts, len(data)))
    with console.progress("plan", len(data), "trajectories") as advance:
        for part in parts * CHANCES:
            load = visits(result)
            around, walkers = problem.around(load >= most), np.sort(part[free[part]])
            solution = solve(around, config, solution)
            ways = Ways.by(around, solution.values)
            walks = walk_together(logged, graph, ways, walkers, load, most, longest(logged, rules))
            new = propose(logged, walks, decisions, judge, rules, key, result.jumps)
            accepted = np.zeros(len(data), bool)
            accepted[walkers] = new.accepted[walkers]
            free &= ~accepted
            proposed[walkers] |= new.changes[walkers] > 0
            changes[accepted] = new.changes[accepted]
            if accepted.any():
                result = without_idle_jumps(choose(replace(result, jumps=new.paths.jumps), new.paths, accepted))
            advance(len(part) // CHANCES, rebuilt=int((~free).sum()))
    return result, summary(result, int(proposed.sum()), int((~free).sum()), int(changes.sum()))


def visits(paths: Paths) -> Integer[np.ndarray, " nodes"]:
    return np.bincount(paths.node, minlength=paths.nodes)


@dataclass(frozen=True)
class Ways:
    """How to go on from each node, the best first: its jumps, and between them the logged step."""

    order: Integer[np.ndarray, " edges"]
    """The edges, sorted by source and by what they are worth."""
    offsets: Integer[np.ndarray, " nodes+1"]
    """Where each node's edges start."""
    better: Integer[np.ndarray, " nodes"]
    """How many of its edges are worth more than its logged step."""

    @classmethod
    def by(cls, problem: Problem, values: np.ndarray) -> "Ways":
        step, worth = problem.worth(values)
        nodes = len(step)
        more = worth > step[problem.source] + problem.precision
        return cls(
            order=np.lexsort((problem.target, -worth, problem.source)).astype(np.int32),
            offsets=np.searchsorted(problem.source, np.arange(nodes + 1)),
            better=np.bincount(problem.source[more], minlength=nodes),
        )

    def take(self, nodes: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The edge of each node's n-th way, or -1 where that is the step; and whether there are so many ways."""
        better, first = self.better[nodes], self.offsets[nodes]
        there = number <= self.offsets[nodes + 1] - first
        edge = np.full(len(nodes), -1, np.int64)
        jumps = np.flatnonzero(there & (number != better))
        edge[jumps] = self.order[first[jumps] + number[jumps] - (number[jumps] > better[jumps])]
        return edge, there


def walk_together(
    logged: Paths,
    graph: StitchGraph,
    ways: Ways,
    walkers: Integer[np.ndarray, " walkers"],
    load: Integer[np.ndarray, " nodes"],
    most: int,
    horizon: int,
) -> Walks:
    """Walk these trajectories anew, where `load` trajectories pass through each node as things stand."""
    data, load, targets = logged.data, load.copy(), graph.edges.target
    terminated, truncated = logged.terminated.copy(), logged.truncated.copy()
    steps: list[tuple[np.ndarray, ...]] = []
    together = max(1, MET_SLOTS // Met.slots(horizon + 1))
    for start in range(0, len(walkers), together):
        walker = walkers[start : start + together]
        place = np.arange(len(walker))
        node = data.first_rows[walker]
        met = Met(0, len(walker), horizon + 1)
        met.add(place, node)
        for time in range(horizon):
            goes_on = ~graph.last[node]
            walker, place, node = walker[goes_on], place[goes_on], node[goes_on]
            edge, onward = _choose(walker, place, node, graph.episode, ways, targets, met, load, most)
            stuck = onward < 0
            terminated[walker[stuck]], truncated[walker[stuck]] = False, True
            walker, place, node, edge, onward = (part[~stuck] for part in (walker, place, node, edge, onward))
            if not len(walker):
                break
            met.add(place, onward)
            steps.append((walker, np.full(len(walker), time), node, edge, onward))
            ended = np.flatnonzero(graph.last[onward])
            joined, jumped = graph.episode[onward[ended]], edge[ended] >= 0
            final = graph.terminal[onward[ended]]
            terminated[walker[ended]] = np.where(jumped, final, data.episode_terminated[joined])
            truncated[walker[ended]] = np.where(jumped, ~final, data.episode_truncated[joined])
            node = onward
        else:
            cut = walker[~graph.last[node]]
            terminated[cut], truncated[cut] = False, True
    return in_order(steps, data.first_rows, terminated, truncated)


def _choose(
    walker: np.ndarray,
    place: np.ndarray,
    node: np.ndarray,
    episode: np.ndarray,
    ways: Ways,
    targets: np.ndarray,
    met: Met,
    load: np.ndarray,
    most: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The edge that each walk takes (-1: the step) and where to, or -1 where no way is left; `load` grows by that."""
    edge, onward = np.full(len(walker), -1, np.int64), np.full(len(walker), -1, np.int64)
    number = np.zeros(len(walker), np.int64)
    asking = np.arange(len(walker))
    while len(asking):
        way, there = ways.take(node[asking], number[asking])
        asking, way = asking[there], way[there]
        target = np.where(way < 0, node[asking] + 1, targets[way])
        free = ~met.has(place[asking], target)
        foreign = episode[target] != walker[asking]
        before = np.zeros(len(asking), np.int64)  # those who ask for the same state in the same moment
        wanting = np.flatnonzero(free & foreign)
        before[wanting] = _place_in_queue(target[wanting])
        free &= ~foreign | (load[target] + before < most)
        settled = asking[free]
        edge[settled], onward[settled] = way[free], target[free]
        np.add.at(load, target[free & foreign], 1)
        asking = asking[~free]
        number[asking] += 1
    return edge, onward


def _place_in_queue(wanted: Integer[np.ndarray, " some"]) -> Integer[np.ndarray, " some"]:
    """How many before each want the same."""
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else order
    place = np.empty(len(wanted), np.int64)
    place[order] = np.arange(len(wanted)) - np.repeat(first, np.diff(np.append(first, len(wanted))))
    return place
