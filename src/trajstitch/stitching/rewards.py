"""Rewards that are predicted but not invented: a predicted reward stays within those of similar logged steps.

A regression smooths. Beside a goal that pays 1 it predicts 0.3, and a plan would stay there and collect it. So the
reward of a step from u to w is clipped to the range of the logged rewards of similar steps that end as it does:

- the step that was logged from u, and those from states near u,
- the step that was logged into w,

where a step ends in one of three ways: it goes on, it terminates its episode, or the log breaks off after it.

A plan also sees logged steps by their predicted rewards: noise in a logged reward is luck, which no policy can repeat.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer

from trajstitch.data import ragged
from trajstitch.data.trajectories import Trajectories
from trajstitch.stitching.graph import EdgeScorer, StitchGraph
from trajstitch.stitching.jump_tests import Nodes

ENDS = 3
BLOCK = 2**20
"""Edges whose rewards are clipped at once."""
SPARSE = 0.9
"""Rewards are sparse if at least this share of the steps has the same one."""


@dataclass(frozen=True)
class RewardRange:
    """The range of the logged rewards of similar steps."""

    low: Float[np.ndarray, "nodes ends"]
    """The lowest reward of the steps logged at or near each node, by how they end."""
    high: Float[np.ndarray, "nodes ends"]
    own: Float[np.ndarray, " nodes"]
    """The reward of the step logged at each node."""
    into: Float[np.ndarray, " nodes"]
    """The reward of the step logged into each node; NaN for first states."""
    end: Integer[np.ndarray, " nodes"]
    """How a step into each node ends: 0 goes on, 1 terminates, 2 is the last of the log."""
    sparse: bool
    """Whether nearly all steps have the same reward: then a jump gets another only if all similar steps have it."""
    enforced: bool = True
    """Whether rewards are clipped to the range."""

    @classmethod
    def of(cls, data: Trajectories, graph: StitchGraph, *, enforced: bool = True) -> "RewardRange":
        nodes, rows = len(graph), data.state_rows
        own, into = np.zeros(nodes), np.full(nodes, np.nan)
        own[rows], into[rows + 1] = data.rewards, data.rewards
        end = np.where(graph.terminal, 1, np.where(graph.last, 2, 0))
        low, high = np.full((nodes, ENDS), np.inf), np.full((nodes, ENDS), -np.inf)
        neighbours = graph.neighbours
        owner = ragged.owners(np.diff(neighbours.offsets))
        steps = np.concatenate((rows, neighbours.index))
        owner = np.concatenate((rows, owner))
        keep = ~graph.last[steps]
        steps, owner = steps[keep], owner[keep]
        np.minimum.at(low, (owner, end[steps + 1]), own[steps])
        np.maximum.at(high, (owner, end[steps + 1]), own[steps])
        return cls(low, high, own, into, end, usual_reward(data) is not None, enforced)

    def clip(self, source: Nodes, target: Nodes, reward: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
        """Return the rewards of steps between nodes, each within its range if that is enforced."""
        if not self.enforced:
            return reward
        low, high = (table[source, self.end[target]] for table in (self.low, self.high))
        low, high = np.fmin(low, self.into[target]), np.fmax(high, self.into[target])
        unknown = low > high  # no similar step ends in this way
        low[unknown] = high[unknown] = self.own[source[unknown]]
        return low if self.sparse else np.clip(reward, low, high)


@dataclass(frozen=True)
class PlanRewards:
    """The rewards that a plan counts with."""

    allowed: RewardRange
    logged: Float[np.ndarray, " nodes"]
    """The predicted reward of the step logged at each node; 0 at an episode's last state."""
    jump: Float[np.ndarray, " edges"]
    """The lowest predicted reward of each edge of the graph."""
    stops: Bool[np.ndarray, " nodes"]
    """Nodes where walks end, since nothing is known about the rewards that follow."""

    @classmethod
    def of(
        cls, data: Trajectories, graph: StitchGraph, scorer: EdgeScorer, *, reward_range: bool = True
    ) -> "PlanRewards":
        """Return the rewards of a plan; with `reward_range`, each within those of similar logged steps."""
        allowed = RewardRange.of(data, graph, enforced=reward_range)
        rows, edges = data.state_rows.astype(np.int32), graph.edges
        logged = np.zeros(len(graph))
        logged[rows] = data.rewards  # where they are sparse, they have no noise
        if not allowed.sparse:
            logged[rows] = allowed.clip(rows, rows + 1, scorer.logged_rewards(rows).astype(np.float64))
        jump = np.zeros(len(edges)) if edges.reward is None else edges.reward.astype(np.float64)
        for start in range(0, len(edges), BLOCK):
            some = slice(start, start + BLOCK)
            jump[some] = allowed.clip(edges.source[some], edges.target[some], jump[some])
        stops = paid_once(data, len(graph)) if reward_range else np.zeros(len(graph), bool)
        return cls(allowed, logged, jump, stops)


def paid_once(data: Trajectories, nodes: int) -> Bool[np.ndarray, " nodes"]:
    """Return the nodes after a sparse reward of which no episode has more than one; none if rewards are not like that.

    The log does not tell that a second one would be paid: a walk that collected two would invent it.
    """
    paid, usual = np.zeros(nodes, bool), usual_reward(data)
    if usual is None:
        return paid
    special = data.rewards != usual
    each = np.bincount(data.episode_of_step, special, len(data))
    if each.max() == 1 and each.sum() > 1:
        paid[data.state_rows[special] + 1] = True
    return paid


def usual_reward(data: Trajectories) -> float | None:
    """Return the reward that nearly all steps have; None if there is none, so that rewards are not sparse."""
    if not data.steps:
        return None
    values, counts = np.unique(data.rewards, return_counts=True)
    return float(values[np.argmax(counts)]) if counts.max() >= SPARSE * data.steps else None
