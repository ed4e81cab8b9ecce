"""NPZ files: our own layout, which keeps everything, and flat rows as other people save them.

Our layout, for T steps in E episodes (nothing is pickled):

observations    (T+E, n) floats     each episode's T_e+1 observations, one episode after the other
actions         (T, m) floats
rewards         (T,) floats
terminated      (T,) booleans
truncated       (T,) booleans
offsets         (E+1,) integers     where each episode's steps start, then T
metadata        JSON text           see `metadata.to_json`; optional
provenance_*    (T,)                one array per field of Provenance, if the data has it

Any other file has one row per step in arrays with the usual names (`spellings.SPELLINGS`). Episodes end at the flags
and where the episode label changes, or are given by `offsets`, `episode_ends` or `episode_starts`. Floats keep their
dtype, integer and boolean observations and rewards become float32 (float64 if float32 would round them), and integer
actions are refused, since discrete actions are not supported.
"""

import io
import math
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer, Shaped

from trajstitch.data import ragged, spaces
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import files
from trajstitch.formats.columns import listed
from trajstitch.formats.files import library, reason_of
from trajstitch.formats.limits import Budget
from trajstitch.formats.metadata import from_json, is_ours, to_json
from trajstitch.formats.rows import from_rows, last_rows, read_provenance, with_note_on_unknown
from trajstitch.formats.seal import changed
from trajstitch.formats.spellings import SPELLINGS, as_flags, ends, require_booleans, spelling_of
from trajstitch.storage import atomic
from trajstitch.storage.checksums import checksum

ENDINGS: tuple[str, ...] = (".npz",)
OPTIONS: tuple[str, ...] = ("allow_large", "allow_changed")
require_free, stored_at = files.require_free, files.stored_at

ARRAYS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")
BOUNDARIES = ("offsets", "episode_ends", "episode_starts")
EXACT_IN_FLOAT32 = 1 << 24
BLOCK = 1 << 20
"""Bytes read at a time."""
LONGEST_HEADER = 10_000
"""Bytes of the text that says what an array is; NumPy takes no longer one either."""
SEAL = b"trajstitch "
"""Start of the archive's comment in files of ours: the checksum of the members' names and checksums follows."""


def load(location: str, *, allow_large: bool = False, allow_changed: bool = False) -> Trajectories:
    """Load an NPZ file, ours or anybody's."""
    path, source = Path(location), f"npz:{location}"
    files.require_readable(path)
    with _reading(path, source, allow_large=allow_large) as archive:
        if archive.archive.comment.startswith(SEAL) and not allow_changed and archive.archive.comment != archive.seal():
            raise changed(source)
        text = archive.text("metadata")
        if text is None or not is_ours(text):  # in other people's files, `metadata` may be anything
            return _from_foreign(archive, Metadata(name=path.stem, source=source))
        return _from_ours(archive, from_json(text, source, allow_changed=allow_changed))


def save(data: Trajectories, location: str, *, force: bool) -> None:
    """Write an NPZ file in our layout, without compression."""
    arrays = {name: getattr(data, name) for name in ARRAYS}
    if data.provenance is not None:
        arrays |= {f"provenance_{item.name}": getattr(data.provenance, item.name) for item in fields(Provenance)}
    with atomic.replacing(Path(location), force=force) as fresh, zipfile.ZipFile(fresh, "w") as archive:
        for name, array in {**arrays, "metadata": np.array(to_json(data.metadata))}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = _seal(archive)


class _Archive:
    """The arrays of an NPZ file by name, each read when it is asked for, once its declared size is known to be sane."""

    def __init__(self, archive: zipfile.ZipFile, path: Path, budget: Budget) -> None:
        self.archive, self.path, self.budget = archive, path, budget
        self.members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            if self.members.setdefault(member.filename.removesuffix(".npy"), member) is not member:
                raise InputError(f"{path}: holds two arrays named {member.filename!r}: keep one of them")

    def seal(self) -> bytes:
        return _seal(self.archive)

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __contains__(self, name: object) -> bool:
        return name in self.members

    def __getitem__(self, name: str) -> np.ndarray:
        with (
            library(f"{self.path}:", f"is not a whole NPZ file: {name} is damaged"),
            self.archive.open(self.members[name]) as file,
        ):
            shape, fortran, dtype = _header(file)
            if dtype.hasobject:
                raise InputError(
                    f"{self.path}: {name} holds pickled objects, which can run code and are never loaded: save plain "
                    "arrays (np.savez with numeric arrays, one row per step)"
                )
            if dtype.kind == "f" and dtype.itemsize > spaces.WIDEST:
                raise InputError(f"{self.path}: {name} has dtype {dtype}, which few formats keep: save it as float64")
            size = math.prod(shape) * dtype.itemsize
            if size != self.members[name].file_size - file.tell():
                raise InputError(f"{self.path}: {name} declares another size than it has: copy or download it again")
            self.budget.take(size)
            content = np.empty(size, np.uint8)
            at = 0
            while at < size:
                part = file.read(min(BLOCK, size - at))
                if not part:
                    raise EOFError("it is cut short")
                content[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
            if dtype.kind == "b":
                require_booleans(content, f"{self.path}: {name}")
            array = content.view(dtype).reshape(shape, order="F" if fortran else "C")
        return array.astype(dtype.newbyteorder("="), copy=False)

    @contextmanager
    def _open(self, name: str) -> Iterator[Any]:
        fault = f"is not a whole NPZ file: {name} is damaged"
        with library(f"{self.path}:", fault), self.archive.open(self.members[name]) as file:
            yield file

    def text(self, name: str) -> str | None:
        """Return a scalar text; None if the array is none, or anything else."""
        if name not in self.members:
            return None
        with (
            library(f"{self.path}:", f"is not a whole NPZ file: {name} is damaged"),
            self.archive.open(self.members[name]) as file,
        ):
            shape, _, dtype = _header(file)
        return str(self[name]) if shape == () and dtype.kind == "U" and dtype.itemsize else None


def _seal(archive: zipfile.ZipFile) -> bytes:
    """Return the seal of what is in an archive; each member's content has a checksum, which reading it compares."""
    members = sorted(f"{one.filename} {one.CRC} {one.file_size}" for one in archive.infolist())
    return SEAL + checksum(*members).encode()


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape, whether it is in Fortran's order, and the dtype of a .npy file.

    NumPy reads a header as long as the file says, gigabytes too, before it finds that it is too long.
    """
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): ("<H", np.lib.format.read_array_header_1_0),
        (2, 0): ("<I", np.lib.format.read_array_header_2_0),
    }
    if version not in read:
        raise ValueError(f"version {version} of the .npy format")
    form, parse = read[version]
    length = file.read(struct.calcsize(form))
    size = struct.unpack(form, length)[0]
    if size > LONGEST_HEADER:
        raise ValueError(f"a header of {size:,} bytes")
    with warnings.catch_warnings():  # of headers that Python 2 wrote
        warnings.simplefilter("ignore")
        return parse(io.BytesIO(length + file.read(size)))


@contextmanager
def _reading(path: Path, source: str, *, allow_large: bool) -> Iterator[_Archive]:
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        raise InputError(f"{path} is a single array, not an NPZ file: save with np.savez, one key per array")
    if not start.startswith(b"PK"):
        raise InputError(f"{path} is not an NPZ file: what np.savez writes is expected")
    try:
        archive = zipfile.ZipFile(path)
    except Exception as error:  # zipfile's own errors are of many types
        raise InputError(f"{path}: is not a whole NPZ file ({reason_of(error)}): copy or download it again") from error
    with archive:
        yield _Archive(archive, path, Budget(path, source, allow_large=allow_large))


def _from_ours(archive: _Archive, metadata: Metadata) -> Trajectories:
    names = {item.name: f"provenance_{item.name}" for item in fields(Provenance)}
    has_provenance = any(key in archive for key in names.values())
    for key in (*ARRAYS, *(names.values() if has_provenance else ())):
        if key not in archive:
            raise InputError(f"{metadata.source}: holds no {key}: write it again with `trajstitch convert`")
    provenance = {name: archive[key] for name, key in names.items()} if has_provenance else None
    return _trajectories({name: archive[name] for name in ARRAYS}, metadata, provenance)


def _from_foreign(archive: _Archive, metadata: Metadata) -> Trajectories:
    source = metadata.source
    keys = {part: spelling_of(part, archive.members, source) for part in SPELLINGS}

    def take(part: str, rows: int | None = None) -> tuple[np.ndarray, str]:
        """Return the array of `part`, which must have `rows` rows if given, and its name for errors."""
        key = keys[part]
        if key is None:
            raise InputError(
                f"{source}: holds no {part} (looked for {', '.join(SPELLINGS[part])}; it has "
                f"{listed([*archive] or ['nothing'])}): rename the array"
            )
        array = archive[key]
        if rows is not None and array.ndim and len(array) != rows:
            raise InputError(
                f"{source}: {key} has {len(array):,} rows, but {keys['rewards']} has {rows:,}: give one row per step"
            )
        return array, f"{source}: {key}"

    rewards = _rewards(*take("rewards"))
    rows = len(rewards)
    actions = _actions(*take("actions", rows))
    observations = _matrix(*take("observations"))
    following = _matrix(*take("next_observations")) if keys["next_observations"] else None
    if following is not None and following.shape != observations.shape:
        raise InputError(
            f"{source}: {keys['next_observations']} has shape {following.shape}, but {keys['observations']} has "
            f"{observations.shape}: they must agree"
        )
    flags = {
        part: as_flags(_column(*take(part, rows)), f"{source}: {keys[part]}")
        for part in ("terminated", "truncated", "done")
        if keys[part]
    }
    terminated, truncated, findings = ends(
        flags.get("terminated"), flags.get("truncated"), flags.get("done"), rows, source
    )
    dividers = [name for name in (*BOUNDARIES, *SPELLINGS["episodes"]) if name in archive]
    if len(dividers) > 1:
        raise InputError(f"{source}: {' and '.join(map(repr, dividers))} both divide the rows: keep one of them")
    unused = sorted({*archive} - {*keys.values(), *dividers})
    if unused:
        findings = (*findings, Finding("left out", "note", f"arrays that are not used: {listed(unused)}"))
    metadata = replace(metadata, findings=findings)

    offsets = None
    if keys["episodes"]:
        labels = _column(*take("episodes", rows))
    elif dividers:
        offsets = _offsets(_column(archive[dividers[0]], f"{source}: {dividers[0]}"), dividers[0], rows, source)
        labels = ragged.owners(np.diff(offsets))
    elif flags or len(observations) == rows + 1:
        labels = None
    else:
        raise InputError(
            f"{source}: nothing says where episodes end: add terminated and truncated flags, an episode label for "
            "each row, or offsets"
        )
    if len(observations) == rows:
        data = from_rows(observations, actions, rewards, terminated, truncated, following, metadata, labels)
        return with_note_on_unknown(data)
    if offsets is None:
        offsets = ragged.offsets_from_ends(last_rows(terminated, truncated, labels))
    if len(observations) != rows + len(offsets) - 1:
        raise InputError(
            f"{source}: {keys['observations']} has {len(observations):,} rows, but {keys['rewards']} has {rows:,} in "
            f"{len(offsets) - 1:,} episode(s): give one observation per step, or one more for each episode"
        )
    arrays = (observations, actions, rewards, terminated, truncated, offsets)
    return _trajectories(dict(zip(ARRAYS, arrays, strict=True)), metadata, None)


def _trajectories(
    arrays: Mapping[str, Any], metadata: Metadata, provenance: Mapping[str, np.ndarray] | None
) -> Trajectories:
    try:
        return Trajectories(
            **dict[str, Any](_of_right_kind(arrays, metadata.source)),
            metadata=metadata,
            provenance=None if provenance is None else read_provenance(provenance, metadata.source),
        )
    except InputError as error:
        raise error if metadata.source in str(error) else InputError(f"{metadata.source}: {error}") from error


def _of_right_kind(arrays: Mapping[str, np.ndarray], source: str) -> Mapping[str, np.ndarray]:
    """Return the arrays; raise if one has another rank or dtype than our layout's."""
    for name, array in arrays.items():
        rank = 2 if name in ("observations", "actions") else 1
        kind = {"terminated": "b", "truncated": "b", "offsets": "i"}.get(name, "f")
        if array.ndim != rank or array.dtype.kind != kind:
            raise InputError(f"{source}: {name} has dtype {array.dtype} and shape {array.shape}: write it again")
    return arrays


def _matrix(array: np.ndarray, where: str) -> Float[np.ndarray, "rows columns"]:
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0:
        images = "; images are not supported" if array.ndim > 3 else ""
        raise InputError(
            f"{where} has shape {array.shape}, not (rows, values): give each step one row of numbers{images}"
        )
    return _floats(array, where)


def _actions(array: np.ndarray, where: str) -> Float[np.ndarray, "rows columns"]:
    if array.dtype.kind in "iub":
        raise InputError(
            f"{where} has dtype {array.dtype}: discrete actions are not supported; if these are quantities, save them "
            "as floats"
        )
    return _matrix(array, where)


def _rewards(array: np.ndarray, where: str) -> Float[np.ndarray, " rows"]:
    return _floats(_column(array, where), where)


def _column(array: np.ndarray, where: str) -> Shaped[np.ndarray, " rows"]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{where} has shape {array.shape}, not (rows,): give each step one value")
    return array


def _floats(array: np.ndarray, where: str) -> Float[np.ndarray, "..."]:
    if array.dtype.kind == "f":
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind not in "iub":
        raise InputError(f"{where} has dtype {array.dtype}: it must hold numbers")
    exact = array.dtype.itemsize <= 2 or not array.size or max(-int(array.min()), int(array.max())) <= EXACT_IN_FLOAT32
    return array.astype(np.float32 if exact else np.float64)


def _offsets(array: np.ndarray, name: str, rows: int, source: str) -> Integer[np.ndarray, " episodes_plus_1"]:
    """Return offsets from the array `name`: offsets, episode ends (the last rows or those after them) or starts."""
    if array.dtype == bool and name != "offsets":
        if len(array) != rows:
            raise InputError(f"{source}: {name} has {len(array):,} rows for {rows:,} steps")
        return np.unique(np.concatenate(([0], np.flatnonzero(array) + (name == "episode_ends"), [rows])))
    if array.dtype.kind not in "iu":
        raise InputError(f"{source}: {name} has dtype {array.dtype}: it must hold row numbers")
    array = array.astype(np.int64)
    if name == "episode_ends":
        array = np.concatenate(([0], array + 1 if array[-1:] == rows - 1 else array))
    elif name == "episode_starts":
        array = np.append(array, rows)
    if len(array) < 2 or array[0] != 0 or array[-1] != rows or (np.diff(array) < 0).any():
        raise InputError(f"{source}: {name} must rise from 0 to the number of steps ({rows:,})")
    return array
