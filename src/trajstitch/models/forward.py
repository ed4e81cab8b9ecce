"""Forward dynamics f(s, a): an ensemble that predicts the next state and the reward of an action.

The likelihood p(s'|s) tells whether a jump looks like the data; this ensemble tells whether the jump's action leads
there. A jump's error is the worst member's distance from its target. Only columns that actions control count, each by
the share of its changes that the members explain on held-out steps, so that noise in the sensors does not hide the
rest. An exogenous column takes its own course: there, the error is the distance from the value that was logged next.

A jump's consistency is its error over its own length, beyond what is usual on held-out logged steps (their median):

    c² = max over e of ‖f_e(s,â) − (ŝ'−s)‖² / ‖ŝ'−s‖² − usual²
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions, hold_out
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.compiled import compiled
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.fit_report import FitReport, explained
from trajstitch.learning.networks import MLP, change_normaliser_of, normaliser_of
from trajstitch.models.fitting import fit_ensemble, limited
from trajstitch.models.hidden_state import Missed, told_by_step_before

MOST_EXPLAINED = 20_000
"""Steps that tell whether part of the state is hidden, at most."""
RESTING = 0.01
"""Steps that are shorter than this share of the usual one tell nothing about errors over lengths: a sensor that rounds
gives many of no length at all."""


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


class ForwardEnsemble(eqx.Module):
    """The members, and how well they do on held-out steps."""

    members: Forward
    """Stacked along a leading axis."""
    weight: Float[Array, " size"]
    """The share of each column's changes that the members explain; 0 for columns that actions don't control."""
    exogenous: Float[Array, " size"]
    """1 for columns that take their own course."""
    usual: Float[Array, ""]
    """The median error of held-out logged steps that move, over their length."""


class StepScores(eqx.Module):
    """The ensemble's scores of steps (s, a, s')."""

    error: Float[Array, " rows"]
    """The worst member's distance from s', in standardised states."""
    length: Float[Array, " rows"]
    """The step's own length ‖s' − s‖, in standardised states."""
    reward: Float[Array, " rows"]
    """The lowest reward that any member predicts."""

    @property
    def relative(self) -> Float[Array, " rows"]:
        """The error over the step's length."""
        return self.error / jnp.maximum(self.length, 1e-6)


def score_steps(
    ensemble: ForwardEnsemble,
    observation: Float[Array, "rows size"],
    action: Float[Array, "rows action"],
    next_observation: Float[Array, "rows size"],
    logged: Float[Array, "rows size"] | None = None,
) -> StepScores:
    """Score each step by the members; `logged` is the next state that was logged, if the steps are jumps."""
    std = ensemble.members.observation.std[0]
    change = (next_observation - observation) / std

    def one(model: Forward) -> tuple[Array, Array]:
        found, reward = model(observation, action)
        return (ensemble.weight * jnp.square(found / std - change)).sum(-1), reward

    squares, rewards = eqx.filter_vmap(one)(ensemble.members)
    apart = 0.0
    if logged is not None:
        apart = (ensemble.exogenous * jnp.square((next_observation - logged) / std)).sum(-1)
    length = jnp.sqrt((ensemble.weight * jnp.square(change)).sum(-1))
    return StepScores(jnp.sqrt(squares.max(0) + apart), length, rewards.min(0))


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
    epochs: Annotated[int, Bounds(1)] | None = None
    """Passes over the training steps at most, so that little data takes little time; None: any number."""
    patience: Annotated[int, Bounds(1)] = 10_000
    """Stop a member after this many steps without a better held-out error."""
    held_out: Annotated[float, Bounds(0, below=1)] = 0.1
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


def untrained_forward(config: ForwardDynamics, size: int, actions: int, key: PRNGKeyArray) -> ForwardEnsemble:
    """Return an ensemble of the shapes that `fit_forward` gives, to read a trained one into."""
    ones = tuple(normaliser_of(np.zeros((1, columns))) for columns in (size, actions, size, 1))
    members = eqx.filter_vmap(lambda key: config.init(key, ones))(jax.random.split(key, config.members))
    return ForwardEnsemble(members, jnp.ones(size), jnp.zeros(size), jnp.zeros(()))


def fit_forward(
    config: ForwardDynamics, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles | None = None
) -> tuple[ForwardEnsemble, FitReport]:
    """Fit all members; every column counts as controlled by the actions if no `roles` are given."""
    roles = roles or ColumnRoles.none(data.observation_size)
    train, held = hold_out(data, config.held_out)
    config = limited(config, len(train))
    change = change_normaliser_of(data.observations, data.state_rows)
    scales = (
        *map(normaliser_of, (data.observations, data.actions)),
        change,
        normaliser_of(data.rewards[data.next_known, None]),
    )
    state = fit_ensemble(config, lambda key: config.init(key, scales), data, train, held, key, "forward dynamics")
    return _measured(state.best, roles, data, train, held)


def score_all_steps(
    ensemble: ForwardEnsemble,
    observations: Float[np.ndarray, "rows size"],
    actions: Float[np.ndarray, "rows action"],
    next_observations: Float[np.ndarray, "rows size"],
) -> StepScores:
    """Score any number of logged steps, in batches; return NumPy arrays."""
    steps = (part.astype(np.float32) for part in (observations, actions, next_observations))
    return in_batches(lambda *step: _score_steps(ensemble, *step), *steps)


@compiled
def _score_steps(ensemble: ForwardEnsemble, observation: Array, action: Array, next_observation: Array) -> StepScores:
    return score_steps(ensemble, observation, action, next_observation)


def _measured(
    members: Forward,
    roles: ColumnRoles,
    data: Trajectories,
    train: Integer[np.ndarray, " others"],
    held: Integer[np.ndarray, " some"],
) -> tuple[ForwardEnsemble, FitReport]:
    """Return the ensemble with what held-out steps tell about it, and its fit report."""
    std, usual_change = np.asarray(members.observation.std[0]), np.asarray(members.change.mean[0])
    states, actions, following = _steps(data, held)
    changes = following - states
    missed = _missed(members, data, held)
    squares = np.square(missed).mean(0, dtype=np.float64)
    # A column of noise is best predicted by its mean, a slow one by its last value: neither explains anything.
    guesses = (changes - usual_change, following - following.mean(0))
    naive = np.minimum(*(np.square(guess / std).mean(0, dtype=np.float64) for guess in guesses))
    share = np.where(naive > 1e-12, 1 - squares / np.maximum(naive, 1e-12), squares <= 1e-8)
    weight = np.where(roles.controlled, np.clip(share, 0, 1), 0)
    ensemble = ForwardEnsemble(
        members,
        jnp.asarray(weight, jnp.float32),
        jnp.asarray(roles.exogenous, jnp.float32),
        jnp.zeros(()),
    )
    scores = score_all_steps(ensemble, states, actions, following)
    moving = np.asarray(scores.relative)[is_moving(np.asarray(scores.length))]
    median, most = np.quantile(moving, (0.5, 0.9)) if len(moving) else (0.0, 0.0)
    error, baseline = (float((weight * part).sum()) for part in (squares, naive))
    explains = explained(error, baseline) if weight.any() else 0.0
    facts = {
        "forward_error": error**0.5,
        "baseline": baseline**0.5,
        "R²": explains,
        "median_consistency": float(median),
        "90%_consistency": float(most),
    }
    learned = train[:: 1 + len(train) // MOST_EXPLAINED]
    fitted = Missed(learned, np.sqrt(weight) * _missed(members, data, learned))
    told = told_by_step_before(data, fitted, Missed(held, np.sqrt(weight) * missed), roles.controlled)
    facts |= {name: part / len(held) / baseline if baseline > 0 else 0.0 for name, part in told.items()}
    ensemble = eqx.tree_at(lambda one: one.usual, ensemble, jnp.asarray(median, jnp.float32))
    return ensemble, FitReport("forward dynamics", explains > 0.1, facts)


def _steps(data: Trajectories, steps: Integer[np.ndarray, " some"]) -> tuple[np.ndarray, ...]:
    """Return the states, actions and next states of logged steps."""
    rows = data.state_rows[steps]
    found = (data.observations[rows], data.actions[steps], data.observations[rows + 1])
    return tuple(part.astype(np.float32) for part in found)


def _missed(
    members: Forward, data: Trajectories, steps: Integer[np.ndarray, " some"]
) -> Float[np.ndarray, "some columns"]:
    """Return by how much the members' mean misses the changes of logged steps, in standardised states."""
    states, actions, following = _steps(data, steps)
    found = in_batches(lambda *step: _changes(members, *step), states, actions)
    return (found - (following - states)) / np.asarray(members.observation.std[0])


def is_moving(length: Float[np.ndarray, " steps"]) -> Bool[np.ndarray, " steps"]:
    """Return which steps are long enough that errors over their lengths mean something."""
    return length > RESTING * np.sqrt(np.square(length).mean()) if len(length) else np.zeros(0, bool)


@compiled
def _changes(members: Forward, state: Array, action: Array) -> Array:
    return eqx.filter_vmap(lambda model: model(state, action)[0])(members).mean(0)
