"""Metadata as one JSON text, for formats that can store a text (NPZ, D4RL, Parquet)."""

import json
import re
from dataclasses import asdict, fields, replace
from types import NoneType
from typing import Any, get_args

from trajstitch.data import environments, spaces
from trajstitch.data.trajectories import Finding, Metadata, Verdict
from trajstitch.errors import InputError
from trajstitch.formats.seal import changed
from trajstitch.storage.checksums import KEY, sealed, unsealed

FORMAT = "trajstitch 1"
"""Marks a text as written by trajstitch, and its version."""
ENVIRONMENTS = ("environment", "evaluation_environment")
SPACES = ("observation_space", "action_space")
KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "source": (str,),
    **dict.fromkeys((*ENVIRONMENTS, *SPACES), (str, NoneType)),
    "reference": (list, NoneType),
    "extra": (dict,),
    "findings": (list,),
}
"""The types of each part as JSON."""
LONGEST = 1 << 24
"""Characters: longer texts are refused unread."""
DEEPEST = 64
"""Levels of parts within parts: Python's recursion ends at some hundred, and what is loaded must be saved again."""
AGAIN = "convert the original data again"


def to_json(metadata: Metadata) -> str:
    """Return the metadata as JSON text."""
    stored = asdict(replace(metadata, observation_space=None, action_space=None))
    for name in SPACES:
        space = getattr(metadata, name)
        stored[name] = None if space is None else spaces.to_json(space)
    return json.dumps(sealed({"format": FORMAT, **stored}))


def from_json(text: str, source: str, *, allow_changed: bool = False) -> Metadata:
    """Return the metadata that `to_json` wrote, with `source` as its source; raise if any part is of a wrong type.

    Raise too if it has changed since it was written, unless that is allowed.
    """
    try:
        stored = without_seal(parse_object(text), source, allow_changed=allow_changed)
    except ValueError as error:
        raise (
            error
            if isinstance(error, InputError)
            else InputError(f"{source}: its metadata is damaged ({error}): {AGAIN}")
        ) from error
    if stored.pop("format", None) != FORMAT:
        raise InputError(f"{source}: was written by another version of trajstitch: update trajstitch")
    for item in fields(Metadata):
        if item.name not in stored:
            raise InputError(f"{source}: its metadata is damaged (it lacks {item.name!r}): {AGAIN}")
        if not isinstance(stored[item.name], KINDS[item.name]):
            raise InputError(f"{source}: its metadata is damaged ({item.name} is of a wrong type): {AGAIN}")
    for name in ENVIRONMENTS:
        if stored[name] is not None:
            environments.parse_spec(stored[name], source)
    found: dict[str, Any] = {}
    for name in SPACES:
        try:
            found[name] = None if stored[name] is None else spaces.from_json(stored[name], name.partition("_")[0])
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
    reference = stored["reference"]
    return Metadata(
        name=stored["name"],
        source=source,
        environment=stored["environment"],
        evaluation_environment=stored["evaluation_environment"],
        **found,
        reference=None if reference is None else environments.parse_reference(reference, source),
        extra=stored["extra"],
        findings=tuple(_finding(one, source) for one in stored["findings"]),
    )


def without_seal(stored: dict[str, Any], source: str, *, allow_changed: bool) -> dict[str, Any]:
    """Return an object of a file without its checksum; raise if it is another object, unless that is allowed."""
    try:
        return unsealed({name: one for name, one in stored.items() if not allow_changed or name != KEY})
    except ValueError as error:
        raise changed(source, "metadata") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds; raise ValueError if it holds none, or one too long or too deep."""
    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters")
    try:
        stored = json.loads(text)
    except RecursionError as error:
        raise ValueError("parts within parts without end") from error
    if not isinstance(stored, dict):
        raise ValueError("no object")
    try:  # JSON has codes for halves of signs, which no file can hold
        json.dumps(stored, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("text that is no Unicode") from error
    except RecursionError as error:
        raise ValueError("parts within parts without end") from error
    level: list[Any] = [stored]
    for _ in range(DEEPEST):
        parts = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [inner for part in parts for inner in part]
        if not level:
            return stored
    raise ValueError(f"parts within parts, more than {DEEPEST} deep")


def _finding(stored: Any, source: str) -> Finding:
    parts = [item.name for item in fields(Finding)]
    if not isinstance(stored, dict) or not all(isinstance(stored.get(name), str) for name in parts):
        raise InputError(f"{source}: its metadata is damaged (a finding that is none): {AGAIN}")
    if stored["verdict"] not in get_args(Verdict):
        raise InputError(f"{source}: its metadata is damaged (the verdict {stored['verdict']!r}): {AGAIN}")
    return Finding(**{name: stored[name] for name in parts})


def is_ours(text: str) -> bool:
    """Return whether a text is metadata that trajstitch wrote, damaged or not."""
    return len(text) <= LONGEST and re.search(r'"format"\s*:\s*"trajstitch ', text) is not None
