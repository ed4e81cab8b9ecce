"""What a run records about its data set, so that it can load it again and recognise it."""

from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data.spaces import flat_bounds
from trajstitch.data.trajectories import Trajectories
from trajstitch.storage.runs import Run


def source_facts(
    data: Trajectories, source: str | None = None, columns: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return facts about a data set: where it is (as the user named it, or as its metadata says) and what it is."""
    return {
        "source": absolute(source or data.metadata.source or data.metadata.name),
        "columns": columns,
        "transitions": data.steps,
        "mean_return": float(data.returns.mean()),
        "fingerprint": data.fingerprint,
        "action_bounds": action_bounds(data),
    }


def action_bounds(data: Trajectories) -> list[list[float | None]] | None:
    """Return the lowest and the highest actions that the data's space allows, which policies depend on."""
    space = data.metadata.action_space
    if space is None:
        return None
    return [[float(one) if np.isfinite(one) else None for one in side] for side in flat_bounds(space)]


def absolute(source: str) -> str:
    """Return a source that means the same in every folder: the URI of a file has its absolute path."""
    scheme, _, place = source.partition(":")
    try:
        if not place or not Path(place).is_file():
            return source
        path = Path(place).absolute()
        return f"{scheme}:{path.resolve() if '..' in path.parts else path}"
    except (OSError, ValueError):
        return source


def as_recorded(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts about a data set with the source that a run in `folder` has recorded, if that is still there.

    The same data may be named in several ways; its fingerprint tells whether it is the same.
    """
    if not (folder / "run.json").is_file():
        return facts
    before = Run.open(folder).config.get("source")
    same = isinstance(before, str) and Path(before.partition(":")[2]).is_file()
    return facts | {"source": before} if same else facts
