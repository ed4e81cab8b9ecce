"""Planning with capacity: a plan for all trajectories together, in which no logged state is visited too often.

A plan alone sends every trajectory through the few best stretches of the data, and a policy cloned from the result sees
little else. Here only a small share of the trajectories may visit a state.

The trajectories are rebuilt part by part, each by a plan around the states that are full by then. The walks of a part
go step by step together. At each state a walk takes the action of the highest value among those that lead to a state
which is not full, and never back in an episode: it would soon walk into states that it has visited. Its own logged
states are never full for it. If no state has room, the walk takes the logged step. Where a log breaks off, it may jump
on. A walk that is better than its trajectory replaces it, up to a reward that it might miss (`replay`); otherwise it
frees the states it visited. Trajectories that were not rebuilt are tried once more, since others have left their
states.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from trajstitch.data import ragged
from trajstitch.data.trajectories import Trajectories
from trajstitch.progress import logger, progress
from trajstitch.stitching.acceptance import PlannedEdges, Rules, Summary, propose
from trajstitch.stitching.graph import EdgeScorer, StitchGraph
from trajstitch.stitching.paths import Paths, choose, without_unused_jumps
from trajstitch.stitching.planning import Plan, Problem, Solution, solve
from trajstitch.stitching.replay import Replay, beyond_doubt
from trajstitch.stitching.rewards import PlanRewards
from trajstitch.stitching.walk import Furthest, Visited, Walks, walk

VISITS_A_JUMP = 5
"""Trajectories that may visit a state, for each that may make the same jump: where a model is wrong about a jump, such
as one through a wall, few trajectories are."""
MIN_USES = 2
"""Trajectories that may make any jump."""
RETRY_PARTS = 2
"""Parts in which trajectories that were not rebuilt are tried again."""


def capacity(trajectories: int, max_visits: float) -> tuple[int, int]:
    """Return how many trajectories may visit a state, and how many of them may make the same jump."""
    visits = max(math.ceil(trajectories**0.5), round(max_visits * trajectories))
    return visits, max(MIN_USES, visits // VISITS_A_JUMP)


def plan_with_capacity(
    data: Trajectories,
    graph: StitchGraph,
    scorer: EdgeScorer,
    config: Plan,
    rules: Rules,
    key: PRNGKeyArray | None = None,
) -> tuple[Paths, Summary]:
    """Plan and rebuild all trajectories, part by part."""
    rewards = None
    if config.predicted_rewards:
        rewards = PlanRewards.of(data, graph, scorer, reward_range=config.reward_range)
    problem = Problem.of(data, graph, config, rewards)
    if rewards is not None:  # the problem holds what they pay for each edge
        rewards = replace(rewards, jump=np.zeros(0))
    free = solve(problem, config)
    chosen = PlannedEdges(graph, free.values)
    most_visits, most_uses = capacity(len(data), config.max_visits)
    logger.info(f"at most {most_visits:,} trajectories may visit a state, and {most_uses:,} may make the same jump")
    logged = result = Paths.of(data)
    replay = Replay.of(scorer, rules.longest(logged))
    rebuilt, proposed, cut = np.zeros((3, len(data)), bool)
    jumps = np.zeros(len(data), int)
    order = np.random.default_rng(0).permutation(len(data))
    parts = [
        *np.array_split(order, min(config.parts, len(order))),
        *np.array_split(order, min(RETRY_PARTS, len(order))),
    ]
    with progress("plan", len(parts), "parts") as advance:
        for part in parts:
            walkers = np.sort(part[~rebuilt[part]])
            room = Room.beside(result, graph, most_visits, most_uses)
            walks = _walk_around(problem, config, free, graph, logged, room, rewards, rules.longest(logged), walkers)
            del room
            new = propose(logged, walks, chosen, scorer, rules, key, result.jumps, rewards)
            proposed[walkers] |= new.jumps[walkers] > 0
            if replay is not None and config.doubt is not None:
                by_node = None if rewards is None else rewards.logged
                lengths, stands = beyond_doubt(replay, logged, new, config.doubt, by_node)
                shorter = lengths < new.paths.lengths
                if shorter.any():
                    walks = walks.cut(lengths)
                    new = propose(logged, walks, chosen, scorer, rules, key, result.jumps, rewards)
                cut[walkers] = shorter[walkers]
                new = replace(new, accepted=stands)
            accepted = np.zeros(len(data), bool)
            accepted[walkers] = new.accepted[walkers]
            rebuilt |= accepted
            jumps[accepted] = new.jumps[accepted]
            if accepted.any():
                result = without_unused_jumps(choose(replace(result, jumps=new.paths.jumps), new.paths, accepted))
            advance(1, rebuilt=int(rebuilt.sum()))
    counts = (proposed, rebuilt, jumps, rebuilt & cut)
    return result, Summary.of(result, *(int(one.sum()) for one in counts))


def _walk_around(
    problem: Problem,
    config: Plan,
    free: Solution,
    graph: StitchGraph,
    logged: Paths,
    room: "Room",
    rewards: PlanRewards | None,
    longest: int,
    walkers: Integer[np.ndarray, " walkers"],
) -> Walks:
    """Return the walks of these trajectories over the logged data by a plan around what has no room left.

    `free` is the plan where everything has room. What is made on the way, about the edges above all, ends with this.
    """
    full, used_up = room.visits <= 0, room.uses <= 0
    if full.any() or used_up.any():
        problem = problem.around(full, used_up)
        free = solve(problem, config)
    del full, used_up
    actions = ActionValues.of(problem, free.values, graph.offsets)
    best = BestFreeAction(graph, actions, room, None if rewards is None else rewards.stops)
    return walk(logged, graph, best, longest, walkers, beyond_ends=True)


def count_visits(paths: Paths) -> Integer[np.ndarray, " nodes"]:
    """Return how many trajectories visit each node."""
    return np.bincount(paths.node, minlength=paths.nodes)


def count_uses(paths: Paths, graph: StitchGraph) -> Integer[np.ndarray, " edges"]:
    """Return how many trajectories make each jump of the graph."""
    made = paths.jumps.edges
    number = paths.kind[paths.kind >= paths.nodes] - paths.nodes
    # Binary search within each source's edges: a table of all of them would take as much memory as the graph.
    low, high, target = graph.offsets[made.source], graph.offsets[made.source + 1], graph.edges.target
    while (searching := np.flatnonzero(low < high)).size:
        middle = (low[searching] + high[searching]) // 2
        below = target[middle] < made.target[searching]
        low[searching[below]] = middle[below] + 1
        high[searching[~below]] = middle[~below]
    uses = np.zeros(len(graph.edges), np.int32)  # there are many edges
    np.add.at(uses, low[number], 1)
    return uses


@dataclass(frozen=True)
class Room:
    """How many more trajectories may visit each node and make each jump."""

    visits: Integer[np.ndarray, " nodes"]
    uses: Integer[np.ndarray, " edges"]

    @classmethod
    def beside(cls, paths: Paths, graph: StitchGraph, most_visits: int, most_uses: int) -> "Room":
        """Return the room that these trajectories leave."""
        uses = count_uses(paths, graph)
        return cls(most_visits - count_visits(paths), np.subtract(most_uses, uses, out=uses))


@dataclass(frozen=True)
class ActionValues:
    """The value of each action at a node: of its logged step, and of its jumps in order."""

    step: Float[np.ndarray, " nodes"]
    jump: Float[np.ndarray, " edges"]
    offsets: Integer[np.ndarray, " nodes_plus_1"]
    """Where each node's edges start."""

    @classmethod
    def of(
        cls, problem: Problem, values: Float[np.ndarray, " nodes"], offsets: Integer[np.ndarray, " nodes_plus_1"]
    ) -> "ActionValues":
        """Return the action values of a plan; the logged step wins ties."""
        step = problem.step_values(values)
        step[problem.last] = -np.inf  # no step leaves it
        return cls(step + problem.precision, problem.jump_values(values), offsets)

    def at(self, nodes: Integer[np.ndarray, " some"]) -> Float[np.ndarray, "some actions"]:
        """Return a row for each node: the step, then the jumps, then -inf up to the longest row's end."""
        first, count = self.offsets[nodes], self.offsets[nodes + 1] - self.offsets[nodes]
        values = np.full((len(nodes), 1 + count.max(initial=0)), -np.inf)
        values[:, 0] = self.step[nodes]
        values[ragged.owners(count), 1 + ragged.positions(count)] = self.jump[ragged.rows_of(first, count)]
        return values


class BestFreeAction:
    """Chooses the action of the highest value that leads to a state with room, which walks use up.

    Walks go over the logged data, whose rows are the nodes.
    """

    def __init__(
        self,
        graph: StitchGraph,
        values: ActionValues,
        room: Room,
        stops: Bool[np.ndarray, " nodes"] | None = None,
    ) -> None:
        """Choose by these action values; walks end at the nodes in `stops`."""
        self.episode, self.target, self.values, self.stops = graph.episode, graph.edges.target, values, stops
        self.last = graph.last
        self.visits, self.uses = room.visits, room.uses
        self._furthest: tuple[Visited, Furthest] | None = None

    def __call__(
        self, walker: np.ndarray, slot: np.ndarray, row: np.ndarray, visited: Visited
    ) -> tuple[np.ndarray, np.ndarray]:
        edge, onward = np.full(len(walker), -1, np.int64), np.full(len(walker), -1, np.int64)
        furthest = self._come(slot, row, visited)
        values, asking = self.values.at(row), np.arange(len(walker))
        if self.stops is not None:
            asking = asking[~self.stops[row]]
        while len(asking):
            action = values[asking].argmax(1)
            left = values[asking, action] > -np.inf
            if not left.all():  # rather than end, a walk goes on where there is no room
                stuck = asking[~left]
                stuck = stuck[~self.last[row[stuck]]]
                onward[stuck] = row[stuck] + 1
            asking, action = asking[left], action[left]
            values[asking, action] = -np.inf  # each action is tried once
            wanted = np.where(action == 0, -1, self.values.offsets[row[asking]] + action - 1)
            target = row[asking] + 1
            target[action > 0] = self.target[wanted[action > 0]]
            free = ~furthest.passed(slot[asking], target)
            foreign = self.episode[target] != walker[asking]
            ahead = np.zeros(len(asking), np.int64)  # walks that ask for the same state at the same time
            queue = np.flatnonzero(free & foreign)
            ahead[queue] = ragged.rank_among_equals(target[queue])
            free &= ~foreign | (ahead < self.visits[target])
            jumps = np.flatnonzero(free & (wanted >= 0))
            free[jumps] = ragged.rank_among_equals(wanted[jumps]) < self.uses[wanted[jumps]]
            settled = asking[free]
            edge[settled], onward[settled] = wanted[free], target[free]
            np.subtract.at(self.visits, target[free & foreign], 1)
            np.subtract.at(self.uses, wanted[free & (wanted >= 0)], 1)
            asking = asking[~free]
        return edge, onward

    def _come(self, slot: np.ndarray, row: np.ndarray, visited: Visited) -> Furthest:
        """Note where walks stand; those that walk together share `visited`."""
        if self._furthest is None or self._furthest[0] is not visited:
            self._furthest = (visited, Furthest(visited.walks, visited.most, self.episode))
        self._furthest[1].come(slot, row)
        return self._furthest[1]
