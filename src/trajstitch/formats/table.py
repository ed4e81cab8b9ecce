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
import re
from collections import Counter
from dataclasses import asdict, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from gymnasium.spaces import Box
from jaxtyping import Float

from trajstitch.data.checks import MEND
from trajstitch.data.environments import spec_json
from trajstitch.data.mend import FOUND
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import files
from trajstitch.formats.arrow import Kind, open_table
from trajstitch.formats.arrow_columns import Rows
from trajstitch.formats.columns import Columns, describe, listed, require_columns, resolve
from trajstitch.formats.limits import Budget
from trajstitch.formats.metadata import AGAIN, from_json, parse_object, to_json, without_seal
from trajstitch.formats.own_layout import is_layout, layout_column, with_layout
from trajstitch.formats.rows import with_note_on_unknown
from trajstitch.formats.seal import changed, opened, require_free_beside, require_unchanged_text, sealed, sealing_text
from trajstitch.formats.table_rows import episodes_of
from trajstitch.formats.table_writing import NAMES, WRITTEN, block, blocks, names_to_write
from trajstitch.storage import atomic
from trajstitch.storage.checksums import sealed as stamped

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".csv.gz", ".tsv")
ENDINGS: tuple[str, ...] = PARQUET + CSV
OPTIONS: tuple[str, ...] = ("columns", "allow_large", "allow_changed", "tolerant")
KEEPS_LABELS = True
"""Episodes' names and states' times are columns."""
stored_at = files.stored_at

_WRITTEN_FIELDS = ("episode", "step", "observations", "actions", "reward", "cost", "terminated", "truncated")

COSTLY = {"cost", "costs", "error", "errors", "loss", "losses", "penalty", "penalties", "kosten", "waste", "damage"}
"""Words in the name of a column of which less is better."""

_OTHER = {"reward": "cost", "cost": "reward"}
"""What a table has instead of each."""

PROVENANCE: dict[str, tuple[str, Kind]] = {
    f"provenance_{item.name}": (item.name, "flag" if item.name == "stitched" else "number")
    for item in fields(Provenance)
}
OURS = b"trajstitch"
"""Key of our own metadata in a Parquet file's metadata."""
MARK = b"written-by"
"""A key that files of ours have too: one whose metadata is lost is no file of others."""


def load(
    location: str,
    columns: Columns | None = None,
    *,
    allow_large: bool = False,
    allow_changed: bool = False,
    tolerant: bool = False,
) -> Trajectories:
    """Load a table; `columns` says what its columns hold.

    Blank cells, rows that can't be placed and text where numbers should be raise an error that counts them; if
    `tolerant`, they are NaN or left out, and a finding counts them.
    """
    require_columns(columns)
    path, source = Path(location), f"table:{location}"
    files.require_readable(path)
    if path.name.endswith(CSV) and not allow_changed:
        require_unchanged_text(path, source)
    file = open_table(path, Budget(path, source, allow_large=allow_large))
    columns = columns or Columns()
    ours = file.metadata.get(OURS)
    if ours is None and file.metadata.get(MARK) == b"trajstitch" and not allow_changed:
        raise changed(source, "metadata")
    if ours is not None and columns != Columns() and not allow_changed:
        load(location, allow_large=allow_large, tolerant=True)  # by its own columns, which its checksum is of
        allow_changed = True
    if ours is None:
        metadata = Metadata(name=path.name.partition(".")[0], source=source)
        columns = with_layout(columns, file.names, len(set(PROVENANCE) & set(file.names)))
    else:
        metadata, columns = _described(ours, columns, source, allow_changed=allow_changed)
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
    if ours is None:
        metadata = replace(metadata, extra={**metadata.extra, **_own_names(chosen)})
    findings = list(metadata.findings)
    surprising = [name for name in guessed if not _as_we_write(getattr(chosen, name), name)]
    if surprising and ours is None:
        findings.append(Finding("columns", "note", f"guessed: {describe(chosen, surprising)}"))
    unused = [name for name in file.names if name not in kinds and not is_layout(name)]
    if unused:
        findings.append(Finding("left out", "note", f"columns that are not used: {listed(unused)}"))
    file.read(kinds)
    if file.decimal != ".":
        findings.append(Finding("decimals", "note", f"numbers are read with a decimal comma, as in 20{file.decimal}5"))
    if file.rows == 0:
        raise InputError(f"{source}: holds no rows, so no episodes")
    metadata = replace(metadata, findings=tuple(findings))
    data = episodes_of(Rows(file, source), chosen, metadata, PROVENANCE, guessed)
    data = opened(data, allow_changed=allow_changed)
    wrong = [
        finding.detail for finding in data.metadata.findings if finding.check in FOUND and finding.verdict == "bad"
    ]
    if wrong and not tolerant:
        raise InputError(f"{source}: {'; '.join(wrong)}; {MEND} this, and `trajstitch inspect` shows it all")
    data = replace(data, metadata=_with_known(data.metadata, columns, data.actions))
    if chosen.reward and ours is None:
        data = _with_note_on_costs(data, chosen.reward)
    return data if ours is not None else with_note_on_unknown(data)


def save(data: Trajectories, location: str, *, force: bool, columns: Columns | None = None) -> None:
    """Write a table. `columns` gives the names of the columns to write; `*` becomes a column's number."""
    require_columns(columns)
    path = Path(location)
    _require_ending(path)
    as_text = path.name.endswith(CSV)
    if as_text:
        require_free_beside(path, force=force)
    names = names_to_write(columns or Columns(), data, f"table:{location}")
    known = to_json(data.metadata if as_text else sealed(data).metadata)
    description = {OURS: json.dumps(stamped({"metadata": known, "columns": asdict(names)})), MARK: b"trajstitch"}
    layout = layout_column(names) if as_text else None
    schema = _with(layout, block(data, names, 0, 0, PROVENANCE, as_text=as_text)).schema.with_metadata(description)
    with sealing_text(path) as seal_text, atomic.replacing(path, force=force) as fresh:
        if as_text:
            options = pyarrow.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            with (
                pa.output_stream(str(fresh)) as stream,
                pyarrow.csv.CSVWriter(stream, schema, write_options=options) as writer,
            ):
                for part in blocks(data, names, f"saving table:{location}", PROVENANCE, as_text=True):
                    writer.write_table(_with(layout, part))
            seal_text(fresh)
        else:
            repetitive: Any = list(names.episode)
            with pyarrow.parquet.ParquetWriter(fresh, schema, use_dictionary=repetitive) as writer:
                for part in blocks(data, names, f"saving table:{location}", PROVENANCE, as_text=False):
                    writer.write_table(part.replace_schema_metadata(description))


def _with(layout: str | None, part: pa.Table) -> pa.Table:
    """Return rows with the empty column that says what the others hold."""
    return part if layout is None else part.append_column(layout, pa.nulls(part.num_rows, pa.string()))


def require_free(location: str, *, force: bool) -> None:
    """Raise unless the file may be written and its name ends as a table's."""
    path = Path(location)
    _require_ending(path)
    files.require_free(location, force=force)
    if path.name.endswith(CSV):
        require_free_beside(path, force=force)


def _require_ending(path: Path) -> None:
    if not path.name.endswith(ENDINGS):
        raise InputError(f"{path}: the name of a table to write must end in .parquet or .csv (or .pq, .csv.gz, .tsv)")


# From rows to episodes


def _described(text: bytes, columns: Columns, source: str, *, allow_changed: bool) -> tuple[Metadata, Columns]:
    """Return the metadata and columns stored in a file that we wrote; columns that the user gives take precedence."""
    try:
        stored = without_seal(parse_object(text), source, allow_changed=allow_changed)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{source}: its metadata is damaged ({error}): {AGAIN}") from error
    written, metadata = stored.get("columns"), stored.get("metadata")
    if not isinstance(written, dict) or not isinstance(metadata, str):
        raise InputError(f"{source}: its metadata is damaged (no columns, or no metadata): {AGAIN}")
    chosen: dict[str, Any] = {}
    for name in _WRITTEN_FIELDS:
        value, many = written.get(name), isinstance(getattr(Columns, name), tuple)
        parts = value if many else [value]
        if value is None and isinstance(written.get(_OTHER.get(name, "")), str):
            continue
        if not isinstance(parts, list) or not all(isinstance(one, str) for one in parts):
            raise InputError(f"{source}: its metadata is damaged (the columns of {name}): {AGAIN}")
        chosen[name] = tuple(parts) if many else value
    given = {item.name: getattr(columns, item.name) for item in fields(Columns) if getattr(columns, item.name)}
    for name in given.keys() & _OTHER.keys():
        chosen[_OTHER[name]] = None
    return from_json(metadata, source, allow_changed=allow_changed), replace(Columns(), **{**chosen, **given})


def _as_we_write(names: str | tuple[str, ...], field: str) -> bool:
    """Return whether columns have the names that we write, so that the user needs no note about the guess."""
    written = getattr(WRITTEN, field)
    if isinstance(names, str):
        return names == written
    return len(written) == 1 and all(fnmatch(name, written[0]) for name in names)


def _own_names(columns: Columns) -> dict[str, Any]:
    """Return the names of the columns that differ from those we write, as facts to keep with the data."""
    facts: dict[str, Any] = {
        f"{part}_names": list(getattr(columns, name))
        for name, part in (("observations", "observation"), ("actions", "action"))
        if getattr(columns, name) != tuple(f"{part}_{number}" for number in range(len(getattr(columns, name))))
    }
    others = {
        name: list(value) if isinstance(value, tuple) else value
        for name in ("episode", "step", "reward", "cost", "terminated", "truncated")
        if (value := getattr(columns, name)) and not _as_we_write(value, name)
    }
    return {**facts, **({NAMES: others} if others else {})}


def _with_note_on_costs(data: Trajectories, reward: str) -> Trajectories:
    """Return the data with a note if its rewards are named like costs and look like some."""
    words = set(re.split(r"[^a-z]+", reward.lower()))
    if not words & COSTLY or not (data.rewards >= 0).all() or not data.rewards.any():
        return data
    detail = (
        f"the reward is column {reward!r}, named like a cost and never below 0, and policies learn to get more of it: "
        "if less is better, name it with `columns.cost`"
    )
    return replace(
        data, metadata=replace(data.metadata, findings=(*data.metadata.findings, Finding("rewards", "note", detail)))
    )


def _kinds(columns: Columns) -> dict[str, Kind]:
    """Return the kind of each column that is used; a step column that is an observation too holds numbers."""
    by_kind: dict[Kind, tuple[str | None, ...]] = {
        "label": columns.episode,
        "time": (columns.step,),
        "flag": (columns.terminated, columns.truncated, columns.done),
        "number": (*columns.observations, *columns.actions, columns.outcome, *columns.next_observations),
    }
    return {name: kind for kind, names in by_kind.items() for name in names if name is not None}


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
