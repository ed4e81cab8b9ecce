"""State dynamics p(s'|s): an ensemble of Gaussian networks that gives the likelihood of a next state.

The action is not an input: the model learns what follows a state under the policies that made the data. A member
predicts mean and standard deviation of the standardised change s' − s.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.stats import chi2

from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions, hold_out
from trajstitch.errors import InputError
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.compiled import compiled
from trajstitch.learning.fit import Metrics, Objective, member
from trajstitch.learning.fit_report import FitReport
from trajstitch.learning.losses import log_density
from trajstitch.learning.networks import MLP, change_normaliser_of, normaliser_of
from trajstitch.models.fitting import fit_ensemble

LOG_STD = (-6.0, 2.0)
"""Bounds on the predicted log standard deviation: a tighter one turns likelihoods into rounding noise."""


class Gaussian(eqx.Module):
    """One member: maps s to the mean and log standard deviation of the standardised change."""

    scale: Normaliser
    change: Normaliser
    network: MLP

    def __call__(self, observation: Float[Array, "*rows size"]) -> tuple[Array, Array]:
        mean, log_std = jnp.split(self.network(self.scale.apply(observation)), 2, axis=-1)
        low, high = LOG_STD
        log_std = high - jax.nn.softplus(high - log_std)
        return mean, low + jax.nn.softplus(log_std - low)

    def log_likelihood(
        self, observation: Float[Array, "*#rows size"], next_observation: Float[Array, "*#rows size"]
    ) -> Float[Array, "*#rows"]:
        """Return log p(s'|s) of the standardised change."""
        change = self.change.apply(next_observation - observation)
        return log_density(change, *self(observation))


@dataclass(frozen=True)
class Dynamics:
    """The ensemble for p(s'|s): maximum likelihood, with early stopping on held-out likelihood."""

    members: Annotated[int, Bounds(1)] = 7
    """Networks to train."""
    keep: Annotated[int, Bounds(1)] = 5
    """Networks to keep: those with the best held-out likelihood."""
    hidden: Annotated[tuple[int, ...], Bounds(1)] = (200, 200, 200)
    """Widths of the hidden layers."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Steps in a batch."""
    steps: Annotated[int, Bounds(1)] = 200_000
    """Gradient steps at most."""
    patience: Annotated[int, Bounds(1)] = 10_000
    """Stop a member after this many steps without a better held-out likelihood."""
    held_out: Annotated[float, Bounds(0, below=1)] = 0.2
    """Share of the steps held out."""

    def check_fields(self, prefix: str) -> None:
        """Raise if more members are kept than trained."""
        if self.keep > self.members:
            raise InputError(f"`{prefix}keep` must be at most `{prefix}members={self.members}`, not {self.keep}")

    def init(self, key: PRNGKeyArray, scale: Normaliser, change: Normaliser) -> Gaussian:
        size = len(scale.mean)
        return Gaussian(scale, change, MLP(size, self.hidden, 2 * size, key))

    def loss(self, model: Gaussian, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        loss = -model.log_likelihood(batch.observation, batch.next_observation).mean()
        return loss, {"log_likelihood": -loss}

    def objectives(self) -> tuple[Objective, ...]:
        return (Objective(self.loss, optax.adam(self.learning_rate), lambda model: model.network),)


def untrained_dynamics(config: Dynamics, size: int, key: PRNGKeyArray) -> Gaussian:
    """Return members of the shapes that `fit_dynamics` gives, to read trained ones into."""
    one = normaliser_of(np.zeros((1, size)))
    return eqx.filter_vmap(lambda key: config.init(key, one, one))(jax.random.split(key, config.keep))


def fit_dynamics(config: Dynamics, data: Trajectories, key: PRNGKeyArray) -> tuple[Gaussian, FitReport]:
    """Return the kept members, stacked along a leading axis, best first."""
    train, held = hold_out(data, config.held_out)
    scale = normaliser_of(data.observations)
    rows = data.state_rows[train]
    change = change_normaliser_of(data.observations, rows)
    state = fit_ensemble(config, lambda key: config.init(key, scale, change), data, train, held, key, "dynamics")
    best = np.argsort(np.asarray(state.best_loss), kind="stable")[: config.keep]
    models = member(state.best, best)
    return models, _fit_report(models, data, held)


def _fit_report(models: Gaussian, data: Trajectories, held: np.ndarray) -> FitReport:
    rows = data.state_rows[held]
    likelihood, baseline, distance = in_batches(
        lambda a, b: _measure(models, a, b), *(data.observations[at].astype(np.float32) for at in (rows, rows + 1))
    )
    inside = chi2.cdf(distance, data.observation_size).mean(1) <= 0.9
    facts = {
        "log_likelihood": float(likelihood.mean(dtype=np.float64)),
        "baseline": float(baseline.mean(dtype=np.float64)),
        "inside_the_90%_region": float(inside.mean()),
    }
    return FitReport("dynamics", facts["log_likelihood"] > facts["baseline"], facts)


@compiled
def _measure(models: Gaussian, state: Array, following: Array) -> tuple[Array, Array, Array]:
    def one(model: Gaussian) -> tuple[Array, Array, Array]:
        change = model.change.apply(following - state)
        mean, log_std = model(state)
        nothing = jnp.zeros_like(change)
        return (
            log_density(change, mean, log_std),
            log_density(change, nothing, nothing),
            jnp.square((change - mean) * jnp.exp(-log_std)).sum(-1),
        )

    likelihood, baseline, distance = eqx.filter_vmap(one, out_axes=1)(models)
    return jax.nn.logsumexp(likelihood, 1) - math.log(likelihood.shape[1]), baseline[:, 0], distance
