"""Where a user's name for a data set leads: a URI, or a built-in set that is collected on first use.

Also what a run records about its data set, and how it loads it again.
"""

from dataclasses import asdict
from typing import Any

from trajstitch import formats
from trajstitch.benchmark import sets
from trajstitch.data.source_facts import source_facts
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.progress import logger
from trajstitch.storage.runs import Run, damaged


def resolve(source: str) -> str:
    """Return the URI of a data set: `source` itself, or where a built-in set is in the Minari store.

    Raise for a scheme or set that doesn't exist, with the most similar name that does.
    """
    if not _is_name(source):
        formats.parse(source)
        return source
    try:
        return f"minari:{sets.built_in(source).minari_id}"
    except InputError:
        hint = formats.scheme_hint(source)
        if not hint:
            raise
    raise InputError(f"no built-in set {source!r}{hint}: `trajstitch sets` lists them")


def load(source: str, *, columns: Columns | None = None, allow_nonfinite: bool = False) -> Trajectories:
    """Load a data set by its URI, or a built-in set by its name (the first time, it is collected at full size).

    `columns` says what the columns of a table hold. NaN and infinite values raise an error unless allowed.
    """
    uri = resolve(source)
    if _is_name(source):
        if columns is not None:
            raise InputError(f"`columns` goes with table: URIs, not with the built-in set {source}")
        _collect_once(source)
    return formats.load(uri, allow_nonfinite=allow_nonfinite, columns=columns)


def require_apart(source: str, target: str) -> None:
    """Raise if saving to `target` would overwrite `source` or a built-in set."""
    place = resolve(target)
    if _is_name(target):
        raise InputError(f"{target} is a built-in set and can't be written: give a target such as minari:my/set-v0")
    formats.require_apart(resolve(source), place)


def _is_name(source: str) -> bool:
    """Return whether a source is the name of a built-in set, not a URI."""
    return ":" not in source


def _collect_once(name: str) -> None:
    """Collect a built-in set into the local Minari store, unless it is there."""
    from trajstitch.benchmark.collect import Collect, collect
    from trajstitch.formats import minari

    place = sets.built_in(name).minari_id
    if not minari.exists(place):
        logger.info(f"{name} is not in the local Minari store yet: collecting it once")
        minari.save(collect(Collect(name)), place, force=False)


def describe_source(source: str, columns: Columns | None, data: Trajectories) -> dict[str, Any]:
    """Return what a run's config records about its data set."""
    return source_facts(data, source, None if columns is None else asdict(columns))


def reload_source(run: Run) -> Trajectories:
    """Load a run's data set again; raise if it has changed since."""
    source, columns = run.fact("source", str), None
    if run.config.get("columns") is not None:
        with damaged(run.path("run.json"), "start a new run"):
            stored = run.config["columns"].items()
            given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in stored}
            columns = Columns(**given)
    try:
        data = load(source, columns=columns)
    except InputError as error:
        raise InputError(f"{run.folder}: its data can't be loaded again: {error}") from error
    if data.fingerprint != run.fact("fingerprint", str):
        raise InputError(
            f"{source} has changed since {run.folder} was made from it: it had {run.fact('transitions', int):,} "
            f"steps and a mean return of {run.fact('mean_return', (int, float)):g}, and has {data.steps:,} and "
            f"{data.returns.mean():g}"
        )
    return data
