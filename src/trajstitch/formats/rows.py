"""Cut logs of flat rows, one per step (D4RL, most NPZ files, tables), into episodes."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Shaped

from trajstitch.data import ragged
from trajstitch.data.checks import unknown_states
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.spellings import as_flags

MOST_CUTS = 0.2
"""If more than this share of the rows don't continue in the next row, the rows are not in the logged order."""

LARGEST_INDEX = 1 << 53
"""Episodes and steps are counted below this: beyond it, floats skip whole numbers."""

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
    episode's last row was not recorded: it is NaN, which marks it as unknown.
    """
    rows = len(rewards)
    if rows == 0:
        raise InputError(f"{metadata.source}: holds no rows, so no episodes")
    ends = last_rows(terminated, truncated, episodes)
    metadata = _with_cuts(metadata, terminated | truncated, episodes)
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


def _with_cuts(
    metadata: Metadata, flagged: Bool[np.ndarray, " rows"], episodes: Shaped[np.ndarray, " rows"] | None
) -> Metadata:
    """Add a note if end flags cut an episode that the labels don't end there."""
    if episodes is None:
        return metadata
    inside = flagged[:-1] & (episodes[1:] == episodes[:-1])
    if not inside.any():
        return metadata
    detail = (
        f"{inside.sum():,} rows in the middle of an episode are flagged as its end, first row "
        f"{int(np.argmax(inside))}: what follows is taken as another episode"
    )
    return _with(metadata, detail, "ends")


def with_note_on_unknown(data: Trajectories) -> Trajectories:
    """Add a note to data of a log that doesn't record the final states."""
    unknown = unknown_states(data)
    return data if unknown is None else replace(data, metadata=_with(data.metadata, unknown.detail))


def split_at_ends(data: Trajectories) -> Trajectories:
    """Split episodes after each step that is flagged as an end, with a note: what follows is another episode.

    The state recorded there is the last of one episode and the first of the next. Data whose flags are at the ends of
    episodes only is returned as it is.
    """
    flagged = (data.terminated | data.truncated) & ~data.last_of_episode
    if not flagged.any():
        return data
    at = np.flatnonzero(flagged)
    episode = int(data.episode_of_step[at[0]])
    repeats = np.ones(len(data.observations), np.int64)
    repeats[data.state_rows[at] + 1] = 2
    detail = (
        f"{len(at):,} steps in the middle of an episode are flagged as its end, first in {data.episode_name(episode)}, "
        f"step {at[0] - data.offsets[episode]}: what follows is taken as another episode, which starts in the state "
        "recorded after that step"
    )
    rows = np.repeat(np.arange(len(data.observations)), repeats)
    offsets = np.sort(np.concatenate((data.offsets, at + 1)))
    pieces = 1 + np.bincount(data.episode_of_step[at], minlength=len(data))
    episodes = np.repeat(np.arange(len(data)), pieces)
    return replace(
        data,
        observations=data.observations[rows],
        offsets=offsets,
        metadata=_with(data.metadata, detail, "ends"),
        labels=None if data.labels is None else data.labels.take(episodes, rows),
    )


def read_provenance(stored: Mapping[str, np.ndarray], source: str) -> Provenance:
    """Return the provenance stored in a file, by the names of its fields; raise if it can't be one.

    Formats without types, such as CSV, store its whole numbers and flags as floats.
    """
    arrays = {}
    for item in fields(Provenance):
        array, name = np.asarray(stored[item.name]), f"{source}: provenance {item.name}"
        if array.ndim != 1 or array.dtype.kind not in "fiub":
            raise InputError(f"{name} has dtype {array.dtype} and shape {array.shape}: expected one number per step")
        if item.name == "stitched":
            array = as_flags(array, name)
        elif item.name.startswith("source_"):
            numbers = array.astype(np.float64)
            wrong = ~((np.trunc(numbers) == numbers) & (numbers >= 0) & (numbers < LARGEST_INDEX))
            if wrong.any():
                row = int(np.argmax(wrong))
                raise InputError(f"{name} is {array[row]} in step {row}: expected a whole number from 0 on")
            array = array if array.dtype.kind == "i" else array.astype(np.int64)
        elif array.dtype.kind != "f":
            array = array.astype(np.float64)
        arrays[item.name] = array
    return Provenance(**arrays)


def _join(
    observations: Rows, next_observations: Rows | None, ends: Bool[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "states observation"], Bool[np.ndarray, " rows"]]:
    """Return the states of every episode, including its last, and which rows don't continue in the next row.

    Without next observations every last state is NaN: unknown.
    """
    rows = len(ends)
    states = np.empty((rows + int(ends.sum()), observations.shape[1]), observations.dtype)
    breaks = np.zeros(rows, bool)
    episode = 0
    for start in range(0, rows, BLOCK):
        stop = min(start + BLOCK, rows)
        current, last = observations[start : stop + 1], ends[start:stop]
        place = np.arange(start, stop) + episode + np.cumsum(last) - last
        states[place] = current[: stop - start]
        episode += int(last.sum())
        if next_observations is None:
            states[place[last] + 1] = np.nan
            continue
        reached = next_observations[start:stop]
        states[place[last] + 1] = reached[last]
        following = current[1:]
        differs = ~last[: len(following)]
        differs &= (reached[: len(following)] != following).any(axis=1)
        suspects = np.flatnonzero(differs)
        size = np.abs(current).max(0, initial=0, where=np.isfinite(current))
        breaks[start + suspects] = _apart(reached[suspects], following[suspects], size)
    return states, breaks


def _apart(reached: np.ndarray, following: np.ndarray, size: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Return whether two records of one state differ by more than the rounding of float32, in columns of this size.

    NaN and infinite values don't count as a difference: another check reports them.
    """
    close = (
        np.isclose(reached, following, rtol=1e-5, atol=1e-6 * size) | ~np.isfinite(reached) | ~np.isfinite(following)
    )
    return np.logical_not(close.all(axis=1))


def _with(metadata: Metadata, detail: str, check: str = "continuity") -> Metadata:
    return replace(metadata, findings=(*metadata.findings, Finding(check, "note", detail)))
