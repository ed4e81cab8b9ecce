"""What a run records about its data set, so that it can load it again and recognise it."""

from typing import Any

from trajstitch.data.trajectories import Trajectories


def source_facts(
    data: Trajectories, source: str | None = None, columns: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return facts about a data set: where it is (as the user named it, or as its metadata says) and what it is."""
    return {
        "source": source or data.metadata.source or data.metadata.name,
        "columns": columns,
        "transitions": data.steps,
        "mean_return": float(data.returns.mean()),
        "fingerprint": data.fingerprint,
    }
