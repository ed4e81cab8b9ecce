"""D4RL's HDF5 files: one row per step in the arrays observations, actions, rewards, terminals and timeouts.

The v2 files have next_observations too, the v0 files don't, and some v0 files have no timeouts either. We write v2
files with some arrays of our own:

metadata/trajstitch     our metadata as JSON text; files that have it are read back exactly as they were saved
infos/episode           the episode of each row
infos/truncated         the truncations, if they differ from the timeouts
infos/provenance/*      where each step comes from, if the data has provenance

If no episode's final state is known, there are no next_observations, as in v0 files; if some are, the others are NaN.

D4RL's readers take the next row as the next state unless a row is flagged, and some refuse rows with both flags. So
`timeouts` is true at every end of an episode that is not a termination, also if the data doesn't call it a truncation.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from trajstitch.data import environments, spaces
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import files, hdf5
from trajstitch.formats.columns import listed
from trajstitch.formats.metadata import from_json, to_json
from trajstitch.formats.rows import BLOCK, from_rows, read_provenance, with_note_on_unknown
from trajstitch.formats.seal import changed, opened, sealed
from trajstitch.formats.spellings import as_flags
from trajstitch.progress import logger, progress
from trajstitch.storage import atomic

ENDINGS: tuple[str, ...] = (".hdf5", ".h5")
OPTIONS: tuple[str, ...] = ("allow_large", "allow_changed")
require_free, stored_at = files.require_free, files.stored_at

OURS = "metadata/trajstitch"
MARK = "written_by_trajstitch"
"""An attribute that files of ours have too: one whose metadata is lost is no file of others."""
ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def load(location: str, *, allow_large: bool = False, allow_changed: bool = False) -> Trajectories:
    """Load a D4RL file, ours or anybody's."""
    path, source = Path(location), f"d4rl:{location}"
    with hdf5.reading(path, source, allow_large=allow_large) as file:
        if OURS in file:
            return opened(_from_ours(file, source, allow_changed=allow_changed), allow_changed=allow_changed)
        if MARK in file.attributes("/") and not allow_changed:
            raise changed(source, "structure")
        return _from_foreign(file, path.stem, source)


def save(data: Trajectories, location: str, *, force: bool) -> None:
    """Write a D4RL file, v2 unless final states are unknown. Episodes without steps are left out."""
    empty = int((data.lengths == 0).sum())
    if empty == len(data):
        raise InputError(f"d4rl:{location}: the data has no steps, so there are no rows to write")
    if empty:
        logger.info(f"d4rl:{location}: {empty:,} episodes without a step are left out, as they have no rows")
        data = data[np.flatnonzero(data.lengths)]
    data = sealed(data)
    with atomic.replacing(Path(location), force=force) as fresh, hdf5.writing(fresh) as file:
        _write(file, data, f"saving d4rl:{location}")


# Reading


class _Rows:
    """The arrays of a file, each checked when it is used."""

    def __init__(self, file: hdf5.Reader, source: str) -> None:
        self.file, self.source = file, source
        self.rows = self.dataset("rewards").shape[0]

    def dataset(self, key: str, rank: int = 1, kinds: str = "fiu") -> hdf5.Stored:
        found = self.file.dataset(key)
        if found is None:
            present = listed(self.file.names() or ["nothing"])
            raise InputError(f"{self.source}: holds no {key} (it has {present}): is it a D4RL file?")
        if found.dtype.kind not in kinds or found.dtype.itemsize > spaces.WIDEST:
            wanted = "floating-point numbers" if kinds == "f" else "numbers"
            raise InputError(f"{self.source}: {key} has dtype {found.dtype}: expected {wanted}")
        # Some of D4RL's own files have shape (steps, 1) here.
        if len(found.shape) != rank and not (rank == 1 and found.shape[1:] == (1,)):
            wanted = "one row per step, (steps, size)" if rank == 2 else "one number per step, (steps,)"
            raise InputError(f"{self.source}: {key} has shape {found.shape}: expected {wanted}")
        if key != "rewards" and found.shape[0] != self.rows:
            raise InputError(
                f"{self.source}: {key} has {found.shape[0]:,} rows, but rewards has {self.rows:,}: they must agree"
            )
        self.file.take(found)
        return found

    def matrix(self, key: str) -> hdf5.Stored:
        return self.dataset(key, 2, "f")

    def vector(self, key: str, kinds: str = "fiub") -> Shaped[np.ndarray, " rows"]:
        return self.dataset(key, 1, kinds)[()].reshape(self.rows)

    def flags(self, key: str) -> Bool[np.ndarray, " rows"]:
        return as_flags(self.vector(key), f"{self.source}: {key}")

    def trajectories(
        self,
        terminated: Bool[np.ndarray, " rows"],
        truncated: Bool[np.ndarray, " rows"],
        metadata: Metadata,
        episodes: Integer[np.ndarray, " rows"] | None = None,
    ) -> Trajectories:
        observations = self.matrix("observations")
        following = self.matrix("next_observations") if "next_observations" in self.file else None
        if following is not None and following.shape != observations.shape:
            raise InputError(
                f"{self.source}: next_observations has shape {following.shape}, but observations has "
                f"{observations.shape}: they must agree"
            )
        rewards = self.vector("rewards", "fiu")
        return from_rows(
            observations,
            self.matrix("actions")[()],
            rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64),
            terminated,
            truncated,
            following,
            metadata,
            episodes,
        )


def _from_ours(file: hdf5.Reader, source: str, *, allow_changed: bool) -> Trajectories:
    rows = _Rows(file, source)
    text = file.dataset(OURS)
    if text is None or not text.is_text or text.shape != ():
        raise InputError(f"{source}: its {OURS} is not a text: convert the original data again")
    file.take(text)
    metadata = from_json(file.text(text), source, allow_changed=allow_changed)
    truncated = rows.flags("infos/truncated" if "infos/truncated" in file else "timeouts")
    data = rows.trajectories(rows.flags("terminals"), truncated, metadata, rows.vector("infos/episode", "iu"))
    if "infos/provenance" not in file:
        return data
    arrays = {item.name: rows.vector(f"infos/provenance/{item.name}") for item in fields(Provenance)}
    return replace(data, provenance=read_provenance(arrays, source))


def _from_foreign(file: hdf5.Reader, name: str, source: str) -> Trajectories:
    rows = _Rows(file, source)
    environment = environments.d4rl_environment(name)
    terminated = rows.flags("terminals")
    findings = []
    if "timeouts" in file:
        truncated = rows.flags("timeouts")
    else:
        limit = None
        if environment and "next_observations" not in file:
            limit = environments.time_limit(environment)
        truncated = np.zeros(rows.rows, bool) if limit is None else _time_outs(terminated, limit)
        detail = f"no timeouts: {'no episode is known to have one' if limit is None else f'put after {limit:,} steps'}"
        findings.append(Finding("ends", "note", detail))
    extra, left_out = _others(file)
    if left_out:
        findings.append(Finding("infos", "note", f"not carried over: {listed(left_out)}"))
    actions = rows.matrix("actions")
    bound = 1.0 if environment else np.inf
    metadata = Metadata(
        name=name,
        source=source,
        environment=environments.spec_json(environment) if environment else None,
        observation_space=spaces.vector(rows.matrix("observations").shape[1], rows.matrix("observations").dtype),
        action_space=spaces.vector(actions.shape[1], actions.dtype, -bound, bound),
        extra=extra,
        findings=tuple(findings),
    )
    return with_note_on_unknown(rows.trajectories(terminated, truncated, metadata))


def _time_outs(terminated: Bool[np.ndarray, " rows"], limit: int) -> Bool[np.ndarray, " rows"]:
    """Return where episodes reach the time limit, if they end only there and at terminations."""
    truncated = np.zeros(len(terminated), bool)
    start = 0
    for stop in (*(np.flatnonzero(terminated) + 1), len(terminated)):
        truncated[start + limit - 1 : stop : limit] = True
        start = stop
    return truncated & ~terminated


def _others(file: hdf5.Reader) -> tuple[dict[str, Any], list[str]]:
    """Return the file's own metadata (texts and numbers), and the names of what is left out."""
    extra: dict[str, Any] = {}
    left_out = [key for key in file.names() if key not in (*ARRAYS, "metadata")]
    for key in file.names("metadata"):
        value = file.dataset(f"metadata/{key}")
        if value is None or value.shape != () or not (value.is_text or value.dtype.kind in "fiub"):
            left_out.append(f"metadata/{key}")
            continue
        file.take(value)
        extra[key] = file.text(value) if value.is_text else value[()].item()
    return extra, left_out


# Writing


def _write(file: hdf5.Output, data: Trajectories, description: str) -> None:
    timeouts = (data.truncated | data.last_of_episode) & ~data.terminated
    columns = {
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "timeouts": timeouts,
        "infos/episode": data.episode_of_step.astype(np.int32),
    }
    if (timeouts != data.truncated).any():
        columns["infos/truncated"] = data.truncated
    if data.provenance is not None:
        columns |= {f"infos/provenance/{item.name}": getattr(data.provenance, item.name) for item in fields(Provenance)}
    file.attrs[MARK] = True
    for key, values in {**columns, OURS: to_json(data.metadata)}.items():
        file[key] = values
    keys = [("observations", 0)]
    if len(data.unknown_rows) < np.count_nonzero(data.lengths):
        keys.append(("next_observations", 1))
    with progress(description, len(keys) * data.steps) as advance:
        for key, shift in keys:
            target = file.create_dataset(key, (data.steps, data.observation_size), data.observations.dtype)
            for start in range(0, data.steps, BLOCK):
                rows = data.state_rows[start : start + BLOCK]
                target[start : start + BLOCK] = data.observations[rows + shift]
                file.check()
                advance(len(rows))
