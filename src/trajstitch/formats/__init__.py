"""Load and save data sets in any supported format, named by a URI.

minari:ID          a data set of the local Minari store, downloaded if it isn't there
d4rl:FILE.hdf5     D4RL's HDF5 layout, v0 and v2
npz:FILE.npz       NumPy arrays, under our names or the usual ones
table:FILE         CSV or Parquet, one row per step

Built-in sets such as hopper/medium-replay are no URIs: `benchmark.sources` resolves their names.
"""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from trajstitch.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from trajstitch.data.mend import Missing
    from trajstitch.data.trajectories import Trajectories

LABELS = "labels"
"""Key in `Metadata.extra` of episodes' names and states' times, in formats that have no place of their own for them."""

FORMATS = {
    "minari": "trajstitch.formats.minari",
    "d4rl": "trajstitch.formats.d4rl",
    "npz": "trajstitch.formats.npz",
    "table": "trajstitch.formats.table",
}
"""The module of each scheme, imported on first use. A new format is one module and one line here."""


UNREADABLE = (OSError, EOFError, MemoryError, RecursionError, OverflowError, UnicodeError)
"""What libraries raise for files that they can't read, if a reader lets it through. No mistake of ours is among it."""

PARTS = ("ENDINGS", "OPTIONS", "load", "save", "require_free", "stored_at")
"""What the module of a format has (see `Format`)."""


@runtime_checkable
class Format(Protocol):
    """What a format can do. Any module with these names is a format.

    A location is what follows the scheme in a URI: a path or an id. Functions raise InputError for what a user can put
    right. Formats whose data sets are single files take `require_free` and `stored_at` from `formats.files`.
    """

    ENDINGS: tuple[str, ...]
    """Endings of its files' names, by which a path without a scheme is recognised; none if locations aren't paths."""
    OPTIONS: tuple[str, ...]
    """Keyword arguments that its `load` and `save` take in addition to those below, such as `columns`."""

    def load(self, location: str) -> "Trajectories":
        """Load a data set."""
        ...

    def save(self, data: "Trajectories", location: str, *, force: bool) -> None:
        """Write a data set whole or not at all; overwrite an existing one only with `force`."""
        ...

    def require_free(self, location: str, *, force: bool) -> None:
        """Raise if `save` would refuse this location."""
        ...

    def stored_at(self, location: str) -> Path:
        """Return the file or folder that holds the data set, whether or not it exists."""
        ...


def load(
    uri: str,
    *,
    allow_nonfinite: bool = False,
    allow_large: bool = False,
    allow_changed: bool = False,
    missing: "Missing | None" = None,
    resample: float | None = None,
    **options: Any,
) -> "Trajectories":
    """Load a data set. NaN, infinite and blank values and gaps in time raise an error, which counts them.

    `missing` mends them: "split", "interpolate" or "drop" (`data/mend.py`). `allow_nonfinite` leaves them as they are.
    `resample` is a new step in seconds, for logs with times. A file that declares far more data than it holds raises an
    error too, unless `allow_large` is set, and so does a file that trajstitch wrote and that has changed since, unless
    `allow_changed` is set. An end flag in the middle of an episode splits it there. `options` are the
    format's own, such as `columns` for tables; None stands for an option that isn't given.
    """
    found, location = _find(uri)
    from trajstitch.data.checks import require_finite
    from trajstitch.data.mend import mend
    from trajstitch.formats.rows import split_at_ends

    given = _accepted(uri, found, options)
    for name, allowed in (("allow_large", allow_large), ("allow_changed", allow_changed)):
        if name in found.OPTIONS:
            given[name] = allowed
    if (allow_nonfinite or missing is not None) and "tolerant" in found.OPTIONS:
        given["tolerant"] = True
    try:
        data = split_at_ends(_with_labels(found.load(location, **given)))
    except InputError as error:
        raise error if location in str(error) else InputError(f"{uri}: {error}") from error
    except UNREADABLE as error:
        from trajstitch.formats.files import reason_of

        raise InputError(f"{uri}: can't be read ({type(error).__name__}: {reason_of(error)})") from error
    if not data.observation_size or not data.action_size:
        raise InputError(f"{uri}: its observations or actions have no columns")
    data = mend(data, missing, resample)
    if not allow_nonfinite:
        require_finite(data, uri)
    return data


def save(data: "Trajectories", uri: str, *, force: bool = False, **options: Any) -> None:
    """Save a data set: all of it or, on any failure, nothing.

    Args:
        data: The data set.
        uri: Where to, such as npz:log.npz, log.npz or minari:my/log-v0.
        force: Overwrite a data set that exists.
        options: The format's own, such as `columns` for tables.
    """
    found, location = _find(uri)
    if data.labels is not None and not getattr(found, "KEEPS_LABELS", False):
        extra = {**data.metadata.extra, LABELS: data.labels.to_json(data.lengths)}
        data = replace(data, metadata=replace(data.metadata, extra=extra), labels=None)
    found.save(data, location, force=force, **_accepted(uri, found, options))


def _with_labels(data: "Trajectories") -> "Trajectories":
    """Return the data with the labels that `save` kept among its metadata, if any."""
    if data.labels is not None or LABELS not in data.metadata.extra:
        return data
    from trajstitch.data.labels import Labels

    extra = dict(data.metadata.extra)
    labels = Labels.from_json(extra.pop(LABELS), data.lengths, data.metadata.source)
    return replace(data, metadata=replace(data.metadata, extra=extra), labels=labels)


def require_free(uri: str, *, force: bool) -> None:
    """Raise if saving to `uri` would be refused, so that a user learns it before hours of work."""
    found, location = _find(uri)
    found.require_free(location, force=force)


def exists(uri: str) -> bool:
    """Return whether something is stored at `uri`."""
    return stored_at(uri).exists()


def stored_file(uri: str) -> Path | None:
    """Return the file that holds a data set; None if its format keeps sets in folders of a store."""
    found, location = _find(uri)
    return found.stored_at(location) if found.ENDINGS else None


def require_apart(source: str, target: str) -> None:
    """Raise if both URIs name the same place: a source is never overwritten, even with `force`."""
    if stored_at(source) == stored_at(target):
        raise InputError(f"{target} is the source itself, which is never overwritten: choose another target")


def parse(uri: str) -> tuple[str, str]:
    """Split a URI into its scheme and location; raise if it has no known scheme or no location.

    A path without a scheme is a file of the format that its name's ending tells.
    """
    scheme, colon, location = uri.partition(":")
    if not colon:
        if (told := scheme_of(uri)) is not None:
            return told, uri
        patterns = ", ".join(map(_pattern, FORMATS))
        raise InputError(
            f"{uri!r} has no scheme, and its ending tells no format: write one of {patterns}; built-in sets such as "
            "hopper/medium-replay are loaded by trajstitch.load and can't be written"
        )
    if scheme not in FORMATS:
        raise InputError(
            f"unknown scheme {scheme!r} in {uri!r}{did_you_mean(scheme, FORMATS, cutoff=0.5)}: use one of "
            f"{', '.join(f'{name}:...' for name in FORMATS)}, or a built-in set such as hopper/medium-replay"
        )
    if not location:
        raise InputError(f"{uri!r} names no data set: write {_pattern(scheme)}")
    if "\0" in location:
        raise InputError(f"{uri!r} holds a null character, which no file's name can: write {_pattern(scheme)}")
    return scheme, location


def scheme_of(path: str) -> str | None:
    """Return the scheme of the format whose files have names that end like this path; None if there is none."""
    return next((scheme for scheme in FORMATS if path.endswith(_format(scheme).ENDINGS)), None)


def _find(uri: str) -> tuple[Format, str]:
    scheme, location = parse(uri)
    return _format(scheme), location


def _format(scheme: str) -> Format:
    where = f"the line {scheme!r}: {FORMATS[scheme]!r} of `formats.FORMATS`"
    try:
        found = import_module(FORMATS[scheme])
    except (ImportError, ValueError) as error:
        raise InputError(f"{where} names no module ({error})") from error
    missing = [name for name in PARTS if not hasattr(found, name)]
    if missing:
        raise InputError(f"{where} names no format: the module lacks {', '.join(missing)}")
    return cast(Format, found)


def stored_at(uri: str) -> Path:
    """Return the file or folder that holds a data set, whether or not it exists."""
    found, location = _find(uri)
    return found.stored_at(location).resolve()


def _pattern(scheme: str) -> str:
    endings = _format(scheme).ENDINGS
    return f"{scheme}:FILE{endings[0]}" if endings else f"{scheme}:ID"


def _accepted(uri: str, found: Format, options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in found.OPTIONS:
            known = {scheme: _format(scheme).OPTIONS for scheme in FORMATS}
            takers = [f"{scheme}:" for scheme, names in known.items() if name in names]
            if not takers:
                raise InputError(f"no format takes `{name}`{did_you_mean(name, sum(known.values(), ()))}")
            raise InputError(f"`{name}` goes with {' and '.join(takers)} URIs, not with {uri}")
    return given
