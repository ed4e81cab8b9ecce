"""Checks of whether data is fit to learn from. Every check gives a verdict, also if it finds nothing.

`bad` is data that no method should learn from; `note` is a fact that a user should know and that may be intended. Each
check is one pass over blocks of rows, without a copy of the data (unless final states are unknown).
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from jaxtyping import Float, Integer

from trajstitch.data import ragged, spaces
from trajstitch.data.mend import Flaws
from trajstitch.data.normaliser import ROUNDING
from trajstitch.data.trajectories import Finding, Trajectories
from trajstitch.errors import InputError

BLOCK = 1 << 17
"""Rows checked at a time."""
MOST_CHOICES = 32
"""Actions with at most this many distinct values, all whole numbers, may be discrete choices."""
MOST_LISTED = 12
"""Most dimensions to name in one line."""

UNKNOWN = "the state after the last step of"
"""How a note on unknown final states starts."""

MEND = "`missing=split`, `missing=interpolate` or `missing=drop` mends"

ADVICE = {
    "finite values": f"drop or repair those episodes ({MEND} them): one NaN spreads through every model",
    "action bounds": "the environment can't have applied them as logged: clip them if it clips, else repair the log",
    "early ends": "split the episodes there: what follows an end is another episode",
    "missing values": f"{MEND} those episodes",
    "time steps": f"{MEND} them: no method should take a gap for a step",
    "empty episodes": "drop them: they hold nothing to learn from",
}
"""What to do if a check finds bad data."""


def check(data: Trajectories) -> tuple[Finding, ...]:
    """Return the verdict of every check, then the findings of the loader."""
    own = (
        _finite_values(data),
        _action_bounds(data),
        _early_ends(data),
        _empty_episodes(data),
        _missing_ends(data),
        _contradictory_ends(data),
        _constant_dimensions(data),
        _whole_actions(data),
        _changing_rewards(data),
        _distinct_episodes(data),
    )
    if timed := time_steps(data):
        own = (*own, timed)
    # What a loader once said about unknown states may hold no longer, as after stitching.
    loader = tuple(finding for finding in data.metadata.findings if not finding.detail.startswith(UNKNOWN))
    if unknown := unknown_states(data):
        own = (*own, unknown)
    elif not any(finding.check == "continuity" for finding in loader):
        own = (*own, Finding("continuity", "ok", "each step ends where the next one starts"))
    return (*own, *loader)


def unknown_states(data: Trajectories) -> Finding | None:
    """Return a note on final states that were not recorded, if there are any."""
    if not len(data.unknown_rows):
        return None
    detail = (
        f"{UNKNOWN} {_share(len(data.unknown_rows), len(data))} episodes was not recorded: clones learn from these "
        "steps, and values from the terminated ones; models of the dynamics don't"
    )
    return Finding("continuity", "note", detail)


def _finite_values(data: Trajectories) -> Finding:
    found = []
    for name, values in (("observations", _states(data)), ("actions", data.actions), ("rewards", data.rewards)):
        first = first_nonfinite(values)
        if first is None:
            continue
        nan = sum(int(np.isnan(part).sum()) for _, part in _blocks(values))
        infinite = sum(int(np.isinf(part).sum()) for _, part in _blocks(values))
        where = _place(data, first, data.first_rows if name == "observations" else data.offsets[:-1])
        found.append(f"{nan:,} NaN and {infinite:,} infinite values in {name}, first in {where}")
    return Finding("finite values", "bad" if found else "ok", "; ".join(found) or "no NaN or infinite values")


def _action_bounds(data: Trajectories) -> Finding:
    """Actions outside the bounds are bad: the environment must have applied another action than the logged one."""
    space = data.metadata.action_space
    if space is None:
        return Finding("action bounds", "note", "unknown: no action space is recorded")
    if spaces.flat_size(space) != data.action_size:
        detail = f"the action space has {spaces.flat_size(space)} dimensions, the actions have {data.action_size}"
        return Finding("action bounds", "bad", detail)
    low, high = (bound.astype(np.float64) for bound in spaces.flat_bounds(space))
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return Finding("action bounds", "note", "the action space has none")
    outside = at_bound = 0
    worst, worst_at = 0.0, (0, 0)
    slack = ROUNDING * np.maximum(*(np.where(np.isfinite(bound), np.abs(bound), 0) for bound in (low, high)))
    with np.errstate(invalid="ignore"):  # infinity minus infinity, where a side has no bound
        for start, part in _blocks(data.actions):
            excess = np.maximum(part - high, low - part)
            beyond = excess > slack
            at_bound += int(((part >= high - slack) | (part <= low + slack)).sum())
            if beyond.any():
                outside += int(beyond.sum())
                row, column = np.unravel_index(np.argmax(np.where(beyond, excess, 0)), excess.shape)
                if excess[row, column] > worst:
                    worst, worst_at = float(excess[row, column]), (start + int(row), int(column))
    if outside:
        detail = (
            f"{_share(outside, data.actions.size)} action values lie outside, the worst by {worst:.3g} in "
            f"{_place(data, worst_at[0], data.offsets[:-1])}, {_dimension(data, worst_at[1])}"
        )
        return Finding("action bounds", "bad", detail)
    if data.steps and at_bound == data.actions.size:
        return Finding("action bounds", "note", "every action touches them: bang-bang control, or clipped")
    share = at_bound / max(data.actions.size, 1)
    return Finding("action bounds", "ok", f"all actions keep to them, {share:.1%} of the values touch them")


def _early_ends(data: Trajectories) -> Finding:
    inside = (data.terminated | data.truncated) & ~data.last_of_episode
    if not inside.any():
        return Finding("early ends", "ok", "episodes are flagged at their last step only")
    where = _place(data, int(np.argmax(inside)), data.offsets[:-1])
    detail = f"{inside.sum():,} steps are flagged as ends though their episode goes on, first in {where}"
    return Finding("early ends", "bad", detail)


def _empty_episodes(data: Trajectories) -> Finding:
    empty = data.lengths == 0
    if not empty.any():
        return Finding("empty episodes", "ok", "every episode has steps")
    detail = f"{empty.sum():,} episodes have no steps, first {data.episode_name(int(np.argmax(empty)))}"
    return Finding("empty episodes", "bad", detail)


def _missing_ends(data: Trajectories) -> Finding:
    missing = ~(data.episode_terminated | data.episode_truncated) & (data.lengths > 0)
    if not missing.any():
        return Finding("missing ends", "ok", "every episode says how it ended")
    count, first = _share(int(missing.sum()), len(data)), int(np.argmax(missing))
    detail = f"{count} episodes have no end flag, first {data.episode_name(first)}: taken as cut off"
    return Finding("missing ends", "note", detail)


def _contradictory_ends(data: Trajectories) -> Finding:
    both = data.episode_terminated & data.episode_truncated
    if not both.any():
        return Finding("contradictory ends", "ok", "no episode is terminated and truncated at once")
    count, first = _share(int(both.sum()), len(data)), int(np.argmax(both))
    detail = f"{count} episodes have both end flags, first {data.episode_name(first)}: taken as terminated"
    return Finding("contradictory ends", "note", detail)


def _whole_actions(data: Trajectories) -> Finding:
    """A table doesn't say whether numbers are discrete choices; our policies would output values between choices."""
    few: set[float] = set()
    for _, part in _blocks(data.actions):
        whole = bool((part == np.round(part)).all())
        few |= set(np.unique(part).tolist()) if whole else set()
        if not whole or len(few) > MOST_CHOICES:
            return Finding("whole actions", "ok", "actions are quantities, not whole numbers alone")
    if len(few) < 2:
        return Finding("whole actions", "ok", "actions don't choose between whole numbers")
    detail = f"every action value is one of {len(few)} whole numbers: if they are discrete choices, no policy fits"
    return Finding("whole actions", "note", detail)


def _constant_dimensions(data: Trajectories) -> Finding:
    parts = []
    for name, values in (("observation", data.filled().observations), ("action", data.actions)):
        varies = np.zeros(values.shape[1], bool)
        for _, part in _blocks(values):
            varies |= (part != values[0]).any(axis=0)
            if varies.all():
                break
        constant = np.flatnonzero(~varies)
        if len(constant) and len(values) > 1:
            names = column_names(data, name) or list(map(str, range(values.shape[1])))
            listed = ", ".join(names[i] for i in constant[:MOST_LISTED])
            listed += ", ..." if len(constant) > MOST_LISTED else ""
            parts.append(f"{name} dimension{'s' if len(constant) > 1 else ''} {listed}")
    if not parts:
        return Finding("constant dimensions", "ok", "every observation and action dimension varies")
    return Finding("constant dimensions", "note", f"never change: {'; '.join(parts)}")


def _changing_rewards(data: Trajectories) -> Finding:
    if data.steps < 2 or (data.rewards != data.rewards[0]).any():
        return Finding("rewards", "ok", "rewards vary")
    detail = f"every reward is {data.rewards[0]:g}: episodes differ in length alone"
    return Finding("rewards", "note", detail)


def _distinct_episodes(data: Trajectories) -> Finding:
    found = copies(data)
    if not found:
        return Finding("duplicate episodes", "ok", "no episode is a copy of another")
    detail = (
        f"{_share(len(found), len(data))} episodes are exact copies of others, first "
        f"{data.episode_name(found[0][0])} of {data.episode_name(found[0][1])}"
    )
    return Finding("duplicate episodes", "note", detail)


def copies(data: Trajectories) -> list[tuple[int, int]]:
    """Return (episode, original) for each episode that is an exact copy of an earlier one.

    Only episodes of equal length and return are compared in full.
    """
    keys = np.stack([data.lengths, data.returns.view(np.int64)], axis=1)[data.lengths > 0]
    episodes = np.flatnonzero(data.lengths > 0)
    _, group, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    first_with: dict[bytes, int] = {}
    found: list[tuple[int, int]] = []
    for episode in episodes[count[group.ravel()] > 1].tolist():
        original = first_with.setdefault(_digest(data, episode), episode)
        if original != episode:
            found.append((episode, original))
    return found


def _digest(data: Trajectories, episode: int) -> bytes:
    rows = slice(data.first_rows[episode], data.first_rows[episode] + data.lengths[episode] + 1)
    steps = slice(data.offsets[episode], data.offsets[episode + 1])
    digest = blake2b(digest_size=16)
    for part in (data.observations[rows], data.actions[steps], data.rewards[steps]):
        digest.update(np.ascontiguousarray(part).data)
    return digest.digest()


def _states(data: Trajectories) -> Float[np.ndarray, "states observation"]:
    """Return the observations, with zeros for final states that were not recorded: those are no bad data."""
    if not len(data.unknown_rows):
        return data.observations
    observations = data.observations.copy()
    observations[data.unknown_rows] = 0
    return observations


def _blocks(values: Float[np.ndarray, "rows ..."]) -> Iterator[tuple[int, Float[np.ndarray, "rows ..."]]]:
    return ((start, values[start : start + BLOCK]) for start in range(0, len(values), BLOCK))


def _place(data: Trajectories, row: int, starts: Integer[np.ndarray, " episodes"]) -> str:
    """Return "episode 3, step 14" for a row, given the first row of each episode."""
    episode = int(np.searchsorted(starts, row, side="right")) - 1
    return f"{data.episode_name(episode)}, step {row - int(starts[episode])}"


def column_names(data: Trajectories, part: str) -> list[str] | None:
    """Return the log's own names of the `observation` or `action` columns, if it has any."""
    names = data.metadata.extra.get(f"{part}_names")
    size = data.observation_size if part == "observation" else data.action_size
    return [str(name) for name in names] if isinstance(names, list) and len(names) == size else None


def own_names(data: Trajectories) -> dict[str, list[str]]:
    """Return the log's own names of observation and action columns, as policies carry them; empty if it has none."""
    found = {f"{part}_names": column_names(data, part) for part in ("observation", "action")}
    return {name: names for name, names in found.items() if names is not None}


def _dimension(data: Trajectories, action: int) -> str:
    names = column_names(data, "action")
    return f"dimension {action}" if names is None else names[action]


def time_steps(data: Trajectories) -> Finding | None:
    """Return whether all steps take the same time; None if no times are known."""
    if data.labels is None or data.labels.times is None or not data.steps:
        return None
    flaws = Flaws.of(data)
    unit = "" if data.labels.clock is None else " s"
    usual = f"{flaws.usual / data.labels.second:g}{unit}"
    if flaws.gap.any():
        where = _place(data, int(np.argmax(flaws.gap)), data.offsets[:-1])
        episodes = int((ragged.sums(flaws.gap, data.lengths) > 0).sum())
        detail = (
            f"{flaws.gap.sum():,} gaps in time, where a step takes longer than the usual {usual}, in "
            f"{_share(episodes, len(data))} episodes, first in {where}"
        )
        return Finding("time steps", "bad", detail)
    if flaws.uneven:
        detail = f"{_share(flaws.uneven, data.steps)} steps take another time than the usual {usual}: see `resample`"
        return Finding("time steps", "note", detail)
    return Finding("time steps", "ok", f"every step takes {usual}")


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


def require_trajectories(data: object, name: str = "data") -> None:
    """Raise if a user gave something else as a data set, such as its URI."""
    if not isinstance(data, Trajectories):
        hint = f": load it first, with trajstitch.load({data!r})" if isinstance(data, str) else ""
        raise InputError(f"`{name}` must be Trajectories, not a {type(data).__name__}{hint}")


def require_finite(data: Trajectories, uri: str) -> None:
    """Raise if there is a NaN or infinite value, or a gap in time; the message counts them and says what mends them."""
    first = ""
    for name, rows, starts in (
        ("observations", _states(data), data.first_rows),
        ("actions", data.actions, data.offsets[:-1]),
        ("rewards", data.rewards, data.offsets[:-1]),
    ):
        row = first_nonfinite(rows)
        if row is not None:
            first = f"{name} hold a NaN or infinite value in {_place(data, row, starts)}"
            break
    if first:
        values = (_states(data), data.actions, data.rewards)
        count = sum(int((~np.isfinite(part)).sum()) for rows in values for _, part in _blocks(rows))
        episodes = int(Flaws.of(data).episodes(data).sum())
        raise InputError(
            f"{uri}: {first}, the first of {count:,} in {_share(episodes, len(data))} episodes; `trajstitch inspect` "
            f"counts them: {MEND} those episodes"
        )
    timed = time_steps(data)
    if timed is not None and timed.verdict == "bad":
        raise InputError(f"{uri}: {timed.detail}: {MEND} them")


def first_nonfinite(rows: np.ndarray) -> int | None:
    """Return the first row with a NaN or infinite value, if any; one pass, no copy of the data."""
    for start, part in _blocks(rows):
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(part.sum(dtype=np.float64)):
                continue
        bad = ~np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if bad.any():
            return start + int(np.argmax(bad))
    return None
