"""The folder of a stitching's run: where the files of a seed are, and what is read from them.

`pipeline` says which files these are. A file may be damaged, or copied from another run: what is read is checked.
"""

from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from trajstitch import formats
from trajstitch.data import ragged
from trajstitch.data.source_facts import source_facts
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.stitching.acceptance import Summary
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.graph import StitchGraph
from trajstitch.storage.runs import Run, damaged

_OF_A_STITCHING = (
    *(f"{name}.safetensors" for name in ("models", "model-*", "graph", "progress", "simulator-check")),
    *(f"{name}.json" for name in ("passes", "seconds", "summary", "stitched", "commits", "simulator-check")),
    "result.npz",
)
MAKES = ("saved.json", *(f"{place}{name}" for place in ("", "seed-*/", "stitching-*/") for name in _OF_A_STITCHING))
"""The files of a stitching, and of its simulator check, which are removed if it is started again."""


class Place(NamedTuple):
    """Where in a run's folder the files of a seed are."""

    shared: str
    """Of the models and the graph."""
    own: str
    """Of the result and what each pass did."""


def place(run: Run, seed: int | None = None) -> Place:
    """Return where the files of a seed are; the first seed's if not given."""
    first, seeds = run.fact("seed", int), run.fact("seeds", int)
    stitchings = run.fact("stitching", dict).get("stitchings", 1)
    if not isinstance(stitchings, int):
        raise InputError(f"{run.path('run.json')}: its config has no usable 'stitchings': start a new run")
    seed, last = first if seed is None else seed, first + max(seeds, stitchings) - 1
    if not first <= seed <= last:
        known = f"the seeds are {first} to {last}" if last > first else f"its seed is {first}"
        raise InputError(f"{run.folder}: holds no seed {seed}; {known}")
    if stitchings > 1:
        return Place(f"stitching-{seed}/", f"stitching-{seed}/")
    return Place("", f"seed-{seed}/" if seeds > 1 else "")


def keep_job(run: Run, data: Trajectories, config: StitchConfig, seed: int, seeds: int) -> None:
    """Record which data, config and seeds a run is for; raise if it is for others."""
    facts = source_facts(data)
    tests = {name: f"{type(test).__module__}:{type(test).__qualname__}" for name, test in config.tests.items()}
    job = {name: facts.pop(name) for name in ("fingerprint", "action_bounds")} | {"seed": seed, "seeds": seeds}
    run.keep_job(job | {"stitching": asdict(config), "jump_tests": tests}, **facts)


def keep_graph(run: Run, graph: StitchGraph) -> None:
    """Write the graph into a run."""
    with run.writing():
        graph.save(run.path("graph.safetensors"), run.place("graph"))


def read_graph(run: Run, where: str, data: Trajectories) -> StitchGraph:
    """Return the graph kept in a run; raise if it isn't one of this data."""
    path = run.path(f"{where}graph.safetensors")
    graph = StitchGraph.load(path, run.place(f"{where}graph"))
    nodes, edges = len(data.observations), len(graph.edges)
    with damaged(path):
        by_node = (graph.episode, graph.last, graph.terminal, *graph.logged.values())
        by_edge = (*graph.edges.arrays().values(), graph.by_successor, graph.by_neighbour)
        index, offsets = graph.neighbours.index, graph.neighbours.offsets
        fits = (
            all(len(array) == nodes for array in by_node)
            and all(len(array) == edges for array in by_edge)
            and np.array_equal(graph.episode, ragged.owners(data.lengths + 1))
            and all(array.dtype.kind in "iu" for array in (index, offsets, graph.edges.source, graph.edges.target))
            and offsets.shape == (nodes + 1,)
            and offsets[0] == 0
            and offsets[-1] == len(index)
            and bool((np.diff(offsets) >= 0).all())
            and all(_within(array, nodes) for array in (index, graph.edges.source, graph.edges.target))
        )
        if not fits:
            raise ValueError("it is the graph of other data")
    return graph


def keep_result(run: Run, where: str, after: Trajectories, passes: list[dict[str, Any]]) -> None:
    """Write stitched data into a run, and then what each pass did, with which the stage is done."""
    with run.writing():
        formats.save(after, f"npz:{run.path(f'{where}result.npz')}", force=True)
        run.write_json(f"{where}passes", {"passes": passes, "result": after.fingerprint})


def read_result(run: Run, where: str, data: Trajectories | None = None) -> tuple[Trajectories, list[dict[str, Any]]]:
    """Return the stitched data kept in a run, and what each pass did; raise if it isn't made from this data."""
    path = run.path(f"{where}passes.json")
    stored = run.read_json(f"{where}passes")
    with damaged(path):
        passes, fingerprint = [asdict(Summary(**one)) for one in stored["passes"]], str(stored["result"])
        if not all(isinstance(value, int | float) for one in passes for value in one.values()):
            raise TypeError("what a pass did is no number")
    path = run.path(f"{where}result.npz")
    with damaged(path, f"remove it and {where}passes.json to make them again"):
        found = formats.load(f"npz:{path}")
        if found.fingerprint != fingerprint:
            raise ValueError("it is another result than this run's")
        if data is None:
            return found, passes
        origin = found.provenance
        fits = (
            origin is not None
            and (found.observation_size, found.action_size) == (data.observation_size, data.action_size)
            and (data.provenance is not None or _starts_in(origin, data))
        )
        if not fits:
            raise ValueError("it was not made from this data")
    return replace(found, metadata=data.metadata), passes  # as it was before it was kept


def _starts_in(origin: Provenance, data: Trajectories) -> bool:
    """Return whether every step starts in a state of logged data; jumps may leave an episode's last state too."""
    if not _within(origin.source_episode, len(data)):
        return False
    return bool(((origin.source_step >= 0) & (origin.source_step <= data.lengths[origin.source_episode])).all())


def _within(index: np.ndarray, count: int) -> bool:
    return not len(index) or (int(index.min()) >= 0 and int(index.max()) < count)
