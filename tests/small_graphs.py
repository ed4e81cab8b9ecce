"""Data sets from arrays of equally long episodes, and graphs on them whose jumps are given."""

from collections.abc import Mapping

import numpy as np

from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.stitching.graph import Edges, StitchGraph
from trajstitch.stitching.neighbours import NeighbourSearch, find_neighbours


def logged(
    states: np.ndarray,
    actions: np.ndarray | None = None,
    rewards: np.ndarray | None = None,
    terminated: np.ndarray | None = None,
) -> Trajectories:
    """Return data from states (episode, time, column) and actions and rewards, which are 0 if not given.

    Episodes are truncated, but for those that `terminated` marks.
    """
    episodes, length = states.shape[0], states.shape[1] - 1
    last = np.tile(np.arange(length) == length - 1, episodes)
    ended = np.repeat(np.zeros(episodes, bool) if terminated is None else terminated, length) & last
    actions = np.zeros((episodes, length, 1)) if actions is None else actions
    rewards = np.zeros((episodes, length)) if rewards is None else rewards
    return Trajectories(
        observations=states.reshape(-1, states.shape[2]).astype(np.float32),
        actions=actions.reshape(episodes * length, -1).astype(np.float32),
        rewards=rewards.reshape(-1).astype(np.float32),
        terminated=ended,
        truncated=last & ~ended,
        offsets=np.arange(episodes + 1) * length,
        metadata=Metadata("small"),
    )


def graph_on(
    data: Trajectories, jumps: Mapping[tuple[int, int], float], k: int = 2, error: np.ndarray | None = None
) -> StitchGraph:
    """Return a graph with these jumps from one node to another, which have these rewards and miss by nothing.

    `error` is how far the step logged at each node missed what was predicted; nothing if not given.
    """
    nodes = len(data.observations)
    episode = np.repeat(np.arange(len(data)), data.lengths + 1).astype(np.int32)
    ends = data.first_rows + data.lengths
    last, terminal = np.zeros(nodes, bool), np.zeros(nodes, bool)
    last[ends], terminal[ends[data.episode_terminated]] = True, True
    pairs = sorted(jumps)
    source, target = (np.array([pair[at] for pair in pairs], np.int32) for at in range(2))
    nothing = np.zeros(len(pairs), np.float32)
    logged = {"error": np.zeros(nodes) if error is None else error, "length": np.ones(nodes)}
    return StitchGraph(
        episode=episode,
        last=last,
        terminal=terminal,
        neighbours=find_neighbours(data.observations, episode, NeighbourSearch(k=k)),
        logged={name: np.where(last, np.nan, values).astype(np.float32) for name, values in logged.items()},
        edges=Edges(
            source,
            target,
            {"consistency": nothing, "error": nothing},
            np.zeros((len(pairs), data.action_size), np.float32),
            np.array([jumps[pair] for pair in pairs], np.float32),
        ),
        by_successor=np.ones(len(pairs), bool),
        by_neighbour=np.zeros(len(pairs), bool),
    )
