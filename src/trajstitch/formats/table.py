"""Tables: CSV or Parquet files with one row per step.

A row holds an observation, the action taken in it, the reward that followed and whether the episode ended. An episode's
last row may hold only an observation, its final one, without action and reward. We write such rows, so that nothing is
lost. Episodes without one and without next_observations end in a state that is unknown, and are written without one.

Rows with the same episode label belong together, wherever they are in the file. They are in the file's order, or in
that of a step column. Parquet keeps everything. CSV keeps the exact values, but not their dtypes (all numbers are read
as float64) and no metadata: no spaces, no environment, no reference scores. Messages count rows from 1, without the
header.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from gymnasium.spaces import Box
from jaxtyping import Bool, Float, Integer, Shaped

from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import files
from trajstitch.formats.arrow import Kind, Rows, open_table
from trajstitch.formats.columns import Columns, describe, listed, resolve
from trajstitch.formats.limits import Budget
from trajstitch.formats.metadata import AGAIN, from_json, parse_object, to_json
from trajstitch.formats.rows import from_rows, read_provenance, with_note_on_unknown
from trajstitch.formats.spellings import ends
from trajstitch.progress import progress
from trajstitch.storage import atomic

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".csv.gz", ".tsv")
ENDINGS: tuple[str, ...] = PARQUET + CSV
OPTIONS: tuple[str, ...] = ("columns", "allow_large")
stored_at = files.stored_at

WRITTEN = Columns(
    episode=("episode",),
    step="step",
    observations=("observation_*",),
    actions=("action_*",),
    reward="reward",
    terminated="terminated",
    truncated="truncated",
)
"""The names of the columns that we write."""
_WRITTEN_FIELDS = ("episode", "step", "observations", "actions", "reward", "terminated", "truncated")

PROVENANCE: dict[str, tuple[str, Kind]] = {
    f"provenance_{item.name}": (item.name, "flag" if item.name == "stitched" else "number")
    for item in fields(Provenance)
}
OURS = b"trajstitch"
"""Key of our own metadata in a Parquet file's metadata."""
BLOCK = 1 << 17
"""Rows written at a time."""


def load(location: str, columns: Columns | None = None, *, allow_large: bool = False) -> Trajectories:
    """Load a table; `columns` says what its columns hold."""
    path, source = Path(location), f"table:{location}"
    files.require_readable(path)
    file = open_table(path, Budget(path, source, allow_large=allow_large))
    columns = columns or Columns()
    ours = file.metadata.get(OURS)
    if ours is None:
        metadata = Metadata(name=path.name.partition(".")[0], source=source)
    else:
        metadata, columns = _described(ours, columns, source)
    chosen, guessed = resolve(columns, file.names, source)
    kinds = _kinds(chosen)
    if present := set(PROVENANCE) & set(file.names):
        if missing := [column for column in PROVENANCE if column not in present]:
            raise InputError(
                f"{source}: has {listed(sorted(present))}, but no {listed(missing)}: put them back, or remove all "
                "provenance columns"
            )
        kinds |= {column: kind for column, (_, kind) in PROVENANCE.items()}
    for column, count in Counter(file.names).items():
        if count > 1 and column in kinds:
            raise InputError(f"{source}: has {count} columns named {column!r}: rename all but one")
    if ours is None and not _as_we_write(chosen.observations, "observations"):
        metadata = replace(metadata, extra={**metadata.extra, "observation_names": list(chosen.observations)})
    findings = list(metadata.findings)
    surprising = [name for name in guessed if not _as_we_write(getattr(chosen, name), name)]
    if surprising and ours is None:
        findings.append(Finding("columns", "note", f"guessed: {describe(chosen, surprising)}"))
    unused = [name for name in file.names if name not in kinds]
    if unused:
        findings.append(Finding("left out", "note", f"columns that are not used: {listed(unused)}"))
    file.read(kinds)
    if file.rows == 0:
        raise InputError(f"{source}: holds no rows, so no episodes")
    data = _trajectories(Rows(file, source), chosen, replace(metadata, findings=tuple(findings)))
    return data if ours is not None else with_note_on_unknown(data)


def save(data: Trajectories, location: str, *, force: bool, columns: Columns | None = None) -> None:
    """Write a table. `columns` gives the names of the columns to write; `*` becomes a column's number."""
    path = Path(location)
    _require_ending(path)
    names = _names_to_write(columns or Columns(), data, f"table:{location}")
    description = {OURS: json.dumps({"metadata": to_json(data.metadata), "columns": asdict(names)})}
    as_text = path.name.endswith(CSV)
    schema = _block(data, names, 0, 0, as_text=as_text).schema.with_metadata(description)
    with atomic.replacing(path, force=force) as fresh:
        if as_text:
            options = pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            with (
                pa.output_stream(str(fresh)) as stream,
                pyarrow.csv.CSVWriter(stream, schema, write_options=options) as writer,
            ):
                for block in _blocks(data, names, f"saving table:{location}", as_text=True):
                    writer.write_table(block)
        else:
            repetitive: Any = list(names.episode)
            with pyarrow.parquet.ParquetWriter(fresh, schema, use_dictionary=repetitive) as writer:
                for block in _blocks(data, names, f"saving table:{location}", as_text=False):
                    writer.write_table(block.replace_schema_metadata(description))


def require_free(location: str, *, force: bool) -> None:
    """Raise unless the file may be written and its name ends as a table's."""
    _require_ending(Path(location))
    files.require_free(location, force=force)


def _require_ending(path: Path) -> None:
    if not path.name.endswith(ENDINGS):
        raise InputError(f"{path}: the name of a table to write must end in .parquet or .csv (or .pq, .csv.gz, .tsv)")


# From rows to episodes


def _described(text: bytes, columns: Columns, source: str) -> tuple[Metadata, Columns]:
    """Return the metadata and columns stored in a file that we wrote; columns that the user gives take precedence."""
    try:
        stored = parse_object(text)
    except ValueError as error:
        raise InputError(f"{source}: its metadata is damaged ({error}): {AGAIN}") from error
    written, metadata = stored.get("columns"), stored.get("metadata")
    if not isinstance(written, dict) or not isinstance(metadata, str):
        raise InputError(f"{source}: its metadata is damaged (no columns, or no metadata): {AGAIN}")
    chosen: dict[str, Any] = {}
    for name in _WRITTEN_FIELDS:
        value, many = written.get(name), isinstance(getattr(Columns, name), tuple)
        parts = value if many else [value]
        if not isinstance(parts, list) or not all(isinstance(one, str) for one in parts):
            raise InputError(f"{source}: its metadata is damaged (the columns of {name}): {AGAIN}")
        chosen[name] = tuple(parts) if many else value
    given = {item.name: getattr(columns, item.name) for item in fields(Columns) if getattr(columns, item.name)}
    return from_json(metadata, source), replace(Columns(), **{**chosen, **given})


def _as_we_write(names: str | tuple[str, ...], field: str) -> bool:
    """Return whether columns have the names that we write, so that the user needs no note about the guess."""
    written = getattr(WRITTEN, field)
    if isinstance(names, str):
        return names == written
    return len(written) == 1 and all(fnmatch(name, written[0]) for name in names)


def _kinds(columns: Columns) -> dict[str, Kind]:
    """Return the kind of each column that is used; a step column that is an observation too holds numbers."""
    by_kind: dict[Kind, tuple[str | None, ...]] = {
        "label": columns.episode,
        "time": (columns.step,),
        "flag": (columns.terminated, columns.truncated, columns.done),
        "number": (*columns.observations, *columns.actions, columns.reward, *columns.next_observations),
    }
    return {name: kind for kind, names in by_kind.items() for name in names if name is not None}


def _trajectories(rows: Rows, columns: Columns, metadata: Metadata) -> Trajectories:
    source = metadata.source
    log: dict[str, np.ndarray] = {
        "observations": rows.matrix(columns.observations),
        "actions": rows.matrix(columns.actions),
        "rewards": rows.matrix([str(columns.reward)], scalars=True)[:, 0],
    }
    if columns.next_observations:
        log["next_observations"] = rows.matrix(columns.next_observations)
        if log["next_observations"].shape != log["observations"].shape:
            raise InputError(
                f"{source}: {log['next_observations'].shape[1]} next_observations don't go with "
                f"{log['observations'].shape[1]} observations: name them with `columns.next_observations`"
            )
    terminated, truncated, done = (
        rows.flags(name) if name is not None else None for name in (columns.terminated, columns.truncated, columns.done)
    )
    log["terminated"], log["truncated"], findings = ends(terminated, truncated, done, rows.rows, source)
    log |= {
        column: rows.flags(column) if kind == "flag" else rows.scalars(column)
        for column, (_, kind) in PROVENANCE.items()
        if column in rows.file.names
    }
    labels = rows.labels(columns.episode) if columns.episode else None
    times = rows.times(columns.step) if columns.step else None

    outcomes = rows.missing_in_all((*columns.actions, str(columns.reward)))
    always = {*columns.observations, *columns.episode, columns.step}
    may_miss = {name: outcomes for name in rows.missing if name not in always}
    if columns.next_observations:
        unknown = rows.missing_in_all(columns.next_observations)
        log["next_observations"][unknown] = np.nan
        may_miss |= dict.fromkeys(columns.next_observations, unknown | outcomes)
    rows.require_filled(may_miss)
    order = _order(labels, times, rows.rows, source)
    if labels is not None:
        log["labels"] = labels
        _require_outcomes_last(outcomes, labels, order, source)
    log["outcomes"] = outcomes
    if order is not None:
        log = {name: array[order] for name, array in log.items()}
        detail = "the rows of some episodes were scattered or out of order: sorted by episode and step"
        findings = (*findings, Finding("order", "note", detail))
    metadata = replace(_with_known(metadata, columns, log["actions"]), findings=(*metadata.findings, *findings))
    if outcomes.any():
        return _with_outcomes(log, metadata)
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
    return replace(data, provenance=_provenance(log, source))


def _order(
    labels: Integer[np.ndarray, " rows"] | None, times: Shaped[np.ndarray, " rows"] | None, rows: int, source: str
) -> Integer[np.ndarray, " rows"] | None:
    """Return the order of the rows by episode and step, or None if they are in that order already."""
    keys = [key for key in (times, labels) if key is not None]
    if not keys:
        return None
    order = np.lexsort(keys)
    if times is not None:
        again = times[order][1:] == times[order][:-1]
        if labels is not None:
            again &= labels[order][1:] == labels[order][:-1]
        if again.any():
            first, second = order[np.argmax(again)] + 1, order[np.argmax(again) + 1] + 1
            raise InputError(
                f"{source}: rows {first} and {second} are the same step of the same episode: name more columns that "
                "tell episodes apart with `columns.episode`"
            )
    return None if np.array_equal(order, np.arange(rows)) else order


def _require_outcomes_last(
    outcomes: Bool[np.ndarray, " rows"],
    labels: Integer[np.ndarray, " rows"],
    order: Integer[np.ndarray, " rows"] | None,
    source: str,
) -> None:
    placed = np.arange(len(labels)) if order is None else order
    inside = outcomes[placed][:-1] & (labels[placed][1:] == labels[placed][:-1])
    if inside.any():
        row = placed[np.argmax(inside)] + 1
        raise InputError(
            f"{source}: row {row} holds no action and no reward, yet its episode goes on: fill them in, or give what "
            "follows another episode label"
        )


def _with_outcomes(log: dict[str, np.ndarray], metadata: Metadata) -> Trajectories:
    """Return episodes that end in a row with only an observation; the final state of others is unknown."""
    outcomes, terminated, truncated = log["outcomes"], log["terminated"].copy(), log["truncated"].copy()
    if "next_observations" in log:
        raise InputError(
            f"{metadata.source}: has next_observations and also rows without an action: leave one of the two out"
        )
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
    return Trajectories(
        observations=states,
        actions=log["actions"][steps],
        rewards=log["rewards"][steps],
        terminated=terminated[steps],
        truncated=truncated[steps],
        offsets=np.concatenate(([0], np.cumsum(steps)[last])),
        metadata=metadata,
        provenance=_provenance({name: array[steps] for name, array in log.items()}, metadata.source),
    )


def _provenance(steps: dict[str, np.ndarray], source: str) -> Provenance | None:
    """Return where each step comes from, if the table has the columns for it."""
    if not set(PROVENANCE) <= set(steps):
        return None
    return read_provenance({field: steps[column] for column, (field, _) in PROVENANCE.items()}, source)


def _with_known(metadata: Metadata, columns: Columns, actions: Float[np.ndarray, "rows action"]) -> Metadata:
    """Add what the user said about the log as a whole: its environment and action bounds."""
    if columns.environment is not None:
        metadata = replace(metadata, environment=spec_json(columns.environment), evaluation_environment=None)
    if columns.action_low or columns.action_high:
        low, high = columns.action_low or (-np.inf,), columns.action_high or (np.inf,)
        size = actions.shape[1]
        if {len(low), len(high)} - {1, size}:
            raise InputError(
                f"{metadata.source}: {len(low)} lowest and {len(high)} highest values don't go with {size} actions: "
                "give one for all, or one for each"
            )
        lowest, highest = (np.broadcast_to(np.asarray(side, actions.dtype), size) for side in (low, high))
        if (lowest >= highest).any():
            raise InputError(f"{metadata.source}: the lowest action must be below the highest, not {low} and {high}")
        metadata = replace(metadata, action_space=Box(lowest, highest, dtype=actions.dtype.type))
    return metadata


# From episodes to rows


def _names_to_write(columns: Columns, data: Trajectories, source: str) -> Columns:
    sizes = {"observations": data.observation_size, "actions": data.action_size}
    chosen: dict[str, Any] = {name: getattr(columns, name) or getattr(WRITTEN, name) for name in _WRITTEN_FIELDS}
    chosen["episode"] = chosen["episode"][:1]
    for name, size in sizes.items():
        given = chosen[name]
        if len(given) == 1 and "*" in given[0]:
            chosen[name] = tuple(given[0].replace("*", str(number)) for number in range(size))
        if len(chosen[name]) != size:
            raise InputError(f"{source}: `columns.{name}` names {len(given)} columns, but there are {size}")
    names = Columns(**chosen)
    twice = [name for name, count in Counter(_all_names(names)).items() if count > 1]
    if twice:
        raise InputError(f"{source}: two columns would be named {twice[0]!r}: choose other names")
    return names


def _all_names(names: Columns) -> list[str]:
    ends_of_row = (names.reward, names.terminated, names.truncated)
    return [str(name) for name in (*names.episode, names.step, *names.observations, *names.actions, *ends_of_row)]


def _blocks(data: Trajectories, names: Columns, description: str, *, as_text: bool) -> Iterator[pa.Table]:
    rows = len(data.observations)
    with progress(description, rows, "rows") as advance:
        for start in range(0, rows, BLOCK):
            stop = min(start + BLOCK, rows)
            yield _block(data, names, start, stop, as_text=as_text)
            advance(stop - start)


def _block(data: Trajectories, names: Columns, start: int, stop: int, *, as_text: bool) -> pa.Table:
    """Return the table rows of the observations from `start` to `stop`; an episode's last row has nothing else.

    Unknown final states have no row.
    """
    row = np.arange(start, stop)
    episode = np.searchsorted(data.first_rows, row, side="right") - 1
    step = row - data.first_rows[episode]
    last = step == data.lengths[episode]
    first_step = start - int(episode[0]) if len(row) else 0
    taken = slice(first_step, first_step + int((~last).sum()))
    recorded = ~np.isin(row, data.unknown_rows)

    def numbers(values: Shaped[np.ndarray, " rows"], mask: Bool[np.ndarray, " rows"] | None = None) -> pa.Array:
        # A float32 as text would be read back as another float64. As a float64, its digits are exact.
        exact = values.astype(np.float64) if as_text and values.dtype.kind == "f" else np.ascontiguousarray(values)
        return pa.array(exact, mask=mask)

    def of_steps(values: Shaped[np.ndarray, " steps"]) -> pa.Array:
        spread = np.zeros(len(row), values.dtype)
        spread[~last] = values[taken]
        return numbers(spread, last)

    arrays = [
        pa.array(episode),
        pa.array(step),
        *(numbers(data.observations[start:stop, column]) for column in range(data.observation_size)),
        *(of_steps(data.actions[:, column]) for column in range(data.action_size)),
        of_steps(data.rewards),
        of_steps(data.terminated),
        of_steps(data.truncated),
    ]
    table = pa.table(arrays, names=_all_names(names))
    if data.provenance is not None:
        for column, (field, _) in PROVENANCE.items():
            table = table.append_column(column, of_steps(getattr(data.provenance, field)))
    return table if recorded.all() else table.filter(pa.array(recorded))
