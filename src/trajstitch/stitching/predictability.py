"""Is the data of several qualities? Only then is there something better to jump to.

Where good and bad behaviour were logged, the two lead through other states: from a state in the first half of an
episode one can tell how the episode will fare, by how those that passed nearby fared. Where one behaviour made all the
data, its episodes pass through the same states and differ by luck. A plan would collect the luck: it may well promise
twice the return, and a policy cloned from that scores as one cloned from the data does.
"""

import jax.numpy as jnp
import numpy as np

from trajstitch.data.checks import copies
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.networks import normaliser_of
from trajstitch.stitching.neighbours import NeighbourSearch, neighbours

ASKED = 4000
"""States that are asked about, at most; about as many of each episode."""
AMONG = 100_000
"""States that may be near, drawn from all."""
NEAR = 10
FEWEST_EPISODES = 20
"""With fewer, luck alone may look like quality, and the other way round."""


def return_predictability(data: Trajectories) -> float | None:
    """The share of the returns' variance that the returns of episodes which pass nearby explain; none: too few."""
    if len(data) < FEWEST_EPISODES:
        return None
    random = np.random.default_rng(0)
    episode = np.repeat(np.arange(len(data)), data.lengths + 1)
    asked = random.permutation(len(data))[:ASKED]
    asked = np.repeat(asked, ASKED // len(asked))
    rows = data.first_rows[asked] + (random.random(len(asked)) * data.lengths[asked] / 2).astype(int)
    among = random.permutation(len(data.observations))[:AMONG]
    pool = np.concatenate((rows, among))
    states = np.asarray(normaliser_of(data.observations).apply(jnp.asarray(data.observations[pool])))
    original = np.arange(len(data))  # a copy of an episode foretells nothing of it
    for copy, first in copies(data):
        original[copy] = first
    near = neighbours(states, original[episode[pool]], NeighbourSearch(NEAR, method="flat"), len(rows))
    owner, other = near.of(np.arange(len(rows)))
    found = np.bincount(owner, minlength=len(rows))
    fared = np.bincount(owner, data.returns[episode[pool[other]]], len(rows))
    return _explained(data.returns[asked[found > 0]], fared[found > 0] / found[found > 0])


def _explained(returns: np.ndarray, guesses: np.ndarray) -> float:
    """The square of their correlation; 0 where it is negative or has no meaning."""
    if len(returns) < 2 or np.ptp(returns) == 0 or np.ptp(guesses) == 0:
        return 0.0
    return float(max(np.corrcoef(returns, guesses)[0, 1], 0.0)) ** 2
