"""How far a cloned policy is from the expert of its task, in the states that the expert visits (the paper's Section 5).

The expert's trajectories are made by the shipped TD3 ladder, without noise. For the KL divergence of trajectory
distributions, the expert is taken as a normal distribution around its action with a standard deviation of 0.01:
E[log π*(a|s) − log π(a|s)] over the expert's states and actions.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from trajstitch.benchmark.collect import Part, Shard, roll_out
from trajstitch.benchmark.ladder import TASKS, load_ladder
from trajstitch.errors import InputError
from trajstitch.policies.policy import NetworkPolicy, Policy

EPISODES = 10
"""Trajectories of the expert."""
STD = 0.01
"""Standard deviation of the expert's actions, for the KL divergence."""
STREAM = (0, 2)
"""Random streams of these episodes, apart from those that sets are collected with."""
DISTANCES = ("action_error", "kl")
"""What is measured: the mean squared error of actions, and the KL divergence of policies that have a density."""


class ExpertSteps(NamedTuple):
    """The states that an expert visits, and its actions there."""

    observations: np.ndarray
    actions: np.ndarray


def beside_expert(policy: Policy, source: str) -> dict[str, float]:
    """Return how far a policy, learned from this built-in set, is from the expert of its task."""
    task = source.partition("/")[0]
    if task not in TASKS:
        raise InputError(f"{source}: only built-in sets ({', '.join(TASKS)}) have an expert to be compared with")
    return distances(policy, expert_steps(task))


def distances(policy: Policy, expert: ExpertSteps) -> dict[str, float]:
    """Return the mean squared error of a policy's actions, and the KL divergence if it has a density."""
    found = {"action_error": float(np.square(policy.act(expert.observations) - expert.actions).mean())}
    if isinstance(policy, NetworkPolicy) and policy.config.get("gaussian"):
        found["kl"] = divergence(policy, expert)
    return found


def divergence(policy: NetworkPolicy, expert: ExpertSteps) -> float:
    """Return E[log π*(a|s) − log π(a|s)] exactly, with π* = N(a*, 0.01²) for each dimension.

    log π is a sum of one square for each dimension, so its mean under π* is that of its values at a* ± 0.01.
    """
    sides = [policy.log_density(expert.observations, expert.actions + side) for side in (STD, -STD)]
    entropy = expert.actions.shape[-1] * (0.5 + 0.5 * math.log(2 * math.pi) + math.log(STD))
    return float(-entropy - np.mean(sides))


@cache
def expert_steps(task: str) -> ExpertSteps:
    """Return the steps of ten trajectories of a task's expert."""
    ladder = load_ladder(task)
    episodes = roll_out(Shard(ladder.environment, Part(ladder.expert.layers, 0.0, episodes=EPISODES), STREAM))
    return ExpertSteps(
        np.concatenate([one.observations[:-1] for one in episodes]), np.concatenate([one.actions for one in episodes])
    )
