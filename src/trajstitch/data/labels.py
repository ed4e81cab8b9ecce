"""Labels: what a log calls its episodes, and when each of its states was observed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Integer, Shaped

from trajstitch.data import ragged
from trajstitch.errors import InputError

SECOND = 1_000_000_000
"""Time stamps count nanoseconds since 1970."""
BETWEENS, ZONES = ("T", " "), ("", "Z")
"""What stands between date and time, and the time zone, of time stamps that are text."""
LONGEST_NAME = 1000
"""Characters of an episode's name; a table repeats it in every row of the episode."""
ALWAYS_FINE = 1 << 24
"""Characters that all names may take, if each takes as many as the longest."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The names of the episodes and the times of the states, where the log has them."""

    episodes: Shaped[np.ndarray, " episodes"] | None = None
    """Each episode's name, as text."""
    times: Shaped[np.ndarray, " states"] | None = None
    """When each state was observed: numbers as logged, or nanoseconds since 1970. That of an unknown final state is
    what a step of the usual length gives."""
    clock: tuple[str, str] | None = None
    """How time stamps are written: what stands between date and time, and the time zone; None if times are numbers."""

    @property
    def second(self) -> float:
        """What the times count as one second; times that are numbers are taken as seconds."""
        return 1.0 if self.clock is None else float(SECOND)

    def take(self, episodes: Integer[np.ndarray, " chosen"], rows: Integer[np.ndarray, " rows"]) -> "Labels":
        """Return the labels of some episodes, whose states are these rows."""
        return Labels(
            None if self.episodes is None else self.episodes[episodes],
            None if self.times is None else self.times[rows],
            self.clock,
        )

    def check(self, episodes: int, states: int) -> None:
        """Raise unless there is a name for each episode, and a time for each state."""
        for name, array, length in (("episodes", self.episodes, episodes), ("times", self.times, states)):
            if array is not None and array.shape != (length,):
                raise InputError(f"labels: {name} has shape {array.shape}, but {length:,} are needed")

    def to_json(self, lengths: Integer[np.ndarray, " episodes"]) -> dict[str, Any]:
        """Return the labels as JSON values; times that all lie one step apart are stored as their starts."""
        times: Any = None
        if self.times is not None:
            starts = self.times[ragged.offsets_of(lengths + 1)[:-1]]
            step = self.times[1:2] - self.times[:1] if lengths[:1].sum() else self.times[:0]
            even = len(step) and np.array_equal(_even(starts, step[0], lengths), self.times)
            times = {"starts": starts.tolist(), "step": step[0].item()} if even else self.times.tolist()
        names = None if self.episodes is None else self.episodes.tolist()
        return {"episodes": names, "times": times, "clock": None if self.clock is None else list(self.clock)}

    @classmethod
    def from_json(cls, stored: Any, lengths: Integer[np.ndarray, " episodes"], source: str) -> "Labels":
        """Return what `to_json` gave; `source` is named in errors."""
        try:
            names, times, clock = (stored[name] for name in ("episodes", "times", "clock"))
            clock = None if clock is None else (str(clock[0]), str(clock[1]))
            if clock is not None and (clock[0] not in BETWEENS or clock[1] not in ZONES):
                raise ValueError("time stamps that are written in no way that we know")
            kind = np.float64 if clock is None else np.int64
            if isinstance(times, dict):
                times = _even(np.asarray(times["starts"], kind), times["step"], lengths)
            made = cls(
                None if names is None else names_of([str(name) for name in names], source),
                None if times is None else np.asarray(times, kind),
                clock,
            )
            made.check(len(lengths), int(lengths.sum()) + len(lengths))
        except (InputError, AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{source}: its labels are damaged ({error}): convert the original data again") from error
        return made


def names_of(texts: Sequence[str], source: str) -> Shaped[np.ndarray, " episodes"]:
    """Return the names of episodes; raise if one is too long, since each takes as much memory as the longest."""
    longest = max(texts, key=len, default="")
    all_as_long = len(longest) * len(texts)
    if len(longest) > LONGEST_NAME or all_as_long > max(ALWAYS_FINE, 8 * sum(map(len, texts))):
        raise InputError(
            f"{source}: the name of an episode has {len(longest):,} characters ({longest[:20]!r}...), too many for "
            f"{len(texts):,} names: is it the right column?"
        )
    return np.array(texts, dtype=np.str_)


def joined(parts: Sequence[Labels | None], lengths: Sequence[Integer[np.ndarray, " episodes"]]) -> Labels | None:
    """Return the labels of several sets, one after the other; an episode without a name is named by its number."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    names = [part.episodes if part is not None else None for part in parts]
    filled = [
        np.arange(len(length)).astype(np.str_) if name is None else name
        for name, length in zip(names, lengths, strict=True)
    ]
    times = [part.times for part in found if part.times is not None]
    timed = len(times) == len(parts) and len({part.clock for part in found}) == 1
    return Labels(
        None if all(name is None for name in names) else np.concatenate(filled),
        np.concatenate(times) if timed else None,
        found[0].clock if timed else None,
    )


def distinct(names: Shaped[np.ndarray, " episodes"]) -> Shaped[np.ndarray, " episodes"]:
    """Return the names with a number behind those that are there more than once: lot 7, lot 7 (2), ..."""
    taken = set(names.tolist())
    count: dict[str, int] = {}
    found = []
    for name in names.tolist():
        count[name] = count.get(name, 0) + 1
        made = name
        if count[name] > 1:
            while (made := f"{name} ({count[name]})") in taken:
                count[name] += 1
            taken.add(made)
        found.append(made)
    return np.array(found, dtype=np.str_)


def usual_step(durations: Shaped[np.ndarray, " steps"]) -> float:
    """Return how long a step usually takes: the median of those that take any time; 1 if none does."""
    positive = durations[durations > 0]
    return float(np.median(positive)) if len(positive) else 1.0


def _even(starts: Shaped[np.ndarray, " episodes"], step: Any, lengths: Integer[np.ndarray, " episodes"]) -> np.ndarray:
    """Return the times of episodes whose states all lie one step apart."""
    return np.repeat(starts, lengths + 1) + ragged.positions(lengths + 1) * step


def durations_of(
    times: Shaped[np.ndarray, " states"], state_rows: Integer[np.ndarray, " steps"]
) -> Float[np.ndarray, " steps"]:
    """Return how long each step took, in the times' unit."""
    return (times[state_rows + 1] - times[state_rows]).astype(np.float64)
