"""The rows of a table that is written: one for each state, under the log's own names where it has them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Shaped

from trajstitch.data.checks import column_names
from trajstitch.data.labels import SECOND, Labels, distinct
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.arrow import Kind
from trajstitch.formats.arrow_columns import BETWEEN
from trajstitch.formats.columns import Columns
from trajstitch.progress import progress

WRITTEN = Columns(
    episode=("episode",),
    step="step",
    observations=("observation_*",),
    actions=("action_*",),
    reward="reward",
    terminated="terminated",
    truncated="truncated",
)
"""The names of the columns that we write if the log has none of its own."""
NAMES = "column_names"
"""Key in `Metadata.extra` of the log's own names of the other columns, by the fields of `Columns`."""
BLOCK = 1 << 17
"""Rows written at a time."""


def names_to_write(columns: Columns, data: Trajectories, source: str) -> Columns:
    """Return the names of the columns: as the user says, else the log's own, else ours."""
    sizes = {"observations": data.observation_size, "actions": data.action_size}
    own = _own_names(data)
    chosen: dict[str, Any] = {}
    for name in ("observations", "actions", "reward", "terminated", "truncated", "episode", "step"):
        chosen[name] = getattr(columns, name) or getattr(WRITTEN, name)
        kept = own.get(name)
        if kept and not getattr(columns, name) and not {*_several(kept)} & {*_all(chosen, but=name)}:
            chosen[name] = kept
    cost = columns.cost or (own.get("cost") if not columns.reward else None)
    if cost and cost not in _all(chosen, but="reward"):
        chosen |= {"cost": cost, "reward": None}
    if len(chosen["episode"]) > 1 and _parts_of_names(data, len(chosen["episode"])) is None:
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


def _own_names(data: Trajectories) -> dict[str, Any]:
    """Return the log's own names, by the fields of `Columns`; those that can't be names are left out."""
    stored = data.metadata.extra.get(NAMES)
    stored = stored if isinstance(stored, dict) else {}
    own: dict[str, Any] = {
        name: stored[name]
        for name in ("step", "reward", "cost", "terminated", "truncated")
        if isinstance(stored.get(name), str) and stored[name]
    }
    episode = stored.get("episode")
    if isinstance(episode, list) and episode and all(isinstance(name, str) and name for name in episode):
        own["episode"] = tuple(episode)
    for field, part in (("observations", "observation"), ("actions", "action")):
        found = column_names(data, part)
        if found and len(set(found)) == len(found):
            own[field] = tuple(found)
    return own


def _several(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _all(chosen: dict[str, Any], but: str) -> list[str]:
    return [one for name, value in chosen.items() if name != but for one in _several(value)]


def _all_names(names: Columns) -> list[str]:
    ends_of_row = (names.outcome, names.terminated, names.truncated)
    return [str(name) for name in (*names.episode, names.step, *names.observations, *names.actions, *ends_of_row)]


def _parts_of_names(data: Trajectories, count: int) -> list[list[str]] | None:
    """Return the episodes' names divided into the values of `count` columns; None if they can't be."""
    if data.labels is None or data.labels.episodes is None:
        return None
    parts = [name.split(BETWEEN) for name in distinct(data.labels.episodes).tolist()]
    return parts if all(len(part) == count for part in parts) else None


def blocks(
    data: Trajectories, names: Columns, description: str, origin: dict[str, tuple[str, Kind]], *, as_text: bool
) -> Iterator[pa.Table]:
    """Yield the table, some rows at a time."""
    rows, episodes = len(data.observations), _episode_columns(data, len(names.episode))
    with progress(description, rows, "rows") as advance:
        for start in range(0, rows, BLOCK):
            stop = min(start + BLOCK, rows)
            yield block(data, names, start, stop, origin, as_text=as_text, episodes=episodes)
            advance(stop - start)


def _episode_columns(data: Trajectories, count: int) -> list[pa.Array]:
    """Return the columns that identify an episode, one value for each episode; whole numbers are numbers."""
    if data.labels is None or data.labels.episodes is None:
        return [pa.array(np.arange(len(data)))]
    parts = _parts_of_names(data, count) if count > 1 else [[name] for name in distinct(data.labels.episodes).tolist()]
    assert parts is not None
    columns = []
    for values in zip(*parts, strict=True):
        whole = all(value.isascii() and value.isdecimal() and str(int(value)) == value for value in values)
        whole = whole and max(map(len, values)) < 19
        columns.append(pa.array([int(value) for value in values] if whole else values))
    return columns


def block(
    data: Trajectories,
    names: Columns,
    start: int,
    stop: int,
    origin: dict[str, tuple[str, Kind]],
    *,
    as_text: bool,
    episodes: list[pa.Array] | None = None,
) -> pa.Table:
    """Return the table rows of the observations from `start` to `stop`; an episode's last row has nothing else.

    Unknown final states have no row. `origin` are the columns of the provenance.
    """
    episodes = _episode_columns(data, len(names.episode)) if episodes is None else episodes
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
        *(column.take(pa.array(episode)) for column in episodes),
        _times(data.labels, step, slice(start, stop), as_text=as_text),
        *(numbers(data.observations[start:stop, column]) for column in range(data.observation_size)),
        *(of_steps(data.actions[:, column]) for column in range(data.action_size)),
        of_steps(0 - data.rewards if names.cost else data.rewards),
        of_steps(data.terminated),
        of_steps(data.truncated),
    ]
    table = pa.table(arrays, names=_all_names(names))
    if data.provenance is not None:
        for column, (field, _) in origin.items():
            table = table.append_column(column, of_steps(getattr(data.provenance, field)))
    return table if recorded.all() else table.filter(pa.array(recorded))


def _times(
    labels: Labels | None, step: Shaped[np.ndarray, " rows"], rows: slice, *, as_text: bool
) -> pa.Array | pa.ChunkedArray:
    """Return the times of some states as the log writes them; the steps' numbers if it has none."""
    if labels is None or labels.times is None:
        return pa.array(step)
    times = labels.times[rows]
    if labels.clock is None:
        whole = labels.times == np.round(labels.times)
        return pa.array(times.astype(np.int64) if whole.all() and np.abs(labels.times).max() < 2**53 else times)
    unit, size = next(
        (unit, size)
        for unit, size in (("s", SECOND), ("ms", SECOND // 1000), ("us", 1000), ("ns", 1))
        if not (labels.times % size).any()
    )
    between, zone = labels.clock
    stamps = (times // size).astype(f"datetime64[{unit}]")
    if not as_text:
        return pa.array(stamps, pa.timestamp(unit, "UTC" if zone else None))
    return pa.array([text.replace("T", between) + zone for text in np.datetime_as_string(stamps).tolist()], pa.string())
