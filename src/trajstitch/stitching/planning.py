"""Exact planning on the graph: the best way to go on from every observed state, by dynamic programming.

Where the paper's greedy passes ask a learned V which candidate is better, a plan solves Bellman's equation on the
graph itself, with no training:

    V(u) = max( r + γ V(u'),  max over jumps (u, w) of  r̂ − price + γ V(w) )

Nothing follows a termination. After a truncation the world went on: V there is the mean over its near states.
A plan exploits every error of the models, so r̂ is the lowest of their predictions, and a jump pays for where it may
miss: the forward ensemble's worst error, times how steeply returns change between near states of the data.

The solution is found by policy iteration; a handful of improvements settles the plan. A policy runs along the logged
steps from one jump to the next. What a run brings is the difference of two sums over the rewards ahead, taken once;
so only the jumps' own values are left to find, as sums along pointers, exact after a few doublings of their reach.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.signal import lfilter

from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.stitching.graph import StitchGraph
from trajstitch.stitching.neighbours import squared_distance
from trajstitch.stitching.walk import Decisions


@dataclass(frozen=True)
class Plan:
    """What the planner takes a step to be worth."""

    discount: float = 0.99
    """γ: what a reward one step later is worth."""
    pessimism: float = 1.0
    """The price of a jump, in units of (the miss it risks × the slope of returns)."""
    improvements: int = 200
    """Rounds of policy iteration at most; it stops by itself when nothing changes."""
    max_visits: float = 1.0
    """Share of the trajectories that may pass through one logged state."""
    parts: int = 10
    """Parts that the trajectories are rebuilt in, each by a plan around the states that are full by then."""


def plan(data: Trajectories, graph: StitchGraph, config: Plan) -> tuple[Decisions, Float[np.ndarray, " nodes"]]:
    """The decision at every logged step, and V of every node."""
    found = solve(Problem.of(data, graph, config), config)
    return Decisions(found.choice, graph.edges, *provenance(graph, found.values)), found.values


def provenance(
    graph: StitchGraph, values: Float[np.ndarray, " nodes"]
) -> tuple[Float[np.ndarray, " edges"], Float[np.ndarray, " edges"]]:
    """What each jump has over the step logged in its place: log-likelihood, and V of the next state."""
    edges = graph.edges
    return edges.low - graph.logged[edges.source], values[edges.target] - values[edges.source + 1]


@dataclass(frozen=True)
class Problem:
    """Bellman's equation on a graph."""

    step_reward: Float[np.ndarray, " nodes"]
    """Of the step logged at each node."""
    last: Bool[np.ndarray, " nodes"]
    terminal: Bool[np.ndarray, " nodes"]
    near: tuple[np.ndarray, np.ndarray]
    """Offsets and indices of each node's near ones."""
    source: Integer[np.ndarray, " edges"]
    """Ascending."""
    target: Integer[np.ndarray, " edges"]
    gain: Float[np.ndarray, " edges"]
    """What a jump brings at once."""

    discount: float
    scale: float
    """The size of rewards."""

    @classmethod
    def of(cls, data: Trajectories, graph: StitchGraph, config: Plan) -> "Problem":
        edges = graph.edges
        if np.isnan(edges.reward).any():
            raise InputError("planning needs the forward model's word on every jump: build the graph with one")
        price = config.pessimism * slope(data, graph, config.discount) * edges.error.astype(np.float64)
        step_reward, gain = _by_node(data, len(graph)), edges.reward.astype(np.float64) - price
        return cls(
            step_reward=step_reward,
            last=graph.last,
            terminal=graph.terminal,
            near=(graph.near.offsets, graph.near.index),
            source=edges.source,
            target=edges.target.astype(np.intp),  # the type that NumPy gathers by without converting it each time
            gain=gain,
            discount=config.discount,
            scale=max(float(np.abs(step_reward).max(initial=0)), float(np.abs(gain).max(initial=0)), 1e-12),
        )

    @property
    def precision(self) -> float:
        """Values that differ by less are the same."""
        return 1e-7 * self.scale / (1 - self.discount)

    @cached_property
    def ahead(self) -> Float[np.ndarray, " nodes"]:
        """The discounted rewards of all logged steps from each node on, whatever episodes they are of."""
        return lfilter([1.0], [1.0, -self.discount], self.step_reward[::-1])[::-1]  # pyright: ignore[reportReturnType]

    @cached_property
    def powers(self) -> Float[np.ndarray, " steps"]:
        """Of the discount, for runs of any length."""
        ends = np.flatnonzero(self.last)
        return self.discount ** np.arange(np.diff(ends, prepend=-1).max(initial=1) + 1.0)

    def around(self, full: Bool[np.ndarray, " nodes"]) -> "Problem":
        """The same where entering a full node costs more than anything can bring."""
        toll = 10 * self.scale / (1 - self.discount)
        gain, step_reward = self.gain.copy(), self.step_reward.copy()
        gain[full[self.target]] -= toll
        step_reward[:-1][full[1:] & ~self.last[:-1]] -= toll
        return replace(self, gain=gain, step_reward=step_reward)

    def worth(
        self, values: Float[np.ndarray, " nodes"]
    ) -> tuple[Float[np.ndarray, " nodes"], Float[np.ndarray, " edges"]]:
        """Of each logged step (of a last state, its own V) and of each jump, given V."""
        step = self.step_reward.copy()
        step[:-1] += self.discount * values[1:]
        step[self.last] = values[self.last]
        return step, self.gain + (self.discount * values)[self.target]


@dataclass(frozen=True)
class Solution:
    """A plan."""

    choice: Integer[np.ndarray, " nodes"]
    """The edge that each node jumps along, or -1."""
    values: Float[np.ndarray, " nodes"]


def solve(problem: Problem, config: Plan) -> Solution:
    """Policy iteration."""
    nodes, last = len(problem.last), problem.last
    open_ends = np.flatnonzero(last & ~problem.terminal)
    choice = np.full(nodes, -1, np.int64)
    after = np.zeros(nodes)  # what an episode's last state is worth
    values = np.zeros(nodes)
    mean_near = _mean_near(open_ends, last, *problem.near)
    enough = problem.precision
    candidate, starts = np.unique(problem.source, return_index=True)
    counts = np.diff(np.append(starts, len(problem.source)))
    for _ in range(config.improvements):
        values = evaluate(problem, choice, after)
        step, worth = problem.worth(values)
        better = np.full(nodes, -1, np.int64)
        # A node keeps its course unless another is truly better, so that rounding can't make it waver.
        if len(starts):
            rises = np.maximum.reduceat(worth, starts) > np.maximum(step, values)[candidate] + enough
            better[candidate[rises]] = _highest(worth, starts[rises], counts[rises])
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
    """V where each node goes on along the edge of its choice (-1: its logged step), and last states are worth `after`.

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


def _highest(
    worth: Float[np.ndarray, " edges"], starts: Integer[np.ndarray, " groups"], counts: Integer[np.ndarray, " groups"]
) -> Integer[np.ndarray, " groups"]:
    """The first of the highest of each group of edges."""
    if not len(starts):
        return starts
    first = np.cumsum(counts) - counts
    edge = np.arange(counts.sum()) + np.repeat(starts - first, counts)
    inside = worth[edge]
    top = np.flatnonzero(inside == np.repeat(np.maximum.reduceat(inside, first), counts))
    return edge[top[np.searchsorted(top, first)]]


def slope(data: Trajectories, graph: StitchGraph, discount: float) -> float:
    """How much returns differ between near states, over their distance in standardised states: the median."""
    states = (data.observations / np.maximum(data.observations.std(0, dtype=np.float64), 1e-12)).astype(np.float32)
    usual = float(data.rewards.mean(dtype=np.float64)) / (1 - discount)
    returns = data.discounted_returns(discount, np.where(data.episode_terminated, 0, usual))
    nodes = np.random.default_rng(0).permutation(data.state_rows)[:10_000]
    owner, other = graph.near.of(np.sort(nodes))
    inside = ~graph.last[other]
    here, there = np.sort(nodes)[owner[inside]], other[inside]
    if not len(here):
        return 0.0
    by_node = np.zeros(len(graph))
    by_node[data.state_rows] = returns
    distance = np.sqrt(squared_distance(states[here], states[there]))
    apart = distance > 0
    return float(np.median(np.abs(by_node[here] - by_node[there])[apart] / distance[apart])) if apart.any() else 0.0


def _by_node(data: Trajectories, nodes: int) -> Float[np.ndarray, " nodes"]:
    rewards = np.zeros(nodes)
    rewards[data.state_rows] = data.rewards
    return rewards


def _mean_near(ends: np.ndarray, last: np.ndarray, offsets: np.ndarray, index: np.ndarray):
    """A function of V: its mean over the near states of each end that go on, or over all where none is near."""
    count = offsets[ends + 1] - offsets[ends]
    owner = np.repeat(np.arange(len(ends)), count)
    near = index[np.repeat(offsets[ends], count) + np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)]
    goes_on = ~last[near]
    owner, near = owner[goes_on], near[goes_on]
    count = np.bincount(owner, minlength=len(ends))

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.bincount(owner, values[near], minlength=len(ends))
        return np.where(count > 0, total / np.maximum(count, 1), values[~last].mean() if (~last).any() else 0.0)

    return mean
