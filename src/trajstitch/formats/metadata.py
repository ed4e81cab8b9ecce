"""Metadata as one JSON text, for formats that can store a text (NPZ, D4RL, Parquet)."""

import json
from dataclasses import asdict, replace

from trajstitch.data import environments, spaces
from trajstitch.data.trajectories import Finding, Metadata
from trajstitch.errors import InputError

FORMAT = "trajstitch 1"
"""Marks a text as written by trajstitch, and its version."""
ENVIRONMENTS = ("environment", "evaluation_environment")
SPACES = ("observation_space", "action_space")


def to_json(metadata: Metadata) -> str:
    """Return the metadata as JSON text."""
    stored = asdict(replace(metadata, observation_space=None, action_space=None))
    for name in SPACES:
        space = getattr(metadata, name)
        stored[name] = None if space is None else spaces.to_json(space)
    return json.dumps({"format": FORMAT, **stored})


def from_json(text: str, source: str) -> Metadata:
    """Return the metadata that `to_json` wrote, with `source` as its source."""
    try:
        stored = json.loads(text)
        if stored.pop("format") != FORMAT:
            raise InputError(f"{source}: was written by another version of trajstitch: update trajstitch")
        stored["source"] = source
        for name in ENVIRONMENTS:
            if stored[name] is not None:
                environments.parse_spec(stored[name], source)
        for name in SPACES:
            stored[name] = None if stored[name] is None else spaces.from_json(stored[name])
        if stored["reference"] is not None:
            low, high = map(float, stored["reference"])
            stored["reference"] = low, high
        if not isinstance(stored["name"], str) or not isinstance(stored["extra"], dict):
            raise TypeError("its name is no text, or its extra facts no object")
        stored["findings"] = tuple(Finding(**finding) for finding in stored["findings"])
        return Metadata(**stored)
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, AssertionError, ValueError, RecursionError) as error:
        raise InputError(f"{source}: its metadata is damaged ({error}): convert the original data again") from error


def is_ours(text: str) -> bool:
    """Return whether a text is metadata that trajstitch wrote."""
    try:
        stored = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(stored, dict) and str(stored.get("format", "")).startswith("trajstitch ")
