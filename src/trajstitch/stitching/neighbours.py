"""Neighbour search: the k nearest states of other episodes, those within a radius, or both.

Every search engine (KD-tree, faiss, the accelerator) only proposes. Distances are then computed again in double
precision and sorted by distance and index, and a row whose proposals can't be proven complete is searched again with
more. So the exact engines agree to the last index on every machine, however they round.

A robot that stands still logs one state many times. No more copies of a state are searched than can be among the
nearest of any other, and an episode searches for it once.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple

import faiss
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer
from scipy.spatial import KDTree

from trajstitch.data import ragged
from trajstitch.engines.workers import LOCAL, Workers, cores
from trajstitch.errors import InputError
from trajstitch.learning.bounds import Bounds
from trajstitch.progress import logger, progress

Method = Literal["auto", "tree", "flat", "accelerator", "approximate"]
Rows = Float[np.ndarray, "rows size"]

BLOCK = 16_384
"""Rows searched at once."""
TREE_DIMENSIONS = 12
"""Up to this many dimensions the KD-tree is the fastest exact engine on the CPU; above it is faiss's plain scan."""
LARGE_FOR_TREE, LARGE_FOR_SCAN = 500_000, 50_000
"""From this many states on, the CPU searches an approximate index instead (benchmarks/neighbours.py)."""
SAMPLE = 1000
"""Rows on which an approximate index's recall is measured."""


@dataclass(frozen=True)
class NeighbourSearch:
    """Which states count as neighbours."""

    k: Annotated[int, Bounds(1)] | None = 16
    """At most this many neighbours, the nearest; None: all within the radius. Larger finds more candidates, and takes
    longer."""
    radius: Annotated[float, Bounds(0)] | Literal["authors"] | None = None
    """Largest distance of a neighbour; None: no limit. authors: the radius that the paper's authors use for Hopper,
    HalfCheetah and Walker2d, on raw states; other tasks get the 16 nearest standardised states."""
    standardise: bool = True
    """On: measure distances between standardised states. Off: in the data's own units."""
    method: Method = "auto"
    """Search engine; all but `approximate` are exact. auto: the fastest for the data and the machine."""
    recall: Annotated[float, Bounds(0, 1)] = 0.99
    """Share of the true neighbours that an approximate index must find, measured on a sample."""

    def __post_init__(self) -> None:
        if self.k is None and self.radius is None:
            raise InputError("a neighbour search needs `k`, `radius` or both")

    def for_task(self, task: str | None) -> "NeighbourSearch":
        """Return the search for a task: with its authors' radius in place of `authors`, or the default without one."""
        if self.radius != "authors":
            return self
        return replace(self, radius=AUTHORS_RADII[task]) if task in AUTHORS_RADII else NeighbourSearch()


AUTHORS_RADII = {"hopper": 0.1, "halfcheetah": 3.0, "walker2d": 1.0}
"""The paper's authors' radius by task, on raw states."""
DEFAULT = NeighbourSearch()


@dataclass(frozen=True)
class Neighbours:
    """Row i's neighbours are `index[offsets[i]:offsets[i + 1]]`, nearest first."""

    offsets: Integer[np.ndarray, " rows_plus_1"]
    index: Integer[np.ndarray, " pairs"]

    def of(self, rows: Integer[np.ndarray, " some"]) -> tuple[np.ndarray, np.ndarray]:
        """Return the neighbours of several rows as pairs (position in `rows`, neighbour), row by row."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        return ragged.owners(counts), self.index[ragged.rows_of(self.offsets[rows], counts)]

    def renamed(self, rows: Integer[np.ndarray, " all"], names: Integer[np.ndarray, " names"]) -> "Neighbours":
        """Return the neighbours of these rows, renumbered by `names`."""
        offsets = ragged.offsets_of(np.diff(self.offsets)[rows])
        return Neighbours(offsets, names[self.of(rows)[1]].astype(np.int32, copy=False))


class Places(NamedTuple):
    """States, and the group (episode) of each."""

    states: Rows
    group: Integer[np.ndarray, " rows"]

    def at(self, rows: Integer[np.ndarray, " some"] | slice) -> "Places":
        return Places(self.states[rows], self.group[rows])


@dataclass(frozen=True)
class Proposal:
    """What an engine proposes for some rows."""

    index: Integer[np.ndarray, "rows found"]
    """Candidates; -1 where there is none."""
    complete: Float[np.ndarray, " rows"]
    """No row nearer than this squared distance is missing."""


Engine = Callable[[Rows, int], Proposal]
"""Maps (states to search for, how many to find) to a proposal."""


def find_neighbours(
    states: Float[np.ndarray, "rows size"],
    group: Integer[np.ndarray, " rows"],
    search: NeighbourSearch = DEFAULT,
    first: int | None = None,
    workers: Workers = LOCAL,
) -> Neighbours:
    """Return each state's neighbours among the states of other groups (episodes).

    With `first`, only the first rows are searched for, among all. Rows are divided among the `workers`, to the same
    bits.
    """
    states = np.ascontiguousarray(states, np.float32)
    if not np.isfinite(states).all():
        row = int(np.flatnonzero(~np.isfinite(states).all(1))[0])
        raise InputError(f"observation row {row} is not finite: distances to it have no meaning")
    first = len(states) if first is None else first
    if len(states) == 0 or (group == group[0]).all():
        return Neighbours(np.zeros(first + 1, np.int64), np.zeros(0, np.int32))
    every = Places(states, group)
    copy = None if search.k is None else alike(states)
    if search.k is None or copy is None:
        return _among(every, every.at(slice(first)), search, workers)
    enough = np.flatnonzero(ragged.rank_among_equals(group, copy) < search.k)
    # Of 2 k copies, k at most of each group, k are of others than any one.
    enough = enough[ragged.rank_among_equals(copy[enough]) < 2 * search.k]
    pairs = copy[:first] * (group.max() + 1) + group[:first]
    _, asking, pair = np.unique(pairs, return_index=True, return_inverse=True)
    return _among(every.at(enough), every.at(asking), search, workers).renamed(pair, enough)


def alike(states: Rows) -> Integer[np.ndarray, " rows"] | None:
    """Return a number for each row, the same for rows of the same bits; None if all differ."""
    odd = 2 * np.random.default_rng(0).integers(0, 2**63, states.shape[1], np.uint64) + np.uint64(1)
    words = states.view(np.uint32)
    mark = np.zeros(len(states), np.uint64)
    for column, factor in enumerate(odd):
        mark += words[:, column] * factor
    _, first, number = np.unique(mark, return_index=True, return_inverse=True)
    if len(first) == len(states):
        return None
    if np.array_equal(words, words[first[number]]):
        return number
    return np.unique(words, axis=0, return_inverse=True)[1].reshape(-1)  # two states had one mark


class Searcher:
    """What the neighbours of any states are searched with. Pickled, it carries its index but no engine."""

    def __init__(self, places: Places, search: NeighbourSearch) -> None:
        self.places, self.search = places, search
        self.method = search.method if search.method != "auto" else choose(*places.states.shape)
        self.index = _approximate_index(places, search) if self.method == "approximate" else None

    @cached_property
    def engine(self) -> Engine:
        states = self.places.states
        if self.index is not None:
            return _faiss(self.index, states)
        return {"flat": _flat, "accelerator": _accelerator}.get(self.method, _tree)(states)

    def __getstate__(self) -> dict[str, Any]:
        index = None if self.index is None else faiss.serialize_index(self.index)
        return {"places": self.places, "search": self.search, "method": self.method, "index": index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.index is not None:
            self.index = faiss.deserialize_index(np.array(self.index))

    def neighbours(self, asking: Places) -> Neighbours:
        """Return the neighbours of the `asking` states."""
        return _search(self.engine, self.places, asking, self.search)


def _among(places: Places, asking: Places, search: NeighbourSearch, workers: Workers) -> Neighbours:
    """Return the neighbours of the `asking` states among `places`."""
    searcher, rows = Searcher(places, search), len(asking.states)
    if workers.rows is None:
        return searcher.neighbours(asking)
    parts = [asking.at(slice(start, start + workers.rows)) for start in range(0, rows, workers.rows)]
    found = []
    with progress("neighbours on workers", rows, "states") as advance:
        for part, near in zip(parts, workers.map(Searcher.neighbours, searcher, parts), strict=True):
            found.append(near)
            advance(len(part.states))
    counts = np.concatenate([np.diff(near.offsets) for near in found])
    return Neighbours(ragged.offsets_of(counts), np.concatenate([near.index for near in found]))


def choose(rows: int, dimensions: int) -> Method:
    if jax.default_backend() != "cpu":
        return "accelerator"
    exact, large = ("tree", LARGE_FOR_TREE) if dimensions <= TREE_DIMENSIONS else ("flat", LARGE_FOR_SCAN)
    return exact if rows < large else "approximate"


def _search(engine: Engine, places: Places, asking: Places, search: NeighbourSearch) -> Neighbours:
    """Ask the engine for more and more proposals until every row's neighbours are proven complete."""
    total, rows = len(places.states), len(asking.states)
    counts = np.zeros(rows, np.int64)
    parts: list[tuple[np.ndarray, np.ndarray]] = []  # (rows that ask, their neighbours in turn)
    pending = np.arange(rows)
    wanted = min(2 * search.k if search.k is not None else 64, total)
    with progress("neighbours", rows, "states") as advance, ThreadPoolExecutor(cores()) as pool:
        while len(pending):
            unsure: list[np.ndarray] = []
            block = max(1, min(BLOCK, 2**22 // (wanted * max(places.states.shape[1] // 16, 1))))
            settling: deque[tuple[np.ndarray, Future]] = deque()
            for start in range(0, len(pending) + block * cores(), block):
                part = pending[start : start + block]
                if len(part):
                    some = asking.at(part)
                    proposal = engine(some.states, wanted)
                    settling.append((part, pool.submit(_settle, some, proposal, places, search)))
                if settling and (not len(part) or len(settling) > cores()):
                    part, future = settling.popleft()
                    kept, index, sure = future.result()
                    sure |= wanted == total
                    counts[part[sure]] = kept[sure]
                    parts.append((part[sure], index[np.repeat(sure, kept)]))
                    unsure.append(part[~sure])
                    advance(int(sure.sum()))
            pending = np.concatenate(unsure)
            wanted = min(4 * wanted, total)
    offsets = ragged.offsets_of(counts)
    index = np.empty(offsets[-1], np.int32)
    for part, found in parts:
        index[ragged.rows_of(offsets[part], counts[part])] = found
    return Neighbours(offsets, index)


def _settle(
    asking: Places, proposal: Proposal, places: Places, search: NeighbourSearch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many neighbours each row keeps, the neighbours row by row, and whether they are proven complete."""
    index = proposal.index
    distance = squared_distance(asking.states[:, None], places.states[index])
    distance[(index < 0) | (places.group[index] == asking.group[:, None])] = np.inf
    order = np.lexsort((index, distance), axis=-1)
    order = order[:, : search.k] if search.k is not None else order
    index, distance = np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1)
    assert search.radius != "authors"  # `for_task` has put a number in its place
    limit = np.inf if search.radius is None else search.radius**2
    keep = np.isfinite(distance) & (distance <= limit)
    farthest = np.full(len(index), limit)
    if search.k is not None and search.k <= distance.shape[1]:
        farthest = np.minimum(limit, distance[:, -1])
    return keep.sum(1), index[keep].astype(np.int32, copy=False), farthest < proposal.complete


def squared_distance(
    a: Float[np.ndarray, "*#rows size"], b: Float[np.ndarray, "*#rows size"]
) -> Float[np.ndarray, "*#rows"]:
    """Return squared distances in double precision, summed in the order of the columns: these decide everything."""
    return np.square(a.astype(np.float64) - b).sum(-1)


def _tree(states: Rows) -> Engine:
    tree = KDTree(states)

    def engine(asking: Rows, wanted: int) -> Proposal:
        distance, index = tree.query(asking, wanted, workers=-1)
        distance, index = distance.reshape(len(asking), -1), index.reshape(len(asking), -1)
        complete = np.square(distance[:, -1]) * (1 - 1e-9)
        return Proposal(index, complete)

    return engine


def _flat(states: Rows) -> Engine:
    index = faiss.IndexFlatL2(states.shape[1])
    index.add(states)  # pyright: ignore[reportCallIssue]
    return _faiss(index, states)


def _faiss(index: faiss.Index, states: Rows) -> Engine:
    largest = _squares(states).max()

    def engine(asking: Rows, wanted: int) -> Proposal:
        distance, found = index.search(asking, wanted)  # pyright: ignore[reportCallIssue]
        return Proposal(found, distance[:, -1] - _rounding(asking, largest))

    return engine


def _squares(states: Rows) -> Float[np.ndarray, " rows"]:
    return np.square(states.astype(np.float64)).sum(1)


def _rounding(asking: Rows, largest: float) -> Float[np.ndarray, " rows"]:
    """Return what float32 may lose in ‖x‖² + ‖y‖² − 2 xy, given the largest ‖y‖²."""
    return 16 * np.finfo(np.float32).eps * (_squares(asking) + largest)


TILE = 2**18
"""States compared with a block of rows at once: a tile stays well under top_k's 2³¹ elements."""
GROUP = 64
"""States that are first represented by the nearest of them alone."""


def _accelerator(states: Rows) -> Engine:
    """Return an engine that searches by brute force in tiles and groups.

    `top_k` over every state would take ten times as long as the distances. The k nearest states lie in the k groups
    whose nearest members are nearest.
    """
    size = -(-len(states) // TILE) * TILE if len(states) > TILE else -(-len(states) // GROUP) * GROUP
    norms = _squares(states)
    padded = np.zeros((size, states.shape[1]), np.float32)
    padded[: len(states)] = states
    squares = np.full(size, np.inf, np.float32)
    squares[: len(states)] = norms
    tiles = max(size // TILE, 1)
    table = jnp.asarray(padded).reshape(tiles, -1, states.shape[1])
    table_squares = jnp.asarray(squares).reshape(tiles, -1)

    def engine(asking: Rows, wanted: int) -> Proposal:
        group = GROUP if GROUP * wanted <= table.shape[1] else 1
        block = max(64, min(4096, 2**28 // table.shape[1], 2**28 // (group * wanted * states.shape[1])))
        parts = [asking[start : start + block] for start in range(0, len(asking), block)]
        found = [
            _nearest_in_tiles(
                table, table_squares, np.resize(part, (block, part.shape[1])), min(wanted, len(states)), group
            )
            for part in parts
        ]
        complete = np.concatenate([np.asarray(one[0])[: len(part)] for one, part in zip(found, parts, strict=True)])
        index = np.concatenate([np.asarray(one[1])[: len(part)] for one, part in zip(found, parts, strict=True)])
        return Proposal(np.where(index < len(states), index, -1), complete - _rounding(asking, norms.max()))

    return engine


@partial(jax.jit, static_argnames=("wanted", "group"))
def _nearest_in_tiles(
    table: Array, squares: Array, queries: Array, wanted: int, group: int
) -> tuple[Float[Array, " rows"], Integer[Array, "rows wanted"]]:
    """Return the squared distance below which no state is missing, and the nearest states found."""
    groups = table.shape[1] // group
    own = jnp.square(queries).sum(1)[:, None]

    def scan(best: tuple[Array, Array], now: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        states, squares, first = now
        product = jnp.matmul(queries, states.T, precision="highest")
        nearness = (2 * product - own - squares).reshape(len(queries), groups, group).max(2)
        nearness, number = jax.lax.top_k(nearness, min(wanted, groups))
        nearness, number = jnp.concatenate((best[0], nearness), 1), jnp.concatenate((best[1], number + first), 1)
        nearness, chosen = jax.lax.top_k(nearness, wanted)
        return (nearness, jnp.take_along_axis(number, chosen, 1)), None

    nothing = jnp.full((len(queries), wanted), -jnp.inf), jnp.full((len(queries), wanted), len(table) * groups)
    (nearness, number), _ = jax.lax.scan(scan, nothing, (table, squares, jnp.arange(len(table)) * groups))
    index = (number[:, :, None] * group + jnp.arange(group)).reshape(len(queries), -1)
    members = table.reshape(-1, table.shape[2]).at[index].get(mode="fill", fill_value=jnp.inf)
    distance = jnp.square(members - queries[:, None]).sum(2)
    distance = jnp.where(
        jnp.isinf(squares.reshape(-1).at[index].get(mode="fill", fill_value=jnp.inf)), jnp.inf, distance
    )
    chosen = jax.lax.top_k(-distance, wanted)[1]
    return -nearness[:, -1], jnp.take_along_axis(index, chosen, 1)


def _approximate_index(places: Places, search: NeighbourSearch) -> faiss.IndexIVFFlat | None:
    """Return an inverted file whose probes double until the recall on a sample is good enough; None for few states."""
    states = places.states
    lists = int(min(4 * len(states) ** 0.5, len(states) / 39))
    if lists < 2:
        return None
    quantiser = faiss.IndexFlatL2(states.shape[1])
    index = faiss.IndexIVFFlat(quantiser, states.shape[1], lists)
    index.train(states[np.sort(np.random.default_rng(0).permutation(len(states))[: 64 * lists])])  # pyright: ignore[reportCallIssue]
    index.add(states)  # pyright: ignore[reportCallIssue]
    sample = places.at(np.sort(np.random.default_rng(1).permutation(len(states))[:SAMPLE]))
    truth = _search(_flat(states), places, sample, search)
    index.nprobe = 8
    while True:
        found = _search(_faiss(index, states), places, sample, search)
        recall = _recall(found, truth)
        if recall >= search.recall or index.nprobe >= lists:
            break
        index.nprobe = min(2 * index.nprobe, lists)
    logger.info(
        f"neighbours: approximate index of {lists} lists, {index.nprobe} probed, "
        f"recall {recall:.4f} on {len(sample.states)} states"
    )
    return index


def _recall(found: Neighbours, truth: Neighbours) -> float:
    def pairs(result: Neighbours) -> np.ndarray:
        return ragged.owners(np.diff(result.offsets)) * 2**32 + result.index

    wanted = pairs(truth)
    return float(np.isin(wanted, pairs(found)).mean()) if len(wanted) else 1.0
