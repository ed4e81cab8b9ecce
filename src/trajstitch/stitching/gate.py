"""The gate: every reason to leave data unchanged, in one place.

Data is left unchanged if there is no other trajectory to jump to, if its returns can't be predicted from states, or if
a model that stitching relies on is no better than its baseline.

Can returns be predicted? Where good and bad policies were logged, they lead through different states: from a state in
the first half of an episode one can predict its return, by the returns of episodes that passed nearby. Where one policy
made all the data, its episodes pass through the same states and differ by noise. A plan would collect the noise: it may
promise twice the return, and a policy cloned from it scores like one cloned from the data.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from trajstitch.data import ragged
from trajstitch.data.checks import copies
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import FitReport
from trajstitch.learning.networks import normaliser_of
from trajstitch.stitching.neighbours import NeighbourSearch, find_neighbours

QUERIES = 4000
"""States whose episode's return is predicted, at most; about as many of each episode."""
POOL = 100_000
"""States that may be their neighbours, drawn from all."""
NEIGHBOURS = 10
MIN_EPISODES = 20
"""With fewer episodes, noise may look predictable and the other way round."""


def single_trajectory(data: Trajectories) -> str | None:
    """Return why nothing can be stitched, if there is no other trajectory to jump to."""
    return None if len(data) > 1 else "there is one trajectory, and jumps lead to others"


def unpredictable_returns(predictability: float | None, limit: float) -> str | None:
    """Return why nothing can be gained, if too small a share of the returns' variance is predictable."""
    if predictability is None or predictability >= limit:
        return None
    return (
        f"states predict {predictability:.0%} of the variance of returns, less than {limit:.0%}: the episodes differ "
        "by noise, which no policy can learn, or they are too few to tell; stitch them all the same with "
        "`min_predictability=0`"
    )


def uninformative_models(reports: Sequence[FitReport]) -> str | None:
    """Return why jumps can't be scored, if a model is no better than its baseline."""
    failed = [report.model for report in reports if not report.beats_baseline]
    return f"no better than their baseline on held-out steps: {', '.join(failed)}" if failed else None


def return_predictability(data: Trajectories) -> float | None:
    """Return the share of the returns' variance explained by the returns of episodes that pass nearby.

    None if there are too few episodes to tell.
    """
    if len(data) < MIN_EPISODES:
        return None
    random = np.random.default_rng(0)
    episode = ragged.owners(data.lengths + 1)
    queried = random.permutation(len(data))[:QUERIES]
    queried = np.repeat(queried, QUERIES // len(queried))
    rows = data.first_rows[queried] + (random.random(len(queried)) * data.lengths[queried] / 2).astype(int)
    among = random.permutation(len(data.observations))[:POOL]
    pool = np.concatenate((rows, among))
    states = np.asarray(normaliser_of(data.observations).apply(jnp.asarray(data.observations[pool])))
    original = np.arange(len(data))  # a copy of an episode predicts nothing about it
    for copy, first in copies(data):
        original[copy] = first
    found = find_neighbours(states, original[episode[pool]], NeighbourSearch(NEIGHBOURS, method="flat"), len(rows))
    owner, other = found.of(np.arange(len(rows)))
    count = np.bincount(owner, minlength=len(rows))
    total = np.bincount(owner, data.returns[episode[pool[other]]], len(rows))
    return _explained_variance(data.returns[queried[count > 0]], total[count > 0] / count[count > 0])


def _explained_variance(returns: np.ndarray, predictions: np.ndarray) -> float:
    """Return the squared correlation; 0 if it is negative or not defined."""
    if len(returns) < 2 or np.ptp(returns) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(max(np.corrcoef(returns, predictions)[0, 1], 0.0)) ** 2
