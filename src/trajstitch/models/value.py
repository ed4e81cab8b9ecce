"""The value V(s) of the policies that made the data: the lower of two networks, trained by the Bellman equation.

After a termination nothing follows, so the target is the reward alone; after a truncation the world went on, so the
target bootstraps. The networks predict standardised discounted returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.stats import spearmanr

from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions, hold_out, transitions
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.buffer import fill_buffer
from trajstitch.learning.compiled import compiled
from trajstitch.learning.fit import Metrics, Objective, begin, fit, member, stack
from trajstitch.learning.fit_report import FitReport, explained
from trajstitch.learning.networks import MLP, normaliser_of

LEAST_RANKING = 0.1
"""Rank correlation with held-out returns, beyond chance, from which V counts as better than nothing. V only compares
states: the lower of two networks, each trained on the lower of two, may be far too low and still rank states."""


class Value(eqx.Module):
    """Two networks and their target networks."""

    scale: Normaliser
    returns: Normaliser
    online: MLP
    target: MLP

    def __call__(self, observation: Float[Array, "*rows size"]) -> Float[Array, "*rows"]:
        return self.returns.undo(self.standardised(self.online, observation).min(0)[..., None])[..., 0]

    def standardised(self, networks: MLP, observation: Float[Array, "*rows size"]) -> Float[Array, "2 *rows"]:
        state = self.scale.apply(observation)
        return eqx.filter_vmap(lambda network: network(state)[..., 0])(networks)


@dataclass(frozen=True)
class TwinValue:
    """Twin V: the squared Bellman error of two networks, with target networks."""

    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the hidden layers."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Steps in a batch."""
    steps: Annotated[int, Bounds(1)] = 1_000_000
    """Gradient steps from scratch."""
    warm_steps: Annotated[int, Bounds(1)] | None = None
    """Gradient steps when V starts from the last pass's; if None, every pass trains V from scratch."""
    discount: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount γ of a reward one step later."""
    target_rate: Annotated[float, Bounds(0, 1)] = 0.005
    """Rate τ at which the target networks follow the trained ones."""
    held_out: Annotated[float, Bounds(0, below=1)] = 0.05
    """Share of the steps held out to measure the value error."""

    def init(self, key: PRNGKeyArray, data: Trajectories) -> Value:
        networks = eqx.filter_vmap(lambda key: MLP(data.observation_size, self.hidden, 1, key))(
            jax.random.split(key, 2)
        )
        returns = normaliser_of(data.discounted_returns(self.discount)[:, None])
        return Value(normaliser_of(data.observations), returns, networks, networks)

    def loss(self, model: Value, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        following = model.standardised(model.target, batch.next_observation).min(0)
        following = jnp.where(batch.terminated, 0, model.returns.undo(following[:, None])[:, 0])
        target = model.returns.apply((batch.reward + self.discount * following)[:, None])[:, 0]
        error = jnp.square(model.standardised(model.online, batch.observation) - jax.lax.stop_gradient(target)).mean(-1)
        return error.sum(), {"bellman_error": error.mean()}

    def objectives(self) -> tuple[Objective, ...]:
        def follow(model: Value) -> Value:
            moved = jax.tree.map(lambda old, new: old + self.target_rate * (new - old), model.target, model.online)
            return eqx.tree_at(lambda model: model.target, model, moved)

        return (Objective(self.loss, optax.adam(self.learning_rate), lambda model: model.online, then=follow),)


def fit_value(
    config: TwinValue, data: Trajectories, key: PRNGKeyArray, warm: Value | None = None
) -> tuple[Value, FitReport]:
    """Fit V to the data; `warm` is a V to start from, if the config has warm steps."""
    return fit_values(config, [data], [key], None if warm is None else [warm])[0]


def fit_values(
    config: TwinValue,
    sets: Sequence[Trajectories],
    keys: Sequence[PRNGKeyArray],
    warm: Sequence[Value] | None = None,
    room: int = 0,
) -> list[tuple[Value, FitReport]]:
    """Fit V to each of several data sets, all trained at once; each comes out as by `fit_value`.

    The buffer has room for `room` steps in all, so that sets with fewer steps reuse the same compiled program.
    """
    split = [jax.random.split(key) for key in keys]
    if warm is not None and config.warm_steps is not None:
        models = warm
        config = replace(config, steps=config.warm_steps)
    else:
        models = [config.init(init_key, data) for data, (init_key, _) in zip(sets, split, strict=True)]
    state = begin(config, stack(list(models)), jnp.stack([fit_key for _, fit_key in split]))
    parts = [hold_out(data, config.held_out, usable=data.target_known) for data in sets]
    samples = (transitions(data, train) for data, (train, _) in zip(sets, parts, strict=True))
    table, slices = fill_buffer(samples, [len(train) for train, _ in parts], room)
    best = fit(config, state, table, slices, title="value").best
    return [
        (member(best, number), _fit_report(config, member(best, number), data, held))
        for number, (data, (_, held)) in enumerate(zip(sets, parts, strict=True))
    ]


def values(model: Value, observations: Float[np.ndarray, "rows size"]) -> Float[np.ndarray, " rows"]:
    """Return V of any number of states."""
    return in_batches(lambda rows: _evaluate(model, rows), observations.astype(np.float32))


@compiled
def _evaluate(model: Value, rows: Array) -> Array:
    return model(rows)


def _fit_report(config: TwinValue, model: Value, data: Trajectories, held: np.ndarray) -> FitReport:
    last = data.first_rows + data.lengths
    # What follows an unknown final state is valued by the state before it.
    after = np.where(data.episode_terminated, 0, values(model, data.filled().observations[last]))
    returns = data.discounted_returns(config.discount, after)
    found = values(model, data.observations[data.state_rows[held]])
    misses = found - returns[held]
    error, baseline = float(np.square(misses).mean()), float(np.square(returns.mean() - returns[held]).mean())
    rank = ranking(found, returns[held])
    facts = {
        "value_error": error**0.5,
        "baseline": baseline**0.5,
        "R²": explained(error, baseline, float(np.square(returns[held]).mean())),
        "bias": float(misses.mean()),
        "ranking": rank,
    }
    chance = 2 / len(held) ** 0.5
    return FitReport("value", rank > LEAST_RANKING + chance, facts)


def ranking(found: Float[np.ndarray, " rows"], true: Float[np.ndarray, " rows"]) -> float:
    """Return Spearman's correlation; if either is constant, 1 if they agree and 0 if not."""
    if np.ptp(true) == 0 or np.ptp(found) == 0:
        return float(np.allclose(found, true, rtol=0.01, atol=0))
    return float(spearmanr(found, true).statistic)  # pyright: ignore[reportAttributeAccessIssue]
