"""Cut logs of flat rows, one per step (D4RL, most NPZ files, tables), into episodes."""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Shaped

from trajstitch.data import ragged
from trajstitch.data.trajectories import Finding, Metadata, Trajectories
from trajstitch.errors import InputError

MOST_CUTS = 0.2
"""If more than this share of the rows don't continue in the next row, the rows are not in the logged order."""

BLOCK = 1 << 15
"""Rows read and compared at a time: enough to be fast, few enough to need little memory."""


@runtime_checkable
class Rows(Protocol):
    """A NumPy array, or an open h5py dataset whose rows are still in the file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def __getitem__(self, part: slice, /) -> Any: ...


def from_rows(
    observations: Rows,
    actions: Shaped[np.ndarray, "rows action"],
    rewards: Shaped[np.ndarray, " rows"],
    terminated: Bool[np.ndarray, " rows"],
    truncated: Bool[np.ndarray, " rows"],
    next_observations: Rows | None,
    metadata: Metadata,
    episodes: Shaped[np.ndarray, " rows"] | None = None,
) -> Trajectories:
    """Cut rows into episodes of T steps and T+1 observations.

    An episode ends where a row is terminated or truncated, where `episodes` (a label per row, if given) changes, and
    where `next_observations` differs from the next row's observation. Without `next_observations`, the next state of an
    episode's last row was not recorded. That row is then left out, since models would learn from an invented state, and
    the row before it gets its end flags.
    """
    rows = len(rewards)
    if rows == 0:
        raise InputError(f"{metadata.source}: holds no rows, so no episodes")
    ends = last_rows(terminated, truncated, episodes)
    if next_observations is None:
        return _without_last_rows(observations, actions, rewards, terminated, truncated, ends, metadata)
    states, breaks = _join(observations, next_observations, ends)
    if breaks.any():
        count, first = int(breaks.sum()), int(np.argmax(breaks))
        if count > MOST_CUTS * rows:
            raise InputError(
                f"{metadata.source}: next_observations differ from the next row's observations in {count:,} of "
                f"{rows:,} rows, first at row {first}: the rows must be in the order they were logged"
            )
        metadata = _with(
            metadata,
            f"{count:,} unflagged breaks (next_observations differ from the next row), first at row {first}: cut into "
            "episodes there",
        )
        ends |= breaks
        del states
        states, _ = _join(observations, next_observations, ends)
    return Trajectories(
        observations=states,
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        offsets=ragged.offsets_from_ends(ends),
        metadata=metadata,
    )


def last_rows(
    terminated: Bool[np.ndarray, " rows"],
    truncated: Bool[np.ndarray, " rows"],
    episodes: Shaped[np.ndarray, " rows"] | None,
) -> Bool[np.ndarray, " rows"]:
    """Return which rows are the last of an episode, by the flags and by a label per row, if given."""
    last = terminated | truncated
    if episodes is not None:
        last[:-1] |= episodes[1:] != episodes[:-1]
    last[-1:] = True
    return last


def _join(
    observations: Rows, next_observations: Rows, ends: Bool[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "states observation"], Bool[np.ndarray, " rows"]]:
    """Return the states of every episode, including its last, and which rows don't continue in the next row."""
    rows = len(ends)
    states = np.empty((rows + int(ends.sum()), observations.shape[1]), observations.dtype)
    breaks = np.zeros(rows, bool)
    episode = 0
    for start in range(0, rows, BLOCK):
        stop = min(start + BLOCK, rows)
        current, last = observations[start : stop + 1], ends[start:stop]
        reached = next_observations[start:stop]
        place = np.arange(start, stop) + episode + np.cumsum(last) - last
        states[place] = current[: stop - start]
        states[place[last] + 1] = reached[last]
        following = current[1:]
        differs = ~last[: len(following)]
        differs &= (reached[: len(following)] != following).any(axis=1)
        suspects = np.flatnonzero(differs)
        breaks[start + suspects] = _apart(reached[suspects], following[suspects])
        episode += int(last.sum())
    return states, breaks


def _apart(reached: np.ndarray, following: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Return whether two records of one state differ by more than the rounding of float32.

    NaN and infinite values don't count as a difference: another check reports them.
    """
    close = np.isclose(reached, following, rtol=1e-5, atol=1e-6) | ~np.isfinite(reached) | ~np.isfinite(following)
    return np.logical_not(close.all(axis=1))


def _without_last_rows(
    observations: Rows,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    ends: Bool[np.ndarray, " rows"],
    metadata: Metadata,
) -> Trajectories:
    stops = np.flatnonzero(ends) + 1
    lengths = np.diff(stops, prepend=0)
    longer = lengths > 1
    if not longer.any():
        raise InputError(
            f"{metadata.source}: every episode has a single row and there are no next_observations: no transition can "
            "be formed"
        )
    single = int((~longer).sum())
    metadata = _with(
        metadata,
        f"no next_observations: the last row of each of the {len(stops):,} episodes, whose next state was not "
        f"recorded, is left out{f' ({single:,} episodes of one row are lost)' if single else ''}",
    )
    before = stops[longer] - 2
    terminated, truncated = terminated.copy(), truncated.copy()
    terminated[before], truncated[before] = terminated[before + 1], truncated[before + 1]
    states = observations[:]
    return Trajectories(
        observations=states[np.repeat(longer, lengths)] if single else states,
        actions=actions[~ends],
        rewards=rewards[~ends],
        terminated=terminated[~ends],
        truncated=truncated[~ends],
        offsets=ragged.offsets_of(lengths[longer] - 1),
        metadata=metadata,
    )


def _with(metadata: Metadata, detail: str) -> Metadata:
    return replace(metadata, findings=(*metadata.findings, Finding("continuity", "note", detail)))
