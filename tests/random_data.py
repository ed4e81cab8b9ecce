"""Random small data sets and random networks, for tests that ask only whether two ways agree."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.networks import normaliser_of
from trajstitch.models.dynamics import Dynamics
from trajstitch.models.forward import ForwardDynamics, ForwardEnsemble
from trajstitch.models.inverse import InverseDynamics
from trajstitch.models.reward import GenerativeReward
from trajstitch.stitching.graph import EdgeScorer, Models, StitchGraph, build_graph
from trajstitch.stitching.jump_tests import Consistency, JumpTest, Likelihood
from trajstitch.stitching.neighbours import NeighbourSearch

LARGEST = 40
"""Nodes of every random data set: of one size, so that nothing compiles twice."""


def random_data(random: np.random.Generator, *, coarse: bool) -> Trajectories:
    """Short random walks in the plane; on a coarse grid, states and distances coincide."""
    lengths = []
    while sum(lengths) + len(lengths) < LARGEST:
        lengths.append(int(min(random.integers(0, 9), LARGEST - sum(lengths) - len(lengths) - 1)))
    steps, episodes = sum(lengths), len(lengths)
    walks = [np.cumsum(random.normal(size=(length + 1, 2)) * 0.5, 0) + random.normal(size=2) for length in lengths]
    observations = np.concatenate(walks).astype(np.float32)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    ends = [stop - 1 for length, stop in zip(lengths, offsets[1:], strict=True) if length]
    terminated, truncated = np.zeros(steps, bool), np.zeros(steps, bool)
    terminated[ends] = random.random(len(ends)) < 0.5
    truncated[ends] = random.random(len(ends)) < 0.7
    assert len(observations) == steps + episodes == LARGEST
    return Trajectories(
        observations=np.round(observations * 2) / 2 if coarse else observations,
        actions=random.uniform(-1, 1, (steps, 1)).astype(np.float32),
        rewards=random.normal(size=steps).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        offsets=offsets,
    )


@cache
def models() -> Models:
    """Random networks: their predictions are meaningless, but both sides must use the same."""
    keys = jax.random.split(jax.random.key(3), 6)
    data = random_data(np.random.default_rng(0), coarse=False)
    scale, change = normaliser_of(data.observations), normaliser_of(np.random.default_rng(0).normal(size=(50, 2)))
    action, reward = normaliser_of(data.actions), normaliser_of(data.rewards[:, None])
    dynamics = jax.vmap(lambda key: Dynamics(hidden=(8,)).init(key, scale, change))(keys[:3])
    members = jax.vmap(lambda key: ForwardDynamics(hidden=(8,)).init(key, (scale, action, change, reward)))(keys[:2])
    forward = ForwardEnsemble(members, jnp.ones(2), jnp.zeros(2), jnp.zeros(()))
    inverse = InverseDynamics(hidden=(8,)).init(keys[4], data)
    generator = GenerativeReward(hidden=(8,)).untrained(keys[5], data)
    return Models(inverse, generator, {"likelihood": dynamics, "consistency": forward})


def jump_tests(margin: float | None = 0.0, limit: float | None = None, *, forward: bool = True) -> dict[str, JumpTest]:
    """The two jump tests with these limits, or the likelihood alone."""
    tests: dict[str, JumpTest] = {"likelihood": Likelihood(margin=margin)}
    return tests | {"consistency": Consistency(limit=limit)} if forward else tests


def scorer(
    data: Trajectories, margin: float | None = 0.0, limit: float | None = None, *, forward: bool = True
) -> EdgeScorer:
    return EdgeScorer(models(), jump_tests(margin, limit, forward=forward), data)


def graph_of(
    data: Trajectories, search: NeighbourSearch, margin: float | None = 0.0, *, forward: bool = True
) -> StitchGraph:
    return build_graph(data, scorer(data, margin, forward=forward), search)
