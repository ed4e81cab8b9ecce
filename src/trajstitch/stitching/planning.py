"""Exact planning on the graph: the best action at every observed state, by dynamic programming.

The paper's greedy passes choose candidates by a learned V. A plan solves the Bellman equation on the graph itself, with
no training:

    V(u) = max( r + γ V(u'),  max over jumps (u, w) of  r̂ − price + γ V(w) )

Nothing follows a termination. After a truncation the world went on: V there is the mean over its neighbours. A plan
exploits every error of the models, so r̂ is the lowest of their predictions, and a jump pays a price for where it may
miss: the forward ensemble's worst error, times how steeply returns change between neighbouring states of the data.

The solution is found by policy iteration, which a handful of improvements settles. A policy runs along logged steps
from one jump to the next. The return of a run is the difference of two discounted sums, computed once; so only the
values of jumps are left to find, as sums along pointers, exact after a few doublings of their length.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Integer

from trajstitch.data import ragged
from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.engines.workers import cores
from trajstitch.errors import InputError
from trajstitch.learning.bounds import Bounds
from trajstitch.stitching.acceptance import edges_of_graph
from trajstitch.stitching.graph import StitchGraph
from trajstitch.stitching.greedy import Decisions
from trajstitch.stitching.neighbours import Neighbours, squared_distance
from trajstitch.stitching.rewards import PlanRewards

TINY = float(np.finfo(np.float64).tiny)
BLOCK = 2**17
"""Edges that are compared at once."""


@dataclass(frozen=True)
class Plan:
    """How values are planned, and how many trajectories may share a state."""

    discount: Annotated[float, Bounds(0, below=1)] = 0.99
    """Discount γ of a reward one step later, below 1. Larger plans further ahead."""
    pessimism: Annotated[float, Bounds(0)] = 1.0
    """Price of a jump, in units of its predicted error times the slope of returns. Larger makes fewer jumps."""
    predicted_rewards: bool = True
    """On: logged steps too count by their predicted rewards, so that no luck is bought. Off: by what was logged."""
    reward_range: bool = True
    """On: predicted rewards stay within those of similar logged steps, so that none is invented. Off: as predicted."""
    doubt: Annotated[float, Bounds(0)] | None = None
    """A walk ends before a reward that it might miss, if it would lose more than this share of what it gains, in the
    mean. Larger claims more, and more that is not true; None: walks keep all rewards."""
    improvements: Annotated[int, Bounds(1)] = 200
    """Rounds of policy iteration at most; it stops when nothing changes."""
    max_visits: Annotated[float, Bounds(0, 1)] = 1.0
    """Share of the trajectories that may visit one logged state (at least the square root of their number may), and
    five times the share that may make the same jump (at least two may). Larger gains more return and keeps fewer
    different states."""
    parts: Annotated[int, Bounds(1)] = 10
    """Parts in which the trajectories are rebuilt, each by a plan around the states that are full by then."""


def plan(data: Trajectories, graph: StitchGraph, config: Plan) -> tuple[Decisions, Float[np.ndarray, " nodes"]]:
    """Return the decision at every logged step, and V of every node."""
    found = solve(Problem.of(data, graph, config), config)
    return Decisions(found.choice, edges_of_graph(graph, found.values)), found.values


@dataclass(frozen=True)
class Problem:
    """The Bellman equation on a graph."""

    step_reward: Float[np.ndarray, " nodes"]
    """The reward of the step logged at each node."""
    last: Bool[np.ndarray, " nodes"]
    terminal: Bool[np.ndarray, " nodes"]
    neighbours: Neighbours
    source: Integer[np.ndarray, " edges"]
    """Ascending."""
    target: Integer[np.ndarray, " edges"]
    gain: Float[np.ndarray, " edges"]
    """A jump's reward less its price."""

    discount: float
    scale: float
    """The size of the largest reward."""

    @classmethod
    def of(cls, data: Trajectories, graph: StitchGraph, config: Plan, rewards: PlanRewards | None = None) -> "Problem":
        """Return the problem of a graph: by its logged rewards, or by predicted ones."""
        edges = graph.edges
        if edges.reward is None or "error" not in edges.scores:
            raise InputError(
                "planning needs a forward model's error and reward of every jump: add the test 'consistency'"
            )
        logged, jump, stops = _by_node(data, len(graph)), edges.reward.astype(np.float64), np.zeros(len(graph), bool)
        if rewards is not None:
            logged, jump, stops = rewards.logged, rewards.jump, rewards.stops
        price = config.pessimism * slope(data, graph, config.discount, logged)
        step_reward, gain = logged, edges.scores["error"].astype(np.float64)
        gain *= -price  # in place: there are many edges
        gain += jump
        return cls(
            step_reward=step_reward,
            last=graph.last | stops,
            terminal=graph.terminal | stops,
            neighbours=graph.neighbours,
            source=edges.source,
            target=edges.target.astype(np.intp),  # the type that NumPy gathers by without converting it each time
            gain=gain,
            discount=config.discount,
            scale=max(
                float(np.abs(step_reward).max(initial=0)), float(gain.max(initial=0)), -float(gain.min(initial=0)), TINY
            ),
        )

    @property
    def precision(self) -> float:
        """Values that differ by less count as equal."""
        return 1e-7 * self.scale / (1 - self.discount)

    @cached_property
    def ahead(self) -> Float[np.ndarray, " nodes"]:
        """The discounted rewards of all logged steps from each node on, across the ends of episodes."""
        return ragged.discounted_sums(self.step_reward, self.discount)

    @cached_property
    def powers(self) -> Float[np.ndarray, " steps"]:
        """Powers of the discount, for runs of any length."""
        ends = np.flatnonzero(self.last)
        return self.discount ** np.arange(np.diff(ends, prepend=-1).max(initial=1) + 1.0)

    def around(self, full: Bool[np.ndarray, " nodes"], used_up: Bool[np.ndarray, " edges"]) -> "Problem":
        """Return the problem in which entering a full node or taking a used-up jump costs more than anything gains."""
        toll = 10 * self.scale / (1 - self.discount)
        gain, step_reward = self.gain.copy(), self.step_reward.copy()
        gain[full[self.target] | used_up] -= toll
        step_reward[:-1][full[1:] & ~self.last[:-1]] -= toll
        return replace(self, gain=gain, step_reward=step_reward)

    def step_values(self, values: Float[np.ndarray, " nodes"]) -> Float[np.ndarray, " nodes"]:
        """Return the value of each logged step (at a last state, V itself), given V."""
        step = self.step_reward.copy()
        step[:-1] += self.discount * values[1:]
        step[self.last] = values[self.last]
        return step

    def jump_values(
        self, values: Float[np.ndarray, " nodes"], edges: slice = slice(None)
    ) -> Float[np.ndarray, " edges"]:
        """Return the value of jumps, given V."""
        jump = np.take(values, self.target[edges])
        jump *= self.discount
        jump += self.gain[edges]
        return jump


@dataclass(frozen=True)
class Solution:
    """A plan."""

    choice: Integer[np.ndarray, " nodes"]
    """The edge that each node jumps along, or -1."""
    values: Float[np.ndarray, " nodes"]


def solve(problem: Problem, config: Plan) -> Solution:
    """Solve the problem by policy iteration."""
    nodes, last = len(problem.last), problem.last
    open_ends = np.flatnonzero(last & ~problem.terminal)
    choice = np.full(nodes, -1, np.int64)
    after = np.zeros(nodes)  # V of the episodes' last states
    values = np.zeros(nodes)
    mean_near = _mean_of_neighbours(open_ends, last, problem.neighbours)
    enough = problem.precision
    with ThreadPoolExecutor(cores()) as pool:
        jumps = _Jumps.of(problem)
        for _ in range(config.improvements):
            values = evaluate(problem, choice, after)
            step = problem.step_values(values)
            # A node keeps its action unless another is truly better, so that rounding can't make it oscillate.
            least = np.where(last, np.inf, np.maximum(step, values) + enough)
            better = np.full(nodes, -1, np.int64)
            for source, edge in pool.map(partial(jumps.better, values, least), jumps.blocks):
                better[source] = edge
            back = (choice >= 0) & (step > values + enough)
            stays = (choice >= 0) & ~back & (better < 0)
            better[stays] = choice[stays]
            fresh = after.copy()
            fresh[open_ends] = mean_near(values)
            moved = np.abs(fresh - after).max(initial=0)
            settled = np.array_equal(better, choice) and moved <= enough
            choice, after = better, fresh
            if settled:
                break
    return Solution(choice, values)


def evaluate(
    problem: Problem, choice: Integer[np.ndarray, " nodes"], after: Float[np.ndarray, " nodes"]
) -> Float[np.ndarray, " nodes"]:
    """Return V where each node takes the edge of its choice (-1: its logged step); `after` is V of the last states.

    Every node runs along logged steps to the next stop: a node that jumps, or an episode's last state.
    """
    jumps, ahead = choice >= 0, problem.ahead
    stops = jumps | problem.last
    place = np.cumsum(stops) - stops  # of each node's stop, among the stops
    stop = np.flatnonzero(stops)
    far = problem.powers[stop[place] - np.arange(len(stops))]
    run = ahead - far * ahead[stop[place]]

    total, factor, reach = after[stop], np.zeros(len(stop)), np.arange(len(stop))
    edge, jumping = choice[jumps], jumps[stop]
    target = problem.target[edge]
    total[jumping] = problem.gain[edge] + problem.discount * run[target]
    factor[jumping] = problem.discount * far[target]
    reach[jumping] = place[target]
    while factor.max(initial=0) > 1e-12:
        total += factor * total[reach]
        factor *= factor[reach]
        reach = reach[reach]
    return run + far * total[place]


@dataclass(frozen=True)
class _Jumps:
    """The jumps of a problem by their sources, in blocks that are compared side by side and fit into a core's cache."""

    problem: Problem
    source: Integer[np.ndarray, " sources"]
    start: Integer[np.ndarray, " sources"]
    """Each source's first edge."""
    end: Integer[np.ndarray, " sources"]
    blocks: list[slice]
    """Of the sources."""

    @classmethod
    def of(cls, problem: Problem) -> "_Jumps":
        start = np.flatnonzero(np.diff(problem.source, prepend=-1))
        end = np.append(start[1:], len(problem.source))[: len(start)]
        blocks, first = [], 0
        while first < len(start):
            last = max(int(np.searchsorted(end, start[first] + BLOCK, "right")), first + 1)
            blocks.append(slice(first, last))
            first = last
        return cls(problem, problem.source[start], start, end, blocks)

    def better(
        self, values: Float[np.ndarray, " nodes"], least: Float[np.ndarray, " nodes"], block: slice
    ) -> tuple[Integer[np.ndarray, " some"], Integer[np.ndarray, " some"]]:
        """Return the sources in a block with a jump whose value exceeds `least`, and the first of the highest value."""
        source, start, end = self.source[block], self.start[block], self.end[block]
        edges = slice(start[0], end[-1])
        value = self.problem.jump_values(values, edges)
        top = np.maximum.reduceat(value, start - edges.start)
        rises = np.flatnonzero(top > least[source])
        count = (end - start)[rises]
        edge = ragged.rows_of(start[rises], count)
        highest = np.flatnonzero(value[edge - edges.start] == np.repeat(top[rises], count))
        return source[rises], edge[highest[np.searchsorted(highest, np.cumsum(count) - count)]]


def slope(
    data: Trajectories, graph: StitchGraph, discount: float, rewards: Float[np.ndarray, " nodes"] | None = None
) -> float:
    """Return how much discounted returns differ between neighbours, over their distance in standardised states.

    Both are averages. `rewards` counts instead of the logged reward at each node.
    """
    states = (data.observations / Normaliser.of(data.observations).std).astype(np.float32)
    by_step = data.rewards if rewards is None else rewards[data.state_rows]
    usual = float(by_step.mean(dtype=np.float64)) / (1 - discount)
    counted = replace(data, rewards=by_step.astype(np.float64))
    by_node = np.zeros(len(graph))
    by_node[data.state_rows] = counted.discounted_returns(discount, np.where(data.episode_terminated, 0, usual))
    nodes = np.sort(np.random.default_rng(0).permutation(data.state_rows)[:10_000])
    owner, there = graph.neighbours.of(nodes)
    inside = ~graph.last[there]
    here, there = nodes[owner[inside]], there[inside]
    distance = np.sqrt(squared_distance(states[here], states[there])).sum()
    return float(np.abs(by_node[here] - by_node[there]).sum() / distance) if distance > 0 else 0.0


def _by_node(data: Trajectories, nodes: int) -> Float[np.ndarray, " nodes"]:
    rewards = np.zeros(nodes)
    rewards[data.state_rows] = data.rewards
    return rewards


def _mean_of_neighbours(
    ends: Integer[np.ndarray, " ends"], last: Bool[np.ndarray, " nodes"], neighbours: Neighbours
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of V: its mean over the neighbours of each end that go on, or over all if none does."""
    owner, near = neighbours.of(ends)
    goes_on = ~last[near]
    owner, near = owner[goes_on], near[goes_on]
    count = np.bincount(owner, minlength=len(ends))

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.bincount(owner, values[near], minlength=len(ends))
        return np.where(count > 0, total / np.maximum(count, 1), values[~last].mean() if (~last).any() else 0.0)

    return mean
