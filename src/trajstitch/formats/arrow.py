"""Columns of CSV and Parquet files as NumPy arrays."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Bool, Float, Integer, Shaped

from trajstitch.data.labels import names_of
from trajstitch.errors import InputError
from trajstitch.formats.files import library, reason_of
from trajstitch.formats.limits import Budget
from trajstitch.formats.spellings import as_flags

Kind = Literal["number", "flag", "label", "time"]

MOST_COLUMNS = 10_000
"""Columns that a table may have."""

MOST_AT_ONCE = 512
"""Columns that are read at a time, at most."""
AT_ONCE = 64 << 20
"""Bytes of columns that are read at a time, unless one has more."""

FARTHEST = 1e100
"""Times beyond this, infinite ones too, are none."""

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

BETWEEN = " / "
"""Stands between the parts of an episode's name, if several columns identify it."""

NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
"""A text that is a number."""

NUMBERS = {".": NUMBER, ",": NUMBER.replace(r"\.", ",")}
"""The same, by the sign before its decimals."""

NOT_UTF8 = (
    "is not UTF-8 text: save it as UTF-8 (spreadsheets call it CSV UTF-8), or convert it as by "
    "`iconv -f WINDOWS-1252 -t UTF-8`"
)

WORDS = {
    **dict.fromkeys(("true", "t", "yes", "1", "1.0"), True),
    **dict.fromkeys(("false", "f", "no", "0", "0.0"), False),
}


class Parquet:
    """A Parquet file; columns are read when they are asked for, a block of them at a time."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self.path, self.budget = path, budget
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
            # A text that many rows share is kept once; spelled out, it could be of any size.
            texts = [field.name for field in schema if _is_text(field.type) or pa.types.is_binary(field.type)]
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


class Rows:
    """The columns of an open table as arrays, and where values are missing."""

    def __init__(self, file: Parquet | Csv, source: str) -> None:
        self.file, self.source, self.rows = file, source, file.rows
        self.missing: dict[str, Bool[np.ndarray, " rows"]] = {}

    def matrix(self, names: Sequence[str], *, scalars: bool = False) -> Float[np.ndarray, "rows columns"]:
        """Return several columns of numbers or vectors side by side; a missing value is NaN.

        With `scalars`, vectors are an error.
        """
        read = self.scalars if scalars else self.numbers
        parts = [part[:, None] if part.ndim == 1 else part for part in map(read, names)]
        floats = [part.dtype if part.dtype.kind == "f" else np.result_type(part.dtype, np.float32) for part in parts]
        joined = np.concatenate(parts, axis=1, dtype=np.result_type(*floats))
        stops = np.cumsum([part.shape[1] for part in parts])
        for name, part, stop in zip(names, parts, stops.tolist(), strict=True):
            if name in self.missing:
                joined[self.missing[name], stop - part.shape[1] : stop] = np.nan
        return joined

    def scalars(self, name: str) -> Shaped[np.ndarray, " rows"]:
        """Return a column of numbers, one for each row."""
        found = self.numbers(name)
        if found.ndim > 1 and found.shape[1] != 1:
            raise InputError(
                f"{self.source}: column {name!r} holds vectors of {found.shape[1]} numbers: each row needs one number"
            )
        return found.reshape(self.rows)

    def numbers(self, name: str) -> Shaped[np.ndarray, "rows ..."]:
        """Return a column of numbers or vectors."""
        with arrow_errors(f"{self.source}: column {name!r}"):
            return self._numbers(name, self.file.column(name))

    def _numbers(self, name: str, column: pa.ChunkedArray) -> Shaped[np.ndarray, "rows ..."]:
        kind = column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return self._vectors(name, column)
        if pa.types.is_null(kind) or pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        elif pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            named = kind.value_type if pa.types.is_dictionary(kind) else kind
            raise InputError(f"{self.source}: column {name!r} holds {named} values, not numbers: leave it out")
        self._note_missing(name, column)
        return (column if pa.types.is_floating(column.type) else column.fill_null(0)).to_numpy()

    def _vectors(self, name: str, column: pa.ChunkedArray) -> Shaped[np.ndarray, "rows width"]:
        widths = pyarrow.compute.call_function("list_value_length", [column]).unique().drop_null().to_pylist()
        values = pyarrow.compute.call_function("list_flatten", [column])
        numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if len(widths) != 1 or widths == [0] or values.null_count or not numeric:
            raise InputError(
                f"{self.source}: column {name!r} holds {column.type} values of {len(widths)} lengths: each row needs a "
                "vector of the same number of numbers"
            )
        self._note_missing(name, column)
        filled = values.to_numpy().reshape(len(column) - column.null_count, *widths)
        if name not in self.missing:
            return filled
        vectors = np.zeros((self.rows, filled.shape[1]), filled.dtype)
        vectors[~self.missing[name]] = filled
        return vectors

    def flags(self, name: str) -> Bool[np.ndarray, " rows"]:
        """Return a column of booleans, 0 and 1, or words as flags; a missing value is False."""
        column = self.file.column(name)
        if _is_text(column.type):
            codes, values = self._encode(name, column)
            if len(values) > len(WORDS) ** 2:
                raise InputError(
                    f"{self.source}: column {name!r} holds {len(values):,} words: flags are true or false, 1 or 0"
                )
            words = [str(value).strip().lower() for value in self._texts(name, values).to_pylist()]
            unknown = [word for word in words if word not in WORDS]
            if unknown:
                raise InputError(
                    f"{self.source}: column {name!r} holds {unknown[0]!r}: flags are true or false, 1 or 0"
                )
            return np.array([*(WORDS[word] for word in words), False])[codes]
        values = self.scalars(name)
        if name in self.missing:
            values = np.where(self.missing[name], 0, values)
        return as_flags(values, f"{self.source}: column {name!r}", first_row=1)

    def labels(self, names: Sequence[str]) -> tuple[Integer[np.ndarray, " rows"], Shaped[np.ndarray, " labels"]]:
        """Return one number for each combination of values of these columns, by first appearance, and their texts."""
        combined = np.zeros(self.rows, np.int64)
        parts = []
        for name in names:
            codes, values = self._encode(name, self.file.column(name))
            # Numbered from 0 again each time, so that no number of columns overflows.
            combined = np.unique(combined, return_inverse=True)[1] * (len(values) + 1) + codes
            if pa.types.is_temporal(values.type):
                values = self._texts(name, values)  # Python has no times of nanoseconds
            parts.append((codes, [*values.to_pylist(), ""]))
        _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
        order = np.sort(first)
        texts = [BETWEEN.join(str(values[codes[row]]) for codes, values in parts) for row in order.tolist()]
        return np.argsort(np.argsort(first))[inverse], names_of(texts, self.source)

    def times(self, name: str) -> tuple[Shaped[np.ndarray, " rows"], tuple[str, str] | None]:
        """Return a column of numbers or times, and how its time stamps are written (see `Labels.clock`)."""
        column = self.file.column(name)
        between = "T"
        if _is_text(column.type):
            codes, values = self._encode(name, column)
            with arrow_errors(f"{self.source}: column {name!r}"):
                texts = self._texts(name, values)
                between = "T" if len(texts) and "T" in str(texts[0].as_py()) else " "
                parsed = _parsed(texts)
                column = None if parsed is None else parsed.take(pa.array(codes, mask=codes == len(values)))
        else:
            self._note_missing(name, column)
        if column is None or not (
            pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_temporal(column.type)
        ):
            raise InputError(
                f"{self.source}: column {name!r} holds neither numbers nor ISO times: rows can't be ordered"
            )
        with arrow_errors(f"{self.source}: column {name!r}"):
            return self._as_times(name, column, between)

    def _as_times(
        self, name: str, column: Any, between: str
    ) -> tuple[Shaped[np.ndarray, " rows"], tuple[str, str] | None]:
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            zone = kind.tz if pa.types.is_timestamp(kind) else None
            try:
                stamps = column.cast(pa.timestamp("ns", zone))
            except pa.ArrowInvalid as error:
                raise InputError(f"{self.source}: column {name!r} holds times before 1677 or after 2262") from error
            numbers = stamps.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            return numbers.copy(), (between, "Z" if zone else "")
        if pa.types.is_temporal(kind):
            column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy()
        if np.isnan(values).any():
            self.missing[name] = np.isnan(values)
        if (beyond := np.abs(values) > FARTHEST).any():
            row = int(np.argmax(beyond))
            raise InputError(
                f"{self.source}: column {name!r} holds {values[row]} in row {row + 1}, which is no time: repair it"
            )
        return values, None

    def _encode(self, name: str, column: pa.ChunkedArray) -> tuple[Integer[np.ndarray, " rows"], pa.Array]:
        """Return a code for each row, and the values of the codes; a missing value has the code after the last."""
        self._note_missing(name, column)
        if pa.types.is_nested(column.type):
            raise InputError(f"{self.source}: column {name!r} holds {column.type} values: each row needs one value")
        with arrow_errors(f"{self.source}: column {name!r}"):
            encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
            encoded = encoded.unify_dictionaries().combine_chunks()
            values = encoded.dictionary
            return encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(np.int64), values

    def _texts(self, name: str, values: pa.Array) -> pa.Array:
        with arrow_errors(f"{self.source}: column {name!r}"):
            return values.cast(pa.string())

    def _note_missing(self, name: str, column: pa.ChunkedArray) -> None:
        if column.null_count:
            self.missing[name] = column.is_null().to_numpy()

    def missing_in_all(self, names: Sequence[str]) -> Bool[np.ndarray, " rows"]:
        """Return the rows in which all these columns are missing."""
        nothing = np.zeros(self.rows, bool)
        return np.logical_and.reduce([self.missing.get(name, nothing) for name in names])


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)


@contextmanager
def arrow_errors(where: str) -> Iterator[None]:
    """Turn Arrow's errors, and those of values that Python or NumPy can't hold, into an InputError."""
    try:
        yield
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise InputError(f"{where} can't be read ({reason_of(error)}): repair it, or leave it out") from error


def _parsed(texts: pa.Array) -> pa.Array | None:
    """Return texts as numbers or times, whichever all of them are; None if they are neither."""
    column = pyarrow.compute.call_function("utf8_trim_whitespace", [texts])
    for kind in (pa.float64(), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None
