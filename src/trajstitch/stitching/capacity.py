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
from jaxtyping import Float, Integer, PRNGKeyArray

from trajstitch.data.trajectories import Trajectories
from trajstitch.progress import progress
from trajstitch.stitching.graph import EdgeScorer, StitchGraph
from trajstitch.stitching.greedy import Rules, Summary, longest, propose, summary
from trajstitch.stitching.paths import Paths, choose, without_idle_jumps
from trajstitch.stitching.planning import Plan, Problem, Solution, provenance, solve
from trajstitch.stitching.walk import VISITED_SLOTS, Decisions, Visited, Walks, in_order

FEWEST = 20
"""Trajectories that any state takes, however few there are in all."""
LATE_PARTS = 2
"""Parts in which those that were not rebuilt try again."""


def spread(
    data: Trajectories,
    graph: StitchGraph,
    judge: EdgeScorer,
    config: Plan,
    rules: Rules,
    key: PRNGKeyArray | None = None,
) -> tuple[Paths, Summary]:
    """Plan and rebuild, part by part."""
    problem = Problem.of(data, graph, config)
    solution = solve(problem, config)
    decisions = Decisions(solution.choice, graph.edges, *provenance(graph, solution.values))
    most = max(FEWEST, round(config.max_visits * len(data)))
    logged = result = Paths.of(data)
    free = np.ones(len(data), bool)
    proposed, changes = np.zeros(len(data), bool), np.zeros(len(data), int)
    order = np.random.default_rng(0).permutation(len(data))
    parts = [*np.array_split(order, config.parts), *np.array_split(order, LATE_PARTS)]
    with progress("plan", len(parts), "parts") as advance:
        for part in parts:
            load = visits(result)
            around, walkers = problem.around(load >= most), np.sort(part[free[part]])
            solution = solve(around, config) if (load >= most).any() else solution
            ways = ActionValues.by(around, solution, graph.offsets)
            walks = walk_with_capacity(logged, graph, ways, walkers, load, most, longest(logged, rules))
            new = propose(logged, walks, decisions, judge, rules, key, result.jumps)
            accepted = np.zeros(len(data), bool)
            accepted[walkers] = new.accepted[walkers]
            free &= ~accepted
            proposed[walkers] |= new.changes[walkers] > 0
            changes[accepted] = new.changes[accepted]
            if accepted.any():
                result = without_idle_jumps(choose(replace(result, jumps=new.paths.jumps), new.paths, accepted))
            advance(1, rebuilt=int((~free).sum()))
    return result, summary(result, int(proposed.sum()), int((~free).sum()), int(changes.sum()))


def visits(paths: Paths) -> Integer[np.ndarray, " nodes"]:
    return np.bincount(paths.node, minlength=paths.nodes)


@dataclass(frozen=True)
class ActionValues:
    """What each way to go on from a node is worth: its logged step, and its jumps in turn."""

    step: Float[np.ndarray, " nodes"]
    jump: Float[np.ndarray, " edges"]
    offsets: Integer[np.ndarray, " nodes+1"]
    """Where each node's edges start."""

    @classmethod
    def by(cls, problem: Problem, solution: Solution, offsets: Integer[np.ndarray, " nodes+1"]) -> "ActionValues":
        step, jump = problem.worth(solution.values)
        return cls(step + problem.precision, jump, offsets)

    def of(self, nodes: Integer[np.ndarray, " some"]) -> Float[np.ndarray, "some ways"]:
        """A row a node: the step, then the jumps, then nothing up to the longest row's end."""
        first, count = self.offsets[nodes], self.offsets[nodes + 1] - self.offsets[nodes]
        worth = np.full((len(nodes), 1 + count.max(initial=0)), -np.inf)
        worth[:, 0] = self.step[nodes]
        owner = np.repeat(np.arange(len(nodes)), count)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        worth[owner, 1 + inside] = self.jump[first[owner] + inside]
        return worth


def walk_with_capacity(
    logged: Paths,
    graph: StitchGraph,
    ways: ActionValues,
    walkers: Integer[np.ndarray, " walkers"],
    load: Integer[np.ndarray, " nodes"],
    most: int,
    horizon: int,
) -> Walks:
    """Walk these trajectories anew, where `load` trajectories pass through each node as things stand."""
    data, load, targets = logged.data, load.copy(), graph.edges.target
    terminated, truncated = logged.terminated.copy(), logged.truncated.copy()
    steps: list[tuple[np.ndarray, ...]] = []
    together = max(1, VISITED_SLOTS // Visited.slots(horizon + 1))
    for start in range(0, len(walkers), together):
        walker = walkers[start : start + together]
        place = np.arange(len(walker))
        node = data.first_rows[walker]
        met = Visited(0, len(walker), horizon + 1)
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
    ways: ActionValues,
    targets: np.ndarray,
    met: Visited,
    load: np.ndarray,
    most: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The edge that each walk takes (-1: the step) and where to, or -1 where no way is left; `load` grows by that."""
    edge, onward = np.full(len(walker), -1, np.int64), np.full(len(walker), -1, np.int64)
    worth, asking = ways.of(node), np.arange(len(walker))
    while len(asking):
        way = worth[asking].argmax(1)
        there = worth[asking, way] > -np.inf
        asking, way = asking[there], way[there]
        worth[asking, way] = -np.inf  # it is tried once
        wanted = np.where(way == 0, -1, ways.offsets[node[asking]] + way - 1)
        target = node[asking] + 1
        target[way > 0] = targets[wanted[way > 0]]
        free = ~met.has(place[asking], target)
        foreign = episode[target] != walker[asking]
        before = np.zeros(len(asking), np.int64)  # those who ask for the same state in the same moment
        wanting = np.flatnonzero(free & foreign)
        before[wanting] = _place_in_queue(target[wanting])
        free &= ~foreign | (load[target] + before < most)
        settled = asking[free]
        edge[settled], onward[settled] = wanted[free], target[free]
        np.add.at(load, target[free & foreign], 1)
        asking = asking[~free]
    return edge, onward


def _place_in_queue(wanted: Integer[np.ndarray, " some"]) -> Integer[np.ndarray, " some"]:
    """How many before each want the same."""
    order = np.argsort(wanted, kind="stable")
    ordered = wanted[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else order
    place = np.empty(len(wanted), np.int64)
    place[order] = np.arange(len(wanted)) - np.repeat(first, np.diff(np.append(first, len(wanted))))
    return place
