"""Data in and out: one URI names a data set in any of the supported formats.

minari:ID          a data set of the local Minari store (downloaded when it is not there)
d4rl:FILE.hdf5     D4RL's HDF5 layout, v0 and v2
npz:FILE.npz       NumPy arrays, our keys or the usual spellings
table:FILE         CSV or Parquet, one row a step
TASK/SET           a built-in set, such as hopper/medium-replay
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from trajstitch.errors import InputError

if TYPE_CHECKING:
    from trajstitch.data.trajectories import Trajectories
    from trajstitch.formats.table import Columns

SCHEMES = ("minari", "d4rl", "npz", "table")


@dataclass(frozen=True)
class URI:
    scheme: str
    """One of SCHEMES, or "set" for a built-in set."""
    location: str
    """What follows the colon: an identifier or a path."""

    def __str__(self) -> str:
        return self.location if self.scheme == "set" else f"{self.scheme}:{self.location}"


def parse(uri: str) -> URI:
    """Split a URI; raise for schemes and set names that don't exist, naming the nearest that does."""
    scheme, colon, location = uri.partition(":")
    if colon and scheme in SCHEMES:
        if not location:
            raise InputError(f"{uri!r} names no data set: write {scheme}:{'ID' if scheme == 'minari' else 'FILE'}")
        return URI(scheme, location)
    if colon:
        raise InputError(
            f"unknown scheme {scheme!r} in {uri!r}{_nearest(scheme, SCHEMES)}: use one of "
            + ", ".join(f"{name}:..." for name in SCHEMES)
            + ", or a built-in set such as hopper/medium-replay"
        )
    from trajstitch.benchmark import sets

    hint = _scheme_for(uri)
    if hint:
        raise InputError(f"no built-in set {uri!r}{hint}: `trajstitch sets` lists them")
    sets.built_in(uri)
    return URI("set", uri)


def load(uri: str, *, columns: "Columns | None" = None, allow_nonfinite: bool = False) -> "Trajectories":
    """Load a data set. NaN and infinite values are refused unless allowed (as `trajstitch inspect` does)."""
    parsed = parse(uri)
    if columns is not None and parsed.scheme != "table":
        raise InputError(f"a column mapping goes with table: URIs, not with {uri}")
    if parsed.scheme == "set":
        from trajstitch.benchmark.collect import load_set

        data = load_set(parsed.location)
    elif parsed.scheme == "table":
        from trajstitch.formats import table

        data = table.load(parsed.location, columns)
    else:
        data = _module(parsed.scheme).load(parsed.location)
    if not allow_nonfinite:
        from trajstitch.data.checks import require_finite

        require_finite(data, uri)
    return data


def save(data: "Trajectories", uri: str, *, force: bool = False, columns: "Columns | None" = None) -> None:
    """Save a data set: all of it or, on any failure, nothing. Refuses to overwrite unless forced."""
    parsed = parse(uri)
    if parsed.scheme == "set":
        raise InputError(f"{uri} is a built-in set and can't be written: give a target such as minari:my/set-v0")
    if parsed.scheme == "table":
        from trajstitch.formats import table

        table.save(data, parsed.location, force=force, columns=columns)
    else:
        _module(parsed.scheme).save(data, parsed.location, force=force)


def require_free(uri: str, *, force: bool) -> None:
    """Raise now if saving to `uri` would be refused later: checked before hours of work, not after."""
    parsed = parse(uri)
    if parsed.scheme == "set":
        raise InputError(f"{uri} is a built-in set and can't be written: give a target such as minari:my/set-v0")
    _module(parsed.scheme).require_free(parsed.location, force=force)


def exists(uri: str) -> bool:
    """Whether something is stored there."""
    return _place(uri).exists()


def require_apart(source: str, target: str) -> None:
    """Raise if `target` is where `source` is: the data that something is made from is never touched, even by force."""
    if _place(source) == _place(target):
        raise InputError(f"{target} is the source itself, which is never touched: choose another target")


def _place(uri: str) -> Path:
    """Where a data set is stored."""
    parsed = parse(uri)
    if parsed.scheme in ("set", "minari"):
        from trajstitch.benchmark import sets
        from trajstitch.formats import minari

        location = parsed.location if parsed.scheme == "minari" else sets.built_in(parsed.location).minari_id
        return minari.stored_at(location).resolve()
    return Path(parsed.location).resolve()


def _module(scheme: str) -> ModuleType:
    return import_module(f"trajstitch.formats.{scheme}")


def _nearest(name: str, known: "tuple[str, ...] | list[str]") -> str:
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _scheme_for(path: str) -> str:
    endings: dict[str, Callable[[str], bool]] = {
        "d4rl": lambda name: name.endswith((".hdf5", ".h5")),
        "npz": lambda name: name.endswith(".npz"),
        "table": lambda name: name.endswith((".csv", ".parquet")),
    }
    for scheme, matches in endings.items():
        if matches(path):
            return f" (a file? then write {scheme}:{path})"
    return ""
