"""From the rows of a table to episodes: rows are ordered and counted, and everything that is wrong is found.

A blank cell is NaN in the episodes, and counted in a finding. Rows that can't be placed (no episode, no time, or the
same step of the same episode as another row) are left out, and counted too.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from trajstitch.data.labels import Labels, usual_step
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.arrow import Kind
from trajstitch.formats.arrow_columns import Rows
from trajstitch.formats.columns import TIMES, Columns, listed
from trajstitch.formats.rows import from_rows, read_provenance
from trajstitch.formats.spellings import ends

Log = dict[str, np.ndarray]
"""Arrays of rows, by what they hold."""


def episodes_of(
    rows: Rows,
    columns: Columns,
    metadata: Metadata,
    origin: Mapping[str, tuple[str, Kind]],
    guessed: tuple[str, ...] = (),
) -> Trajectories:
    """Return the episodes, with the findings of what is wrong with the rows.

    `origin` are the columns of the provenance. A time column that was `guessed` and can't be one is not used.
    """
    source = metadata.source
    log = _log(rows, columns, source)
    log |= {
        column: rows.flags(column) if kind == "flag" else rows.scalars(column)
        for column, (_, kind) in origin.items()
        if column in rows.file.names
    }
    terminated, truncated, done = (
        rows.flags(name) if name is not None else None for name in (columns.terminated, columns.truncated, columns.done)
    )
    log["terminated"], log["truncated"], findings = ends(terminated, truncated, done, rows.rows, source)
    names, clock = None, None
    if columns.episode:
        log["labels"], names = rows.labels(columns.episode)
    if columns.step:
        columns, clock, note = _add_times(log, rows, columns, guessed)
        findings = (*findings, *note)
    log["outcomes"] = rows.missing_in_all((*columns.actions, columns.outcome))
    log["row"] = np.arange(rows.rows) + 1
    order, repeated = _order(log, _unplaced(rows, columns))
    if len(order) == 0:
        raise InputError(
            f"{source}: no row has {' and '.join((*columns.episode, *([columns.step] if columns.step else [])))}"
        )
    if not np.array_equal(order, np.sort(order)):
        detail = "the rows of some episodes were scattered or out of order: sorted by episode and step"
        findings = (*findings, Finding("order", "note", detail))
    log = {name: array[order] for name, array in log.items()}
    if columns.next_observations and "labels" not in log and log["outcomes"].any():
        raise InputError(f"{source}: has next_observations and also rows without an action: leave one of the two out")
    inside = _inside(log, columns)
    findings = (*findings, *_problems(rows, columns, log, inside, repeated, names))
    metadata = replace(metadata, findings=(*metadata.findings, *findings))
    if log["outcomes"].any():
        data, appended = _with_outcomes(log, metadata)
        data = replace(
            data, provenance=_provenance({name: array[~log["outcomes"]] for name, array in log.items()}, origin, source)
        )
    else:
        data = from_rows(
            log["observations"],
            log["actions"],
            log["rewards"],
            log["terminated"],
            log["truncated"],
            log.get("next_observations"),
            metadata,
            log.get("labels"),
        )
        appended = np.zeros(len(order), bool)
        appended[data.offsets[1:] - 1] = True
        data = replace(data, provenance=_provenance(log, origin, source))
    return replace(data, labels=_labels(log, data, appended, names, clock))


def _log(rows: Rows, columns: Columns, source: str) -> Log:
    log: Log = {
        "observations": rows.matrix(columns.observations),
        "actions": rows.matrix(columns.actions),
        "rewards": rows.matrix([columns.outcome], scalars=True)[:, 0],
    }
    if columns.cost:
        log["rewards"] = 0 - log["rewards"]  # no -0, which would be written as such
    if columns.next_observations:
        log["next_observations"] = rows.matrix(columns.next_observations)
        if log["next_observations"].shape != log["observations"].shape:
            raise InputError(
                f"{source}: {log['next_observations'].shape[1]} next_observations don't go with "
                f"{log['observations'].shape[1]} observations: name them with `columns.next_observations`"
            )
    return log


def _add_times(
    log: Log, rows: Rows, columns: Columns, guessed: tuple[str, ...]
) -> tuple[Columns, tuple[str, str] | None, tuple[Finding, ...]]:
    """Add the rows' times to the log; a column that was guessed and holds no times is not used."""
    name = str(columns.step)
    lenient = "step" in guessed and name.lower() in TIMES
    try:
        times, clock = rows.times(name)
        again = _again(np.lexsort((times, log["labels"])), {**log, "times": times}) if lenient else np.zeros(0, bool)
        if again.any():
            raise InputError(f"column {name!r} holds the same time in several rows of an episode")
    except InputError as error:
        if not lenient:
            raise
        rows.missing.pop(name, None)
        return replace(columns, step=None), None, (Finding("columns", "note", f"not used as the time: {error}"),)
    log["times"] = times
    return columns, clock, ()


def _unplaced(rows: Rows, columns: Columns) -> Bool[np.ndarray, " rows"]:
    """Return the rows that lack the name of their episode or their time."""
    nowhere = np.zeros(rows.rows, bool)
    placing = (*columns.episode, *([columns.step] if columns.step else []))
    return np.logical_or.reduce([nowhere, *(rows.missing.get(name, nowhere) for name in placing)])


def _order(
    log: Log, unplaced: Bool[np.ndarray, " rows"]
) -> tuple[Integer[np.ndarray, " placed"], Integer[np.ndarray, "repeated 2"]]:
    """Return the rows by episode and time, without those left out, and pairs of rows that are the same step."""
    keys = [log[name] for name in ("times", "labels") if name in log]
    order = np.lexsort(keys) if keys else np.arange(len(unplaced))
    order = order[~unplaced[order]]
    if "times" not in log:
        return order, np.zeros((0, 2), np.int64)
    again = _again(order, log)
    pairs = np.stack([order[:-1][again], order[1:][again]], axis=1)
    return order[~np.concatenate((np.zeros(min(len(order), 1), bool), again))], pairs


def _again(order: Integer[np.ndarray, " rows"], log: Log) -> Bool[np.ndarray, " rows_minus_1"]:
    """Return which rows after the first, in this order, are the same step as the one before."""
    again = log["times"][order][1:] == log["times"][order][:-1]
    if "labels" in log:
        again &= log["labels"][order][1:] == log["labels"][order][:-1]
    return again


def _inside(log: Log, columns: Columns) -> Bool[np.ndarray, " rows"]:
    """Return the rows without action and reward whose episode goes on; they no longer count as outcomes."""
    outcomes = log["outcomes"]
    inside = np.zeros(len(outcomes), bool)
    if columns.next_observations:
        inside = outcomes.copy()  # the state after the last step is in its own row
    elif "labels" in log:
        inside[:-1] = outcomes[:-1] & (log["labels"][1:] == log["labels"][:-1])
    log["outcomes"] = outcomes & ~inside
    return inside


def _problems(
    rows: Rows,
    columns: Columns,
    log: Log,
    inside: Bool[np.ndarray, " placed"],
    repeated: Integer[np.ndarray, "repeated 2"],
    names: Shaped[np.ndarray, " episodes"] | None,
) -> list[Finding]:
    """Return what is wrong with the rows: each kind counted, with the first place."""
    found = []
    by_column = _blank(rows, columns, log, inside)
    total = sum(int(blank.sum()) for blank in by_column.values())
    if total:
        name, blank = min(by_column.items(), key=lambda item: int(np.argmax(item[1])))
        row = int(np.argmax(blank))
        counts = listed([f"{name} {int(blank.sum()):,}" for name, blank in by_column.items()], most=8)
        where = ""
        if names is not None:
            label = np.zeros(rows.rows, np.int64) - 1
            label[log["row"] - 1] = log["labels"]
            touched = np.unique(label[np.logical_or.reduce(list(by_column.values()))])
            where = f" in {(touched >= 0).sum():,} of {len(names):,} episodes"
            where += f", first in episode {str(names[label[row]])!r}" if label[row] >= 0 else ""
        cells = f"{total:,} blank cell{'s' if total > 1 else ''} ({counts}){where}"
        found.append(f"{cells}: row {row + 1} holds nothing in column {name!r}")
    if inside.any():
        row = int(log["row"][np.argmax(inside)])
        detail = f"row {row} holds no action and no reward, yet its episode goes on"
        found.append(f"{detail} ({int(inside.sum()):,} such rows)" if inside.sum() > 1 else detail)
    for name, (wrong, text) in rows.file.unreadable.items():
        some = f" ({int(wrong.sum()):,} such cells)" if wrong.sum() > 1 else ""
        row = int(np.argmax(wrong)) + 1
        found.append(f"row {row} holds {text!r} in column {name!r}, which is not a number{some}")
    findings = [Finding("missing values", "bad", "; ".join(found))] if found else []
    if len(repeated):
        first, second = (repeated[0] + 1).tolist()
        detail = (
            f"rows {first} and {second} are the same step of the same episode ({len(repeated):,} such pairs): name "
            "more columns that tell episodes apart with `columns.episode`; else the later row is left out"
        )
        findings.append(Finding("time steps", "bad", detail))
    return findings


def _blank(
    rows: Rows, columns: Columns, log: Log, inside: Bool[np.ndarray, " placed"]
) -> dict[str, Bool[np.ndarray, " rows"]]:
    """Return the blank cells of each column that has any where it must not."""
    bare = np.zeros(rows.rows, bool)  # rows that need no action, reward and flags
    bare[log["row"][log["outcomes"] | inside] - 1] = True
    always = {*columns.observations, *columns.episode, columns.step}
    may_miss = {name: bare for name in rows.missing if name not in always}
    if columns.next_observations:
        unknown = rows.missing_in_all(columns.next_observations)
        may_miss |= dict.fromkeys(columns.next_observations, unknown | bare)
    nowhere = np.zeros(rows.rows, bool)
    blank = {name: missing & ~may_miss.get(name, nowhere) for name, missing in rows.missing.items()}
    for name, (wrong, _) in rows.file.unreadable.items():
        blank[name] = blank[name] & ~wrong
    return {name: cells for name, cells in blank.items() if cells.any()}


def _with_outcomes(log: Log, metadata: Metadata) -> tuple[Trajectories, Bool[np.ndarray, " rows"]]:
    """Return episodes that end in a row with only an observation; the final state of others is unknown.

    Also the rows that such a state was appended to.
    """
    outcomes, terminated, truncated = log["outcomes"], log["terminated"].copy(), log["truncated"].copy()
    if "labels" in log:
        last = np.append(log["labels"][1:] != log["labels"][:-1], True)
    else:
        last = outcomes | ((terminated | truncated) & ~np.append(outcomes[1:], False))
        last[-1] = True
    steps = ~outcomes
    # Some logs flag an episode's final observation, not the step that led to it.
    after_step = np.flatnonzero(outcomes & np.append(False, ~last[:-1]))
    for flags in (terminated, truncated):
        flags[after_step - 1] |= flags[after_step]
    states, unknown = log["observations"], last & steps
    if unknown.any():
        states = np.repeat(states, 1 + unknown, axis=0)
        states[np.cumsum(1 + unknown)[unknown] - 1] = np.nan
    data = Trajectories(
        observations=states,
        actions=log["actions"][steps],
        rewards=log["rewards"][steps],
        terminated=terminated[steps],
        truncated=truncated[steps],
        offsets=np.concatenate(([0], np.cumsum(steps)[last])),
        metadata=metadata,
    )
    return data, unknown


def _provenance(steps: Log, origin: Mapping[str, tuple[str, Kind]], source: str) -> Provenance | None:
    """Return where each step comes from, if the table has the columns for it."""
    if not set(origin) <= set(steps):
        return None
    return read_provenance({field: steps[column] for column, (field, _) in origin.items()}, source)


def _labels(
    log: Log,
    data: Trajectories,
    appended: Bool[np.ndarray, " rows"],
    names: Shaped[np.ndarray, " episodes"] | None,
    clock: tuple[str, str] | None,
) -> Labels | None:
    """Return the episodes' names and the states' times; those that only count from 0 are none."""
    row = np.repeat(np.arange(len(appended)), 1 + appended)
    episodes = None
    if names is not None:
        episodes = names[log["labels"][row[data.first_rows]]]
        if np.array_equal(episodes, np.arange(len(episodes)).astype(np.str_)):
            episodes = None
    times = None
    if "times" in log:
        times = log["times"][row]
        added = np.concatenate(([False], row[1:] == row[:-1]))
        durations = (times[data.state_rows + 1] - times[data.state_rows]).astype(np.float64)
        usual = np.asarray(usual_step(durations)).astype(times.dtype)
        times[added] += usual
        numbers = np.arange(len(row)) - np.repeat(data.first_rows, data.lengths + 1)
        if clock is None and np.array_equal(times, numbers):
            times = None
    return None if episodes is None and times is None else Labels(episodes, times, None if times is None else clock)
