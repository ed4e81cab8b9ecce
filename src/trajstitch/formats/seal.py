"""Seals: what is loaded from a file of ours is what was saved, bit for bit, or loading says that it isn't.

The checksum of the arrays goes into the metadata, which has one of its own. Text files, which have no metadata, have it
beside them, as `sha256sum` writes and checks it. Files of others have no seal, and are loaded as they are.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.storage import atomic
from trajstitch.storage.checksums import checksum
from trajstitch.storage.locks import turn

CONTENT = "trajstitch_content"
"""Key in `Metadata.extra` of the arrays' checksum, while they are in a file."""
LONGEST = 1 << 14
"""Characters that are read of the file of a checksum."""
ARRAYS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")


def sealed(data: Trajectories) -> Trajectories:
    """Return data with the checksum of its arrays in its metadata, to be saved."""
    extra = {**data.metadata.extra, CONTENT: _content(data)}
    return replace(data, metadata=replace(data.metadata, extra=extra))


def opened(data: Trajectories, episodes: int | None = None, *, allow_changed: bool) -> Trajectories:
    """Return data that was saved with a checksum without it; raise if the arrays are others, unless that is allowed.

    The checksum is of the first `episodes`, if not given of all.
    """
    if CONTENT not in data.metadata.extra:
        return data
    extra = dict(data.metadata.extra)
    written = data if episodes in (None, len(data)) else data[np.arange(len(data))[:episodes]]
    if extra.pop(CONTENT) != _content(written) and not allow_changed:
        raise changed(data.metadata.source)
    return replace(data, metadata=replace(data.metadata, extra=extra))


def changed(source: str, what: str = "content") -> InputError:
    """Return the error for a file that is no longer what we wrote."""
    return InputError(
        f"{source}: its {what} has changed since trajstitch wrote it, as on a failing disk: copy it again, or convert "
        "the original data again; if you changed it yourself, load it with `allow_changed=True`"
    )


def _content(data: Trajectories) -> str:
    """Return the checksum of the arrays and the provenance."""
    observations = data.observations
    if len(data.unknown_rows):  # NaN has many bit patterns
        observations = observations.copy()
        observations[data.unknown_rows] = np.nan
    arrays = [observations, *(getattr(data, name) for name in ARRAYS[1:-1]), data.offsets.astype(np.int64)]
    if data.provenance is not None:
        arrays += [getattr(data.provenance, item.name) for item in fields(Provenance)]
    return checksum(*arrays)


@contextmanager
def sealing_text(path: Path) -> Iterator[Callable[[Path], None]]:
    """Yield what to call with a new text file that is about to take its place within.

    Its checksum is then beside the place, with that of the old file until the new one is there. Jobs that replace files
    of one folder do this by turns: of two at once, the file of one and the checksum of the other could stay.
    """
    known: list[str] = []
    with ExitStack() as turns:

        def begin(fresh: Path) -> None:
            own = _sha256(fresh)
            turns.enter_context(turn(path.absolute().parent))
            known[:] = [own, *(_written(path) if path.exists() else ())]
            _write(path, known)

        try:
            yield begin
        finally:
            if known:
                there = _sha256(path) if path.exists() else ""
                if there in known:
                    _write(path, [there])
                elif _lines(path) == _lines_of(path, known):  # else another job has written its own
                    _write(path, known[1:])


def require_free_beside(path: Path, *, force: bool) -> None:
    """Raise if there is something else where the checksum of a new text file goes."""
    if not force and beside(path).exists() and len(_written(path)) != (len(_lines(path)) or None):
        raise InputError(
            f"{beside(path)} exists already, and is no checksum of {path.name}, which would go there: choose another "
            "name, or overwrite it with `force=True`"
        )


def require_unchanged_text(path: Path, source: str) -> None:
    """Raise if a text file has another checksum than the file beside it says."""
    known = _written(path)
    if known and _sha256(path) not in known:
        raise InputError(
            f"{source}: its content has changed since its checksum was written: copy or convert it again; if you "
            f"changed it yourself, remove {beside(path)}, or load it with `allow_changed=True`"
        )


def beside(path: Path) -> Path:
    """Return where the checksum of a text file is."""
    return path.with_name(f"{path.name}.sha256")


def _written(path: Path) -> list[str]:
    """Return the checksums that are beside a file, for its name."""
    found = [re.fullmatch(r"([0-9a-fA-F]{64}) [ *](.+)", line) for line in _lines(path)[:9]]
    return [one[1].lower() for one in found if one and one[2] == path.name]


def _lines(path: Path) -> list[str]:
    """Return the lines of what is beside a file."""
    try:
        if not beside(path).is_file():  # opening a pipe may wait for ever, and a device has no end
            return []
        with beside(path).open(errors="replace") as file:
            return file.read(LONGEST).splitlines()
    except OSError:
        return []


def _lines_of(path: Path, checksums: list[str]) -> list[str]:
    return [f"{one}  {path.name}" for one in checksums]


def _write(path: Path, checksums: list[str]) -> None:
    if not checksums:
        beside(path).unlink(missing_ok=True)
        return
    with atomic.replacing(beside(path), force=True) as fresh:
        fresh.write_text("".join(f"{line}\n" for line in _lines_of(path, checksums)))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
