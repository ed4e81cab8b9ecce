"""Minari data sets by their id: read from the local store (or downloaded into it) and written to it.

A set is a folder ID/data with metadata.json and main_data.hdf5, whose layout is in `episodes`. Sets in Minari's Arrow
formats have other files, whose layout is in `arrow_episodes`.
"""

import contextlib
import json
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from gymnasium import Space

from trajstitch.data import environments, spaces
from trajstitch.data.trajectories import Finding, Metadata, Trajectories
from trajstitch.errors import InputError, did_you_mean
from trajstitch.formats import arrow_episodes, episodes, hdf5, seal
from trajstitch.formats.columns import listed
from trajstitch.formats.metadata import parse_object
from trajstitch.formats.seal import opened
from trajstitch.progress import logger
from trajstitch.storage import atomic
from trajstitch.storage.checksums import KEY, sealed
from trajstitch.storage.links import require_no_way_out

ENDINGS: tuple[str, ...] = ()
OPTIONS: tuple[str, ...] = ("allow_large", "allow_changed")

OWN_NAMESPACE = "trajstitch/"
"""Where the built-in sets are: no remote has them."""

DATA_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
NAMESPACE_FILE = "namespace_metadata.json"

WRITTEN = "trajstitch_episodes"
"""Key of the number of episodes that we wrote, which its checksum is of; Minari may have added others."""
COUNTS = ("total_episodes", "total_steps", "dataset_size")
"""Keys that Minari changes where it adds episodes."""

WRITTEN_VERSION = "0.5.3"
"""The oldest Minari that reads what we write: Minari refuses sets of versions newer than itself."""

OWN_KEYS = {
    *("dataset_id", "minari_version", "data_format", "jpeg_encoding", "dataset_size", "total_episodes", "total_steps"),
    *("observation_space", "action_space", "env_spec", "eval_env_spec"),
}
"""Keys of metadata.json that describe how and what a set stores; all others become the metadata's `extra`."""


def load(location: str, *, allow_large: bool = False, allow_changed: bool = False) -> Trajectories:
    """Load the set with this Minari id, downloading it if it is not in the local store."""
    _require_id(location)
    folder = stored_at(location)
    require_no_way_out(folder, "the set's folder")
    if not _is_complete(folder):
        _download(location)
        require_no_way_out(folder, "the set's folder")
    source = f"minari:{location}"
    stored = _read_metadata(folder / "data", source)
    written = stored.get(WRITTEN)
    if not allow_changed:
        _require_unchanged(stored, source)
    stored = {name: one for name, one in stored.items() if name not in (KEY, WRITTEN)}
    found = _spaces(stored, source)
    if stored["total_episodes"] < 1:
        raise InputError(f"{source}: the data set has no episodes")
    findings = []
    if stored["data_format"] == "hdf5":

        def spaces_of(file: hdf5.Reader) -> tuple[Space, Space]:
            nonlocal found
            if found is None:
                found = (
                    episodes.stored_space(file, "observations", source),
                    episodes.stored_space(file, "actions", source),
                )
                findings.append(Finding("spaces", "note", "no spaces are recorded: taken from the arrays, unbounded"))
            _require_supported(*found, source)
            return found

        file, count = folder / "data" / DATA_FILE, stored["total_episodes"]
        arrays, left_out = episodes.read(file, spaces_of, count, source, allow_large=allow_large)
    else:
        if found is None:
            raise InputError(f"{source}: its spaces can't be read (none are recorded): download or save it again")
        if stored["data_format"] not in ("arrow", "parquet"):
            raise InputError(f"{source}: its format {stored['data_format']!r} is unknown: update trajstitch")
        _require_supported(*found, source)
        arrays, left_out = arrow_episodes.read(
            folder / "data",
            stored["data_format"],
            *found,
            stored["total_episodes"],
            source,
            allow_large=allow_large,
        )
    assert found is not None
    observation_space, action_space = found
    if left_out:
        findings.append(Finding("infos", "note", f"not carried over: {listed(left_out)}"))
    if stored["total_steps"] != len(arrays["rewards"]):
        detail = f"metadata.json counts {stored['total_steps']:,} steps, the episodes hold {len(arrays['rewards']):,}"
        findings.append(Finding("metadata", "note", detail))
    extra = {name: value for name, value in stored.items() if name not in OWN_KEYS}
    references = [extra.pop(name, None) for name in ("ref_min_score", "ref_max_score")]
    for name in ("env_spec", "eval_env_spec"):
        if stored.get(name) is not None:
            environments.parse_spec(stored[name], source)
    metadata = Metadata(
        name=location,
        source=source,
        environment=stored.get("env_spec"),
        evaluation_environment=stored.get("eval_env_spec"),
        observation_space=observation_space,
        action_space=action_space,
        reference=None if references == [None, None] else environments.parse_reference(references, source),
        extra=extra,
        findings=tuple(findings),
    )
    count = written if isinstance(written, int) else None
    return opened(Trajectories(**arrays, metadata=metadata), count, allow_changed=allow_changed)


def save(data: Trajectories, location: str, *, force: bool) -> None:
    """Write a set that Minari itself loads, whole or not at all."""
    require_free(location, force=force)
    # Rows without a recorded space are vectors.
    observation_space = data.metadata.observation_space or spaces.vector(data.observation_size, data.observations.dtype)
    action_space = data.metadata.action_space or spaces.vector(data.action_size, data.actions.dtype)
    for name, space, size in (
        ("observation", observation_space, data.observation_size),
        ("action", action_space, data.action_size),
    ):
        if spaces.flat_size(space) != size:
            raise InputError(f"minari:{location}: the {name}s have {size} columns, which {space} does not hold")
    folder, data = stored_at(location), seal.sealed(data)
    with atomic.replacing(folder, force=force, folder=True) as fresh, _namespaces_of(folder):
        (fresh / "data").mkdir(parents=True)
        with hdf5.writing(fresh / "data" / DATA_FILE) as file:
            episodes.write(file, data, observation_space, action_space, f"saving minari:{location}")
        size = (fresh / "data" / DATA_FILE).stat().st_size
        stored = _metadata(data, location, observation_space, action_space, size)
        stored = {**stored, WRITTEN: len(data)}
        (fresh / "data" / METADATA_FILE).write_text(json.dumps({**stored, KEY: _seal(stored)}))


def require_free(location: str, *, force: bool) -> None:
    """Raise unless the set may be written to the local store."""
    _require_id(location)
    folder = stored_at(location)
    for parent in _inside_store(folder.parent):
        if (parent / "data").exists():
            raise InputError(f"minari:{location}: {parent} is a data set, which can't hold another: choose another id")
    if folder.is_dir() and not (folder / "data").is_dir():
        raise InputError(f"minari:{location}: {folder} is a namespace with sets of its own: choose another id")
    atomic.require_free(folder, force=force, folder=True)


# The store


def exists(location: str) -> bool:
    """Return whether the local store has the whole set."""
    return _is_complete(stored_at(location))


def local_sets() -> dict[str, dict[str, int]]:
    """Return every set of the local store that can be read, with its numbers of episodes and steps."""
    found, root = {}, stored_at("")
    for folder, folders, _ in os.walk(root, followlinks=True):
        place = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "data" not in folders:
            continue
        folders.clear()
        name = place.relative_to(root).as_posix()
        with contextlib.suppress(InputError):
            _require_id(name)
            require_no_way_out(place, "the set's folder")
            stored = _read_metadata(place / "data", name)
            if stored.get("dataset_id") == name:
                found[name] = {"episodes": stored["total_episodes"], "steps": stored["total_steps"]}
    return dict(sorted(found.items()))


def _require_id(identifier: str) -> None:
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(identifier)
    except (ValueError, TypeError):
        valid = False
    else:
        # Minari accepts these two, but its store can't hold them.
        valid = "//" not in identifier and "data" not in identifier.split("/")
    if not valid:
        raise InputError(
            f"{identifier!r} is not a Minari id: write NAMESPACE/NAME-v0, with letters, digits, - and _, a version at "
            "the end, and no part called data (such as minari:my-lab/hopper/medium-v0)"
        )


def stored_at(location: str = "") -> Path:
    """Return the folder of a set in the local store; the store's own without an id."""
    from minari.storage import get_dataset_path

    try:
        return get_dataset_path(location)
    except OSError as error:
        raise InputError(
            f"the Minari store can't be opened ({error}): name another folder in MINARI_DATASETS_PATH"
        ) from error


def _inside_store(folder: Path) -> Iterator[Path]:
    """Yield the folder and those above it, up to but without the store's root."""
    root = stored_at()
    while folder != root:
        yield folder
        folder = folder.parent


def _is_complete(folder: Path) -> bool:
    """Return whether a set is complete; an interrupted download leaves a folder without metadata."""
    return (folder / "data" / METADATA_FILE).is_file()


def _download(identifier: str) -> None:
    import minari

    if not _remote_answers():
        raise _not_there(identifier, "and Minari's remote can't be reached from here")
    logger.info(f"minari:{identifier} is not in the local store: asking Minari's remote for it")
    try:
        # Minari prints to stdout, which is for results.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minari.download_dataset(identifier)
    except ImportError as error:
        raise _not_there(identifier, 'to download sets, pip install "minari[hf]"') from error
    except ValueError as error:
        raise _not_there(identifier, "and Minari's remote has no such set that this Minari reads") from error
    except Exception as error:
        # The remote's library raises errors of many types: no network, no such repository, no space.
        reason = str(error).partition("\n")[0]
        raise _not_there(identifier, f"and could not be downloaded ({type(error).__name__}: {reason})") from error
    if not _is_complete(stored_at(identifier)):
        raise _not_there(identifier, "and its download came out incomplete: try again")


def _remote_answers() -> bool:
    """Return whether the default remote's host answers: its library would retry for half a minute."""
    try:
        from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
    except ImportError:
        return True
    if HF_HUB_OFFLINE:
        return False
    if getproxies() or not os.environ.get("MINARI_REMOTE", "hf:").startswith("hf:"):
        return True
    host = urlsplit(ENDPOINT)
    try:
        with socket.create_connection((host.hostname, host.port or 443), timeout=5):
            return True
    except OSError:
        return False


def _not_there(identifier: str, why: str) -> InputError:
    if identifier.startswith(OWN_NAMESPACE):
        advice = "`trajstitch collect SET` makes the built-in sets"
        return InputError(f"minari:{identifier} is not in the local store: {advice}")
    hint = did_you_mean(identifier, local_sets(), cutoff=0.5)
    return InputError(f"minari:{identifier} is not in the local store{hint}, {why}; `trajstitch sets` lists the store")


@contextlib.contextmanager
def _namespaces_of(folder: Path) -> Iterator[None]:
    """Register the namespaces above a set after the block that writes it, unless the block fails."""
    yield
    made = []
    try:
        for namespace in _inside_store(folder.parent):
            path = namespace / NAMESPACE_FILE
            if not path.exists():
                made.append(path)
                with atomic.replacing(path, force=True) as fresh:
                    fresh.write_text("{}")
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise


# Metadata


def _read_metadata(folder: Path, source: str) -> dict[str, Any]:
    try:
        stored = parse_object((folder / METADATA_FILE).read_bytes())
        for name, kind in (("data_format", str), ("total_episodes", int), ("total_steps", int)):
            if type(stored[name]) is not kind:
                raise TypeError(f"{name} is {stored[name]!r}")
    except PermissionError as error:
        raise InputError(f"{source}: no permission to read {folder}") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{source}: its {METADATA_FILE} is damaged ({reason}): download or save it again") from error
    return stored


def _seal(stored: dict[str, Any]) -> str:
    """Return the checksum of metadata, without what Minari changes where it adds episodes to a set."""
    return sealed({name: one for name, one in stored.items() if name not in (KEY, *COUNTS)})[KEY]


def _require_unchanged(stored: dict[str, Any], source: str) -> None:
    """Raise if metadata that we wrote has changed; a set that Minari has added episodes to is not."""
    marked = [name in stored for name in (KEY, WRITTEN, seal.CONTENT)]
    count = stored.get(WRITTEN)
    if any(marked) and not (
        all(marked) and stored[KEY] == _seal(stored) and isinstance(count, int) and count <= stored["total_episodes"]
    ):
        raise seal.changed(source, "metadata")


def _spaces(stored: dict[str, Any], source: str) -> tuple[Space, Space] | None:
    """Return the spaces that the set records; None if it records none, as older sets don't.

    Minari would start the environment to learn them. Loading never does.
    """
    if "observation_space" in stored and "action_space" in stored:
        try:
            return (
                spaces.from_json(stored["observation_space"], "observation"),
                spaces.from_json(stored["action_space"], "action"),
            )
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
    if stored.get("env_spec") is not None:
        try:
            environments.spec(Metadata(source=source, environment=stored["env_spec"]))
        except InputError as error:
            raise InputError(f"{source}: its spaces can't be read: {error}") from error
    return None


def _require_supported(observation_space: Space, action_space: Space, source: str) -> None:
    try:
        spaces.require_supported(observation_space, "observation")
        spaces.require_supported(action_space, "action")
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _metadata(
    data: Trajectories, identifier: str, observation_space: Space, action_space: Space, size: int
) -> dict[str, Any]:
    import minari

    version = WRITTEN_VERSION if WRITTEN_VERSION in minari.supported_dataset_versions else minari.__version__
    stored: dict[str, Any] = {
        **data.metadata.extra,
        "dataset_id": identifier,
        "minari_version": version,
        "data_format": "hdf5",
        "dataset_size": round(size / 1e6, 1),
        "total_episodes": len(data),
        "total_steps": data.steps,
        "observation_space": spaces.to_json(observation_space),
        "action_space": spaces.to_json(action_space),
    }
    for name in ("author", "author_email"):
        if isinstance(stored.get(name), str):
            stored[name] = [stored[name]]
    if data.metadata.environment is not None:
        stored["env_spec"] = data.metadata.environment
    if data.metadata.evaluation_environment is not None:
        stored["eval_env_spec"] = data.metadata.evaluation_environment
    if data.metadata.reference is not None:
        stored["ref_min_score"], stored["ref_max_score"] = data.metadata.reference
    return stored
