"""The gate: every reason to leave data unchanged, in one place.

A plan counts with predicted rewards, so it needs no test of whether stitching pays: where nothing can be gained, it
changes nothing. What is left are cases in which nothing can be known: no jump could be
checked, or what decides is not in the observation.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from scipy.stats import binom

from trajstitch.data import ragged
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching.neighbours import NeighbourSearch, find_neighbours

QUERIES = 2_000
"""Terminal states that are looked at, at most."""
POOL = 50_000
"""States that may be their neighbours, drawn from all."""
VISIBLE = 0.1
"""Terminations count as visible if at least this share of terminal states has a terminal state as its nearest."""
TIMES_CHANCE = 5
"""Where episodes are short, a terminal state is often nearest by chance. So the share must also be this many times the
share of terminal states among all states."""
MOST_VISIBLE = 0.3
"""A larger share is never asked for."""
CHANCE = 0.05
"""Significance level: terminations count as invisible only if so low a share is less likely than this by chance."""
RANDOM = 0.05
"""An exogenous column moves by chance if what can't be predicted of its next value is more than this share of its
spread: over a hundred steps that adds up to half of it."""


def single_trajectory(data: Trajectories) -> str | None:
    """Return why nothing can be stitched, if there is no other trajectory to jump to."""
    return None if len(data) > 1 else "there is one trajectory, and jumps lead to others"


def separate_contexts(data: Trajectories, roles: ColumnRoles, columns: np.ndarray) -> str | None:
    """Return why nothing can be stitched, if no two trajectories have the same fixed columns."""
    contexts = roles.contexts(data.observations[data.first_rows])
    if contexts is None or len(np.unique(contexts)) < len(data):
        return None
    return (
        f"every trajectory has a context of its own: {_named(columns, roles.fixed)} never changes within an episode "
        "and differs between all of them, and no action leads from one context to another; if a column is no context, "
        "say which ones are with `columns.fixed`"
    )


def random_surroundings(data: Trajectories, roles: ColumnRoles, columns: np.ndarray) -> str | None:
    """Return why a plan would only buy luck, if something moves by chance that no action controls and that matters."""
    if not roles.exogenous.any():
        return None
    rows = data.state_rows[data.next_known]
    here, there = (data.observations[at][:, roles.exogenous].astype(np.float64) for at in (rows, rows + 1))
    scale = Normaliser.of(here)
    here, there = scale.apply(here), scale.apply(there)
    features = np.concatenate((np.ones((len(here), 1)), here, np.square(here)), 1)
    weights, *_ = np.linalg.lstsq(features, there, rcond=None)
    chance = np.sqrt(np.square(there - features @ weights).mean(0))
    if (chance <= RANDOM).all():
        return None
    moving = np.zeros(len(roles.exogenous), bool)
    moving[np.flatnonzero(roles.exogenous)[chance > RANDOM]] = True
    return (
        f"{_named(columns, moving)} moves by chance, not by actions, and rewards or other columns depend on it: jumps "
        "would choose the trajectories that had luck; if actions do move it, say which columns they don't move with "
        "`columns.exogenous`"
    )


def invisible_ends(data: Trajectories) -> str | None:
    """Return why ends can't be predicted, if episodes terminate in states that others pass through."""
    ends = (data.first_rows + data.lengths)[data.episode_terminated]
    if not len(ends) or len(data.unknown_rows):
        return None
    random = np.random.default_rng(0)
    asked = np.sort(random.permutation(ends)[:QUERIES])
    arrivals = data.state_rows + 1
    pool = np.concatenate((asked, np.sort(random.permutation(arrivals)[:POOL])))
    states = data.observations[pool] / Normaliser.of(data.observations).std
    episode = ragged.owners(data.lengths + 1)[pool]
    found = find_neighbours(states.astype(np.float32), episode, NeighbourSearch(1), len(asked))
    terminal = np.isin(pool, ends)[found.index]
    visible = min(max(VISIBLE, TIMES_CHANCE * float(np.isin(pool, ends).mean())), MOST_VISIBLE)
    if binom.cdf(terminal.sum(), len(terminal), visible) >= CHANCE:
        return None
    return (
        "episodes terminate in states that others pass through: what ends them is not in the observation, so no jump "
        "can tell whether it ends an episode; if a time limit ends them, mark them as truncated"
    )


def uninformative_models(reports: Sequence[FitReport]) -> str | None:
    """Return why jumps can't be scored, if a model is no better than its baseline."""
    failed = [report.model for report in reports if not report.beats_baseline]
    return f"no better than their baseline on held-out steps: {', '.join(failed)}" if failed else None


def _named(columns: np.ndarray, which: Bool[np.ndarray, " columns"]) -> str:
    """Return some columns as text."""
    names = [str(name) for name in columns[which]]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"column {shown}" if len(names) == 1 else f"each of the columns {shown}"
