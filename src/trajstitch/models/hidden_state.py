"""Hidden state: how much of what happens the step before tells, and observation and action do not.

Where a velocity is not observed, or an action counts a step late, the previous step says something about the next
state that no model of (s, a) can know. A jump changes what came before, so it lands elsewhere than it claims. There,
models see the step before too (`StepBefore`), as if it had been observed.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Integer

from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories

RIDGE = 1e-3
"""Penalty on the regression's weights, in units of standardised features."""
FEWEST_STEPS = 8
"""Steps a feature, at least: with fewer, a regression tells nothing."""
HIDDEN = 0.05
"""Share of the changes that the step before may tell beyond observation and action, if nothing is hidden."""
ENOUGH = 0.8
"""The part of the step before that tells this share of what all of it tells is enough."""


@dataclass(frozen=True)
class StepBefore:
    """What models see of the step before, beside the observation: nothing where nothing is hidden."""

    change: bool = False
    """How the columns that actions control changed in the step before."""
    action: bool = False
    """The action of the step before."""
    told: float = 0.0
    """The share of all changes that it tells where models don't see it."""

    def __bool__(self) -> bool:
        return self.change or self.action

    def __str__(self) -> str:
        parts = ["the change since the step before"] * self.change + ["the last action"] * self.action
        return " and ".join(parts)

    @classmethod
    def needed(cls, metrics: dict[str, float]) -> "StepBefore":
        """Return what models have to see, by what the step before tells that they don't: its parts, and all of it."""
        told, change, action = (metrics.get(name, 0.0) for name in (TOLD, TOLD_BY_CHANGE, TOLD_BY_ACTION))
        if told <= HIDDEN:
            return cls()
        if max(change, action) >= ENOUGH * told:
            return cls(change >= action, change < action, told)
        return cls(True, True, told)

    @classmethod
    def seen_by(cls, metrics: dict[str, float]) -> "StepBefore":
        """Return what the models saw whose metrics these are."""
        change, action, told = (metrics.get(name, 0.0) for name in (SEES_CHANGE, SEES_ACTION, TOLD_UNSEEN))
        return cls(change > 0, action > 0, told)

    @property
    def metrics(self) -> dict[str, float]:
        """What fit reports say of it: nothing where nothing is hidden."""
        found = {SEES_CHANGE: float(self.change), SEES_ACTION: float(self.action), TOLD_UNSEEN: self.told}
        return found if self else {}

    def shown(self, data: Trajectories, roles: ColumnRoles) -> tuple[Trajectories, ColumnRoles]:
        """Return the data with the step before in columns of its own, and the roles of all columns.

        Before an episode's first step nothing had moved, and the action was the mean one. Models see the last action,
        but it is no place where a jump could land: distances leave it out.
        """
        if not self:
            return data, roles
        added = []
        if self.change:
            change = np.zeros_like(data.observations[:, roles.controlled])
            change[1:] = np.diff(data.observations[:, roles.controlled], axis=0)
            change[data.first_rows] = 0
            added.append(change)
        if self.action:
            action = np.empty((len(data.observations), data.action_size), data.observations.dtype)
            action[data.first_rows] = data.actions.mean(0, dtype=np.float64)
            action[data.state_rows + 1] = data.actions
            added.append(action)
        observations = np.concatenate((data.observations, *added), 1)
        observations[data.unknown_rows] = np.nan
        more = observations.shape[1] - data.observation_size
        none = np.zeros(more, bool)
        no_place = np.arange(more) >= more - (data.action_size if self.action else 0)
        roles = ColumnRoles(
            np.append(roles.fixed, none), np.append(roles.exogenous, none), np.append(roles.irrelevant, no_place)
        )
        return replace(data, observations=observations), roles


@dataclass(frozen=True)
class Missed:
    """What a model missed on some steps."""

    steps: Integer[np.ndarray, " some"]
    missed: Float[np.ndarray, "some columns"]

    def after_a_step(self, data: Trajectories) -> "Missed":
        """Return those of the steps that follow a step to a known state."""
        before = self.steps - 1
        known = (before >= 0) & (data.episode_of_step[before] == data.episode_of_step[self.steps])
        known &= data.next_known[before]
        return Missed(self.steps[known], self.missed[known].astype(np.float64))


TOLD, TOLD_BY_CHANGE, TOLD_BY_ACTION = (
    "told_by_the_step_before",
    "told_by_its_change",
    "told_by_its_action",
)
"""Metrics of the forward ensemble: the share of all changes that the step before explains, and that its parts do."""
SEES_CHANGE, SEES_ACTION, TOLD_UNSEEN = "sees_the_change_before", "sees_the_action_before", "told_if_it_is_not_seen"
"""Metrics that say which part of the step before models see, and what it tells if they don't."""


def told_by_step_before(
    data: Trajectories,
    train: Missed,
    held: Missed,
    controlled: Bool[np.ndarray, " columns"],
) -> dict[str, float]:
    """Return the sum of squares that a model missed on held-out steps and a regression on the step before explains.

    So do its parts: the change of the columns that are `controlled`, and the action. The regression is fitted to what
    the model missed on the steps it learned from. Never below 0.
    """
    train, held = train.after_a_step(data), held.after_a_step(data)
    both = np.concatenate((train.steps, held.steps))
    fitted = np.arange(len(both)) < len(train.steps)
    rows, earlier = data.state_rows[both], data.state_rows[both - 1]
    now = np.concatenate((data.observations[rows], data.actions[both]), 1)
    change = (data.observations[rows] - data.observations[earlier])[:, controlled]
    action = data.actions[both - 1]

    def left(*history: np.ndarray) -> float:
        features = _standardised(np.concatenate((now, *history), 1))
        if not len(held.steps) or len(train.steps) < FEWEST_STEPS * features.shape[1]:
            return np.inf
        return _left(features[fitted], train.missed, features[~fitted], held.missed)

    without = left()
    told = {TOLD: left(change, action), TOLD_BY_CHANGE: left(change), TOLD_BY_ACTION: left(action)}
    return {name: max(without - part, 0.0) if np.isfinite(part) else 0.0 for name, part in told.items()}


def _standardised(features: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns_and_1"]:
    """Return features of mean 0 and spread 1, those that vary, and a constant."""
    features = features.astype(np.float64)
    spread = features.std(0)
    varies = spread > 1e-9 * np.abs(features).max(0, initial=0)
    scaled = (features[:, varies] - features[:, varies].mean(0)) / spread[varies]
    return np.concatenate((scaled, np.ones((len(features), 1))), 1)


def _left(
    features: Float[np.ndarray, "rows columns"],
    targets: Float[np.ndarray, "rows outputs"],
    others: Float[np.ndarray, "other_rows columns"],
    measured: Float[np.ndarray, "other_rows outputs"],
) -> float:
    """Return the sum of squares that is left of what is measured on other rows, predicted by a fit to these."""
    penalty = RIDGE * max(len(features), 1) * np.eye(features.shape[1])
    weights = np.linalg.solve(features.T @ features + penalty, features.T @ targets)
    return float(np.square(measured - others @ weights).sum())
