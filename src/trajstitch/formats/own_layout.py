"""How a CSV file of ours says what its columns hold, where a log's own names don't tell.

A CSV file has no metadata. So its last column is empty, and its name counts the columns of each kind, in the order in
which we write them: `trajstitch:1+1+2+1+1+1+1` is one column of the episode, one of the step, two observations, one
action, the reward, and the two end flags. A minus before the reward, as in `trajstitch:1+1+2+1-1+1+1`, says that the
column holds costs.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns, resolve

ORDER = ("episode", "step", "observations", "actions", "outcome", "terminated", "truncated")
MANY = ("episode", "observations", "actions")
"""Those that may be several columns."""
PATTERN = re.compile(r"trajstitch:(\d{1,9}(?:\+\d{1,9}){3})([+-])(\d{1,9}(?:\+\d{1,9}){2})")


def layout_column(names: Columns) -> str | None:
    """Return the name of the column to add to a table with these columns; None if their names tell what they hold."""
    groups = [_columns(names, field) for field in ORDER]
    header = [name for group in groups for name in group]
    try:
        guessed, _ = resolve(Columns(), header, "")
    except InputError:
        guessed = None
    same = guessed is not None and [_columns(guessed, field) for field in ORDER] == groups
    if guessed is not None and same and bool(guessed.cost) == bool(names.cost):
        return None
    counts = [str(len(group)) for group in groups]
    return f"trajstitch:{'+'.join(counts[:4])}{'-' if names.cost else '+'}{'+'.join(counts[4:])}"


def is_layout(name: str) -> bool:
    """Return whether this is the name of such a column."""
    return PATTERN.fullmatch(name) is not None


def with_layout(columns: Columns, names: Sequence[str], added: int) -> Columns:
    """Return the columns with what the last one of a table says about the others; what the user says takes precedence.

    `added` is how many columns we write after those that it counts. It doesn't count if columns were added or removed
    since.
    """
    found = PATTERN.fullmatch(names[-1]) if names else None
    if found is None:
        return columns
    counts = [int(count) for part in (found[1], found[3]) for count in part.split("+")]
    single = [count for field, count in zip(ORDER, counts, strict=True) if field not in MANY]
    if sum(counts) + added + 1 != len(names) or set(single) != {1} or 0 in counts:
        return columns
    stops = list(accumulate(counts))
    parts = {field: tuple(names[stop - count : stop]) for field, count, stop in zip(ORDER, counts, stops, strict=True)}
    told = {field: part if field in MANY else part[0] for field, part in parts.items()}
    told["cost" if found[2] == "-" else "reward"] = told.pop("outcome")
    if columns.reward or columns.cost:
        told = {field: part for field, part in told.items() if field not in ("reward", "cost")}
    return replace(columns, **{field: part for field, part in told.items() if not getattr(columns, field)})


def _columns(columns: Columns, field: str) -> tuple[str, ...]:
    value = getattr(columns, field)
    return (value,) if isinstance(value, str) else tuple(value or ())
