"""Forward dynamics f(s, a): an ensemble that predicts the next state and the reward of an action.

The likelihood p(s'|s) tells whether a jump looks like the data; this ensemble tells whether the jump's action leads
there. A jump's consistency is the worst member's error over the jump's own length, in standardised states:

    c = max over e of ‖f_e(s,â) − (ŝ'−s)‖ / ‖ŝ'−s‖
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normalise import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions, hold_out
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.fit_report import FitReport, explained
from trajstitch.learning.networks import MLP, normaliser_of
from trajstitch.models.fitting import fit_ensemble


class Forward(eqx.Module):
    """One member: maps (s, a) to the standardised change and the standardised reward."""

    observation: Normaliser
    action: Normaliser
    change: Normaliser
    reward: Normaliser
    network: MLP

    def __call__(
        self, observation: Float[Array, "*rows size"], action: Float[Array, "*rows action"]
    ) -> tuple[Float[Array, "*rows size"], Float[Array, "*rows"]]:
        """Return the change s' − s and the reward, in the data's units."""
        found = self.standardised(observation, action)
        return self.change.undo(found[..., :-1]), self.reward.undo(found[..., -1:])[..., 0]

    def standardised(
        self, observation: Float[Array, "*rows size"], action: Float[Array, "*rows action"]
    ) -> Float[Array, "*rows size+1"]:
        return self.network(jnp.concatenate((self.observation.apply(observation), self.action.apply(action)), -1))


class StepScores(eqx.Module):
    """The ensemble's scores of steps (s, a, s')."""

    error: Float[Array, " rows"]
    """The worst member's distance from s', in standardised states."""
    length: Float[Array, " rows"]
    """The step's own length ‖s' − s‖, in standardised states."""
    reward: Float[Array, " rows"]
    """The lowest reward that any member predicts."""

    @property
    def consistency(self) -> Float[Array, " rows"]:
        return self.error / jnp.maximum(self.length, 1e-6)


def score_steps(
    models: Forward,
    observation: Float[Array, "rows size"],
    action: Float[Array, "rows action"],
    next_observation: Float[Array, "rows size"],
) -> StepScores:
    """Score each step by the stacked members."""
    change = next_observation - observation

    def one(model: Forward) -> tuple[Array, Array]:
        found, reward = model(observation, action)
        return jnp.linalg.norm((found - change) / model.observation.std, axis=-1), reward

    errors, rewards = eqx.filter_vmap(one)(models)
    length = jnp.linalg.norm(change / models.observation.std[0], axis=-1)
    return StepScores(errors.max(0), length, rewards.min(0))


@dataclass(frozen=True)
class ForwardDynamics:
    """The ensemble for f(s, a): mean squared error of the change and the reward, with early stopping."""

    members: Annotated[int, Bounds(1)] = 3
    """Networks in the ensemble."""
    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths of the hidden layers."""
    learning_rate: Annotated[float, Bounds(0)] = 1e-3
    """Adam's first step size; it decays to zero along a cosine."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Steps in a batch."""
    steps: Annotated[int, Bounds(1)] = 100_000
    """Gradient steps at most."""
    patience: Annotated[int, Bounds(1)] = 10_000
    """Stop a member after this many steps without a better held-out error."""
    held_out: Annotated[float, Bounds(0, 1)] = 0.1
    """Share of the steps held out."""

    def init(self, key: PRNGKeyArray, scales: Sequence[Normaliser]) -> Forward:
        size, actions = (len(scale.mean) for scale in scales[:2])
        observation, action, change, reward = scales
        return Forward(observation, action, change, reward, MLP(size + actions, self.hidden, size + 1, key))

    def loss(self, model: Forward, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        found = model.standardised(batch.observation, batch.action)
        change = model.change.apply(batch.next_observation - batch.observation)
        aim = jnp.concatenate((change, model.reward.apply(batch.reward[:, None])), -1)
        error = jnp.square(found - aim).mean()
        return error, {"forward_error": error}

    def objectives(self) -> tuple[Objective, ...]:
        schedule = optax.cosine_decay_schedule(self.learning_rate, self.steps)
        return (Objective(self.loss, optax.adam(schedule), lambda model: model.network),)


def untrained_forward(config: ForwardDynamics, size: int, actions: int, key: PRNGKeyArray) -> Forward:
    """Return members of the shapes that `fit_forward` gives, to read trained ones into."""
    ones = tuple(normaliser_of(np.zeros((1, columns))) for columns in (size, actions, size, 1))
    return eqx.filter_vmap(lambda key: config.init(key, ones))(jax.random.split(key, config.members))


def fit_forward(config: ForwardDynamics, data: Trajectories, key: PRNGKeyArray) -> tuple[Forward, FitReport]:
    """Return all members, stacked along a leading axis."""
    train, held = hold_out(data, config.held_out)
    rows = data.state_rows
    changes = data.observations[rows + 1] - data.observations[rows]
    scales = tuple(map(normaliser_of, (data.observations, data.actions, changes, data.rewards[data.next_known, None])))
    state = fit_ensemble(config, lambda key: config.init(key, scales), data, train, held, key, "forward dynamics")
    return state.best, _fit_report(state.best, data, held)


def score_all_steps(
    models: Forward,
    observations: Float[np.ndarray, "rows size"],
    actions: Float[np.ndarray, "rows action"],
    next_observations: Float[np.ndarray, "rows size"],
) -> StepScores:
    """Score any number of steps, in batches; return NumPy arrays."""
    steps = (part.astype(np.float32) for part in (observations, actions, next_observations))
    return in_batches(lambda *step: _score_steps(models, *step), *steps)


@eqx.filter_jit
def _score_steps(models: Forward, observation: Array, action: Array, next_observation: Array) -> StepScores:
    return score_steps(models, observation, action, next_observation)


def _fit_report(models: Forward, data: Trajectories, held: np.ndarray) -> FitReport:
    rows = data.state_rows[held]
    found = score_all_steps(models, data.observations[rows], data.actions[held], data.observations[rows + 1])
    still = data.observations[rows + 1] - data.observations[rows]
    usual = np.asarray(models.change.mean[0])
    guess = np.linalg.norm((still - usual) / np.asarray(models.observation.std[0]), axis=1)
    error, baseline = (float(np.square(part).mean(dtype=np.float64)) for part in (found.error, guess))
    share = explained(error, baseline)
    consistency = np.quantile(np.asarray(found.error / np.maximum(found.length, 1e-6)), (0.5, 0.9))
    facts = {
        "forward_error": error**0.5,
        "baseline": baseline**0.5,
        "R²": share,
        "median_consistency": float(consistency[0]),
        "90%_consistency": float(consistency[1]),
    }
    return FitReport("forward dynamics", share > 0.1, facts)
