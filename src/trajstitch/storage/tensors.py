"""Safetensors files: written whole or not at all, read with an error that names the file."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trajstitch.errors import InputError
from trajstitch.storage.atomic import replacing


def save_tensors(
    tensors: dict[str, np.ndarray], path: str | Path, facts: dict[str, str] | None = None, *, force: bool = True
) -> None:
    """Write arrays by name, with `facts` as the file's metadata. An existing file is replaced in one step."""
    with replacing(Path(path), force=force) as fresh:
        try:
            save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, fresh, facts)
        except SafetensorError as error:  # of a full disk too, with the system's number in its text
            number = re.search(r"(?:code:|os error) (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error)) from error
        fresh.chmod(0o644)  # safetensors makes files that only their owner can read


def read_tensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return a file's arrays by name, and its metadata."""
    try:
        with safe_open(path, framework="numpy") as file:
            names, facts = sorted(file.keys()), file.metadata() or {}
        tensors = {}
        for name in names:  # opened again for each array: an open file keeps in memory all that was read from it
            with safe_open(path, framework="numpy") as file:
                tensors[name] = file.get_tensor(name)
    except Exception as error:  # the library's own, of many types
        raise InputError(f"{path}: can't be read ({error})") from error
    return tensors, facts


def read_facts(path: str | Path) -> dict[str, str]:
    """Return a file's metadata alone."""
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: can't be read ({error})") from error


def under(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with the prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
