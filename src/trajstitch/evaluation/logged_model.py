"""A model of logged steps: what follows an action in a state, and how far both are from anything logged.

A prediction is what followed a similar logged step, corrected by a regression for the difference between the two. So
it repeats the log where the log has been, noise and ends of episodes included, and the distance to the nearest logged
step says where it has not. Nothing is trained by gradients: a fit takes a fraction of a second.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial import KDTree

from trajstitch.data import ragged
from trajstitch.data.column_roles import find_roles
from trajstitch.data.normalise import Normaliser, action_bounds, robust_normaliser
from trajstitch.data.trajectories import Trajectories

FEATURES = 300
"""Random features of the regression."""
FREQUENCIES = (0.3, 3.0)
"""Lowest and highest frequency of the random features, over the square root of the number of inputs."""
RIDGE = 1e-3
"""Ridge penalty, as a share of each feature's own size."""
NEIGHBOURS = 3
"""Similar logged steps, one of which is drawn."""
FARTHEST = 10.0
"""Standard deviations beyond which states are cut: outliers must not drive the regression."""
REFERENCES = 1_000
"""Steps at most, that were not fitted, by which distances and rewards are calibrated."""


class Following(NamedTuple):
    """What follows some actions."""

    observations: Float[np.ndarray, "rows observation"]
    rewards: Float[np.ndarray, " rows"]
    terminated: Bool[np.ndarray, " rows"]


class LoggedSteps:
    """Logged steps as inputs and outcomes of a regression."""

    def __init__(self, data: Trajectories, seed: int = 0) -> None:
        self.data = data
        random = np.random.default_rng(seed)
        self.observations = data.filled().observations
        # Columns that matter for nothing would only make similar states look different.
        self.relevant = ~find_roles(data).irrelevant
        self.normaliser = robust_normaliser(data.observations[data.state_rows][:, self.relevant])
        self.low, self.high = action_bounds(data)
        mean, std = data.actions.mean(0, dtype=np.float64), data.actions.std(0, dtype=np.float64)
        self.actions = Normaliser(mean, np.maximum(std, 1e-3 * (self.high - self.low).astype(np.float64)))
        states = self.standardised(self.observations)
        self.lowest, self.highest = states.min(0), states.max(0)
        self.inputs = self.joined(states[data.state_rows], data.actions)
        changes = states[data.state_rows + 1] - states[data.state_rows]
        self.outcomes = np.concatenate((changes, data.rewards[:, None].astype(np.float64)), 1)
        lasting = data.rewards[~data.terminated] if not data.terminated.all() else data.rewards
        self.reward_range = float(lasting.min()), float(lasting.max())
        size = self.inputs.shape[1]
        frequency = np.exp(random.uniform(np.log(FREQUENCIES[0]), np.log(FREQUENCIES[1]), FEATURES)) / size**0.5
        self._directions = random.normal(size=(size, FEATURES)) * frequency
        self._phases = random.uniform(0, 2 * np.pi, FEATURES)
        self.features = self.features_of(self.inputs)

    def standardised(self, observations: Float[np.ndarray, "rows observation"]) -> Float[np.ndarray, "rows relevant"]:
        """Return the columns that matter, standardised."""
        seen = self.normaliser.apply(observations[:, self.relevant].astype(np.float64))
        return np.clip(seen, -FARTHEST, FARTHEST)

    def joined(
        self, states: Float[np.ndarray, "rows relevant"], actions: Float[np.ndarray, "rows action"]
    ) -> Float[np.ndarray, "rows inputs"]:
        """Return standardised states and actions side by side."""
        allowed = np.clip(actions.astype(np.float64), self.low, self.high)
        return np.concatenate((states, self.actions.apply(allowed)), 1)

    def states(self, inputs: Float[np.ndarray, "rows inputs"]) -> Float[np.ndarray, "rows relevant"]:
        """Return the states of states and actions side by side."""
        return inputs[:, : len(self.lowest)]

    def features_of(self, inputs: Float[np.ndarray, "rows inputs"]) -> Float[np.ndarray, "rows features"]:
        """Return a constant, the inputs, and random waves of the inputs."""
        waves = np.cos(inputs @ self._directions + self._phases) * (2 / FEATURES) ** 0.5
        return np.concatenate((np.ones((len(inputs), 1)), inputs, waves), 1)


@dataclass(frozen=True)
class LoggedModel:
    """A fit to the steps of some episodes."""

    steps: LoggedSteps
    fitted: Integer[np.ndarray, " fitted"]
    """The steps that it was fitted to."""
    tree: KDTree
    """Their inputs."""
    states: KDTree
    """Their states."""
    weights: Float[np.ndarray, "features outcomes"]
    missed: Float[np.ndarray, "steps outcomes"]
    """What the regression misses at each step."""
    reward_share: float
    """Share of what the regression misses of a reward that similar steps share: 0 if it is noise."""
    reward_explained: float
    """R² of rewards in episodes that were not fitted, but for ends; 1 if they are all the same."""
    usual_distance: float
    """Median distance of a step that was not fitted to the nearest fitted one."""
    farthest: Float[np.ndarray, "two others"]
    """Largest such distance of each of some episodes that were not fitted, and that of its states alone."""

    @classmethod
    def fit(
        cls, steps: LoggedSteps, counts: Integer[np.ndarray, " episodes"], random: np.random.Generator
    ) -> "LoggedModel":
        """Fit each episode as often as `counts` says; those that count 0 calibrate the model."""
        data = steps.data
        often = np.where(data.target_known, counts[data.episode_of_step], 0)
        fitted = np.flatnonzero(often)
        # Ends are jumps in the reward, and nothing follows them: they are repeated as they are.
        smooth = np.flatnonzero((often > 0) & ~data.terminated)
        weighted = steps.features[smooth] * often[smooth, None].astype(np.float64)
        gram = weighted.T @ steps.features[smooth]
        gram[np.diag_indices_from(gram)] += RIDGE * np.maximum(np.diag(gram), 1e-6 * len(fitted))
        weights = cho_solve(cho_factor(gram), weighted.T @ steps.outcomes[smooth])
        missed = np.where(data.terminated[:, None], 0, steps.outcomes - steps.features @ weights)
        tree, states = KDTree(steps.inputs[fitted]), KDTree(steps.states(steps.inputs[fitted]))
        others = random.permutation(np.flatnonzero((counts == 0) & (data.lengths > 0)))
        some = others[: max(1, np.searchsorted(np.cumsum(data.lengths[others]), REFERENCES))]
        apart = ragged.rows_of(data.offsets[some], data.lengths[some])
        distance, found = tree.query(steps.inputs[apart], nearest(len(fitted)))
        both = np.stack((distance[:, 0], states.query(steps.states(steps.inputs[apart]))[0]))
        ends = ragged.offsets_of(data.lengths[some])[:-1]
        lasting = ~data.terminated[apart]
        shared, own = missed[fitted[found], -1].mean(1)[lasting], missed[apart[lasting], -1]
        share = min(max(float(shared @ own) / max(float(shared @ shared), 1e-300), 0.0), 1.0)
        return cls(
            steps,
            fitted,
            tree,
            states,
            weights,
            missed,
            share,
            _explained(own - share * shared, data.rewards, apart[lasting], smooth),
            max(float(np.median(distance[:, 0])), 1e-12),
            np.maximum.reduceat(both, ends, axis=1),
        )

    def inputs(
        self, observations: Float[np.ndarray, "rows observation"], actions: Float[np.ndarray, "rows action"]
    ) -> Float[np.ndarray, "rows inputs"]:
        return self.steps.joined(self.steps.standardised(observations), actions)

    def similar(
        self, inputs: Float[np.ndarray, "rows inputs"]
    ) -> tuple[Float[np.ndarray, " rows"], Integer[np.ndarray, "rows neighbours"]]:
        """Return the distance to the nearest fitted step, and the most similar fitted steps."""
        distance, found = self.tree.query(inputs, nearest(len(self.fitted)))
        return distance[:, 0], self.fitted[found]

    def state_distance(self, inputs: Float[np.ndarray, "rows inputs"]) -> Float[np.ndarray, " rows"]:
        """Return how far states are from the nearest fitted one, whatever the action."""
        return self.states.query(self.steps.states(inputs))[0]

    def follow(
        self,
        inputs: Float[np.ndarray, "rows inputs"],
        similar: Integer[np.ndarray, "rows neighbours"],
        random: np.random.Generator,
    ) -> Following:
        """Predict what follows, after one of the similar steps drawn at random for each row."""
        steps, data = self.steps, self.steps.data
        drawn = similar[np.arange(len(inputs)), random.integers(similar.shape[1], size=len(inputs))]
        predicted = steps.features_of(inputs) @ self.weights
        rewards = predicted[:, -1] + self.reward_share * self.missed[similar, -1].mean(1)
        rewards = np.clip(rewards, *steps.reward_range)
        states = steps.states(inputs) + predicted[:, :-1] + self.missed[drawn, :-1]
        states = np.clip(states, steps.lowest, steps.highest)
        observations = steps.observations[data.state_rows[drawn] + 1].astype(np.float64)
        observations[:, steps.relevant] = steps.normaliser.undo(states)
        return Following(
            observations.astype(steps.observations.dtype),
            np.where(data.terminated[drawn], data.rewards[drawn], rewards),
            data.terminated[drawn],
        )


def _explained(
    errors: Float[np.ndarray, " others"],
    rewards: Float[np.ndarray, " steps"],
    others: Integer[np.ndarray, " others"],
    fitted: Integer[np.ndarray, " smooth"],
) -> float:
    """Return the R² of predictions with these errors, against the mean reward of the fitted steps."""
    if not len(others) or np.ptp(rewards[others]) == 0:
        return 1.0
    away = rewards[others] - rewards[fitted].mean(dtype=np.float64)
    return 1 - float(errors @ errors) / float(away @ away)


def nearest(count: int) -> Any:  # scipy's stubs know one number alone
    """Return which of `count` neighbours, by their rank, are similar."""
    return [*range(1, min(NEIGHBOURS, count) + 1)]
