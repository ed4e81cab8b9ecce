"""Safetensors files: written whole or not at all, with a checksum, and read with an error that names the file."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trajstitch.errors import InputError
from trajstitch.storage.atomic import replacing
from trajstitch.storage.checksums import CHANGED, KEY, checksum

AGAIN = "copy it again, or remove it to make it again"
"""What to do about a file that has changed."""
AT_ONCE = 64 << 20
"""Bytes of arrays that are read before the file is opened again."""
PLACE = "belongs_to"
"""The key of a file's metadata with the run and the place in it that it was written for."""


def save_tensors(
    tensors: dict[str, np.ndarray],
    path: str | Path,
    facts: dict[str, str] | None = None,
    *,
    force: bool = True,
    belongs_to: str = "",
) -> None:
    """Write arrays by name, with `facts` as the file's metadata. An existing file is replaced in one step.

    `belongs_to` is the place in a run that the file is for, if it is for one alone.
    """
    tensors = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    facts = {**(facts or {}), **({PLACE: belongs_to} if belongs_to else {})}
    facts |= {KEY: _checksum(tensors, facts)}
    with replacing(Path(path), force=force) as fresh:
        try:
            save_file(tensors, fresh, facts)
        except SafetensorError as error:  # of a full disk too, with the system's number in its text
            number = re.search(r"(?:code:|os error) (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error)) from error
        _sort_facts(fresh)
        fresh.chmod(0o644)  # safetensors makes files that only their owner can read


def _sort_facts(path: Path) -> None:
    """Put the file's metadata in order, which the library leaves to chance: the same content is the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def read_tensors(path: str | Path, belongs_to: str = "") -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return a file's arrays by name, and its metadata.

    Raise if either has changed since they were written, or if they were written for another place than `belongs_to`.
    """
    if Path(path).exists() and not Path(path).is_file():  # the library would wait for a pipe's writer for ever
        raise InputError(f"{path}: is a folder, a device or a pipe, not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            names, facts = sorted(file.keys()), file.metadata() or {}
        tensors = dict(_arrays(path, names))
    except Exception as error:  # the library's own, of many types
        raise InputError(f"{path}: can't be read ({error}): {AGAIN}") from error
    written = facts.pop(KEY, None)
    if written is not None and written != _checksum(tensors, facts):
        raise InputError(f"{path}: {CHANGED}: {AGAIN}")
    place = facts.pop(PLACE, belongs_to)
    if belongs_to and place != belongs_to:
        raise InputError(f"{path}: belongs to another run, or to another place in this one: remove it to make it again")
    return tensors, facts


def _arrays(path: str | Path, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a file's arrays.

    An open file keeps in memory all that was read from it, and opening it takes longer the more arrays it has: it is
    opened again from time to time.
    """
    left = list(reversed(names))
    while left:
        read = 0
        with safe_open(path, framework="numpy") as file:
            while left and read < AT_ONCE:
                name = left.pop()
                array = file.get_tensor(name)
                if array.dtype == bool and array.view(np.uint8).max(initial=0) > 1:  # NumPy counts them wrongly
                    raise ValueError(f"{name} holds booleans that are neither true nor false")
                read += array.nbytes
                yield name, array


def _checksum(tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> str:
    named = (part for name in sorted(tensors) for part in (name, tensors[name]))
    return checksum(json.dumps(facts, sort_keys=True), *named)


def under(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
