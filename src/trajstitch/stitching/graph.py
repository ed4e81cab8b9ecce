"""StitchGraph: the observed states as nodes, and every plausible one-step jump between two of them as an edge.

Nodes are the rows of `Trajectories.observations`. Where a step (u, v) was logged, the candidates for a better next
state are those of the paper's Figure 5:

    candidates(u, v) = {successor of n : n near u} ∪ {m : m near v}

from other episodes than u's. Where the log breaks off at u, only the former. The models never change between passes,
so an edge's scores are computed once. Only edges that pass every jump test (see `jump_tests`) are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from trajstitch.data import ragged
from trajstitch.data.trajectories import Trajectories
from trajstitch.engines.workers import LOCAL, Workers
from trajstitch.errors import InputError
from trajstitch.learning.batching import in_batches
from trajstitch.learning.buffer import padded
from trajstitch.learning.compiled import compiled
from trajstitch.learning.networks import normaliser_of
from trajstitch.models.inverse import Inverse
from trajstitch.models.reward import Reward, crossed, halves
from trajstitch.progress import logger, progress
from trajstitch.stitching import checked_tests
from trajstitch.stitching.jump_tests import Candidates, JumpTest, Nodes, Scores
from trajstitch.stitching.nearby import Nearby
from trajstitch.stitching.neighbours import Neighbours, NeighbourSearch, find_neighbours
from trajstitch.storage.tensors import read_tensors, save_tensors, under

BLOCK = 16_384
"""Source states whose candidates are scored at once, or fewer if they have many: this bounds the memory."""
CANDIDATES = 2**20
"""Candidates that are scored at once."""
FORMAT = "trajstitch graph 3"


class Models(eqx.Module):
    """The models that score a jump and fill in its action and reward."""

    inverse: Inverse
    reward: Reward
    tests: dict[str, Any]
    """Each jump test's model, by the test's name."""


@dataclass(frozen=True)
class Edges:
    """Jumps from a source to a target node, one a row, sorted by source and target."""

    source: Integer[np.ndarray, " edges"]
    target: Integer[np.ndarray, " edges"]
    scores: Scores
    """What each jump test measured, by name."""
    action: Float[np.ndarray, "edges action"] | None = None
    """The most plausible action (latent 0), if a test needed it."""
    reward: Float[np.ndarray, " edges"] | None = None
    """The lowest predicted reward, by the reward model and by tests that predict one; with `action` only."""

    def __len__(self) -> int:
        return len(self.source)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every array by a name of its own."""
        found = {"source": self.source, "target": self.target}
        found |= {f"scores/{name}": values for name, values in self.scores.items()}
        if self.action is not None and self.reward is not None:
            found |= {"action": self.action, "reward": self.reward}
        return found

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Edges":
        """Return edges from what `arrays` gave."""
        scores = {name.removeprefix("scores/"): array for name, array in arrays.items() if name.startswith("scores/")}
        return cls(arrays["source"], arrays["target"], scores, arrays.get("action"), arrays.get("reward"))

    def take(self, index: Integer[np.ndarray, " some"]) -> "Edges":
        """Return some of the edges."""
        return Edges.of({name: array[index] for name, array in self.arrays().items()})

    @staticmethod
    def concatenate(parts: "Sequence[Edges]") -> "Edges":
        """Return the edges of all parts, in order. Empty parts may lack scores."""
        filled = [part.arrays() for part in parts if len(part)] or [parts[-1].arrays()]
        return Edges.of({name: np.concatenate([part[name] for part in filled]) for name in filled[0]})


class EdgeScorer:
    """Scores and fills in any pair of nodes. A pair's bits do not depend on the pairs it is scored with."""

    def __init__(
        self,
        models: Models,
        tests: Mapping[str, JumpTest],
        data: Trajectories,
        context: Integer[np.ndarray, " nodes"] | None = None,
    ) -> None:
        """Score pairs of the data's states; no edge leads to another context or to a state that was not recorded."""
        self.models, self.tests, self.context = models, tests, context
        self.unknown = np.zeros(len(data.observations), bool)
        self.unknown[data.unknown_rows] = True
        data = data.filled()
        self.last = np.zeros(len(data.observations), bool)
        self.last[data.first_rows + data.lengths] = True
        self.nearby: Nearby | None = None
        self.states = jax.device_put(padded(data.observations.astype(np.float32, copy=False)))
        self.actions = np.zeros((len(data.observations), data.action_size), np.float32)
        self.actions[data.state_rows] = data.actions
        self.half, self.logged = halves(data), data.rewards
        terminal = np.zeros(len(data.observations), bool)
        terminal[data.state_rows + 1] = data.terminated
        self.terminal = jax.device_put(padded(terminal))

    def knowing(self, neighbours: Neighbours, logged: Scores | None = None) -> "EdgeScorer":
        """Return a scorer that also knows each node's neighbours, and how logged steps went: their scores by node."""
        scorer = copy(self)
        steps = ~self.last
        steps[:-1] &= ~self.unknown[1:]
        scorer.nearby = Nearby.of(neighbours, steps, logged, self.nearby)
        return scorer

    def candidates(self, source: Nodes, target: Nodes) -> Candidates:
        """Return pairs of nodes as the jump tests take them."""
        replaced = np.where(self.last[source], target, source + 1)
        source, target, replaced = (part.astype(np.int32) for part in (source, target, replaced))
        return Candidates(self.states, source, target, replaced, self.models.inverse, nearby=self.nearby)

    def score_logged(self, steps: Nodes) -> Scores:
        """Return what jumps are compared with: the scores of the logged steps that leave these nodes."""
        scores: Scores = {}
        logged = replace(self.candidates(steps, steps + 1), action=self.actions[steps])
        for name, test in self.tests.items():
            scores |= checked_tests.score_logged(name, test, self.models.tests[name], logged)
        return {name: np.where(self.unknown[steps + 1], np.nan, values) for name, values in scores.items()}

    def edges(self, source: Nodes, target: Nodes, replaced: Scores) -> tuple[Edges, Integer[np.ndarray, " kept"]]:
        """Return the pairs that pass every test, and their indices; `replaced` scores the step each would replace."""
        allowed = ~self.unknown[target]
        if self.context is not None:
            allowed &= self.context[source] == self.context[target]
        kept = np.flatnonzero(allowed)
        found = self.candidates(source[kept], target[kept])
        for name, test in self.tests.items():
            found = checked_tests.score(name, test, self.models.tests[name], found)
            own = {score: values[kept] for score, values in replaced.items()}
            passed = np.flatnonzero(checked_tests.passes(name, test, found.scores, own, len(found)))
            found, kept = found.take(passed), kept[passed]
        reward = None
        if found.action is not None:
            reward = self.rewards(found.source, found.target, found.action).min(0)
            lowest = found.scores.get("lowest_reward")
            reward = reward if lowest is None else np.minimum(lowest, reward)
        scores = {name: values for name, values in found.scores.items() if name != "lowest_reward"}
        return Edges(found.source, found.target, scores, found.action, reward), kept

    def rewards(
        self, source: Nodes, target: Nodes, action: Float[np.ndarray, "pairs action"]
    ) -> Float[np.ndarray, "members pairs"]:
        """Return what each member of the reward model predicts for steps."""
        steps = (source, target, action.astype(np.float32))
        return in_batches(lambda *step: _rewards(self.models.reward, self.states, self.terminal, *step), *steps).T

    def logged_rewards(self, rows: Nodes) -> Float[np.ndarray, " pairs"]:
        """Return the reward predicted for every logged step by a member that has not seen it."""
        found = crossed(self.rewards(rows, rows + 1, self.actions[rows]), self.half)
        return np.where(self.unknown[rows + 1], self.logged, found)

    def synthesise(
        self, source: Nodes, target: Nodes, key: PRNGKeyArray | None = None
    ) -> tuple[Float[np.ndarray, "pairs action"], Float[np.ndarray, " pairs"]]:
        """Return action and reward of jumps; with a key, by latents drawn from (key, source, target)."""
        pair = (source, target)
        return in_batches(lambda *pair: _synthesise(self.models, self.states, self.terminal, key, *pair), *pair)


@compiled
def _synthesise(
    models: Models, states: Array, terminal: Array, key: PRNGKeyArray | None, source: Array, target: Array
) -> tuple[Array, Array]:
    state, following = states[source], states[target]

    def rewards(action: Array, latent: Array | None = None) -> Array:
        """Return the mean of the members' predictions."""
        predict = lambda model: model(state, action, following, terminal[target], latent)  # noqa: E731
        return eqx.filter_vmap(predict)(models.reward).mean(0)

    if key is None:
        action = models.inverse(state, following)
        return action, rewards(action)

    def latent(source: Array, target: Array) -> Array:
        own = jax.random.fold_in(jax.random.fold_in(key, source), target)
        return jax.random.normal(own, (models.inverse.latent_size + models.reward.latent_size,))

    both = jax.vmap(latent)(source, target)
    action = models.inverse(state, following, both[:, : models.inverse.latent_size])
    return action, rewards(action, both[:, models.inverse.latent_size :])


@compiled
def _rewards(reward: Reward, states: Array, terminal: Array, source: Array, target: Array, action: Array) -> Array:
    predict = lambda model: model(states[source], action, states[target], terminal[target])  # noqa: E731
    return eqx.filter_vmap(predict, out_axes=1)(reward)


@dataclass(frozen=True)
class StitchGraph:
    """Everything about the data that no pass changes."""

    episode: Integer[np.ndarray, " nodes"]
    """The episode that each node was observed in."""
    last: Bool[np.ndarray, " nodes"]
    """Whether it is its episode's last state, which no step leaves."""
    terminal: Bool[np.ndarray, " nodes"]
    """Whether it is the state after a termination, whose value is 0."""
    neighbours: Neighbours
    logged: Scores
    """The scores of the step logged at each node that jumps are compared with (NaN at an episode's last)."""
    edges: Edges
    by_successor: Bool[np.ndarray, " edges"]
    """Whether the target follows a state near the source."""
    by_neighbour: Bool[np.ndarray, " edges"]
    """Whether the target is near the source's logged next state."""
    candidates: int | None = None
    """Pairs of states that the jump tests were given; None if that was not recorded."""

    def __len__(self) -> int:
        return len(self.episode)

    @cached_property
    def offsets(self) -> Integer[np.ndarray, " nodes_plus_1"]:
        """The edges of node u are those from `offsets[u]` up to `offsets[u + 1]`."""
        return np.searchsorted(self.edges.source, np.arange(len(self) + 1))

    def save(self, path: str | Path, belongs_to: str = "") -> None:
        """Write the graph, which may belong to a run; a file that is there is replaced."""
        tensors = {
            **{name: getattr(self, name) for name in _ARRAYS},
            **{f"neighbours/{name}": array for name, array in vars(self.neighbours).items()},
            **{f"logged/{name}": array for name, array in self.logged.items()},
            **{f"edges/{name}": array for name, array in self.edges.arrays().items()},
        }
        counted = {} if self.candidates is None else {"candidates": str(self.candidates)}
        save_tensors(tensors, path, {"format": FORMAT, **counted}, belongs_to=belongs_to)

    @classmethod
    def load(cls, path: str | Path, belongs_to: str = "") -> "StitchGraph":
        tensors, facts = read_tensors(path, belongs_to)
        try:
            if facts.get("format") != FORMAT:
                raise KeyError("format")
            return cls(
                **{name: tensors[name] for name in _ARRAYS},
                neighbours=Neighbours(**under(tensors, "neighbours/")),
                logged=under(tensors, "logged/"),
                edges=Edges.of(under(tensors, "edges/")),
                candidates=int(facts["candidates"]) if "candidates" in facts else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a stitching graph ({error}): build it again") from error


_ARRAYS = ("episode", "last", "terminal", "by_successor", "by_neighbour")


@dataclass(frozen=True)
class _Scoring:
    """What the candidates of any source states are found and scored with."""

    scorer: EdgeScorer
    neighbours: Neighbours
    last: Bool[np.ndarray, " nodes"]
    logged: Scores

    def edges(self, sources: Integer[np.ndarray, " some"]) -> tuple[dict[str, np.ndarray], int]:
        """Return the edges that leave these states, as arrays by name, and how many candidates were scored."""
        source, target, *rules = candidates(self.neighbours, self.last, sources)
        replaced = {name: values[source] for name, values in self.logged.items()}
        edges, kept = self.scorer.edges(source, target, replaced)
        return edges.arrays() | {name: rule[kept] for name, rule in zip(_RULES, rules, strict=True)}, len(source)


def build_graph(
    data: Trajectories, scorer: EdgeScorer, search: NeighbourSearch, workers: Workers = LOCAL
) -> StitchGraph:
    """Return the graph of a data set, built in blocks of bounded memory by the `workers`, to the same bits."""
    rows = len(data.observations)
    episode = ragged.owners(data.lengths + 1).astype(np.int32)
    last, terminal = np.zeros(rows, bool), np.zeros(rows, bool)
    ends = data.first_rows + data.lengths
    last[ends] = True
    terminal[ends[data.episode_terminated]] = True
    neighbours = _neighbours(_states(data, search), episode, scorer.context, search, workers)
    scorer = scorer.knowing(neighbours)

    steps = np.flatnonzero(~last).astype(np.int32)
    # Where a log breaks off, jumps may go on.
    sources = np.flatnonzero(~(terminal | scorer.unknown)).astype(np.int32)
    logged = {}
    for name, values in scorer.score_logged(steps).items():
        logged[name] = np.full(rows, np.nan, np.float32)
        logged[name][steps] = values
    scorer = scorer.knowing(neighbours, logged)
    if "precedent" in logged and scorer.nearby is not None:
        logger.info(f"one in ten logged steps has a precedent within {scorer.nearby.precedent:.0%} of its length")
    columns: dict[str, _Column] = {}
    tested = 0
    with progress("graph", len(sources), "states") as advance:
        blocks = [*_blocks(neighbours, sources)]
        scoring = _Scoring(scorer, neighbours, last, logged)
        for block, (found, count) in zip(blocks, workers.map(_Scoring.edges, scoring, blocks), strict=True):
            tested += count
            for name, part in found.items():
                columns.setdefault(name, _Column()).add(part)
            advance(len(block), edges=columns["source"].rows)
    whole = {name: column.whole() for name, column in columns.items()}
    return StitchGraph(
        episode=episode,
        last=last,
        terminal=terminal,
        neighbours=neighbours,
        logged=logged,
        **{name: whole.pop(name) for name in _RULES},
        edges=Edges.of(whole),
        candidates=tested,
    )


_RULES = ("by_successor", "by_neighbour")


def _states(data: Trajectories, search: NeighbourSearch) -> Float[np.ndarray, "nodes size"]:
    """Return the states between which distances are measured."""
    states = data.observations.astype(np.float32, copy=False)
    return np.asarray(normaliser_of(data.observations).apply(jnp.asarray(states))) if search.standardise else states


def _neighbours(
    states: Float[np.ndarray, "nodes size"],
    episode: Integer[np.ndarray, " nodes"],
    context: Integer[np.ndarray, " nodes"] | None,
    search: NeighbourSearch,
    workers: Workers,
) -> Neighbours:
    """Return each state's neighbours in other episodes of its own context."""
    if context is None:
        return find_neighbours(states, episode, search, workers=workers)
    order = np.argsort(context, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(context[order])) + 1)
    counts = np.zeros(len(states), np.int64)
    found = [(part, find_neighbours(states[part], episode[part], search, workers=workers)) for part in parts]
    for part, near in found:
        counts[part] = np.diff(near.offsets)
    offsets = ragged.offsets_of(counts)
    index = np.empty(offsets[-1], np.int32)
    for part, near in found:
        index[ragged.rows_of(offsets[part], counts[part])] = part[near.index]
    return Neighbours(offsets, index)


def _blocks(neighbours: Neighbours, steps: Integer[np.ndarray, " steps"]) -> Iterator[Integer[np.ndarray, " some"]]:
    """Yield the steps in order, in parts with a bounded number of candidates; one empty part if there are none."""
    after = np.minimum(steps + 2, len(neighbours.offsets) - 1)
    pairs = np.cumsum(neighbours.offsets[after] - neighbours.offsets[steps])
    start = 0
    while start < max(len(steps), 1):
        most = CANDIDATES + (pairs[start - 1] if start else 0)
        stop = max(start + 1, min(start + BLOCK, int(np.searchsorted(pairs, most, side="right"))))
        yield steps[start:stop]
        start = stop


class _Column:
    """Rows that arrive in parts. They grow in place: collecting the parts and joining them takes twice the memory."""

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
    neighbours: Neighbours, last: Bool[np.ndarray, " nodes"], nodes: Integer[np.ndarray, " some"]
) -> tuple[Nodes, Nodes, Bool[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
    """Return the candidates of logged steps, sorted: sources, targets, and by which of the two rules.

    At a last state, whose next state is not known, those by the first rule.
    """
    owner, neighbour = neighbours.of(nodes)
    follows = ~last[neighbour]
    stepping = nodes[~last[nodes]]
    owner_2, neighbour_2 = neighbours.of(stepping + 1)
    source = np.concatenate((nodes[owner[follows]], stepping[owner_2]))
    target = np.concatenate((neighbour[follows] + 1, neighbour_2))
    by_neighbour = np.zeros(len(source), bool)
    by_neighbour[follows.sum() :] = True
    key = (source.astype(np.int64) * len(last) + target) * 2 + by_neighbour
    key = np.sort(key)
    pair = key // 2
    first = np.flatnonzero(np.diff(pair, prepend=-1))
    count = np.diff(first, append=len(pair))
    pair, rule = pair[first], key[first] % 2
    return pair // len(last), pair % len(last), (count == 2) | (rule == 0), (count == 2) | (rule == 1)
