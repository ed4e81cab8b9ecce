"""StitchRecord: what a stitched data set consists of, kept in its metadata (`Metadata.extra`)."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from trajstitch.data import ragged
from trajstitch.data.trajectories import Metadata, Trajectories

KEY = "trajstitch"
"""The record's key in `Metadata.extra`."""
LARGEST = 1 << 53
"""No set has as many episodes."""


@dataclass(frozen=True)
class StitchRecord:
    """Whether the original episodes are in the set, and how many are changed."""

    kept_original: bool
    """True: all original episodes come first, then the changed ones. False: the changed ones replace theirs."""
    stitchings: int
    """How many stitchings, each with models of its own, are joined in the set."""
    source_episodes: int
    """Episodes of the data that was stitched."""
    episodes: int
    """Episodes of the set as it was made; if it holds another number now, some were chosen from it."""
    changed: int
    """Episodes that differ from the original."""
    warnings: tuple[str, ...] = ()
    """What is doubtful about the set."""
    source: dict[str, Any] | None = None
    """What was stitched: `source`, `columns` and `fingerprint`, as of `source_facts`."""

    def added_to(self, metadata: Metadata) -> Metadata:
        """Return the metadata with this record."""
        return replace(metadata, extra={**metadata.extra, KEY: asdict(self) | {"warnings": list(self.warnings)}})

    @classmethod
    def of(cls, metadata: Metadata) -> "StitchRecord | None":
        """Return the record in the metadata; None if there is none that we wrote."""
        stored = metadata.extra.get(KEY)
        if not isinstance(stored, dict) or set(counts := cls._counts()) - stored.keys():
            return None
        if not all(type(stored[name]) is (bool if name == "kept_original" else int) for name in counts):
            return None
        if not all(0 <= stored[name] < LARGEST for name in counts) or stored["stitchings"] == 0:
            return None
        source, warnings = stored.get("source"), stored.get("warnings")
        return cls(
            **{name: stored[name] for name in counts},
            warnings=tuple(map(str, warnings)) if isinstance(warnings, list | tuple) else (),
            source=source if isinstance(source, dict) else None,
        )

    @classmethod
    def _counts(cls) -> list[str]:
        return [item.name for item in fields(cls) if item.name not in ("warnings", "source")]

    def __str__(self) -> str:
        if self.changed == 0:
            return f"stitching changed none of the {self.source_episodes:,} original episodes"
        several = f" by {self.stitchings:,} stitchings" if self.stitchings > 1 else ""
        if self.kept_original:
            return f"the {self.source_episodes:,} original episodes and {self.changed:,} added{several}"
        versions = f", each original one in {self.stitchings:,} versions" if self.stitchings > 1 else ""
        return f"{self.changed:,} of {self.episodes:,} episodes replaced{several}{versions}"


def describe_stitching(data: Trajectories) -> str | None:
    """Return in words what a stitched set consists of; None if nothing about it is recorded."""
    record = StitchRecord.of(data.metadata) or _recognised(data)
    if record is None:
        return None
    chosen = f"{len(data):,} chosen from: " if len(data) != record.episodes else ""
    return f"{chosen}{record}"


def original_of(data: Trajectories) -> Trajectories | None:
    """Return the logged episodes that stitched data was made from: the data itself if it is logged.

    None if the data doesn't hold all of them as they were.
    """
    if not data.has_jumps:
        return data
    record = StitchRecord.of(data.metadata) or _recognised(data)
    if record is None or not record.kept_original or len(data) != record.episodes:
        return None
    if not 0 < record.source_episodes <= len(data):
        return None
    original = data[np.arange(record.source_episodes)]
    return None if original.has_jumps else original


def _recognised(data: Trajectories) -> StitchRecord | None:
    """Return the record of a whole set by its provenance alone, which is all that a CSV file keeps.

    An episode that stitching changed starts in the same state as the original one.
    """
    origin = data.provenance
    if origin is None or not data.lengths.all():
        return None
    start, changed = origin.source_episode[data.offsets[:-1]], ragged.sums(origin.stitched, data.lengths) > 0
    count = int(start.max()) + 1
    if count > len(data):
        return None
    if np.array_equal(start[:count], np.arange(count)) and np.array_equal(changed, np.arange(len(data)) >= count):
        return StitchRecord(True, 1, count, len(data), len(data) - count)
    if len(data) % count == 0 and np.array_equal(start, np.arange(len(data)) % count):
        return StitchRecord(False, len(data) // count, count, len(data), int(changed.sum()))
    return None


def holds_originals(data: Trajectories) -> bool:
    """Return whether stitched data also holds the logged episodes that its stitched ones were made from.

    Told from the provenance: the starts of episodes with jumps are also starts of episodes without any. Nearly all must
    be, since where several stitchings are joined, many are.
    """
    if data.provenance is None:
        return False
    first = data.offsets[:-1][data.lengths > 0]
    start = data.provenance.source_episode[first].astype(np.int64) << 32 | data.provenance.source_step[first]
    changed = ragged.sums(data.provenance.stitched, data.lengths)[data.lengths > 0] > 0
    return bool(changed.any() and np.isin(start[changed], start[~changed]).mean() > 0.95)
