"""What each column of a table holds: named by the user, or guessed from the usual names."""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trajstitch.errors import InputError, did_you_mean
from trajstitch.formats.files import require_readable
from trajstitch.formats.spellings import SPELLINGS

LONGEST_NUMBER = 100
"""Digits of a column's number; longer ones are names."""

LONGEST_NAME = 80
"""Characters of a name in a message."""

MOST_LISTED = 30
"""Most column names to list in one line."""

TIMES = ("time", "timestamp", "time_stamp", "datetime", "date_time")
"""Names of columns that may hold times; one is used if there is no column of steps."""

USUAL: dict[str, tuple[str, ...]] = {
    "episode": (*SPELLINGS["episodes"], "episode_index"),
    "step": ("step", "timestep", "frame_index", *TIMES),
    "observations": SPELLINGS["observations"],
    "actions": SPELLINGS["actions"],
    "reward": (*SPELLINGS["rewards"], "next.reward"),
    "cost": ("cost", "costs"),
    "terminated": SPELLINGS["terminated"],
    "truncated": SPELLINGS["truncated"],
    "done": (*SPELLINGS["done"], "next.done"),
    "next_observations": SPELLINGS["next_observations"],
}
"""Names to look for, including LeRobot's; observations and actions also as obs_x, obs.x, obs[0] or obs0."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold. What is not given is guessed from the usual names."""

    episode: tuple[str, ...] = ()
    """Columns that together identify a row's episode; without any, episodes end at the end flags."""
    step: str | None = None
    """Column with a number or time that orders an episode's rows; without it they are in the file's order."""
    observations: tuple[str, ...] = ()
    """Observation columns, in order; * matches any text, as in joint_*."""
    actions: tuple[str, ...] = ()
    """Action columns, in order; * matches any text."""
    reward: str | None = None
    """Column with the reward of the row's action: more is better."""
    cost: str | None = None
    """Column with what the row's action cost, if the log has that instead: less is better. Its negative is the
    reward."""
    terminated: str | None = None
    """Column that is true where an episode terminated by itself: a fall, a goal reached."""
    truncated: str | None = None
    """Column that is true where an episode was cut off from outside: a time limit, the end of the log."""
    done: str | None = None
    """Column that is true where an episode ended, if the log doesn't tell terminated from truncated."""
    next_observations: tuple[str, ...] = ()
    """Columns with the observation after the row's action, in the order of the observation columns."""
    environment: str | None = None
    """Gymnasium id of the environment to evaluate policies in, such as Hopper-v5."""
    action_low: tuple[float, ...] = ()
    """Lowest allowed action: one number for all action columns, or one for each."""
    action_high: tuple[float, ...] = ()
    """Highest allowed action: one number for all action columns, or one for each."""

    @property
    def outcome(self) -> str:
        """The column of the rewards or of the costs, once it is known."""
        return str(self.reward or self.cost)

    def check(self) -> None:
        """Raise if an action bound is no number, or if both a reward and a cost are named."""
        if self.reward and self.cost:
            raise InputError(
                f"`columns.reward` is {self.reward!r} and `columns.cost` is {self.cost!r}: name one of them, or add a "
                "column with the reward less the cost"
            )
        for name in ("action_low", "action_high"):
            if any(isinstance(one, float) and math.isnan(one) for one in getattr(self, name)):
                raise InputError(f"`columns.{name}` must be a number, not nan")

    @classmethod
    def from_toml(cls, path: str | Path) -> "Columns":
        """Read the columns from a TOML file whose keys are the names of these fields."""
        path = Path(path)
        require_readable(path)
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is not a TOML file ({error})") from error
        defaults = {item.name: item.default for item in fields(cls)}
        for key in given:
            if key not in defaults:
                raise InputError(
                    f"{path}: unknown key {key!r}{did_you_mean(key, defaults)}: the keys are {', '.join(defaults)}"
                )
        found = cls(**{key: _from_toml(value, key, defaults[key], path) for key, value in given.items()})
        found.check()
        return found


def require_columns(columns: object) -> None:
    """Raise unless these are columns, or None."""
    if columns is not None and not isinstance(columns, Columns):
        raise InputError(
            "`columns` must be a trajstitch.Columns, such as trajstitch.Columns.from_toml('columns.toml'), not a "
            f"{type(columns).__name__}"
        )


def resolve(columns: Columns, names: Sequence[str], source: str) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns by their full names, and the names of the fields that were guessed."""
    columns.check()
    given = {name for name in USUAL if getattr(columns, name)}
    distinct = list(dict.fromkeys(names))
    chosen: dict[str, Any] = {}
    for name in USUAL:
        value = getattr(columns, name)
        if name in given:
            patterns = (value,) if isinstance(value, str) else value
            found = tuple(full for pattern in patterns for full in _matching(pattern, name, distinct, source))
        elif _not_guessed(name, given, chosen):
            found = ()
        else:
            found = _guess(name, distinct, source)
        many = isinstance(getattr(Columns, name), tuple)
        if not many and len(found) > 1:
            raise InputError(f"{source}: {name} is one column, but {listed(found)} match {value!r}")
        chosen[name] = found if many else next(iter(found), None)
    for name in ("observations", "actions"):
        if not chosen[name]:
            raise InputError(
                f"{source}: can't tell which columns are the {name}: name them with `columns.{name}`; the file has "
                f"{listed(names)}"
            )
    if not chosen["reward"] and not chosen["cost"]:
        raise InputError(
            f"{source}: can't tell which column is the reward: name it with `columns.reward`, or with `columns.cost` "
            f"if less of it is better; the file has {listed(names)}"
        )
    _require_distinct(chosen, names, source)
    guessed = tuple(name for name in USUAL if chosen[name] and name not in given)
    return replace(columns, **chosen), guessed


def _not_guessed(field: str, given: set[str], chosen: dict[str, Any]) -> bool:
    """Return whether a column of this kind is not looked for, since others say what it would."""
    return (
        (field == "step" and not chosen["episode"])
        or (field == "done" and bool(given & {"terminated", "truncated"}))
        or (field == "reward" and "cost" in given)
        or (field == "cost" and bool(chosen["reward"]))
    )


def describe(columns: Columns, which: Collection[str]) -> str:
    """Return some of the fields as text: observations = x, y; reward = r."""
    parts = []
    for name in which:
        value = getattr(columns, name)
        parts.append(f"{name} = {value if isinstance(value, str) else listed(value, most=4)}")
    return "; ".join(parts)


def _matching(pattern: str, field: str, names: Sequence[str], source: str) -> Sequence[str]:
    if pattern in names:
        return (pattern,)
    found = _in_order(re.compile(re.escape(pattern).replace(r"\*", "(.*)")), names)
    if not found:
        raise InputError(
            f"{source}: has no column {pattern!r}{did_you_mean(pattern, names)}, as `columns.{field}` says; it has "
            f"{listed(names)}"
        )
    return found


def _guess(field: str, names: Sequence[str], source: str) -> tuple[str, ...]:
    groups: list[tuple[str, ...]] = []
    for usual in USUAL[field]:
        found = tuple(name for name in names if name.lower() == usual)
        if not found and field in ("observations", "actions", "next_observations"):
            found = _in_order(re.compile(rf"{re.escape(usual)}(?:[_. \[](.*)|(\d+))", re.IGNORECASE), names)
        if found:
            groups.append(found)
    if len(groups) > 1 and field != "step":
        likely = " and ".join(listed(group, most=2) for group in groups)
        raise InputError(f"{source}: {likely} all look like the {field}: choose with `columns.{field}`")
    return groups[0] if groups else ()


def _in_order(pattern: re.Pattern[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that match: in the order of their numbers if all have one, else in the file's order."""
    matches = [match for name in names if (match := pattern.fullmatch(name))]
    texts = ["".join(text or "" for text in match.groups()).strip("]") for match in matches]
    if all(text.isdecimal() and len(text) <= LONGEST_NUMBER for text in texts):
        matches = [match for _, match in sorted(zip(map(int, texts), matches, strict=True), key=lambda pair: pair[0])]
    return tuple(match.string for match in matches)


def _require_distinct(chosen: dict[str, Any], names: Sequence[str], source: str) -> None:
    """Raise if a column has two roles; only the episode and step columns may also be observations."""
    used: list[str] = []
    for name, value in chosen.items():
        if name not in ("episode", "step") and value:
            used.extend((value,) if isinstance(value, str) else value)
    twice = [name for name, count in Counter(used).items() if count > 1]
    if twice:
        fields_of = [name for name, value in chosen.items() if value and twice[0] in (value, *value)]
        raise InputError(
            f"{source}: column {twice[0]!r} is named more than once, for {' and '.join(fields_of)}: name it once"
        )
    for name, count in Counter(names).items():
        if count > 1 and name in used:
            raise InputError(f"{source}: has {count} columns named {name!r}: rename all but one")


def _from_toml(value: Any, key: str, default: Any, path: Path) -> Any:
    wanted, kinds = ("numbers", (int, float)) if key.startswith("action_") else ("text", (str,))
    many = isinstance(default, tuple)
    values = value if isinstance(value, list) and many else [value]
    if not all(isinstance(one, kinds) and not isinstance(one, bool) for one in values):
        raise InputError(f"{path}: {key} = {value!r} must be {wanted}{f' or a list of {wanted}' if many else ''}")
    return tuple(values) if many else value


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Return column names as text, shortened if there are more than `most`."""
    names = [name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names]
    if len(names) <= most:
        return ", ".join(names) or "no columns"
    return f"{', '.join(names[: most - 1])}, ... {names[-1]} ({len(names)} columns)"
