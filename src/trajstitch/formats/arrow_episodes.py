"""Minari's Arrow and Parquet layouts: a folder for each episode, with one row for each observation.

Observations and actions are lists of numbers, in structs if a space is a Dict. The last row has no step: its action,
reward and flags are padding. Minari reads these files without checking them, and a damaged one ends the process.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet
from gymnasium import Space
from jaxtyping import Shaped

from trajstitch.data import ragged, spaces
from trajstitch.errors import InputError
from trajstitch.formats.arrow import arrow_errors
from trajstitch.formats.files import library
from trajstitch.formats.limits import Budget
from trajstitch.formats.spellings import as_flags
from trajstitch.progress import progress

SCALARS = {"rewards": "rewards", "terminations": "terminated", "truncations": "truncated"}
"""Minari's names of a step's scalars, and ours."""

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
    with progress(f"loading {source}", episodes, "episodes") as advance:
        for episode in range(episodes):
            where = f"{source}: episode {episode}"
            table = _table(folder / str(episode), kind, 8 * numbers, budget, where)
            columns["observations"].append(_rows(table, "observations", observation_space, where))
            columns["actions"].append(_rows(table, "actions", action_space, where)[:-1])
            for stored, name in SCALARS.items():
                columns[name].append(_scalars(table, stored, where)[:-1])
            if "infos" in table.column_names and pa.types.is_struct(table.schema.field("infos").type):
                infos = [f"infos/{field.name}" for field in table.schema.field("infos").type]
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


def _table(folder: Path, kind: str, row: int, budget: Budget, where: str) -> pa.Table:
    """Return the rows of an episode, checked; a row takes at least `row` bytes."""
    files = sorted(str(path) for path in folder.glob(f"*.{kind}"))
    if not files:
        raise InputError(f"{where} is missing, so even Minari can't read it: download or save it again")
    with library(where):
        budget.take(row * pyarrow.dataset.dataset(files, format=kind).count_rows())
        if kind == "parquet":
            parts = [pyarrow.parquet.ParquetFile(file).read() for file in files]
        else:
            parts = [pa.ipc.open_file(pa.OSFile(file)).read_all() for file in files]
        for part in parts:
            part.validate(full=True)
        table = pa.concat_tables(parts).combine_chunks()
    if not len(table):
        raise InputError(f"{where} holds no observation: download or save it again")
    return table


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
