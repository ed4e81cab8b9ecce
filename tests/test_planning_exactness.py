"""Planning with capacity equals a slow and obvious reading of it, from the models' weights to every state and jump."""

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planning_oracle import Options, PlanningOracle
from random_data import models, random_data
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit import stack
from trajstitch.models.reward import RegressionReward
from trajstitch.stitching.acceptance import Rules, Summary
from trajstitch.stitching.capacity import plan_with_capacity
from trajstitch.stitching.graph import EdgeScorer, Models, StitchGraph, build_graph
from trajstitch.stitching.jump_tests import Consistency
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.planning import Plan
from trajstitch.stitching.precedent import Precedent


def some_models(data: Trajectories) -> Models:
    """Random networks for what the presets fit: an inverse model, two reward and two forward models."""
    forward = models().tests["consistency"]
    forward = eqx.tree_at(
        lambda one: (one.weight, one.exogenous, one.usual),
        forward,
        (jnp.array([1.0, 0.6]), jnp.array([0.0, 0.3]), jnp.array(0.7)),
    )
    keys = jax.random.split(jax.random.key(5))
    reward = stack([RegressionReward(hidden=(8,)).init(key, data) for key in keys])
    roles = ColumnRoles.none(data.observation_size)
    precedent, _ = Precedent().fit(data, jax.random.key(0), roles)
    return Models(models().inverse, reward, {"precedent": precedent, "consistency": forward})


def stitched(
    data: Trajectories, options: Options, made: Models, context: list[int] | None
) -> tuple[StitchGraph, Paths, Summary]:
    tests = {"precedent": Precedent(options.precedent), "consistency": Consistency(limit=options.consistency)}
    scorer = EdgeScorer(made, tests, data, None if context is None else np.array(context))
    graph = build_graph(data, scorer, NeighbourSearch(k=options.k))
    given = asdict(options)
    plan = Plan(**{name: given[name] for name in Plan.__dataclass_fields__ if name in given})
    rules = Rules(threshold=options.threshold, max_jumps=options.max_jumps, horizon=options.horizon)
    return graph, *plan_with_capacity(data, graph, scorer, plan, rules)


def some_data(seed: int, *, coarse: bool, rewards: str) -> Trajectories:
    random = np.random.default_rng(seed)
    data = random_data(random, coarse=coarse)
    if rewards == "sparse":
        paid = np.zeros(data.steps, np.float32)
        episodes = np.flatnonzero(data.lengths > 0)
        paid[[data.offsets[number] + random.integers(data.lengths[number]) for number in episodes[:2]]] = 1
        data = replace(data, rewards=paid)
    return replace(data, rewards=data.rewards - 2) if rewards == "costs" else data


def by_node(data: Trajectories, by_episode: list[int]) -> list[int]:
    return [by_episode[number] for number, length in enumerate(data.lengths) for _ in range(length + 1)]


def assert_same(paths: Paths, summary: Summary, oracle: PlanningOracle) -> Counter[str]:
    """Compare the two; return what there was to compare."""
    expected, found, seen = oracle.result(), paths.trajectories(), Counter()
    assert found.lengths.tolist() == [len(one.steps) for one in expected]
    assert paths.node.tolist() == [node for one in expected for node in one.nodes]
    steps = [step for one in expected for step in one.steps]
    assert found.provenance is not None
    assert found.provenance.stitched.tolist() == [step.jump for step in steps]
    assert found.episode_terminated.tolist() == [one.terminated and bool(one.steps) for one in expected]
    assert found.episode_truncated.tolist() == [one.truncated and bool(one.steps) for one in expected]
    np.testing.assert_allclose(found.rewards, [step.reward for step in steps], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.provenance.value_gain, [step.value_gain for step in steps], rtol=1e-2, atol=1e-3)
    logged, number = dict(zip(oracle.steps, oracle.data.actions, strict=True)), 0
    for step, action in zip(steps, found.actions, strict=True):
        right = oracle.action(step.source, step.target) if step.jump else logged[step.source]
        np.testing.assert_allclose(action, right, rtol=1e-3, atol=1e-4)
        number += step.jump
    assert summary.jumps == number
    seen["jumps"] = number
    seen["trajectories with jumps"] = sum(any(step.jump for step in one.steps) for one in expected)
    seen["from the end of a log"] = sum(step.jump and oracle.last[step.source] for step in steps)
    seen["ending before a reward in doubt"] = oracle.cut
    seen["ending before their data"] = sum(one.truncated and not one.terminated for one in expected)
    return seen


def compared(seed: int, options: Options, *, coarse: bool, rewards: str, contexts: bool) -> Counter[str]:
    data = some_data(seed, coarse=coarse, rewards=rewards)
    context = by_node(data, [number % 2 for number in range(len(data))]) if contexts else None
    made = some_models(data)
    oracle = PlanningOracle(data, made, options, context)
    graph, paths, summary = stitched(data, options, made, context)
    found = list(zip(graph.edges.source.tolist(), graph.edges.target.tolist(), strict=True))
    assert found == [(source, target) for source, targets in sorted(oracle.jumps.items()) for target in targets]
    return assert_same(paths, summary, oracle)


def case(seed: int) -> Counter[str]:
    """Compare the two on random data, with random options."""
    random = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[random.integers(len(values))]

    options = Options(
        k=one_of(2, 4, 7),
        precedent=one_of(None, 1.0, 3.0),
        consistency=one_of(None, 0.5, 1.0, 2.0),
        discount=one_of(0.8, 0.95),
        pessimism=one_of(0.02, 0.2, 1.0),
        predicted_rewards=one_of(True, True, False),
        reward_range=one_of(True, True, False),
        max_visits=one_of(0.025, 0.4, 1.0),
        parts=one_of(1, 3, 10),
        doubt=one_of(None, 0.02, 0.1, 0.3),
        threshold=one_of(0.1, 0.0, -3.0),
        max_jumps=one_of(None, None, 2),
        horizon=one_of(None, None, 5, 30),
    )
    rewards, coarse = one_of("dense", "dense", "sparse", "costs"), one_of(True, False)
    return compared(seed, options, coarse=coarse, rewards=rewards, contexts=one_of(True, False, False))


@pytest.mark.parametrize("first", [0, 6, 12])
def test_planning_equals_its_rule_step_by_step(first: int) -> None:
    seen = sum((case(seed) for seed in range(first, first + 6)), Counter())
    assert seen["jumps"] > 10
    assert seen["trajectories with jumps"] > 10
    assert seen["ending before their data"] > 5
    assert seen["from the end of a log"] > 0
    assert seen["ending before a reward in doubt"] > 0
