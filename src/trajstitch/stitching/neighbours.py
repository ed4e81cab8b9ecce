"""Which observed states lie near each other: the k nearest of other episodes, those within a radius, or both.

Every search engine (KD-tree, faiss, the accelerator) only proposes; distances are then taken again in double
precision and sorted by distance and index, and a row whose proposals can't be proven complete is searched again
with more. So the exact engines agree to the last index, whatever their rounding, on every machine.

A robot stands still and a maze has few places, so one state may be logged many times. No more of its copies are
searched than can be among anyone's nearest, and an episode asks for it once.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import faiss
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer
from scipy.spatial import KDTree

from trajstitch.errors import InputError
from trajstitch.progress import logger, progress

Method = Literal["auto", "tree", "flat", "accelerator", "approximate"]
Rows = Float[np.ndarray, "rows size"]

BLOCK = 16_384
"""Rows searched at once."""
TREE_DIMENSIONS = 12
"""Up to this many dimensions the KD-tree is the fastest exact engine on the CPU; above, faiss's plain scan."""
LARGE_FOR_TREE, LARGE_FOR_SCAN = 500_000, 50_000
"""States from which on the CPU searches an approximate index instead (benchmarks/neighbours.py)."""
SAMPLE = 1000
"""Rows on which an approximate index's recall is measured."""


@dataclass(frozen=True)
class NeighbourSearch:
    """What counts as near."""

    k: int | None = 16
    """At most this many, the nearest; none: all within the radius."""
    radius: float | None = None
    """At most this far away."""
    standardise: bool = True
    """Measure distance in standardised states rather than the data's own units."""
    method: Method = "auto"
    """The search engine; all but `approximate` are exact."""
    recall: float = 0.99
    """The share of true neighbours an approximate index must find on a sample."""

    def __post_init__(self) -> None:
        if self.k is None and self.radius is None:
            raise InputError("neighbours need a number k, a radius or both")


DEFAULT = NeighbourSearch()


@dataclass(frozen=True)
class Neighbours:
    """Row i's neighbours are `index[offsets[i]:offsets[i + 1]]`, nearest first."""

    offsets: Integer[np.ndarray, " rows+1"]
    index: Integer[np.ndarray, " pairs"]

    def of(self, rows: Integer[np.ndarray, " some"]) -> tuple[np.ndarray, np.ndarray]:
        """For several rows: (position in `rows`, neighbour), one pair after the other."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self.index[self.offsets[rows][owner] + inside]

    def renamed(self, rows: Integer[np.ndarray, " all"], names: Integer[np.ndarray, " names"]) -> "Neighbours":
        """Those of these rows, by other names."""
        offsets = np.concatenate(([0], np.cumsum(np.diff(self.offsets)[rows])))
        return Neighbours(offsets, names[self.of(rows)[1]].astype(np.int32, copy=False))


class Places(NamedTuple):
    """States, and the group (episode) of each."""

    states: Rows
    group: Integer[np.ndarray, " rows"]

    def at(self, rows: Integer[np.ndarray, " some"] | slice) -> "Places":
        return Places(self.states[rows], self.group[rows])


@dataclass(frozen=True)
class Proposal:
    """What an engine found for some rows."""

    index: Integer[np.ndarray, "rows found"]
    """Candidates; -1 where there is none."""
    complete: Float[np.ndarray, " rows"]
    """No row nearer than this squared distance is missing."""


Engine = Callable[[Rows, int], Proposal]
"""(states to search for, how many to find) to what was found."""


def neighbours(
    states: Float[np.ndarray, "rows size"],
    group: Integer[np.ndarray, " rows"],
    near: NeighbourSearch = DEFAULT,
    first: int | None = None,
) -> Neighbours:
    """Each state's neighbours among the states of other groups (episodes); of the first few alone, if told."""
    states = np.ascontiguousarray(states, np.float32)
    if not np.isfinite(states).all():
        row = int(np.flatnonzero(~np.isfinite(states).all(1))[0])
        raise InputError(f"observation row {row} is not finite: distances to it have no meaning")
    first = len(states) if first is None else first
    if len(states) == 0 or (group == group[0]).all():
        return Neighbours(np.zeros(first + 1, np.int64), np.zeros(0, np.int32))
    every = Places(states, group)
    copy = None if near.k is None else alike(states)
    if near.k is None or copy is None:
        return _among(every, every.at(slice(first)), near)
    enough = np.flatnonzero(_rank(group, copy) < near.k)
    # Of 2 k copies, k at most of each group, k are of others than any one.
    enough = enough[_rank(copy[enough]) < 2 * near.k]
    pairs = copy[:first] * (group.max() + 1) + group[:first]
    _, asking, pair = np.unique(pairs, return_index=True, return_inverse=True)
    return _among(every.at(enough), every.at(asking), near).renamed(pair, enough)


def alike(states: Rows) -> Integer[np.ndarray, " rows"] | None:
    """A number for each row that the rows of the same bits share; none if all differ."""
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


def _rank(*keys: Integer[np.ndarray, " rows"]) -> Integer[np.ndarray, " rows"]:
    """How many rows before each have the same keys."""
    order = np.lexsort(keys)
    begins = np.concatenate(([True], np.any([np.diff(key[order]) != 0 for key in keys], axis=0)))
    place = np.arange(len(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return rank


def _among(places: Places, asking: Places, near: NeighbourSearch) -> Neighbours:
    """The neighbours of those who ask among these places, all of them or as many as there are."""
    method = near.method if near.method != "auto" else choose(*places.states.shape)
    if method == "approximate":
        return _approximate(places, asking, near)
    engine = {"tree": _tree, "flat": _flat, "accelerator": _accelerator}[method](places.states)
    return _search(engine, places, asking, near)


def choose(rows: int, dimensions: int) -> Method:
    if jax.default_backend() != "cpu":
        return "accelerator"
    exact, large = ("tree", LARGE_FOR_TREE) if dimensions <= TREE_DIMENSIONS else ("flat", LARGE_FOR_SCAN)
    return exact if rows < large else "approximate"


def _search(engine: Engine, places: Places, asking: Places, near: NeighbourSearch) -> Neighbours:
    """Ask the engine for more and more until every row's neighbours are complete, as far as the engine sees."""
    total, rows = len(places.states), len(asking.states)
    counts = np.zeros(rows, np.int64)
    parts: list[tuple[np.ndarray, np.ndarray]] = []  # (rows that ask, their neighbours in turn)
    pending = np.arange(rows)
    wanted = min(2 * near.k if near.k is not None else 64, total)
    with progress("neighbours", rows, "states") as advance, ThreadPoolExecutor(os.cpu_count()) as pool:
        while len(pending):
            unsure: list[np.ndarray] = []
            block = max(1, min(BLOCK, 2**22 // (wanted * max(places.states.shape[1] // 16, 1))))
            settling: deque[tuple[np.ndarray, Future]] = deque()
            for start in range(0, len(pending) + block * (os.cpu_count() or 1), block):
                part = pending[start : start + block]
                if len(part):
                    some = asking.at(part)
                    proposal = engine(some.states, wanted)
                    settling.append((part, pool.submit(_settle, some, proposal, places, near)))
                if settling and (not len(part) or len(settling) > (os.cpu_count() or 1)):
                    part, future = settling.popleft()
                    kept, index, sure = future.result()
                    sure |= wanted == total
                    counts[part[sure]] = kept[sure]
                    parts.append((part[sure], index[np.repeat(sure, kept)]))
                    unsure.append(part[~sure])
                    advance(int(sure.sum()))
            pending = np.concatenate(unsure)
            wanted = min(4 * wanted, total)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    index = np.empty(offsets[-1], np.int32)
    for part, found in parts:
        owner = np.repeat(part, counts[part])
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(counts[part]) - counts[part], counts[part])
        index[offsets[owner] + inside] = found
    return Neighbours(offsets, index)


def _settle(
    asking: Places, proposal: Proposal, places: Places, near: NeighbourSearch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many neighbours each row keeps, the neighbours in turn, and whether they are proven complete."""
    index = proposal.index
    distance = squared_distance(asking.states[:, None], places.states[index])
    distance[(index < 0) | (places.group[index] == asking.group[:, None])] = np.inf
    order = np.lexsort((index, distance), axis=-1)
    order = order[:, : near.k] if near.k is not None else order
    index, distance = np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1)
    limit = np.inf if near.radius is None else near.radius**2
    keep = np.isfinite(distance) & (distance <= limit)
    farthest = np.full(len(index), limit)
    if near.k is not None and near.k <= distance.shape[1]:
        farthest = np.minimum(limit, distance[:, -1])
    return keep.sum(1), index[keep].astype(np.int32, copy=False), farthest < proposal.complete


def squared_distance(
    a: Float[np.ndarray, "*rows size"], b: Float[np.ndarray, "*rows size"]
) -> Float[np.ndarray, "*rows"]:
    """In double precision, summed in the order of the columns: the distance everything is decided by."""
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
    """What single precision may lose in ‖x‖² + ‖y‖² − 2 xy, given the largest ‖y‖²."""
    return 16 * np.finfo(np.float32).eps * (_squares(asking) + largest)


TILE = 2**18
"""States compared with a block of rows at once: a tile stays well under top_k's 2³¹ elements."""
GROUP = 64
"""States that are first represented by the nearest of them alone."""


def _accelerator(states: Rows) -> Engine:
    """Brute force in tiles, and in groups: top_k over every state would take ten times as long as the distances.

    The k nearest states lie in the k groups whose nearest members are nearest.
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
    """How near a state that was not found may be, and the nearest that were."""
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


def _approximate(places: Places, asking: Places, near: NeighbourSearch) -> Neighbours:
    """An inverted file whose probes double until the recall on a sample is good enough."""
    states = places.states
    lists = int(min(4 * len(states) ** 0.5, len(states) / 39))
    if lists < 2:
        return _search(_tree(states), places, asking, near)
    quantiser = faiss.IndexFlatL2(states.shape[1])
    index = faiss.IndexIVFFlat(quantiser, states.shape[1], lists)
    index.train(states[np.sort(np.random.default_rng(0).permutation(len(states))[: 64 * lists])])  # pyright: ignore[reportCallIssue]
    index.add(states)  # pyright: ignore[reportCallIssue]
    sample = places.at(np.sort(np.random.default_rng(1).permutation(len(states))[:SAMPLE]))
    truth = _search(_flat(states), places, sample, near)
    index.nprobe = 8
    while True:
        found = _search(_faiss(index, states), places, sample, near)
        recall = _recall(found, truth)
        if recall >= near.recall or index.nprobe >= lists:
            break
        index.nprobe = min(2 * index.nprobe, lists)
    logger.info(
        f"neighbours: approximate index of {lists} lists, {index.nprobe} probed, "
        f"recall {recall:.4f} on {len(sample.states)} states"
    )
    return _search(_faiss(index, states), places, asking, near)


def _recall(found: Neighbours, truth: Neighbours) -> float:
    def pairs(result: Neighbours) -> np.ndarray:
        owner = np.repeat(np.arange(len(result.offsets) - 1), np.diff(result.offsets))
        return owner * 2**32 + result.index

    wanted = pairs(truth)
    return float(np.isin(wanted, pairs(found)).mean()) if len(wanted) else 1.0
