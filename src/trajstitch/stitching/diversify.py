"""Make data more varied: add likely trajectories that differ from the logged ones. No value function is needed.

The paper suggests TS "without the value function to increase the heterogeneity of the data", for "a larger, more
heterogeneous data set". Always jumping to the likeliest state does the opposite: walks that meet go on as one, and
share a few stretches. So here

*Walk.* Every logged trajectory is walked from its first state. At each state the walk takes the logged step or one of
the jumps that pass the jump tests, each with the same chance. The draw depends on the pass, the trajectory and the
state, so walks that meet part again. Otherwise a walk is that of `greedy`.

*Result.* Every logged trajectory stays. A walk is added if it jumps, and if no walk added before visits the same states
in the same order. So no state or action is lost, and each pass adds at most as many trajectories as were logged.
"""

from dataclasses import dataclass
from itertools import pairwise

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from trajstitch.stitching.acceptance import Rules, Summary, edges_of_graph, propose
from trajstitch.stitching.graph import EdgeScorer, StitchGraph
from trajstitch.stitching.paths import Paths, joined, without_unused_jumps
from trajstitch.stitching.walk import Visited, walk


def add_walks(
    paths: Paths,
    graph: StitchGraph,
    scorer: EdgeScorer,
    rules: Rules,
    key: PRNGKeyArray,
    latents: PRNGKeyArray | None = None,
) -> tuple[Paths, Summary]:
    """Return the paths and, after them, one walk of each logged trajectory that differs from all that are there.

    `key` draws the jumps; with `latents`, each jump's latent is drawn from (latents, source, target).
    """
    logged = Paths.of(paths.data)
    walks = walk(logged, graph, SampleJumps.of(graph, key), rules.longest(logged))
    edges = edges_of_graph(graph, np.full(len(graph), np.nan, np.float32))
    new = propose(logged, walks, edges, scorer, rules, latents, paths.jumps)
    added = new.accepted & _is_new(paths, new.paths)
    result = without_unused_jumps(joined(paths, new.paths, added))
    return result, Summary.of(result, int((new.jumps > 0).sum()), int(added.sum()), int(new.jumps[added].sum()))


@dataclass(frozen=True)
class SampleJumps:
    """Chooses how walks along logged data go on: by the logged step or a jump of the graph, each as likely."""

    first: Integer[np.ndarray, " nodes_plus_1"]
    """The first edge of each node."""
    target: Integer[np.ndarray, " edges"]
    seed: np.uint64

    @classmethod
    def of(cls, graph: StitchGraph, key: PRNGKeyArray) -> "SampleJumps":
        high, low = np.asarray(jax.random.key_data(key)).ravel()[-2:].astype(np.uint64)
        return cls(graph.offsets, graph.edges.target, high << np.uint64(32) | low)

    def __call__(
        self, walker: np.ndarray, slot: np.ndarray, row: np.ndarray, visited: Visited
    ) -> tuple[np.ndarray, np.ndarray]:
        choices = self.first[row + 1] - self.first[row] + 1  # a row of the logged data is a node
        drawn = np.floor(self.draw(walker, row) * choices).astype(np.int64)
        edge, onward = np.where(drawn < choices - 1, self.first[row] + drawn, -1), row + 1
        jumps = edge >= 0
        jumps[jumps] = ~visited.has(slot[jumps], self.target[edge[jumps]])
        onward[jumps] = self.target[edge[jumps]]
        return np.where(jumps, edge, -1), onward

    def draw(self, walker: np.ndarray, node: np.ndarray) -> Float[np.ndarray, " walks"]:
        """Return a number in [0, 1) for each pair, which depends on nothing but the seed and the pair (SplitMix64)."""
        mixed = np.full(len(node), self.seed)
        for part in (walker, node):
            mixed = (mixed ^ part.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ mixed >> np.uint64(31)
        return (mixed >> np.uint64(11)) * 2.0**-53


def _is_new(paths: Paths, walks: Paths) -> Bool[np.ndarray, " walks"]:
    """Return which walks visit other states, or in another order, than every trajectory of `paths`."""
    there = set(_visits(paths))
    return np.array([visits not in there for visits in _visits(walks)], bool)


def _visits(paths: Paths) -> list[bytes]:
    """Return the nodes that each trajectory visits, as bytes that can be compared."""
    rows = paths.offsets + np.arange(len(paths.offsets))
    nodes = paths.node.astype(np.int32, copy=False)
    return [nodes[start:stop].tobytes() for start, stop in pairwise(rows)]
