"""CSV and Parquet files, whose columns are read as Arrow's."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Bool

from trajstitch.errors import InputError
from trajstitch.formats.files import library
from trajstitch.formats.limits import Budget

Kind = Literal["number", "flag", "label", "time"]

MOST_COLUMNS = 10_000
"""Columns that a table may have."""

MOST_AT_ONCE = 512
"""Columns that are read at a time, at most."""
AT_ONCE = 64 << 20
"""Bytes of columns that are read at a time, unless one has more."""

COMPRESSED = (".gz", ".bz2", ".lz4", ".zst", ".br")
"""Endings of files that are unpacked while they are read: their size is counted first."""

CSV_TYPES: dict[Kind, pa.DataType] = {
    "number": pa.float64(),
    "flag": pa.dictionary(pa.int32(), pa.string()),
    "label": pa.dictionary(pa.int32(), pa.string()),
    "time": pa.string(),
}
"""CSV files have no types, and guessing them from the first rows fails if later rows differ."""

NOTHING = ["", " ", "NA", "N/A", "n/a", "na", "#N/A", "<NA>", "null", "NULL", "None", "none", "-", "--", "?"]
"""How CSV files write a missing value. NaN is not one: it is a value, which a check reports."""

NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
"""A text that is a number."""

NUMBERS = {".": NUMBER, ",": NUMBER.replace(r"\.", ",")}
"""The same, by the sign before its decimals."""

NOT_UTF8 = (
    "is not UTF-8 text: save it as UTF-8 (spreadsheets call it CSV UTF-8), or convert it as by "
    "`iconv -f WINDOWS-1252 -t UTF-8`"
)


class Parquet:
    """A Parquet file; columns are read when they are asked for, a block of them at a time."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path, self.budget = path, budget
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
            # A text that many rows share is kept once; spelled out, it could be of any size.
            texts = [field.name for field in schema if is_text(field.type) or pa.types.is_binary(field.type)]
            self.file = pyarrow.parquet.ParquetFile(path, memory_map=True, read_dictionary=texts)
            self.schema = self.file.schema_arrow  # made again each time that it is asked for
            self.names: list[str] = self.schema.names
            self.rows: int = self.file.metadata.num_rows
            self.metadata: dict[bytes, bytes] = self.schema.metadata or {}
            self.decimal = "."
        except Exception as error:  # Arrow's own errors are of many types
            raise InputError(f"{path}: is not a whole Parquet file: copy or download it again") from error
        _require_few_columns(self.names, path, budget)
        self.unreadable: dict[str, tuple[Bool[np.ndarray, " rows"], str]] = {}
        self._sizes: dict[str, int] = {}
        self._blocks: dict[str, list[str]] = {}
        self._read: dict[str, pa.ChunkedArray] = {}

    def read(self, kinds: Mapping[str, Kind]) -> None:
        """Plan in which blocks these columns are read: one by one, the schema is gone through for each of them."""
        with library(f"{self.path}: the columns"):
            sized = [name for name in kinds if not self._is_plain(name)]
            declared = next(declared_sizes([self.path], sized)) if sized else {}
        self._sizes = {name: max(declared.get(name, 0), 8 * self.rows) for name in kinds}
        block: list[str] = []
        for name in kinds:
            if len(block) == MOST_AT_ONCE or sum(map(self._sizes.__getitem__, block)) + self._sizes[name] > AT_ONCE:
                block = []
            block.append(name)
            self._blocks[name] = block

    def column(self, name: str) -> pa.ChunkedArray:
        with library(f"{self.path}: column {name!r}"):
            self.budget.take(self._sizes[name])
            if name not in self._read:
                self._read = self._read_block(name)
            found = self._read[name]
            found.validate(full=True)
        if len(found) != self.rows:
            raise InputError(f"{self.path}: column {name!r} has {len(found):,} of {self.rows:,} rows: copy it again")
        return found

    def _read_block(self, name: str) -> dict[str, pa.ChunkedArray]:
        """Return the columns of this one's block; it alone if others of them are damaged."""
        try:
            table = self.file.read(columns=self._blocks[name])
        except Exception:  # Arrow's own errors are of many types
            table = self.file.read(columns=[name])
        return dict(zip(table.column_names, table.columns, strict=True))

    def _is_plain(self, name: str) -> bool:
        """Return whether a column holds numbers or flags, whose size the number of rows tells."""
        kind = self.schema.field(name).type
        return pa.types.is_primitive(kind) or pa.types.is_boolean(kind)


def declared_sizes(paths: Sequence[Path], names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Yield for each Parquet file the bytes that the chunks of some columns declare, asked in a process of its own.

    Arrow ends the process that asks where their metadata is damaged in some ways.
    """
    command = [sys.executable, "-P", "-c", DECLARED]
    question = json.dumps([list(map(str, paths)), list(names)]).encode()
    answers = subprocess.run(command, input=question, capture_output=True, check=False).stdout.splitlines()
    for number in range(len(paths)):
        if number >= len(answers):
            raise ValueError("the metadata of its columns is damaged")
        yield dict(zip(names, json.loads(answers[number]), strict=True))


DECLARED = """
import json
import sys
from pyarrow.parquet import read_metadata

paths, names = json.load(sys.stdin)
for path in paths:
    found, sizes = read_metadata(path), dict.fromkeys(names, 0)
    for group in range(found.num_row_groups):
        columns = found.row_group(group)
        for column in range(found.num_columns):
            stored = columns.column(column)
            name = stored.path_in_schema
            while name not in sizes and "." in name:
                name = name.rpartition(".")[0]
            if name in sizes:
                sizes[name] += max(8 * stored.num_values, stored.total_uncompressed_size, 0)
    print(json.dumps([sizes[name] for name in names]), flush=True)
"""
"""Program that prints the bytes that columns declare, a line for each file."""


class Csv:
    """A CSV file. Its header is read first, its columns by `read`, once it is known what they hold."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path = path
        try:
            with pa.input_stream(str(path)) as stream:
                head = part = stream.read(1 << 20)
                while part and path.name.endswith(COMPRESSED):
                    budget.take(len(part))
                    part = stream.read(1 << 20)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: can't be unpacked: copy or download it again") from error
        if b"\0" in head:
            raise InputError(f"{path}: is neither a CSV nor a Parquet file")
        if not head.strip():
            raise InputError(f"{path}: is empty")
        try:
            line = head.partition(b"\n")[0].decode("utf-8-sig").rstrip("\r")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: its header {NOT_UTF8}") from error
        self.delimiter = max(",;\t", key=line.count)
        try:
            self.names = [name.strip() for name in next(csv.reader([line], delimiter=self.delimiter), [])]
        except csv.Error as error:
            raise InputError(f"{path}: its first line is no CSV header ({error}): repair its line ends") from error
        _require_few_columns(self.names, path, budget)
        self.metadata: dict[bytes, bytes] = {}
        self.decimal = "."
        self.unreadable: dict[str, tuple[Bool[np.ndarray, " rows"], str]] = {}
        """For each column with cells that hold text instead of a number: which ones, and the first one's text."""

    def read(self, kinds: Mapping[str, Kind]) -> None:
        """Read these columns."""
        try:
            self.table = self._read(kinds, use_threads=True)
        except (pa.ArrowException, OSError):
            try:
                self.table = self._read(kinds, use_threads=False)
            except (pa.ArrowException, OSError) as error:  # slower, but its error names the row
                explained = f"{self.path}: {self._explain(error)}"
                if "invalid value" not in str(error):
                    raise InputError(explained) from error
                try:
                    self._read_as_text(kinds)
                except (pa.ArrowException, OSError) as error:  # bytes that are no text
                    raise InputError(explained) from error
        self.rows: int = self.table.num_rows

    def _read_as_text(self, kinds: Mapping[str, Kind]) -> None:
        """Read numbers as text first, so that cells that hold none can be counted.

        Where no comma separates the cells, one may stand before decimals: if more cells are numbers then.
        """
        as_text: dict[str, Kind] = {name: "time" if kind == "number" else kind for name, kind in kinds.items()}
        self.table = self._read(as_text, use_threads=True)
        columns = {
            name: pyarrow.compute.call_function("utf8_trim_whitespace", [self.table.column(name)])
            for name, kind in kinds.items()
            if kind == "number"
        }
        signs = [sign for sign in NUMBERS if sign != self.delimiter]
        wrong = {sign: {name: _matches_not(text, NUMBERS[sign]) for name, text in columns.items()} for sign in signs}
        self.decimal = min(signs, key=lambda sign: sum(int(cells.sum()) for cells in wrong[sign].values()))
        for name, text in columns.items():
            self._convert(name, text, wrong[self.decimal][name])

    def _convert(self, name: str, text: pa.ChunkedArray, wrong: Bool[np.ndarray, " rows"]) -> None:
        """Turn a column of text into numbers. Cells that hold none become blank; if most do, the column is another."""
        count, filled = int(wrong.sum()), len(text) - text.null_count
        if count:
            row = int(np.argmax(wrong))
            self.unreadable[name] = wrong, str(text[row].as_py())
            if count > filled / 2:
                raise InputError(f"{self.path}: {_no_number(f'row {row + 1}', str(text[row].as_py()), name)}")
        numbers = pyarrow.compute.call_function("if_else", [pa.array(wrong), pa.scalar(None, pa.string()), text])
        if self.decimal != ".":
            options = pyarrow.compute.ReplaceSubstringOptions(self.decimal, ".")
            numbers = pyarrow.compute.call_function("replace_substring", [numbers], options)
        at = self.table.schema.get_field_index(name)
        self.table = self.table.set_column(at, name, numbers.cast(pa.float64()))

    def _read(self, kinds: Mapping[str, Kind], *, use_threads: bool) -> pa.Table:
        return pyarrow.csv.read_csv(
            str(self.path),
            pyarrow.csv.ReadOptions(use_threads=use_threads, column_names=self.names, skip_rows=1),
            pyarrow.csv.ParseOptions(delimiter=self.delimiter),
            pyarrow.csv.ConvertOptions(
                column_types={name: CSV_TYPES[kind] for name, kind in kinds.items()},
                include_columns=list(kinds),
                null_values=NOTHING,
                strings_can_be_null=True,
            ),
        )

    def _explain(self, error: Exception) -> str:
        text = str(error)
        row, column = re.search(r"Row #(\d+)", text), re.search(r"CSV column #(\d+)", text)
        value, count = re.search(r"invalid value '(.*)'", text), re.search(r"Expected (\d+) columns, got (\d+)", text)
        where = f"row {int(row[1]) - 1}" if row else "a row"
        if column and value:
            return _no_number(where, value[1], self.names[int(column[1])])
        if "UTF8" in text:
            return f"{where if row else 'a cell'} {NOT_UTF8}"
        if count:
            return f"{where} has {count[2]} values for {count[1]} columns: the file is damaged or cut short there"
        return f"is not a CSV file that can be read ({text.splitlines()[0]}): repair it, or save it again"

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)


def _matches_not(text: pa.ChunkedArray, pattern: str) -> Bool[np.ndarray, " rows"]:
    options = pyarrow.compute.MatchSubstringOptions(pattern)
    matches = pyarrow.compute.call_function("match_substring_regex", [text], options)
    return ~np.asarray(matches.fill_null(True).to_numpy(), bool)


def _no_number(where: str, value: str, column: str) -> str:
    return f"{where} holds {value!r} in column {column!r}, which is not a number: repair it"


def open_table(path: Path, budget: Budget) -> Parquet | Csv:
    """Open a file as Parquet, by its first bytes or its name, or else as CSV."""
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1"
    return (Parquet if is_parquet or path.name.endswith((".parquet", ".pq")) else Csv)(path, budget)


def _require_few_columns(names: Sequence[str], path: Path, budget: Budget) -> None:
    if len(names) > MOST_COLUMNS and not budget.allow_large:
        raise InputError(
            f"{path}: has {len(names):,} columns, as damaged and hostile files do: if you know that it is right, load "
            "it with `allow_large=True`"
        )


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
