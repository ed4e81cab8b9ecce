"""StitchGraph: the observed states as nodes, and every plausible one-step jump between two of them as an edge.

Nodes are the rows of `Trajectories.observations`. Where a step (u, v) was logged, the candidates for a better next
state are those of the paper's Figure 5:

    candidates(u, v) = {successor of n : n near u} ∪ {m : m near v}

of other episodes than u's. The dynamics, inverse, reward and forward models never change between passes, so what
they say of an edge is computed once. Only edges that are within reach (see `Reach`) are kept.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trajstitch.data.normalise import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.learning.batching import in_batches
from trajstitch.learning.buffer import padded
from trajstitch.learning.losses import log_density
from trajstitch.learning.networks import normaliser_of
from trajstitch.models.dynamics import Gaussian
from trajstitch.models.forward import Forward, judge
from trajstitch.models.inverse import Inverse
from trajstitch.models.reward import Reward
from trajstitch.progress import progress
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch, neighbours
from trajstitch.storage.atomic import replacing

BLOCK = 16_384
"""Source states whose candidates are worked on at once, or fewer if these are many: what bounds the memory."""
CANDIDATES = 2**20
"""Candidates that are worked on at once."""
PAIRS = 65_536
"""Pairs whose likelihood is taken at once."""

Nodes = Integer[np.ndarray, " pairs"]


class Models(eqx.Module):
    """What judges and fills in a jump."""

    dynamics: Gaussian
    """p(s'|s): the kept members, stacked."""
    inverse: Inverse
    reward: Reward
    forward: Forward | None = None
    """f(s,a) to s': stacked members, the judge of consistency."""


@dataclass(frozen=True)
class Reach:
    """What a jump must pass, whatever its value.

    The paper's test is a margin of 0 and no consistency; a test that is none is not made.
    """

    margin: float | None = 0.0
    """min over e of log p_e(ŝ'|s) must exceed logmeanexp over e of log p_e(s'|s) less this."""
    consistency: float | None = None
    """The forward ensemble must find the jump's action to miss ŝ' by at most this share of the jump's length."""


@dataclass(frozen=True)
class Edges:
    """Jumps from a source to a target node, one a row, sorted by source and target."""

    source: Integer[np.ndarray, " edges"]
    target: Integer[np.ndarray, " edges"]
    low: Float[np.ndarray, " edges"]
    """min over e of log p_e(target|source)."""
    mean: Float[np.ndarray, " edges"]
    """logmeanexp over e of log p_e(target|source)."""
    action: Float[np.ndarray, "edges action"]
    """The most plausible action (latent 0); without a forward model, which alone needs it here, of width 0."""
    reward: Float[np.ndarray, " edges"]
    """The lowest of the predictions of the reward model and of the forward ensemble; NaN without the latter."""
    consistency: Float[np.ndarray, " edges"]
    """The forward ensemble's worst error over the jump's length; NaN without one."""
    error: Float[np.ndarray, " edges"]
    """That error itself, in standardised states."""

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: np.ndarray) -> "Edges":
        return Edges(*(getattr(self, item.name)[index] for item in fields(self)))

    @classmethod
    def without_forward(cls, source: Nodes, target: Nodes, low: np.ndarray, mean: np.ndarray) -> "Edges":
        """Edges on which there is no forward model's word; where it would stand takes no memory."""
        nothing = np.broadcast_to(np.float32(np.nan), len(source))
        return cls(source, target, low, mean, np.empty((len(source), 0), np.float32), *(nothing,) * 3)


class EdgeScorer:
    """The models' word on any pair of nodes. A pair's bits don't depend on the pairs asked with it."""

    def __init__(self, models: Models, observations: Float[np.ndarray, "nodes size"]) -> None:
        self.models = models
        self.table = jax.device_put(padded(observations.astype(np.float32, copy=False)))

    def likelihoods(self, source: Nodes, target: Nodes) -> tuple[np.ndarray, np.ndarray]:
        """Edges' `low` and `mean`. The networks see each source once, however many its pairs."""
        order = np.argsort(source, kind="stable")
        sources, starts = np.unique(source[order], return_index=True)
        starts = np.append(starts, len(source))
        low, mean = np.empty(len(source), np.float32), np.empty(len(source), np.float32)
        for first in range(0, len(sources), BLOCK):
            nodes = sources[first : first + BLOCK]
            moments = in_batches(lambda rows: _moments(self.models.dynamics, self.table, rows), nodes)
            padded = [jnp.asarray(np.resize(part, (BLOCK, *part.shape[1:]))) for part in moments]
            last = min(first + BLOCK, len(sources))
            pairs = order[starts[first] : starts[last]]
            local = np.repeat(np.arange(last - first), np.diff(starts[first : last + 1])).astype(np.int32)
            low[pairs], mean[pairs] = in_batches(
                lambda *at, padded=padded: _likelihoods(self.models.dynamics.change, self.table, *padded, *at),
                local,
                source[pairs],
                target[pairs],
                rows=PAIRS,
            )
        return low, mean

    def synthesise(
        self, source: Nodes, target: Nodes, key: PRNGKeyArray | None = None
    ) -> tuple[Float[np.ndarray, "pairs action"], Float[np.ndarray, " pairs"]]:
        """Action and reward of jumps; with a key, by latents drawn from (key, source, target)."""
        return in_batches(lambda *pair: _synthesise(self.models, self.table, key, *pair), source, target)

    def consistency(self, source: Nodes, target: Nodes) -> tuple[np.ndarray, ...]:
        """Edges' `action`, `consistency`, `error` and the forward ensemble's lowest reward."""
        return in_batches(lambda *pair: _consistency(self.models, self.table, *pair), source, target)

    def rewards(self, source: Nodes, target: Nodes, action: np.ndarray) -> Float[np.ndarray, " pairs"]:
        return in_batches(lambda *pair: _rewards(self.models, self.table, *pair), source, target, action)

    def edges(
        self, source: Nodes, target: Nodes, bar: Float[np.ndarray, " pairs"], reach: Reach
    ) -> tuple[Edges, np.ndarray]:
        """The pairs that pass the tests, and which they were. `bar` is log p of the step each would replace."""
        source, target = source.astype(np.int32), target.astype(np.int32)
        low, mean = self.likelihoods(source, target)
        passed = likely(low, bar, reach)
        kept = np.flatnonzero(passed)
        source, target, low, mean = (part[kept] for part in (source, target, low, mean))
        if self.models.forward is None:
            return Edges.without_forward(source, target, low, mean), kept
        action, consistency, error, reward = self.consistency(source, target)
        edges = Edges(source, target, low, mean, action, reward, consistency, error)
        if reach.consistency is not None:
            consistent = np.flatnonzero(edges.consistency <= reach.consistency)
            edges, kept = edges.take(consistent), kept[consistent]
        reward = np.minimum(edges.reward, self.rewards(edges.source, edges.target, edges.action))
        return replace(edges, reward=reward), kept


def likely(low: np.ndarray, bar: np.ndarray, reach: Reach) -> Bool[np.ndarray, " pairs"]:
    """The likelihood test, in log space."""
    return np.ones(len(low), bool) if reach.margin is None else low > bar - np.float32(reach.margin)


@eqx.filter_jit
def _moments(models: Gaussian, table: Array, rows: Array) -> tuple[Array, Array]:
    return eqx.filter_vmap(lambda model: model(table[rows]), out_axes=1)(models)


@eqx.filter_jit
def _likelihoods(
    change: Normaliser, table: Array, mean: Array, log_std: Array, local: Array, source: Array, target: Array
) -> tuple[Array, Array]:
    one = Normaliser.apply(jax.tree.map(lambda leaf: leaf[0], change), table[target] - table[source])
    each = log_density(one[:, None], mean[local], log_std[local])
    return each.min(1), jax.nn.logsumexp(each, axis=1) - math.log(each.shape[1])


@eqx.filter_jit
def _synthesise(
    models: Models, table: Array, key: PRNGKeyArray | None, source: Array, target: Array
) -> tuple[Array, Array]:
    state, following = table[source], table[target]
    if key is None:
        action = models.inverse(state, following)
        return action, models.reward(state, action, following)

    def latent(source: Array, target: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, source), target)
        return jax.random.normal(own, (models.inverse.latent_size + models.reward.latent_size,))

    both = jax.vmap(latent)(source, target)
    action = models.inverse(state, following, both[:, : models.inverse.latent_size])
    return action, models.reward(state, action, following, both[:, models.inverse.latent_size :])


@eqx.filter_jit
def _consistency(models: Models, table: Array, source: Array, target: Array) -> tuple[Array, ...]:
    assert models.forward is not None
    action = models.inverse(table[source], table[target])
    found = judge(models.forward, table[source], action, table[target])
    return action, found.consistency, found.error, found.reward


@eqx.filter_jit
def _rewards(models: Models, table: Array, source: Array, target: Array, action: Array) -> Array:
    return models.reward(table[source], action, table[target])


@dataclass(frozen=True)
class StitchGraph:
    """Everything about the data that no pass changes."""

    episode: Integer[np.ndarray, " nodes"]
    """The episode that each node was observed in."""
    last: Bool[np.ndarray, " nodes"]
    """Whether it is its episode's last state, which no step leaves."""
    terminal: Bool[np.ndarray, " nodes"]
    """Whether it is the state after a termination, where nothing more can be gained."""
    near: Neighbours
    logged: Float[np.ndarray, " nodes"]
    """logmeanexp over e of log p_e of the step logged at each node (NaN at an episode's last)."""
    edges: Edges
    by_successor: Bool[np.ndarray, " edges"]
    """Whether the target follows a state near the source."""
    by_neighbour: Bool[np.ndarray, " edges"]
    """Whether the target is near the source's logged next state."""
    reach: Reach
    """The tests that every edge has passed."""

    def __len__(self) -> int:
        return len(self.episode)

    @cached_property
    def offsets(self) -> Integer[np.ndarray, " nodes+1"]:
        """The edges of node u are those from `offsets[u]` up to `offsets[u + 1]`."""
        return np.searchsorted(self.edges.source, np.arange(len(self) + 1))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        tensors = {
            **{name: getattr(self, name) for name in _NODES + _FLAGS},
            **{f"near/{item.name}": getattr(self.near, item.name) for item in fields(Neighbours)},
            **{f"edges/{name}": getattr(self.edges, name) for name in _edge_fields(self.edges.action.shape[1] > 0)},
        }
        with replacing(Path(path), force=force) as fresh:
            save_file(
                {name: np.ascontiguousarray(array) for name, array in tensors.items()},
                fresh,
                {"format": "trajstitch graph 1", "reach": json.dumps(asdict(self.reach))},
            )
            fresh.chmod(0o644)

    @classmethod
    def load(cls, path: str | Path) -> "StitchGraph":
        try:
            with safe_open(path, framework="numpy") as file:
                metadata, names = file.metadata() or {}, list(file.keys())
            tensors: dict[str, Any] = {}
            for name in names:  # opened for each anew, since what an open file has read stays in memory
                with safe_open(path, framework="numpy") as file:
                    tensors[name] = file.get_tensor(name)
            if metadata.get("format") != "trajstitch graph 1":
                raise KeyError("format")
            judged = "edges/action" in tensors
            edges = {name: tensors[f"edges/{name}"] for name in _edge_fields(judged)}
            return cls(
                **{name: tensors[name] for name in _NODES + _FLAGS},
                near=Neighbours(**{item.name: tensors[f"near/{item.name}"] for item in fields(Neighbours)}),
                edges=Edges(**edges) if judged else Edges.without_forward(**edges),
                reach=Reach(**json.loads(metadata["reach"])),
            )
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise InputError(f"{path}: not a stitching graph ({error}); build it again") from error


_NODES = ("episode", "last", "terminal", "logged")
_FLAGS = ("by_successor", "by_neighbour")


def _edge_fields(judged: bool) -> tuple[str, ...]:
    """Of edges with or without a forward model's word, the fields that say something."""
    return tuple(item.name for item in fields(Edges))[: None if judged else 4]


def build(data: Trajectories, models: Models, near: NeighbourSearch, reach: Reach) -> StitchGraph:
    """The graph of a data set, in blocks of bounded memory."""
    if reach.consistency is not None and models.forward is None:
        raise InputError("a consistency test needs the forward model: fit one, or leave the test out")
    rows = len(data.observations)
    episode = np.repeat(np.arange(len(data), dtype=np.int32), data.lengths + 1)
    last = np.zeros(rows, bool)
    last[data.first_rows + data.lengths] = True
    terminal = np.zeros(rows, bool)
    terminal[(data.first_rows + data.lengths)[data.episode_terminated]] = True
    found = neighbours(_measured(data, near), episode, near)

    judge = EdgeScorer(models, data.observations)
    steps = np.flatnonzero(~last).astype(np.int32)
    logged = np.full(rows, np.nan, np.float32)
    logged[steps] = judge.likelihoods(steps, steps + 1)[1]
    judged = models.forward is not None
    columns = {name: _Column() for name in (*_edge_fields(judged), *_FLAGS)}
    with progress("graph", len(steps), "states") as advance:
        for block in _blocks(found, steps):
            source, target, by_successor, by_neighbour = candidates(found, last, block)
            edges, kept = judge.edges(source, target, logged[source], reach)
            flags = {"by_successor": by_successor[kept], "by_neighbour": by_neighbour[kept]}
            for name, column in columns.items():
                column.add(flags[name] if name in flags else getattr(edges, name))
            advance(len(block), edges=columns["source"].rows)
    whole = {name: column.whole() for name, column in columns.items()}
    edges = {name: whole[name] for name in _edge_fields(judged)}
    return StitchGraph(
        episode=episode,
        last=last,
        terminal=terminal,
        near=found,
        logged=logged,
        edges=Edges(**edges) if judged else Edges.without_forward(**edges),
        by_successor=whole["by_successor"],
        by_neighbour=whole["by_neighbour"],
        reach=reach,
    )


def _measured(data: Trajectories, near: NeighbourSearch) -> Float[np.ndarray, "nodes size"]:
    """The states as distances are measured between them."""
    states = data.observations.astype(np.float32, copy=False)
    return np.asarray(normaliser_of(data.observations).apply(jnp.asarray(states))) if near.standardise else states


def _blocks(near: Neighbours, steps: Integer[np.ndarray, " steps"]) -> Iterator[Integer[np.ndarray, " some"]]:
    """The steps in turn, some at a time, so that their candidates are never too many."""
    pairs = np.cumsum(near.offsets[steps + 2] - near.offsets[steps])
    start = 0
    while start < len(steps):
        most = CANDIDATES + (pairs[start - 1] if start else 0)
        stop = max(start + 1, min(start + BLOCK, int(np.searchsorted(pairs, most, side="right"))))
        yield steps[start:stop]
        start = stop


class _Column:
    """Rows that come in parts. They grow in place: to collect the parts and join them takes twice the memory."""

    def __init__(self) -> None:
        self.array, self.rows = np.empty(0), 0

    def add(self, part: np.ndarray) -> None:
        rows = self.rows + len(part)
        if self.rows == 0:
            self.array = np.empty(part.shape, part.dtype)
        if rows > len(self.array):
            self.array.resize((max(rows, len(self.array) * 9 // 8), *part.shape[1:]), refcheck=False)
        self.array[self.rows : rows] = part
        self.rows = rows

    def whole(self) -> np.ndarray:
        self.array.resize((self.rows, *self.array.shape[1:]), refcheck=False)
        return self.array


def candidates(
    near: Neighbours, last: Bool[np.ndarray, " nodes"], nodes: Integer[np.ndarray, " some"]
) -> tuple[Nodes, Nodes, Bool[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
    """The candidates of logged steps: sources, targets, and by which rule; sorted by source and target."""
    owner, neighbour = near.of(nodes)
    follows = ~last[neighbour]
    owner_2, neighbour_2 = near.of(nodes + 1)
    source = np.concatenate((nodes[owner[follows]], nodes[owner_2]))
    target = np.concatenate((neighbour[follows] + 1, neighbour_2))
    by_neighbour = np.zeros(len(source), bool)
    by_neighbour[follows.sum() :] = True
    key = (source.astype(np.int64) * len(last) + target) * 2 + by_neighbour
    key = np.sort(key)
    pair, first, count = np.unique(key // 2, return_index=True, return_counts=True)
    rule = key[first] % 2
    return pair // len(last), pair % len(last), (count == 2) | (rule == 0), (count == 2) | (rule == 1)
