"""Mend logs with missing values and gaps in time: split, interpolate or drop; resample to a fixed step.

A value is missing if it is NaN or infinite. A gap is a step that takes more than 1.5 times as long as usual, in a log
whose steps mostly take the same time: what happened in between was not recorded.

split         cut episodes there; what is whole remains, and each part is an episode
interpolate   draw a straight line between the values on both sides, also through gaps, where steps are added; what is
              missing for more than LONGEST steps is split instead, since a straight line says nothing there
drop          leave out the episodes
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Shaped

from trajstitch.data import ragged
from trajstitch.data.labels import Labels, durations_of, usual_step
from trajstitch.data.trajectories import Finding, Provenance, Trajectories
from trajstitch.errors import InputError

Missing = Literal["split", "interpolate", "drop"]

LONGEST = 10
"""Steps in a row that interpolation may fill."""
SHORT = 0.5
"""Share of the episodes' usual length below which parts of them are short."""
GAP = 1.5
"""A step is a gap if it takes this many times as long as usual: one that is left out takes twice as long."""
EVEN = 0.1
"""Steps take the same time if they differ by at most this share of the usual one."""
FOUND = ("missing values", "time steps")
"""Checks whose findings are mended."""


@dataclass(frozen=True)
class Flaws:
    """Where values are missing and where time has gaps."""

    state: Bool[np.ndarray, " states"]
    """States with a missing value, but for final states that were not recorded at all."""
    step: Bool[np.ndarray, " steps"]
    """Steps without an action or a reward."""
    gap: Bool[np.ndarray, " steps"]
    """Steps that lead over a gap in time."""
    uneven: int
    """Steps that take another time than usual."""
    usual: float
    """How long a step usually takes, in the times' unit."""

    @classmethod
    def of(cls, data: Trajectories) -> "Flaws":
        with np.errstate(over="ignore", invalid="ignore"):
            state = np.logical_not(np.isfinite(data.observations).all(1))
            step = ~(np.isfinite(data.actions).all(1) & np.isfinite(data.rewards))
        state[data.unknown_rows] = False
        gap, uneven, usual = np.zeros(data.steps, bool), 0, 1.0
        if data.labels is not None and data.labels.times is not None:
            durations = durations_of(data.labels.times, data.state_rows)
            usual = usual_step(durations[data.next_known])
            alike = np.abs(durations - usual) <= EVEN * usual
            uneven = int((~alike).sum())
            if alike.mean() >= 0.5:
                gap = durations > GAP * usual
        return cls(state, step, gap, uneven, usual)

    def episodes(self, data: Trajectories) -> Bool[np.ndarray, " episodes"]:
        """Return which episodes have any."""
        return (ragged.sums(self.state, data.lengths + 1) + ragged.sums(self.step | self.gap, data.lengths)) > 0


def mend(data: Trajectories, missing: Missing | None = None, resample: float | None = None) -> Trajectories:
    """Return the data without missing values and gaps (`missing`), and with steps of `resample` seconds.

    Resampling alone draws straight lines through gaps as interpolation does, but leaves missing values.
    """
    if missing is not None and missing not in get_args(Missing):
        raise InputError(f"`missing` must be {', '.join(get_args(Missing))}, not {missing!r}")
    if resample is not None:
        _require_times(data, resample)
    if missing is not None or resample is not None:
        data = _mended(data, missing)
    return data if resample is None else _resampled(data, resample)


def _mended(data: Trajectories, missing: Missing | None) -> Trajectories:
    flaws = Flaws.of(data)
    wrong = flaws.episodes(data)
    findings = tuple(
        replace(finding, verdict="note")
        if missing is not None and finding.check in FOUND and finding.verdict == "bad"
        else finding
        for finding in data.metadata.findings
    )
    if not wrong.any() or (missing is None and not flaws.gap.any()):
        return replace(data, metadata=replace(data.metadata, findings=findings))
    if missing == "drop":
        if wrong.all():
            raise InputError(
                f"{_where(data)}: every episode has missing values or gaps, so nothing would be left: use "
                "`missing=split`"
            )
        made = data[np.flatnonzero(~wrong)]
    else:
        parts = [part for episode in range(len(data)) for part in _parts(data, episode, flaws, wrong[episode], missing)]
        made = _joined(data, parts)
    what = "split" if missing is None else missing
    verb = {"drop": "left out", "split": "split", "interpolate": "interpolated"}[what]
    detail = (
        f"{verb}: {int(wrong.sum()):,} of {len(data):,} episodes with missing values or gaps; {len(made):,} episodes "
        f"and {made.steps:,} of {data.steps:,} steps now"
    )
    if missing == "split" and (usual := float(np.median(made.lengths))) < SHORT * np.median(data.lengths):
        detail += (
            f"; half of them have {usual:.0f} steps or fewer, which shows little of what follows from an action: "
            "`missing=interpolate` leaves whole what lacks a few values in a row"
        )
    findings = (*findings, Finding("mended", "note", detail))
    return replace(made, metadata=replace(data.metadata, findings=findings))


@dataclass
class _Part:
    """An episode, or a part of one, on its way to the mended data."""

    name: str | None
    observations: Float[np.ndarray, "states observation"]
    actions: Float[np.ndarray, "steps action"]
    rewards: Float[np.ndarray, " steps"]
    terminated: Bool[np.ndarray, " steps"]
    truncated: Bool[np.ndarray, " steps"]
    times: Shaped[np.ndarray, " states"] | None
    origin: Shaped[np.ndarray, " steps"]
    """The step of the data that each step is, or -1."""


def _parts(
    data: Trajectories, episode: int, flaws: Flaws, wrong: np.bool_ | bool, missing: Missing | None
) -> Iterator[_Part]:
    """Yield what an episode becomes: itself if nothing is wrong with it."""
    steps = slice(int(data.offsets[episode]), int(data.offsets[episode + 1]))
    rows = slice(int(data.first_rows[episode]), int(data.first_rows[episode] + data.lengths[episode] + 1))
    labels = data.labels or Labels()
    part = _Part(
        None if labels.episodes is None else str(labels.episodes[episode]),
        data.observations[rows],
        data.actions[steps],
        data.rewards[steps],
        data.terminated[steps],
        data.truncated[steps],
        None if labels.times is None else labels.times[rows],
        np.arange(steps.start, steps.stop),
    )
    if not wrong:
        yield part
        return
    state, step, gap = flaws.state[rows].copy(), flaws.step[steps], flaws.gap[steps]
    if missing != "split":
        known = not len(part.actions) or bool(data.next_known[steps.stop - 1])
        part, gap = _interpolated(part, gap, flaws.usual, known)
        state = np.logical_not(np.isfinite(part.observations).all(1))
        state[-1] &= known
        step = ~(np.isfinite(part.actions).all(1) & np.isfinite(part.rewards))
    yield from _split(part, state, step, gap, flaws.usual)


def _split(
    part: _Part,
    state: Bool[np.ndarray, " states"],
    step: Bool[np.ndarray, " steps"],
    gap: Bool[np.ndarray, " steps"],
    usual: float,
) -> Iterator[_Part]:
    """Yield the stretches of steps that are whole. One that ends before a missing state has an unknown final state."""
    whole = ~(state[:-1] | step)
    starts = np.flatnonzero(whole & ~np.concatenate(([False], whole[:-1] & ~gap[:-1])))
    ends = np.flatnonzero(whole & ~np.concatenate((whole[1:] & ~gap[:-1], [False])))
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        steps, rows = slice(start, end + 1), slice(start, end + 2)
        observations, truncated = part.observations[rows].copy(), part.truncated[steps].copy()
        times = None if part.times is None else part.times[rows].copy()
        if gap[end] or state[end + 1]:
            observations[-1] = np.nan
            if times is not None:
                times[-1] = times[-2] + np.asarray(usual).astype(times.dtype)
        if end + 1 < len(whole) or gap[end]:
            truncated[-1] |= not part.terminated[end]
        yield _Part(
            part.name if part.name is None or len(starts) == 1 else f"{part.name}/{number + 1}",
            observations,
            part.actions[steps],
            part.rewards[steps],
            part.terminated[steps],
            truncated,
            times,
            part.origin[steps],
        )


def _interpolated(
    part: _Part, gap: Bool[np.ndarray, " steps"], usual: float, known: bool
) -> tuple[_Part, Bool[np.ndarray, " new_steps"]]:
    """Return the episode with missing values filled and steps added in gaps, and the gaps that are too long."""
    steps = len(part.actions)
    if part.times is not None and gap.any():
        durations = np.diff(part.times).astype(np.float64)
        added = np.where(gap, np.round(durations / usual).astype(np.int64) - 1, 0)
        added[added > LONGEST] = 0
        place = np.concatenate(([0], np.cumsum(1 + added)))
        rows = int(place[-1]) + 1
        times = np.interp(np.arange(rows), place, (part.times - part.times[0]).astype(np.float64))
        step_place = place[:-1]
        part = _Part(
            part.name,
            _spread(part.observations, place, rows),
            _spread(part.actions, step_place, rows - 1),
            _spread(part.rewards, step_place, rows - 1),
            # What ended the episode did so in the last of the steps that a step became.
            _spread_flags(part.terminated, place[1:] - 1, rows - 1),
            _spread_flags(part.truncated, place[1:] - 1, rows - 1),
            part.times[0] + times.astype(part.times.dtype),
            _spread(part.origin.astype(np.float64), step_place, rows - 1),
        )
        part.origin = np.nan_to_num(part.origin, nan=-1).astype(np.int64)
        left = np.zeros(rows - 1, bool)
        left[step_place] = gap & (added == 0)
        gap, steps = left, rows - 1
    at = np.arange(steps + 1, dtype=np.float64) if part.times is None else (part.times - part.times[0]).astype(float)
    states = part.observations.copy()
    stop = steps + 1 if known else steps
    states[:stop] = _filled(states[:stop], at[:stop])
    actions, rewards = _filled(part.actions, at[:steps]), _filled(part.rewards[:, None], at[:steps])[:, 0]
    return replace(part, observations=states, actions=actions, rewards=rewards), gap


def _spread(values: np.ndarray, place: np.ndarray, rows: int) -> np.ndarray:
    """Return the values in their new places, and NaN in between."""
    spread = np.full((rows, *values.shape[1:]), np.nan, values.dtype)
    spread[place] = values
    return spread


def _spread_flags(flags: np.ndarray, place: np.ndarray, rows: int) -> np.ndarray:
    spread = np.zeros(rows, bool)
    spread[place] = flags
    return spread


def _filled(values: Float[np.ndarray, "rows columns"], at: Float[np.ndarray, " rows"]) -> np.ndarray:
    """Return each column with straight lines through what is missing; at the ends, the nearest value is held."""
    values = values.copy()
    for column in values.T:
        absent = ~np.isfinite(column)
        if not absent.any() or absent.all():
            continue
        run = np.cumsum(np.concatenate(([True], absent[1:] != absent[:-1]))) - 1
        short = absent & (np.bincount(run)[run] <= LONGEST)
        column[short] = np.interp(at[short], at[~absent], column[~absent].astype(np.float64))
    return values


def _joined(data: Trajectories, parts: Sequence[_Part]) -> Trajectories:
    parts = [part for part in parts if len(part.actions)]
    if not parts:
        raise InputError(f"{_where(data)}: no step is whole, so nothing would be left: leave out the empty columns")
    origin = np.concatenate([part.origin for part in parts])
    provenance: Provenance | None = data.provenance
    if provenance is not None:
        provenance = provenance.rows(origin) if (origin >= 0).all() else None
    labels = data.labels
    if labels is not None:
        named, timed = labels.episodes is not None, labels.times is not None
        labels = Labels(
            np.array([part.name for part in parts], dtype=np.str_) if named else None,
            np.concatenate([part.times for part in parts if part.times is not None]) if timed else None,
            labels.clock,
        )
    return Trajectories(
        observations=np.concatenate([part.observations for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        offsets=ragged.offsets_of(np.array([len(part.actions) for part in parts])),
        metadata=data.metadata,
        provenance=provenance,
        labels=labels,
    )


# Resampling


def _require_times(data: Trajectories, step: float) -> None:
    if not 0 < step < np.inf:
        raise InputError(f"`resample` is the new step in seconds, above 0, not {step:g}")
    if data.labels is None or data.labels.times is None:
        raise InputError(
            f"{_where(data)}: has no times, so it can't be resampled: name the column that holds them with "
            "`columns.step`"
        )


def _resampled(data: Trajectories, seconds: float) -> Trajectories:
    """Return the data with steps of this length.

    Observations lie on straight lines between the logged ones, an action is the mean over the new step, and rewards
    are divided by time, so that returns stay as they are. An episode's last step may be up to half longer or shorter.
    """
    assert data.labels is not None
    assert data.labels.times is not None
    step = seconds * data.labels.second
    parts = []
    for episode in range(len(data)):
        length, first, start = (int(array[episode]) for array in (data.lengths, data.first_rows, data.offsets))
        if not length:
            continue
        times = data.labels.times[first : first + length + 1]
        at = (times - times[0]).astype(np.float64)
        grid = step * np.arange(max(1, round(at[-1] / step)) + 1)
        grid[-1] = at[-1]
        steps, known = slice(start, start + length), bool(data.next_known[start + length - 1])
        states = data.observations[first : first + length + known]
        observations = np.stack([np.interp(grid, at[: len(states)], column) for column in states.T], axis=1)
        if not known:
            observations[-1] = np.nan
        durations, lasting = np.diff(at)[:, None], np.maximum(np.diff(grid), np.finfo(float).tiny)[:, None]
        actions = _shares(data.actions[steps] * durations, at, grid) / lasting
        ends = np.zeros((2, len(grid) - 1), bool)
        ends[:, -1] = data.episode_terminated[episode], data.episode_truncated[episode]
        names = data.labels.episodes
        parts.append(
            _Part(
                None if names is None else str(names[episode]),
                observations.astype(data.observations.dtype),
                actions.astype(data.actions.dtype),
                _shares(data.rewards[steps, None], at, grid)[:, 0].astype(data.rewards.dtype),
                ends[0],
                ends[1],
                times[0] + grid.astype(times.dtype),
                np.full(len(grid) - 1, -1),
            )
        )
    made = _joined(data, parts)
    detail = f"resampled to steps of {seconds:g} s: {made.steps:,} steps instead of {data.steps:,}"
    return replace(
        made,
        provenance=None,
        metadata=replace(data.metadata, findings=(*data.metadata.findings, Finding("resampled", "note", detail))),
    )


def _shares(
    values: Float[np.ndarray, "steps columns"], at: Float[np.ndarray, " states"], grid: Float[np.ndarray, " new_states"]
) -> Float[np.ndarray, "new_steps columns"]:
    """Return what falls into each new step, of values that are spread evenly over the old ones."""
    total = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0, dtype=np.float64)))
    return np.diff(np.stack([np.interp(grid, at, column) for column in total.T], axis=1), axis=0)


def _where(data: Trajectories) -> str:
    return data.metadata.source or data.metadata.name
