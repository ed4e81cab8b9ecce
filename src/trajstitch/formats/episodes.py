"""Minari's HDF5 layout: one group per episode, one dataset per array (in nested groups if a space is a Dict).

Minari uses h5py's high-level objects, which takes longer than moving the data. Here the low-level ones read directly
into the flat arrays and write directly from them.

Provenance is in the infos, where Minari expects T+1 rows: one for the reset, then one per step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from h5py import h5a, h5d, h5g, h5p, h5s, h5t  # pyright: ignore[reportAttributeAccessIssue]
from jaxtyping import Integer, Shaped

from trajstitch.data import ragged, spaces
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import hdf5
from trajstitch.formats.columns import listed
from trajstitch.formats.files import library
from trajstitch.formats.rows import read_provenance
from trajstitch.formats.spellings import as_flags
from trajstitch.progress import progress

FLAGS = {"terminated": "terminations", "truncated": "truncations"}
PROVENANCE = {item.name: f"infos/provenance/{item.name}" for item in fields(Provenance)}

SMALLEST_EPISODE = 16 << 10
"""Bytes of data that reading an episode costs as much time as, at least."""

LARGEST_CHUNK = 1 << 20
"""Bytes. A smaller array is one chunk, so it is read and written in one call."""


@dataclass(frozen=True)
class _Part:
    """One dataset of each episode, and the array that holds them one after the other."""

    path: str
    """The dataset's path in an episode's group."""
    rows: Shaped[np.ndarray, "rows ..."]
    extra: int = 0
    """Rows of an episode in addition to its steps: 1 for observations and infos."""

    def of(self, episode: int, offsets: Integer[np.ndarray, " episodes_plus_1"]) -> Shaped[np.ndarray, "rows ..."]:
        """Return the rows of one episode."""
        start, stop = offsets[episode] + episode * self.extra, offsets[episode + 1] + (episode + 1) * self.extra
        return self.rows[start:stop]


def _path(name: str, leaf: tuple[str, ...]) -> str:
    return "/".join((name, *leaf))


# Reading


def read(
    path: Path,
    spaces_of: Callable[[hdf5.Reader], tuple[Space, Space]],
    episodes: int,
    source: str,
    *,
    allow_large: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return the first `episodes` of a file as arguments of Trajectories, and the names of what is left out.

    `spaces_of` gives the spaces of observations and actions, which the file may be needed for (`stored_space`).
    """
    with hdf5.reading(path, source, allow_large=allow_large) as file:
        file.budget.take(SMALLEST_EPISODE * episodes)
        offsets = _offsets(file, episodes, source)
        observation_space, action_space = spaces_of(file)
        stitched = "episode_0/infos/provenance" in file
        shapes = {
            **{_path("observations", leaf): (box.shape, 1) for leaf, box in spaces.leaves(observation_space)},
            **{_path("actions", leaf): (box.shape, 0) for leaf, box in spaces.leaves(action_space)},
            **dict.fromkeys(("rewards", *FLAGS.values()), ((), 0)),
            **dict.fromkeys(PROVENANCE.values() if stitched else (), ((), 1)),
        }
        dtypes = {name: _dtype(file, name, source) for name in shapes}
        steps = int(offsets[-1])
        sizes = {name: (steps + extra * episodes, *shape) for name, (shape, extra) in shapes.items()}
        file.budget.take(sum(math.prod(size) * dtypes[name].itemsize for name, size in sizes.items()))
        parts = [_Part(name, np.empty(size, dtypes[name]), shapes[name][1]) for name, size in sizes.items()]
        _fill(file, parts, offsets, source)
        left_out = [f"infos/{name}" for name in file.names("episode_0/infos") if name != "provenance"]
        attributes = file.attributes("episode_0")
        left_out += [f"each episode's {name}" for name in attributes if name not in ("id", "total_steps")]
    arrays = {part.path: part.rows for part in parts}
    provenance = None
    if stitched:
        steps = np.arange(offsets[-1]) + ragged.owners(np.diff(offsets)) + 1
        provenance = read_provenance({name: arrays[path][steps] for name, path in PROVENANCE.items()}, source)
    return {
        "observations": _join("observations", observation_space, arrays),
        "actions": _join("actions", action_space, arrays),
        "rewards": arrays["rewards"],
        **{name: as_flags(arrays[path], f"{source}: {path}") for name, path in FLAGS.items()},
        "offsets": offsets,
        "provenance": provenance,
    }, left_out


def stored_space(file: hdf5.Reader, name: str, source: str) -> Space:
    """Return the space of observations or actions by their arrays in the first episode, without bounds."""
    file.budget.take(hdf5.SMALLEST_DATASET)  # groups that hold one group twice have more paths than can be counted
    if parts := sorted(file.names(f"episode_0/{name}")):
        return Dict([(part, stored_space(file, f"{name}/{part}", source)) for part in parts])
    stored = file.dataset(f"episode_0/{name}")
    if stored is None or not stored.shape or stored.dtype.kind not in "fiub":
        raise InputError(f"{source}: episode 0 holds no array of {name}: download or save it again")
    return Box(-np.inf, np.inf, stored.shape[1:], stored.dtype.type if stored.dtype.kind == "f" else np.float64)


def _offsets(file: hdf5.Reader, episodes: int, source: str) -> Integer[np.ndarray, " {episodes}+1"]:
    lengths = np.empty(episodes, np.int64)
    for episode in range(episodes):
        try:
            rewards = h5d.open(file.file.id, b"episode_%d/rewards" % episode)
            # Asked for its shape, a virtual dataset opens the files that it is of.
            hdf5.require_own_storage(rewards, f"{source}: episode {episode}: rewards")
            shape = rewards.shape
        except InputError:
            raise
        except Exception as error:  # h5py's own errors are of many types
            raise InputError(
                f"{source}: episode {episode} of {episodes:,} is missing or has no rewards: download or save it again"
            ) from error
        if shape is None or len(shape) != 1:
            raise InputError(f"{source}: episode {episode}: rewards have shape {shape}: expected one number per step")
        lengths[episode] = shape[0]
    return ragged.offsets_of(lengths)


def _dtype(file: hdf5.Reader, name: str, source: str) -> np.dtype:
    """Return the dtype to read an array in: its own, but floating-point for rewards stored as integers."""
    stored = file.dataset(f"episode_0/{name}")
    if stored is None:
        present = listed(file.names("episode_0") or ["nothing"])
        raise InputError(f"{source}: episode 0 holds no {name} (it has {present}): save it again")
    if stored.dtype.kind in "iu" and name == "rewards":
        return np.dtype(np.float64)
    if stored.dtype.kind not in "fiub":
        raise InputError(f"{source}: {name} have dtype {stored.dtype}: expected numbers")
    return stored.dtype.newbyteorder("=")


def _fill(file: hdf5.Reader, parts: list[_Part], offsets: Integer[np.ndarray, " episodes_plus_1"], source: str) -> None:
    names = [part.path.encode() for part in parts]
    types = [h5t.py_create(part.rows.dtype, logical=True) for part in parts]
    with progress(f"loading {source}", int(offsets[-1])) as advance:
        for episode in range(len(offsets) - 1):
            with library(f"{source}: episode {episode}"):
                group = h5g.open(file.file.id, b"episode_%d" % episode)
            for part, name, kind in zip(parts, names, types, strict=True):
                target, where = part.of(episode, offsets), f"{source}: episode {episode}: {part.path}"
                with library(where):
                    try:
                        dataset = h5d.open(group, name)
                    except KeyError as error:
                        raise InputError(f"{source}: episode {episode} holds no {part.path}: save it again") from error
                    properties = hdf5.require_own_storage(dataset, where)
                    shape, dtype = dataset.shape, dataset.dtype
                if shape != target.shape:
                    raise InputError(
                        f"{where} has shape {shape}, but its {offsets[episode + 1] - offsets[episode]:,} steps need "
                        f"{target.shape}"
                    )
                if not np.can_cast(dtype, part.rows.dtype):
                    raise InputError(
                        f"{where} have dtype {dtype}, but {part.rows.dtype} in episode 0: store both with one dtype"
                    )
                with library(where):
                    file.budget.take(max(0, hdf5.size_of_chunk(properties, dtype.itemsize) - target.nbytes))
                    dataset.read(h5s.ALL, h5s.ALL, target, kind)
            advance(int(offsets[episode + 1] - offsets[episode]))


def _join(name: str, space: Space, arrays: dict[str, np.ndarray]) -> Shaped[np.ndarray, "rows size"]:
    rows = spaces.join(space, {leaf: arrays.pop(_path(name, leaf)) for leaf, _ in spaces.leaves(space)})
    return rows if rows.dtype.kind == "f" else rows.astype(np.float64)


# Writing


def write(
    file: hdf5.Output, data: Trajectories, observation_space: Space, action_space: Space, description: str
) -> None:
    """Write every episode into an empty file."""
    parts = [
        *(
            _Part(_path("observations", leaf), rows, 1)
            for leaf, rows in spaces.split(observation_space, data.observations).items()
        ),
        *(_Part(_path("actions", leaf), rows) for leaf, rows in spaces.split(action_space, data.actions).items()),
        _Part("rewards", data.rewards),
        *(_Part(path, getattr(data, name)) for name, path in FLAGS.items()),
    ]
    if data.provenance is not None:
        parts += [
            _Part(path, _with_reset(getattr(data.provenance, name), data), 1) for name, path in PROVENANCE.items()
        ]
    names = [part.path.encode() for part in parts]
    types = [h5t.py_create(part.rows.dtype, logical=True) for part in parts]
    integer, scalar = h5t.py_create(np.dtype(np.int64)), h5s.create(h5s.SCALAR)
    nested = h5p.create(h5p.LINK_CREATE)
    nested.set_create_intermediate_group(True)
    # Each chunk is written once, so a cache would only copy it.
    uncached = h5p.create(h5p.DATASET_ACCESS)
    uncached.set_chunk_cache(0, 0, 1.0)
    layouts: dict[tuple[int, int], tuple[h5s.SpaceID, h5p.PropDCID]] = {}
    with progress(description, data.steps) as advance:
        for episode, steps in enumerate(data.lengths.tolist()):
            group = h5g.create(file.id, b"episode_%d" % episode)
            for name, value in ((b"id", episode), (b"total_steps", steps)):
                h5a.create(group, name, integer, scalar).write(np.array(value))
            for number, part in enumerate(parts):
                rows = np.ascontiguousarray(part.of(episode, data.offsets))
                layout = layouts.get((number, steps)) or layouts.setdefault((number, steps), _layout(rows))
                dataset = h5d.create(group, names[number], types[number], *layout, nested, uncached)
                dataset.write(h5s.ALL, h5s.ALL, rows, types[number])
            file.check()
            advance(steps)


def _layout(rows: Shaped[np.ndarray, "rows ..."]) -> tuple[h5s.SpaceID, h5p.PropDCID]:
    """Return an array's dataspace and chunks; it is extensible, since Minari appends to episodes."""
    row = max(1, rows[:1].nbytes)
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_chunk((max(1, min(len(rows), LARGEST_CHUNK // row)), *rows.shape[1:]))
    plan.set_fill_time(h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # the same data gives the same bytes
    return h5s.create_simple(rows.shape, (h5s.UNLIMITED, *rows.shape[1:])), plan


def _with_reset(values: Shaped[np.ndarray, " steps"], data: Trajectories) -> Shaped[np.ndarray, " steps+{len(data)}"]:
    """Return one value per observation: a placeholder for an episode's first, then those of its steps."""
    nothing = {"f": np.nan, "i": -1, "u": 0, "b": False}[values.dtype.kind]
    rows = np.full(data.steps + len(data), nothing, values.dtype)
    rows[data.state_rows + 1] = values
    return rows
