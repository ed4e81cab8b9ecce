"""Minari's Arrow and Parquet layouts: a folder for each episode, with one row for each observation.

Observations and actions are lists of numbers, in structs if a space is a Dict. The last row has no step: its action,
reward and flags are padding. Minari reads these files without checking them, and a damaged one ends the process.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
from gymnasium import Space
from jaxtyping import Shaped

from trajstitch.data import ragged, spaces
from trajstitch.errors import InputError
from trajstitch.formats.arrow import declared_sizes
from trajstitch.formats.arrow_columns import arrow_errors
from trajstitch.formats.files import library
from trajstitch.formats.limits import Budget
from trajstitch.formats.spellings import as_flags
from trajstitch.progress import progress

SCALARS = {"rewards": "rewards", "terminations": "terminated", "truncations": "truncated"}
"""Minari's names of a step's scalars, and ours."""

COLUMNS = ("observations", "actions", *SCALARS)
"""The columns that are read."""

SMALLEST_EPISODE = 16 << 10
"""Bytes of data that reading an episode costs as much time as, at least."""


def read(
    folder: Path,
    kind: str,
    observation_space: Space,
    action_space: Space,
    episodes: int,
    source: str,
    *,
    allow_large: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Return the first `episodes` as arguments of Trajectories, and the names of what is left out.

    `kind` is arrow or parquet.
    """
    budget = Budget(folder, source, allow_large=allow_large)
    budget.take(SMALLEST_EPISODE * episodes)
    numbers = spaces.flat_size(observation_space) + spaces.flat_size(action_space) + len(SCALARS)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("observations", "actions", *SCALARS.values())}
    infos: list[str] = []
    files = [_files(folder / str(episode), kind, f"{source}: episode {episode}") for episode in range(episodes)]
    sizes = declared_sizes([file for some in files for file in some], COLUMNS) if kind == "parquet" else iter(())
    with progress(f"loading {source}", episodes, "episodes") as advance:
        for episode in range(episodes):
            where = f"{source}: episode {episode}"
            table, left_out = _table(files[episode], sizes, 8 * numbers, budget, where)
            columns["observations"].append(_rows(table, "observations", observation_space, where))
            columns["actions"].append(_rows(table, "actions", action_space, where)[:-1])
            for stored, name in SCALARS.items():
                columns[name].append(_scalars(table, stored, where)[:-1])
            infos = left_out or infos
            advance()
    offsets = ragged.offsets_of(np.array([len(part) for part in columns["rewards"]]))
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    for stored, name in SCALARS.items():
        array = arrays[name]
        if name != "rewards":
            arrays[name] = as_flags(array, f"{source}: {stored}")
        elif array.dtype.kind != "f":
            arrays[name] = array.astype(np.float64)
    return {**arrays, "offsets": offsets}, infos


def _files(folder: Path, kind: str, where: str) -> list[Path]:
    """Return the files of an episode."""
    files = sorted(folder.glob(f"*.{kind}"))
    if not files:
        raise InputError(f"{where} is missing, so even Minari can't read it: download or save it again")
    return files


def _table(
    files: list[Path], sizes: Iterator[dict[str, int]], row: int, budget: Budget, where: str
) -> tuple[pa.Table, list[str]]:
    """Return the rows of an episode, checked, and the names of its infos; a row takes at least `row` bytes.

    `sizes` are what the Parquet files declare, in their order.
    """
    parts: list[pa.Table] = []
    infos: list[str] = []
    for file in files:
        with library(where):
            schema, part = (
                _read_parquet(file, next(sizes), budget) if file.suffix == ".parquet" else _read_arrow(file, budget)
            )
            part.validate(full=True)
            budget.take(row * len(part))
            at = schema.get_field_index("infos")
            if at >= 0 and pa.types.is_struct(schema.field(at).type):
                infos = [f"infos/{field.name}" for field in schema.field(at).type]
        parts.append(part)
    with library(where):
        table = pa.concat_tables(parts).combine_chunks()
    if not len(table):
        raise InputError(f"{where} holds no observation: download or save it again")
    return table, infos


def _read_parquet(path: Path, sizes: dict[str, int], budget: Budget) -> tuple[pa.Schema, pa.Table]:
    budget.take(sum(sizes.values()))
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.schema_arrow, file.read(columns=[name for name in COLUMNS if name in file.schema_arrow.names])


def _read_arrow(path: Path, budget: Budget) -> tuple[pa.Schema, pa.Table]:
    """Return what is in an Arrow file: its mark, then a stream of messages, of which the end of the file is a list."""
    with pa.memory_map(str(path)) as mapped:
        content = mapped.read_buffer()
        if content.slice(0, len(MARK)).to_pybytes() != MARK:
            raise ValueError("it is no Arrow file")
        stream = content.slice(len(MARK))
        for message in pa.ipc.MessageReader.open_stream(stream):
            budget.take(unpacked_size(message.type, message.metadata.to_pybytes(), message.body))
        schema = pa.ipc.open_stream(stream).schema
        fields = [number for number, field in enumerate(schema) if field.name in COLUMNS]
        return schema, pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()


MARK = b"ARROW1\0\0"
"""Start of an Arrow file."""


def unpacked_size(kind: str, metadata: bytes, body: pa.Buffer | None) -> int:
    """Return the bytes that the buffers of an Arrow message have once they are unpacked.

    Each compressed buffer starts with its size, and Arrow allocates it, so it is read here first: Arrow's Message.fbs,
    and FlatBuffers' internals.
    """

    def number(form: str, at: int) -> int:
        return struct.unpack_from(form, metadata, at)[0]

    def part(table: int, slot: int) -> int | None:
        """Return where a field of a table is; None if the table lacks it."""
        fields = table - number("<i", table)
        at = 4 + 2 * slot
        offset = number("<H", fields + at) if at < number("<H", fields) else 0
        return table + offset if offset else None

    def inner(table: int, slot: int) -> int:
        """Return where the table or list is that a field leads to."""
        at = part(table, slot)
        if at is None:
            raise ValueError("a message without buffers")
        return at + number("<I", at)

    if body is None or kind not in ("record batch", "dictionary"):
        return 0
    batch = inner(number("<I", 0), 2)
    batch = inner(batch, 1) if kind == "dictionary" else batch
    buffers = inner(batch, 2)
    found = [struct.unpack_from("<qq", metadata, buffers + 4 + 16 * one) for one in range(number("<I", buffers))]
    if part(batch, 3) is None:
        return sum(length for _, length in found)
    starts = [body.slice(offset, 8).to_pybytes() if 0 <= offset <= body.size else b"" for offset, _ in found]
    return sum(max(0, *struct.unpack("<q", start)) for start in starts if len(start) == 8)


def _column(table: pa.Table, name: str, where: str) -> pa.Array:
    if table.column_names.count(name) != 1:
        raise InputError(f"{where} holds no {name} (it has {', '.join(table.column_names)}): save it again")
    return table.column(name).chunk(0)


def _rows(table: pa.Table, name: str, space: Space, where: str) -> Shaped[np.ndarray, "rows size"]:
    """Return observations or actions as flat rows."""
    column, parts = _column(table, name, where), {}
    for path, box in spaces.leaves(space):
        leaf = column
        for part in path:
            if not pa.types.is_struct(leaf.type) or leaf.type.get_field_index(part) < 0:
                raise InputError(f"{where} holds no {'/'.join((name, *path))}: save it again")
            leaf = leaf.field(part)
        parts[path] = _vectors(leaf, math.prod(box.shape), f"{where}: {'/'.join((name, *path))}")
    rows = spaces.join(space, parts)
    return rows if rows.dtype.kind == "f" else rows.astype(np.float64)


def _vectors(leaf: pa.Array, size: int, where: str) -> Shaped[np.ndarray, "rows size"]:
    kind = leaf.type
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)) or leaf.null_count:
        raise InputError(f"{where} holds {kind} values: expected lists of {size} numbers")
    with arrow_errors(where):
        values = leaf.flatten()
        lengths = leaf.value_lengths().unique().to_pylist()
    if lengths != [size] or values.null_count or not _is_numeric(values.type):
        raise InputError(f"{where} holds {kind} values: expected lists of {size} numbers")
    with arrow_errors(where):
        return values.to_numpy(zero_copy_only=False).reshape(len(leaf), size)


def _scalars(table: pa.Table, name: str, where: str) -> Shaped[np.ndarray, " rows"]:
    column = _column(table, name, where)
    if column.null_count or not (_is_numeric(column.type) or pa.types.is_boolean(column.type)):
        raise InputError(f"{where}: {name} holds {column.type} values: expected one number per step")
    with arrow_errors(f"{where}: {name}"):
        return column.to_numpy(zero_copy_only=False)


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)
