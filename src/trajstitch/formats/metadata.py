"""Metadata as one JSON text, for formats that have a place for a text (NPZ, Parquet)."""

import json
from dataclasses import asdict, replace
from typing import Any

from gymnasium import Space
from gymnasium.spaces import Dict
from minari.serialization import deserialize_space, serialize_space

from trajstitch.errors import InputError
from trajstitch.trajectories import Finding, Metadata

FORMAT = "trajstitch 1"
"""Marks a text as ours, and its version."""


def to_json(metadata: Metadata) -> str:
    plain = replace(metadata, observation_space=None, action_space=None)
    spaces = {
        name: None if space is None else serialize_space(space, to_string=False)
        for name, space in (
            ("observation_space", metadata.observation_space),
            ("action_space", metadata.action_space),
        )
    }
    return json.dumps({"format": FORMAT, **asdict(plain), **spaces})


def from_json(text: str, source: str) -> Metadata:
    """The inverse of `to_json`, except that the source is now the place it was read from."""
    try:
        stored = json.loads(text)
        if stored.pop("format") != FORMAT:
            raise InputError(f"{source}: was written by another version of trajstitch: update trajstitch")
        stored["source"] = source
        for name in ("observation_space", "action_space"):
            stored[name] = _space(stored[name])
        if stored["reference"] is not None:
            stored["reference"] = tuple(stored["reference"])
        stored["findings"] = tuple(Finding(**finding) for finding in stored["findings"])
        return Metadata(**stored)
    except (AttributeError, KeyError, TypeError, AssertionError, json.JSONDecodeError) as error:
        raise InputError(f"{source}: its metadata is damaged ({error}): convert the original data again") from error


def is_ours(text: str) -> bool:
    """Whether a text in a file is the metadata that trajstitch writes."""
    try:
        stored = json.loads(text)
    except json.JSONDecodeError:
        return False
    return isinstance(stored, dict) and str(stored.get("format", "")).startswith("trajstitch ")


def _space(stored: dict[str, Any] | None) -> Space | None:
    if stored is None:
        return None
    if stored["type"] == "Dict":
        # Pairs keep their order, which is the order of a row's columns; a dict would be sorted by name.
        return Dict([(name, _space(part)) for name, part in stored["subspaces"].items()])  # pyright: ignore[reportArgumentType]
    return deserialize_space(stored)
