"""What kind of column each observation column is: what actions control, what they don't, and what matters at all.

fixed       constant within every episode, and not in all of them the same: a patient's parameters, a payload, a goal
exogenous   moves by itself, not by actions, and matters: weather or demand that the reward or the rest depends on
irrelevant  moves by itself, and neither the reward nor any controlled column depends on it
controlled  everything else: an action changes it, directly or through other columns

Who depends on whom is found by regression of each column's change, and of the reward. A source influences an outcome if
adding it (with its squares and products) to the regressors makes the predictions for other episodes better, beyond
chance: both halves of the episodes predict each other, and an episode counts as one observation, since its steps are
nearly equal. A column is controlled if a chain of influences leads to it from the actions.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import t as student

from trajstitch.data import ragged
from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories

ROWS = 20_000
"""Steps that influences are estimated from, at most, in whole episodes."""
PRODUCTS = 500
"""Products of two columns at most: they are left out where there are more."""
RIDGE = 1e-3
"""Ridge penalty of a standardised regressor, for each step."""
CHANCE = 0.01
"""Probability of finding any influence where there is none."""
FEWEST_EPISODES = 10
"""With fewer episodes influences can't be told from chance, and every column that moves counts as controlled."""


@dataclass(frozen=True)
class ColumnRoles:
    """Which observation columns are of which kind; the rest are controlled by actions."""

    fixed: Bool[np.ndarray, " columns"]
    exogenous: Bool[np.ndarray, " columns"]
    irrelevant: Bool[np.ndarray, " columns"]

    @property
    def controlled(self) -> Bool[np.ndarray, " columns"]:
        return ~(self.fixed | self.exogenous | self.irrelevant)

    def contexts(self, states: Float[np.ndarray, "states columns"]) -> Integer[np.ndarray, " states"] | None:
        """Return a number for each state, the same for the same fixed columns; None if no column is fixed."""
        if not self.fixed.any():
            return None
        return np.unique(states[:, self.fixed], axis=0, return_inverse=True)[1].reshape(-1)

    def without_irrelevant(self) -> tuple["ColumnRoles", Bool[np.ndarray, " columns"]]:
        """Return the roles of the columns that matter, and which these are."""
        relevant = ~self.irrelevant
        roles = ColumnRoles(self.fixed[relevant], self.exogenous[relevant], self.irrelevant[relevant])
        return roles, relevant

    @classmethod
    def none(cls, columns: int) -> "ColumnRoles":
        """Return the roles of columns that are all controlled."""
        nothing = np.zeros(columns, bool)
        return cls(nothing, nothing, nothing)


def find_roles(
    data: Trajectories, fixed: Bool[np.ndarray, " columns"] | None = None, exogenous: np.ndarray | None = None
) -> ColumnRoles:
    """Return each column's role; those given are not asked for."""
    found_fixed = fixed_columns(data) if fixed is None else fixed
    moves = ~found_fixed & (_changes(data) != 0).any(0)
    if exogenous is not None:
        own = exogenous & ~found_fixed
        return ColumnRoles(found_fixed, own, np.zeros_like(own))
    if (data.lengths > 0).sum() < FEWEST_EPISODES or not moves.any():
        return ColumnRoles(found_fixed, np.zeros_like(moves), np.zeros_like(moves))
    sample = _Sample.of(data)
    by_itself = moves & ~_controlled(sample, moves)
    if by_itself.all() or not (moves & ~by_itself).any():  # no action has an effect that can be seen: claim nothing
        return ColumnRoles(found_fixed, np.zeros_like(moves), np.zeros_like(moves))
    matters = _matters(sample, by_itself, moves & ~by_itself)
    return ColumnRoles(found_fixed, by_itself & matters, by_itself & ~matters)


def column_names(data: Trajectories) -> list[str]:
    """Return the names of the observation columns: those of the table they came from, or their numbers."""
    names = data.metadata.extra.get("observation_names")
    if isinstance(names, list) and len(names) == data.observation_size:
        return [str(name) for name in names]
    return [str(number) for number in range(data.observation_size)]


def fixed_columns(data: Trajectories) -> Bool[np.ndarray, " columns"]:
    """Return which columns never change within an episode, but do between episodes."""
    rows, known = data.observations, np.isfinite(data.observations).all(1)
    first = rows[np.repeat(data.first_rows, data.lengths + 1)]
    still = ~(np.abs(rows - first)[known] > 0).any(0)
    return still & (np.ptp(rows[known], axis=0) > 0) & bool((data.lengths > 0).any())


def _changes(data: Trajectories) -> Float[np.ndarray, "steps columns"]:
    rows = data.state_rows[_known(data)]
    return (data.observations[rows + 1] - data.observations[rows]).astype(np.float64)


def _known(data: Trajectories) -> np.ndarray:
    """Return the steps whose next state is known."""
    return np.flatnonzero(np.isfinite(data.observations[data.state_rows + 1]).all(1))


@dataclass(frozen=True)
class _Sample:
    """Steps of some whole episodes, standardised."""

    states: Float[np.ndarray, "steps columns"]
    actions: Float[np.ndarray, "steps action"]
    changes: Float[np.ndarray, "steps columns"]
    rewards: Float[np.ndarray, " steps"]
    episode: np.ndarray

    @classmethod
    def of(cls, data: Trajectories) -> "_Sample":
        order = np.random.default_rng(0).permutation(len(data))
        within = np.cumsum(data.lengths[order]) <= max(ROWS, data.lengths[order[0]])
        steps = _known(data)
        steps = steps[np.isin(data.episode_of_step[steps], order[within])]
        rows = data.state_rows[steps]
        here = data.observations[rows].astype(np.float64)

        def standard(part: np.ndarray) -> np.ndarray:
            return Normaliser.of(part).apply(part.astype(np.float64))

        return cls(
            states=standard(here),
            actions=standard(data.actions[steps]),
            changes=standard(data.observations[rows + 1] - here),
            rewards=standard(data.rewards[steps][:, None])[:, 0],
            episode=data.episode_of_step[steps],
        )


def _controlled(sample: _Sample, moves: Bool[np.ndarray, " columns"]) -> Bool[np.ndarray, " columns"]:
    """Return the columns that a chain of influences connects with the actions."""
    reached = np.zeros(len(moves), bool)
    while (moves & ~reached).any():
        left = np.flatnonzero(moves & ~reached)
        sources = np.concatenate((sample.actions, sample.states[:, reached]), 1)
        base = np.concatenate((sample.states[:, ~reached], np.square(sample.states[:, ~reached])), 1)
        found = _predict_better(sample, base, sources, sample.states, sample.changes[:, left])
        if not found.any():
            break
        reached[left[found]] = True
    return reached


def _matters(sample: _Sample, candidates: np.ndarray, controlled: np.ndarray) -> Bool[np.ndarray, " columns"]:
    """Return which candidates influence the reward or a controlled column, directly or through other candidates."""
    known = np.concatenate((sample.states[:, controlled], sample.actions), 1)
    base = np.concatenate((known, _products(known, known)), 1)
    matters, outcomes = np.zeros(len(candidates), bool), sample.changes[:, controlled]
    outcomes = np.concatenate((outcomes, sample.rewards[:, None]), 1)
    while outcomes.shape[1]:
        more = [
            column
            for column in np.flatnonzero(candidates & ~matters)
            if _predict_better(sample, base, sample.states[:, [column]], known, outcomes).any()
        ]
        outcomes = sample.changes[:, more]
        matters[more] = True
    return matters


def _predict_better(
    sample: _Sample, base: np.ndarray, sources: np.ndarray, partners: np.ndarray, outcomes: np.ndarray
) -> Bool[np.ndarray, " outcomes"]:
    """Return which outcomes the sources help to predict: alone, or with their squares and products with partners."""
    base = np.concatenate((np.ones((len(base), 1)), base), 1)
    whole = np.concatenate((sources, np.square(sources), _products(sources, partners)), 1)
    found = np.zeros(outcomes.shape[1], bool)
    number, counts = np.unique(sample.episode, return_inverse=True, return_counts=True)[1:]
    starts = ragged.offsets_of(counts)[:-1]
    limit = student.isf(CHANCE / 2 / len(found), len(counts) - 1)
    half = np.random.default_rng(0).permutation(len(counts)) % 2 == 0
    without = _crossed(base, outcomes, half[number])
    for features in (sources, whole):
        gain = without - _crossed(np.concatenate((base, features), 1), outcomes, half[number])
        gain = np.add.reduceat(gain, starts, axis=0) / counts[:, None]
        error = gain.std(0, ddof=1) / len(counts) ** 0.5
        found |= (gain.mean(0) > limit * error) & (error > 0)
    return found


def _crossed(features: np.ndarray, outcomes: np.ndarray, half: Bool[np.ndarray, " steps"]) -> np.ndarray:
    """Return squared errors of the outcomes, each half of the steps predicted by a ridge regression on the other."""
    errors = np.empty_like(outcomes)
    for train in (half, ~half):
        x, y = features[train], outcomes[train]
        penalty = RIDGE * len(x) * np.maximum(np.square(x).mean(0), 1e-12)
        weights = cho_solve(cho_factor(x.T @ x + np.diag(penalty)), x.T @ y)
        errors[~train] = np.square(outcomes[~train] - features[~train] @ weights)
    return errors


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the products of each pair of columns; none if there are too many."""
    if left.shape[1] * right.shape[1] > PRODUCTS:
        return np.zeros((len(left), 0))
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
