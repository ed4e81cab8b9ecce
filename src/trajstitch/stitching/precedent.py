"""Precedent: the jump test that asks for a logged step like the jump.

A model that was never shown a wall predicts that one can walk through it. But no logged step leads from this side of it
to the other. So a jump must have a precedent: a logged step from near its source to near its target. Near is a fifth of
the jump's length, or, in sparse data of many dimensions, as near as one in ten logged steps has one in other episodes.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.buffer import padded
from trajstitch.learning.compiled import compiled
from trajstitch.learning.networks import normaliser_of
from trajstitch.stitching.jump_tests import Candidates, Scores

NEAR = 0.2
"""Share of a jump's length within which a precedent is near enough in any data."""


class Scale(eqx.Module):
    """The units in which distances are measured."""

    weight: Float[Array, " size"]
    """One over each column's spread; 0 for columns that actions don't control."""


@dataclass(frozen=True)
class Precedent:
    """A logged step must lead from near the jump's source to near its target.

    Scores: `precedent`, the distance of the nearest logged step (the larger of those between the sources and between
    the targets) over the jump's length; of jumps, as a multiple of what counts as near in the data.
    """

    limit: Annotated[float, Bounds(0)] | None = 1.0
    """How far the precedent may be, as a multiple of what counts as near: a fifth of the jump's length, or as near as
    one in ten logged steps has one. Larger lets more jumps through; None scores jumps without testing them."""

    def fit(self, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles) -> tuple[Scale, None]:
        weight = np.where(roles.controlled, 1 / np.asarray(normaliser_of(data.observations).std), 0)
        return Scale(jnp.asarray(weight, jnp.float32)), None

    def untrained(self, data: Trajectories, key: PRNGKeyArray) -> Scale:
        return Scale(jnp.ones(data.observation_size))

    def score(self, model: Scale, candidates: Candidates) -> Candidates:
        assert candidates.nearby is not None
        found = _precedents(model, candidates, own=True) / max(NEAR, candidates.nearby.precedent)
        return replace(candidates, scores={**candidates.scores, "precedent": np.nan_to_num(found, nan=np.inf)})

    def score_logged(self, model: Scale, steps: Candidates) -> Scores:
        return {"precedent": _precedents(model, steps, own=False)}

    def passes(self, scores: Scores, replaced: Scores) -> Bool[np.ndarray, " pairs"]:
        found = scores["precedent"]
        return np.ones(len(found), bool) if self.limit is None else found <= self.limit


def _precedents(model: Scale, pairs: Candidates, own: bool) -> Float[np.ndarray, " pairs"]:
    """Return the distance of the nearest logged step, over each pair's length; with or without that of the source.

    It is infinite where no step was logged nearby, and NaN for a pair of equal states.
    """
    nearby = pairs.nearby
    assert nearby is not None
    at_source = (nearby.steps if own else np.zeros_like(nearby.steps))[pairs.source]
    # How far the steps nearby start from each source is the same for all of its pairs.
    sources, number = np.unique(pairs.source, return_inverse=True)
    apart = in_batches(lambda rows: _from_start(model.weight, pairs.states, nearby.table, rows), sources)
    apart = jax.device_put(padded(apart))
    scan = lambda *pair: _nearest(model.weight, pairs.states, nearby.table, apart, *pair)  # noqa: E731
    return in_batches(scan, pairs.source, pairs.target, number.astype(np.int32), at_source)


@compiled
def _from_start(weight: Array, states: Array, table: Array, source: Array) -> Array:
    start = weight * states[source]
    return jnp.square(weight * states[table[source]] - start[:, None]).sum(-1)


@compiled
def _nearest(
    weight: Array, states: Array, table: Array, apart: Array, source: Array, target: Array, number: Array, own: Array
) -> Array:
    start, end = weight * states[source], weight * states[target]

    def one(nearest: Array, rank: Array) -> tuple[Array, None]:
        step = table[source, rank]
        from_end = jnp.square(weight * states[step + 1] - end).sum(-1)
        return jnp.minimum(nearest, jnp.where(step < 0, jnp.inf, jnp.maximum(apart[number, rank], from_end))), None

    logged = jnp.where(own, jnp.square(weight * states[source + 1] - end).sum(-1), jnp.inf)
    nearest, _ = jax.lax.scan(one, logged, jnp.arange(table.shape[1]))
    length = jnp.square(end - start).sum(-1)
    return jnp.where(length > 0, jnp.sqrt(nearest / length), jnp.nan)
