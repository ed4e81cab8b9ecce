"""Hidden state: how much of what happens the step before tells, and observation and action do not.

Where a velocity is not observed, or an action counts a step late, the previous step says something about the next
state that no model of (s, a) can know. A jump changes what came before, so it lands elsewhere than it claims.
"""

import numpy as np
from jaxtyping import Float, Integer

from trajstitch.data.trajectories import Trajectories

RIDGE = 1e-3
"""Penalty on the regression's weights, in units of standardised features."""
FEWEST_STEPS = 20
"""Steps a feature, at least: with fewer, a regression tells nothing."""


def told_by_step_before(
    data: Trajectories,
    steps: Integer[np.ndarray, " some"],
    missed: Float[np.ndarray, "some columns"],
) -> float:
    """Return the sum of squares of what a model `missed` on the steps that a regression on the step before explains.

    Half of the episodes are explained by the weights of the other half. Never below 0.
    """
    before = steps - 1
    known = (before >= 0) & (data.episode_of_step[before] == data.episode_of_step[steps])
    known &= data.next_known[before]
    steps, before, missed = steps[known], before[known], missed[known].astype(np.float64)
    rows, earlier = data.state_rows[steps], data.state_rows[before]
    now = np.concatenate((data.observations[rows], data.actions[steps]), 1)
    history = np.concatenate((data.observations[rows] - data.observations[earlier], data.actions[before]), 1)
    present, both = _standardised(now), _standardised(np.concatenate((now, history), 1))
    if len(steps) < FEWEST_STEPS * both.shape[1]:
        return 0.0
    episodes, episode = np.unique(data.episode_of_step[steps], return_inverse=True)
    half = (np.random.default_rng(0).permutation(len(episodes)) % 2)[episode]
    return max(_left(present, missed, half) - _left(both, missed, half), 0.0)


def _standardised(features: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns_and_1"]:
    """Return features of mean 0 and spread 1, those that vary, and a constant."""
    features = features.astype(np.float64)
    spread = features.std(0)
    varies = spread > 1e-9 * np.abs(features).max(0, initial=0)
    scaled = (features[:, varies] - features[:, varies].mean(0)) / spread[varies]
    return np.concatenate((scaled, np.ones((len(features), 1))), 1)


def _left(
    features: Float[np.ndarray, "rows columns"], targets: Float[np.ndarray, "rows outputs"], half: np.ndarray
) -> float:
    """Return the sum of squares that is left of the targets, each half predicted by a fit to the other."""
    left = 0.0
    for own in (0, 1):
        fitted, measured = features[half != own], features[half == own]
        penalty = RIDGE * max(len(fitted), 1) * np.eye(features.shape[1])
        weights = np.linalg.solve(fitted.T @ fitted + penalty, fitted.T @ targets[half != own])
        left += float(np.square(targets[half == own] - measured @ weights).sum())
    return left
