"""Fitting a single model, or an ensemble with early stopping, to some steps of a data set."""

from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Integer, PRNGKeyArray

from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import transitions
from trajstitch.learning.fit import Algorithm, State, begin, fit, member

EARLY_STOPPING_STEPS = 10_000
"""Held-out steps that early stopping is decided on, at most."""


class EnsembleConfig(Algorithm, Protocol):
    """A config that trains several members and stops each when its held-out loss no longer falls."""

    @property
    def members(self) -> int: ...
    @property
    def patience(self) -> int: ...


def fit_one(
    config: Algorithm,
    init: Callable[[PRNGKeyArray], Any],
    data: Trajectories,
    train: Integer[np.ndarray, " train"],
    key: PRNGKeyArray,
    title: str,
) -> Any:
    """Fit one model, made by `init`, to the steps `train` of the data."""
    init_key, fit_key = jax.random.split(key)
    models = jax.tree.map(lambda leaf: leaf[None], init(init_key))
    state = fit(config, begin(config, models, fit_key[None]), transitions(data, train), title=title)
    return member(state.best, 0)


def fit_ensemble(
    config: EnsembleConfig,
    init: Callable[[PRNGKeyArray], Any],
    data: Trajectories,
    train: Integer[np.ndarray, " train"],
    held: Integer[np.ndarray, " held_out"],
    key: PRNGKeyArray,
    title: str,
) -> State:
    """Fit members, each made by `init`, to the steps `train`, with early stopping on the steps `held`."""
    init_key, fit_key = jax.random.split(key)
    models = eqx.filter_vmap(init)(jax.random.split(init_key, config.members))
    stopping = np.sort(np.random.default_rng(0).permutation(held)[:EARLY_STOPPING_STEPS])
    return fit(
        config,
        begin(config, models, jax.random.split(fit_key, config.members)),
        transitions(data, train),
        held_out=transitions(data, stopping),
        patience=config.patience,
        title=title,
    )
