"""Arithmetic on rows that come in runs of different lengths: episodes, neighbour lists, groups of edges."""

import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped
from scipy.signal import lfilter


def offsets_of(lengths: Integer[np.ndarray, " runs"]) -> Integer[np.ndarray, " runs+1"]:
    """Return where each run starts if they are stored one after the other, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths)))


def offsets_from_ends(ends: Bool[np.ndarray, " rows"]) -> Integer[np.ndarray, " runs_plus_1"]:
    """Return the offsets of runs whose last rows are marked by `ends`."""
    return np.concatenate(([0], np.flatnonzero(ends) + 1))


def owners(lengths: Integer[np.ndarray, " runs"]) -> Integer[np.ndarray, " rows"]:
    """Return the number of the run that each row belongs to."""
    return np.repeat(np.arange(len(lengths)), lengths)


def positions(lengths: Integer[np.ndarray, " runs"]) -> Integer[np.ndarray, " rows"]:
    """Return each row's place within its run."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def rows_of(
    starts: Integer[np.ndarray, " runs"], lengths: Integer[np.ndarray, " runs"]
) -> Integer[np.ndarray, " rows"]:
    """Return the indices of several runs, one after the other: starts[0], starts[0] + 1, ..."""
    return np.repeat(starts, lengths) + positions(lengths)


def sums(values: Shaped[np.ndarray, " rows"], lengths: Integer[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """Return the sum over each run."""
    # Without any rows, bincount ignores the weights and counts in integers.
    return np.bincount(owners(lengths), values, minlength=len(lengths)).astype(np.float64, copy=False)


def discounted_sums(
    values: Float[np.ndarray, " rows"], discount: float, after: float = 0.0
) -> Float[np.ndarray, " rows"]:
    """Return the discounted sum of `values` from each row to the last; `after` is the value that follows the last."""
    reverse = lfilter([1.0], [1.0, -discount], values[::-1], zi=[discount * after])[0]
    return np.asarray(reverse)[::-1]


def rank_among_equals(*keys: Integer[np.ndarray, " rows"]) -> Integer[np.ndarray, " rows"]:
    """Return how many rows before each have the same keys."""
    order = np.lexsort(keys)
    begins = np.concatenate(([True], np.any([np.diff(key[order]) != 0 for key in keys], axis=0)))
    place = np.arange(len(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return rank
