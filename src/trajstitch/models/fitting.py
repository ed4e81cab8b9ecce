"""Fitting a single model, or an ensemble with early stopping, to some steps of a data set."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Integer, PRNGKeyArray

from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import transitions
from trajstitch.learning.fit import Algorithm, State, begin, fit, member

EARLY_STOPPING_STEPS = 10_000
"""Held-out steps that early stopping is decided on, at most."""
FEWEST_STEPS = 2_000
"""Gradient steps that any data set gets, however small."""


@runtime_checkable
class SizedConfig(Protocol):
    """A model's config; with a field `epochs`, training ends after these if that is sooner than its steps."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def steps(self) -> int: ...
    @property
    def batch_size(self) -> int: ...


ConfigT = TypeVar("ConfigT", bound=SizedConfig)


class EnsembleConfig(Algorithm, Protocol):
    """A config that trains several members and stops each when its held-out loss no longer falls."""

    @property
    def members(self) -> int: ...
    @property
    def patience(self) -> int: ...


def epochs_of(config: SizedConfig) -> int | None:
    """Return the epochs after which a config's training ends; None if only its steps end it."""
    return getattr(config, "epochs", None)


def limited(config: ConfigT, rows: int) -> ConfigT:
    """Return the config with fewer gradient steps where its `epochs` over this number of rows end sooner."""
    if (epochs := epochs_of(config)) is None:
        return config
    enough = 1000 * math.ceil(epochs * rows / config.batch_size / 1000)  # so that few programs are compiled
    return replace(config, steps=min(config.steps, max(enough, FEWEST_STEPS)))


def fit_one(
    config: Algorithm,
    init: Callable[[PRNGKeyArray], Any],
    data: Trajectories,
    train: Integer[np.ndarray, " train"],
    key: PRNGKeyArray,
    title: str,
    held: Integer[np.ndarray, " held_out"] | None = None,
) -> Any:
    """Fit one model, made by `init`, to the steps `train` of the data.

    With `held`, the parameters with the lowest loss on those steps are kept.
    """
    init_key, fit_key = jax.random.split(key)
    models = jax.tree.map(lambda leaf: leaf[None], init(init_key))
    held_out = None if held is None else transitions(data, _stopping(held))
    state = fit(config, begin(config, models, fit_key[None]), transitions(data, train), held_out=held_out, title=title)
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
    return fit(
        config,
        begin(config, models, jax.random.split(fit_key, config.members)),
        transitions(data, train),
        held_out=transitions(data, _stopping(held)),
        patience=config.patience,
        title=title,
    )


def _stopping(held: Integer[np.ndarray, " held_out"]) -> Integer[np.ndarray, " some"]:
    return np.sort(np.random.default_rng(0).permutation(held)[:EARLY_STOPPING_STEPS])
