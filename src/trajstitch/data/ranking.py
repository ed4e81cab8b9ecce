"""Which episodes are the best: by return, or by what was achieved beyond what is usual from such a start.

Returns of logged episodes rank behaviour. Once all trajectories are good, as in stitched data, returns rank starts
instead: the best tenth would be the easiest starts, and what to do in the hard ones would be gone from the data.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.spatial import KDTree

from trajstitch.data.normalise import IGNORED, robust_normaliser

NEIGHBOURS = 8
"""Other episodes with the most similar starts, whose mean return predicts an episode's."""
MOST_REFERENCES = 2_000
"""Episodes that predictions are made from, at most."""
SHUFFLES = 99
"""Starts predict returns if they do so better than in each of this many random assignments of returns to starts."""
KNOWN_TO = 0.1
"""Share of the mean size of returns to which a stitched episode's is known: what stitching must gain to accept one."""
USUAL_LENGTH = 0.9
"""Quantile of the lengths of cut-off episodes that counts as their full length: one very long episode must not."""


def full_length(lengths: Integer[np.ndarray, " episodes"], terminated: Bool[np.ndarray, " episodes"]) -> int:
    """Return the length at which episodes of a data set are usually cut off; 0 if none is."""
    cut_off = lengths[~terminated & (lengths > 0)]
    return int(np.quantile(cut_off, USUAL_LENGTH, method="higher")) if len(cut_off) else 0


def with_missing_costs(
    returns: Float[np.ndarray, " episodes"],
    lengths: Integer[np.ndarray, " episodes"],
    terminated: Bool[np.ndarray, " episodes"],
    full_lengths: Integer[np.ndarray, "#episodes"] | int,
    usual: float | None = None,
) -> Float[np.ndarray, " episodes"]:
    """Return the returns with the costs of the steps that cut-off episodes lack to their full length.

    An episode that is only cut off sooner has not saved them. Each counts as the episode's other steps do on average,
    if that is a cost; missing rewards are not added. If the `usual` reward of a step is given, it counts in the
    episode's own place for the share that it lacks: three steps say little about how the next hundred would go.
    """
    lacking = np.where(terminated, 0, np.maximum(full_lengths - lengths, 0))
    each = returns / np.maximum(lengths, 1)
    if usual is not None:
        known = lengths / np.maximum(lengths + lacking, 1)
        each = known * each + (1 - known) * usual
    return returns + lacking * np.minimum(each, 0)


def usual_returns(
    starts: Float[np.ndarray, "episodes observation"], returns: Float[np.ndarray, " episodes"]
) -> Float[np.ndarray, " episodes"] | None:
    """Return the return that is usual from each episode's start, by the other episodes with the most similar starts.

    Predictions are shrunk towards the mean as far as they fail to predict; None if starts don't predict returns.
    """
    count, states = len(returns), standardised(starts)
    if count < 2 * NEIGHBOURS or np.ptp(returns) == 0 or not states.shape[1]:
        return None
    references = np.arange(count)
    if count > MOST_REFERENCES:
        references = np.sort(np.random.default_rng(0).permutation(count)[:MOST_REFERENCES])
    _, found = KDTree(states[references]).query(states, NEIGHBOURS + 1)
    nearest = references[found]
    others = nearest != np.arange(count)[:, None]
    others[others.all(1), -1] = False  # not among its own neighbours: the farthest goes
    nearest = nearest[others].reshape(count, NEIGHBOURS)

    def predictions(returns: Float[np.ndarray, " episodes"]) -> tuple[Float[np.ndarray, " episodes"], float]:
        """Return the predictions, less their mean, and their correlation with the returns."""
        predicted = returns[nearest].mean(1)
        away, gain = predicted - predicted.mean(), returns - returns.mean()
        return away, float(away @ gain) / max(float(np.sqrt((away @ away) * (gain @ gain))), 1e-300)

    away, correlation = predictions(returns)
    random = np.random.default_rng(0)
    if correlation <= max(0, *(predictions(random.permutation(returns))[1] for _ in range(SHUFFLES))):
        return None
    return returns.mean() + min(correlation * returns.std() / away.std(), 1) * away


def standardised(starts: Float[np.ndarray, "episodes observation"]) -> Float[np.ndarray, "episodes varying"]:
    """Return the columns that vary, standardised."""
    normaliser = robust_normaliser(starts)
    return normaliser.apply(starts.astype(np.float64))[:, np.asarray(normaliser.std, np.float64) < IGNORED]


def best_for_their_starts(
    starts: Float[np.ndarray, "episodes observation"],
    returns: Float[np.ndarray, " episodes"],
    count: int,
    visits: Sequence[Integer[np.ndarray, " _"]] | None = None,
) -> Integer[np.ndarray, " {count}"]:
    """Return `count` episodes that are better than usual from their starts, whose starts cover what all starts cover.

    The starts are divided into `count` groups of similar ones, and of each group the best episode is taken. Where
    starts don't predict returns, these are the episodes with the highest returns. Returns of stitched episodes are
    known to a tenth: of those that may be as good, the one that visits most states that no other has visited is taken,
    if `visits` gives the states of each episode. The best ones often share most of theirs, and would show little.
    """
    tolerance = KNOWN_TO * float(np.abs(returns).mean()) if visits is not None else 0.0
    usual = usual_returns(starts, returns)
    if usual is None:
        order = np.argsort(-returns, kind="stable")
        pool = order[returns[order] >= returns[order[count - 1]] - tolerance]
        return np.sort(_varied([pool] * count, returns, np.inf, visits))
    gain = returns - usual
    # How hard a start is counts most, then where it lies.
    places = np.column_stack((2 * (usual - usual.mean()) / max(usual.std(), 1e-300), standardised(starts)))
    groups = _groups(np.arange(len(returns)), places, count)
    return np.sort(_varied(groups, gain, tolerance, visits))


def _varied(
    groups: Sequence[Integer[np.ndarray, " _"]],
    gain: Float[np.ndarray, " episodes"],
    tolerance: float,
    visits: Sequence[Integer[np.ndarray, " _"]] | None,
) -> list[int]:
    """Return one episode of each group, no two the same: the best, or one as good that visits more other states."""
    chosen: list[int] = []
    seen: set[int] = set()
    for group in groups:
        free = group[~np.isin(group, chosen)]
        alike = free[gain[free] >= gain[free].max() - tolerance]
        best = int(alike[np.argmax(gain[alike])])
        if visits is not None:
            fresh = np.array([len(set(visits[one].tolist()) - seen) for one in alike.tolist()])
            best = int(alike[np.lexsort((-gain[alike], -fresh))[0]])
            seen |= set(visits[best].tolist())
        chosen.append(best)
    return chosen


def _groups(
    members: Integer[np.ndarray, " members"], places: Float[np.ndarray, "episodes columns"], count: int
) -> list[Integer[np.ndarray, " _"]]:
    """Divide members into `count` groups of about equal size: in two across the widest column, then each part again."""
    if count == 1:
        return [members]
    here = places[members]
    order = members[np.argsort(here[:, np.argmax(here.std(0))], kind="stable")]
    first = count // 2
    cut = min(max(round(len(members) * first / count), first), len(members) - (count - first))
    return [*_groups(order[:cut], places, first), *_groups(order[cut:], places, count - first)]
