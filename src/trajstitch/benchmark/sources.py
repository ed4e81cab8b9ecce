"""Where a user's name for a data set leads: a URI, or a built-in set that is collected on first use.

Also what a run records about its data set, and how it loads it again.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trajstitch import formats
from trajstitch.benchmark import sets
from trajstitch.data.mend import Missing
from trajstitch.data.source_facts import absolute, source_facts
from trajstitch.data.stitch_record import StitchRecord, original_of
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.progress import logger
from trajstitch.storage.runs import Run, damaged

READING = ("missing", "resample", "allow_changed")
"""How a data set was read, beside its columns; recorded if given."""


def resolve(source: str) -> str:
    """Return the place of a data set: `source` itself, or where a built-in set is in the Minari store.

    Raise for a scheme or set that doesn't exist, with the most similar name that does.
    """
    if not _is_name(source):
        formats.parse(source)
        return source
    return f"minari:{sets.built_in(source).minari_id}"


def uri_of(source: str | Path) -> str:
    """Return what the user names as a URI (or a built-in set's name), where it is a file's path."""
    text = str(source)
    if ":" in text and not isinstance(source, Path):
        return text
    if (scheme := formats.scheme_of(text)) is not None:
        return f"{scheme}:{text}"
    if isinstance(source, Path) or Path(text).is_file():
        raise InputError(f"{text}: its name doesn't tell its format: write it as a URI, such as npz:{text}")
    return text


def load(
    source: str | Path,
    *,
    columns: Columns | None = None,
    missing: Missing | None = None,
    resample: float | None = None,
    allow_nonfinite: bool = False,
    allow_large: bool = False,
    allow_changed: bool | None = None,
    fetch: bool = True,
) -> Trajectories:
    """Load a data set, and check that its values are finite.

    Args:
        source: A URI, a file's path, or a built-in set's name (the first time, it is collected at full size).
        columns: What the columns of a table hold; guessed from their names if not given.
        missing: What mends NaN, infinite and blank values and gaps in time: "split", "interpolate" or "drop". If not
            given, they raise an error that counts them.
        resample: A new time between two steps in seconds, for logs with times.
        allow_nonfinite: Leave values that are not finite as they are.
        allow_large: Load a file that declares far more data than it holds.
        allow_changed: Load a file that trajstitch wrote and that has changed since.
        fetch: Without it, nothing is downloaded or collected.
    """
    source = uri_of(source)
    uri = resolve(source)
    if not fetch and uri.startswith("minari:") and not _is_in_store(uri):
        raise InputError(
            f"{source} is not in the local Minari store, and is not fetched only because a file names it: "
            f"`trajstitch inspect {source}` fetches it"
        )
    if _is_name(source):
        if columns is not None:
            raise InputError(f"`columns` goes with table: URIs, not with the built-in set {source}")
        _collect_once(source)
    options = {"missing": missing, "resample": resample, "columns": columns}
    allowed = {"allow_large": allow_large, "allow_changed": bool(allow_changed)}
    return formats.load(uri, allow_nonfinite=allow_nonfinite, **allowed, **options)


def require_apart(source: str, target: str) -> None:
    """Raise if saving to `target` would overwrite `source` or a built-in set."""
    source, place = uri_of(source), resolve(target)
    if _is_name(target):
        raise InputError(f"{target} is a built-in set and can't be written: give a target such as minari:my/set-v0")
    formats.require_apart(resolve(source), place)


def _is_name(source: str) -> bool:
    """Return whether a source is the name of a built-in set, not a URI or a file's path."""
    return ":" not in source and formats.scheme_of(source) is None


def _is_in_store(uri: str) -> bool:
    """Return whether the local store holds all of a set: of one whose download was interrupted, there is a folder."""
    from trajstitch.formats import minari

    return minari.exists(formats.parse(uri)[1])


def _collect_once(name: str) -> None:
    """Collect a built-in set into the local Minari store, unless it is there."""
    from trajstitch.benchmark.collect import Collect, collect
    from trajstitch.formats import minari

    place = sets.built_in(name).minari_id
    if not minari.exists(place):
        logger.info(f"{name} is not in the local Minari store yet: collecting it once")
        minari.save(collect(Collect(name)), place, force=False)


def describe_source(
    source: str | Path,
    columns: Columns | None,
    data: Trajectories,
    missing: Missing | None = None,
    resample: float | None = None,
    allow_changed: bool | None = None,
) -> dict[str, Any]:
    """Return what a run's config records about its data set; files by their absolute paths, for use from anywhere."""
    facts = source_facts(data, uri_of(source), None if columns is None else asdict(columns))
    return facts | _given(missing=missing, resample=resample, allow_changed=allow_changed)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def load_original(data: Trajectories, *, allow_large: bool = False) -> Trajectories:
    """Return what was logged: the data itself, the original episodes in it, or the data that it was stitched from."""
    if (original := original_of(data)) is not None:
        return original
    where, advice = data.metadata.source or data.metadata.name, "name the data that it was stitched from with `data`"
    record = StitchRecord.of(data.metadata)
    if record is None or not record.source:
        raise InputError(f"{where}: is stitched and doesn't know its original: {advice}")
    try:
        original = load(
            str(record.source["source"]), allow_large=allow_large, fetch=False, **reading_from(record.source)
        )
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: its original can't be loaded ({error}): {advice}") from error
    if original.fingerprint != record.source.get("fingerprint"):
        raise InputError(f"{where}: {record.source['source']} has changed since it was stitched: {advice}")
    return original


def with_source(
    data: Trajectories,
    source: str,
    columns: Columns | None,
    fingerprint: str,
    missing: Missing | None = None,
    resample: float | None = None,
    allow_changed: bool | None = None,
) -> Trajectories:
    """Return stitched data with where its original is, so that `load_original` finds it."""
    record = StitchRecord.of(data.metadata)
    if record is None:
        return data
    facts = {
        "source": absolute(uri_of(source)),
        "columns": None if columns is None else asdict(columns),
        "fingerprint": fingerprint,
        **_given(missing=missing, resample=resample, allow_changed=allow_changed),
    }
    return replace(data, metadata=replace(record, source=facts).added_to(data.metadata))


def reading_from(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a data set was read, as arguments of `load`, from what was recorded about it."""
    return {"columns": columns_from(stored.get("columns")), **{name: stored.get(name) for name in READING}}


def recorded_reading(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return of facts about a data set those that say how it was read."""
    return {"columns": facts["columns"], **{name: facts[name] for name in READING if name in facts}}


def columns_from(stored: dict[str, Any] | None) -> Columns | None:
    """Return columns from the JSON values that `describe_source` gave."""
    if stored is None:
        return None
    given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in stored.items()}
    return Columns(**given)


def reload_source(run: Run, *, allow_large: bool = False) -> Trajectories:
    """Load a run's data set again; raise if it has changed since."""
    source = run.fact("source", str)
    with damaged(run.path("run.json"), "start a new run"):
        reading = reading_from(run.config)
    try:
        data = load(source, allow_large=allow_large, fetch=False, **reading)
    except InputError as error:
        raise InputError(f"{run.folder}: its data can't be loaded again: {error}") from error
    if data.fingerprint != run.fact("fingerprint", str):
        raise InputError(
            f"{source} has changed since {run.folder} was made from it: it had {run.fact('transitions', int):,} "
            f"steps and a mean return of {run.fact('mean_return', (int, float)):g}, and has {data.steps:,} and "
            f"{data.returns.mean():g}"
        )
    return data
