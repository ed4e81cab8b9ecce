"""The map: states of high-dimensional data in the plane, so that a reader sees where jumps are made."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.stats import spearmanr

from trajstitch.data.column_roles import column_names
from trajstitch.data.environments import observation_names
from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.report.values import short

SAMPLE = 20_000
"""States that the axes and the telling columns are computed from, at most."""
DISCOUNT = 0.99
"""Discount of the reward to come that colours the map."""
TELLING = 4
"""Columns whose curves are drawn."""
LIMIT = 8.0
"""Standard deviations that a state is drawn from the mean, at most: a few outliers would make all others a dot."""


@dataclass(frozen=True, eq=False)
class StateMap:
    """Axes in the plane: the two directions in which the standardised, controlled columns vary most.

    Two columns are the axes themselves, as they are.
    """

    scale: Normaliser
    columns: Integer[np.ndarray, " used"]
    """The columns that count."""
    axes: Float[np.ndarray, "used 2"]
    origin: Float[np.ndarray, " 2"]
    """What the axes show of a mean state."""
    explained: float
    """Share of the variance that the two axes show."""

    @classmethod
    def of(cls, states: Float[np.ndarray, "states columns"], controlled: Bool[np.ndarray, " columns"]) -> "StateMap":
        """Return the map of states, by the columns that actions control (by all, if they control fewer than two)."""
        columns = np.flatnonzero(controlled if controlled.sum() > 1 else np.ones_like(controlled))
        some = states[_some(len(states), SAMPLE)]
        scale = Normaliser.of(some.astype(np.float64))
        if len(columns) <= 2:
            mean, std = (part[columns] for part in scale)
            return cls(scale, columns, np.eye(len(columns), 2) * std[:, None], np.append(mean, 0.0)[:2], 1.0)
        rows = _standardised(scale, some)[:, columns]
        variance, directions = np.linalg.eigh(rows.T @ rows / max(len(rows), 1))
        order = np.argsort(-variance)[:2]
        axes = directions[:, order]
        axes *= np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1, 1)  # the sign is arbitrary: make it stable
        total = float(variance.sum())
        return cls(scale, columns, axes, np.zeros(2), float(variance[order].sum()) / total if total > 0 else 1.0)

    def place(self, states: Float[np.ndarray, "states columns"]) -> Float[np.ndarray, "states 2"]:
        """Return where states are on the map."""
        return _standardised(self.scale, states)[:, self.columns] @ self.axes + self.origin

    @property
    def digits(self) -> int:
        """Significant digits of a place: columns that are shown as they are may vary little around a large value."""
        return 3 if len(self.columns) > 2 else 6

    def axis_names(self, names: list[str]) -> list[str]:
        """Return what each axis shows, by the columns that weigh most."""
        found = []
        for axis in self.axes.T:
            heaviest = [at for at in np.argsort(-np.abs(axis), kind="stable")[:2] if axis[at] != 0]
            found.append(", ".join(names[self.columns[at]] for at in heaviest))
        return found


def telling_columns(
    states: Float[np.ndarray, "states columns"],
    value: Float[np.ndarray, " states"],
    controlled: Bool[np.ndarray, " columns"],
) -> Integer[np.ndarray, " some"]:
    """Return the columns that are most correlated (by rank) with the reward to come; controlled ones if there are."""
    columns = np.flatnonzero(controlled if controlled.any() else np.ones_like(controlled))
    some = _some(len(states), SAMPLE)
    value = value[some]
    strength = []
    for column in columns:
        values = states[some, column]
        constant = np.ptp(values) == 0 or np.ptp(value) == 0
        found: Any = None if constant else spearmanr(values, value)
        strength.append(-1.0 if found is None else abs(float(found.statistic)))
    order = np.argsort(-np.array(strength), kind="stable")[:TELLING]
    return np.sort(columns[order])


def states_payload(data: Trajectories, made: StateMap, value: Float[np.ndarray, " steps"], most: int) -> dict[str, Any]:
    """Return some of the data's states for the map: place, value, episode and step of each."""
    steps = _some(data.steps, most)
    place = made.place(data.observations[data.state_rows[steps]])
    episode = data.episode_of_step[steps]
    names = shown_names(data)
    return {
        "x": short(place[:, 0], made.digits),
        "y": short(place[:, 1], made.digits),
        "value": short(value[steps], 3),
        "episode": episode.tolist(),
        "step": (steps - data.offsets[episode]).tolist(),
        "of": data.steps,
        "explained": made.explained,
        "axes": made.axis_names(names),
        "columns": len(made.columns),
        "discount": DISCOUNT,
    }


def shown_names(data: Trajectories) -> list[str]:
    """Return the columns' names for reading: the data's own, those of its environment, or else their numbers."""
    names = column_names(data)
    if all(name.isdecimal() for name in names):
        names = observation_names(data.metadata, len(names)) or [f"column {name}" for name in names]
    return [f"column {name}" if name.isdecimal() else name for name in names]


def reward_to_come(data: Trajectories) -> Float[np.ndarray, " steps"]:
    """Return the discounted reward that followed each state in its episode: what the map's colours show."""
    return data.discounted_returns(DISCOUNT)


def _standardised(scale: Normaliser, states: np.ndarray) -> Float[np.ndarray, "states columns"]:
    return np.clip(np.nan_to_num(scale.apply(states.astype(np.float64))), -LIMIT, LIMIT)


def _some(count: int, most: int) -> Integer[np.ndarray, " some"]:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
