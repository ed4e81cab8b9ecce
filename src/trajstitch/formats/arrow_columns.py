"""Columns of CSV and Parquet files as NumPy arrays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from jaxtyping import Bool, Float, Integer, Shaped

from trajstitch.data.labels import names_of
from trajstitch.errors import InputError
from trajstitch.formats.arrow import Csv, Parquet, is_text
from trajstitch.formats.files import reason_of
from trajstitch.formats.spellings import as_flags

FARTHEST = 1e100
"""Times beyond this, infinite ones too, are none."""

BETWEEN = " / "
"""Stands between the parts of an episode's name, if several columns identify it."""

WORDS = {
    **dict.fromkeys(("true", "t", "yes", "1", "1.0"), True),
    **dict.fromkeys(("false", "f", "no", "0", "0.0"), False),
}


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
        if is_text(column.type):
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
        if is_text(column.type):
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
