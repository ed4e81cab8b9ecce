"""Inverse dynamics p(a|s,s'): a conditional variational autoencoder that predicts the action between two states."""

from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normalise import Normaliser, action_bounds
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions, hold_out
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.compiled import compiled
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.fit_report import FitReport, explained
from trajstitch.learning.networks import MLP, change_normaliser_of, normaliser_of
from trajstitch.models.fitting import fit_one, limited

LARGE = 900_000
"""Data sets with at least this many transitions get wide hidden layers."""


class Inverse(eqx.Module):
    """Encoder: (s, a, s') to the latent's mean and log standard deviation. Decoder: (s, s', z) to the action."""

    scale: Normaliser
    change: Normaliser
    low: Float[Array, " action"]
    high: Float[Array, " action"]
    encoder: MLP
    decoder: MLP

    def __call__(
        self,
        observation: Float[Array, "*rows size"],
        next_observation: Float[Array, "*rows size"],
        latent: Float[Array, "*rows latent"] | None = None,
    ) -> Float[Array, "*rows action"]:
        """Return the action between two states, within the action bounds; without a latent, the most plausible one."""
        pair = self._pair(observation, next_observation)
        latent = jnp.zeros((*pair.shape[:-1], self.latent_size)) if latent is None else latent
        within = jnp.tanh(self.decoder(jnp.concatenate((pair, latent), -1)))
        return self.low + (self.high - self.low) * (within + 1) / 2

    @property
    def latent_size(self) -> int:
        return 2 * self.low.shape[-1]

    def encode(self, batch: Transitions) -> tuple[Array, Array]:
        pair = self._pair(batch.observation, batch.next_observation)
        action = 2 * (batch.action - self.low) / (self.high - self.low) - 1
        mean, log_std = jnp.split(self.encoder(jnp.concatenate((pair, action), -1)), 2, axis=-1)
        return mean, jnp.clip(log_std, -4, 15)

    def _pair(self, observation: Array, next_observation: Array) -> Array:
        return jnp.concatenate(
            (self.scale.apply(observation), self.change.apply(next_observation - observation)), axis=-1
        )


@dataclass(frozen=True)
class InverseDynamics:
    """The autoencoder for p(a|s,s'): the evidence lower bound, weighted as PLAS and BCQ do."""

    hidden: Annotated[tuple[int, ...], Bounds(1)] = ()
    """Widths of the hidden layers; if empty, 2 × 256, or 2 × 750 from 900,000 transitions on."""
    learning_rate: Annotated[float, Bounds(0)] = 1e-4
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 100
    """Steps in a batch."""
    steps: Annotated[int, Bounds(1)] = 400_000
    """Gradient steps at most."""
    epochs: Annotated[int, Bounds(1)] | None = None
    """Passes over the training steps at most, so that little data takes little time; None: any number."""
    divergence_weight: Annotated[float, Bounds(0)] = 0.5
    """Weight of the latent's KL divergence from its prior, relative to the action's mean squared error."""
    held_out: Annotated[float, Bounds(0, below=1)] = 0.05
    """Share of the steps held out to measure the action error."""

    def init(self, key: PRNGKeyArray, data: Trajectories) -> Inverse:
        hidden = self.hidden or (2 * (750,) if data.steps >= LARGE else 2 * (256,))
        size, actions = data.observation_size, data.action_size
        encoder, decoder = jax.random.split(key)
        rows = data.state_rows
        low, high = action_bounds(data)
        return Inverse(
            scale=normaliser_of(data.observations),
            change=change_normaliser_of(data.observations, rows),
            low=jnp.asarray(low),
            high=jnp.asarray(high),
            encoder=MLP(2 * size + actions, hidden, 4 * actions, encoder),
            decoder=MLP(2 * size + 2 * actions, hidden, actions, decoder),
        )

    def loss(self, model: Inverse, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        mean, log_std = model.encode(batch)
        latent = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        width = (model.high - model.low) / 2
        action = model(batch.observation, batch.next_observation, latent)
        error = jnp.square((action - batch.action) / width).mean()
        divergence = -0.5 * (1 + 2 * log_std - jnp.square(mean) - jnp.exp(2 * log_std)).mean()
        return error + self.divergence_weight * divergence, {"action_error": error, "divergence": divergence}

    def objectives(self) -> tuple[Objective, ...]:
        networks = lambda model: (model.encoder, model.decoder)  # noqa: E731
        return (Objective(self.loss, optax.adam(self.learning_rate), networks),)


def fit_inverse(config: InverseDynamics, data: Trajectories, key: PRNGKeyArray) -> tuple[Inverse, FitReport]:
    """Fit the inverse model, and report its action error on held-out steps."""
    train, held = hold_out(data, config.held_out)
    config = limited(config, len(train))
    model = fit_one(config, lambda key: config.init(key, data), data, train, key, "inverse dynamics")
    rows = data.state_rows[held]
    found = in_batches(
        lambda a, b: _act(model, a, b), *(data.observations[at].astype(np.float32) for at in (rows, rows + 1))
    )
    width = (np.asarray(model.high) - np.asarray(model.low)) / 2  # no unit outweighs another
    error = float(np.square((found - data.actions[held]) / width).mean())
    baseline = float(np.square((data.actions[train].mean(0) - data.actions[held]) / width).mean())
    share = explained(error, baseline)
    return model, FitReport("inverse dynamics", share > 0.1, {"action_error": error, "baseline": baseline, "R²": share})


@compiled
def _act(model: Inverse, state: Array, following: Array) -> Array:
    return model(state, following)
