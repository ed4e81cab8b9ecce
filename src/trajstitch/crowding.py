"""A plan for all trajectories together: no logged state may be crowded.

A plan alone sends every trajectory through the few best stretches of the data, and a policy cloned from the result
sees little else. Here a state takes only so many trajectories. Those that gain the most by a plan get its states
first; the states that are then taken are closed, and the others plan again around them, until nobody gains.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray

from trajstitch import console
from trajstitch.graph import Judge, StitchGraph
from trajstitch.passes import Rules, Summary, propose, summary
from trajstitch.paths import Paths, choose, without_idle_jumps
from trajstitch.plan import Plan, Planner
from trajstitch.trajectories import Trajectories


def spread(
    data: Trajectories, graph: StitchGraph, judge: Judge, config: Plan, rules: Rules, key: PRNGKeyArray | None = None
) -> tuple[Paths, Summary]:
    """Plan and rebuild, in rounds; in one round where any number of visits is allowed."""
    logged, planner = Paths.of(data), Planner(data, graph, config)
    result, free = logged, np.ones(len(data), bool)
    proposed, changes = np.zeros(len(data), bool), np.zeros(len(data), int)
    closed, value_gain = None, None
    rounds = 1 if config.most_visits is None else config.rounds
    with console.progress("plan", rounds, "rounds") as advance:
        for _ in range(rounds):
            decisions, _ = planner(closed)
            # What a jump gains is told by the first plan: in later ones, closed states look worse than they are.
            value_gain = decisions.value_gain if value_gain is None else value_gain
            new = propose(logged, graph, replace(decisions, value_gain=value_gain), judge, rules, key, result.jumps)
            proposed |= new.changes > 0
            leaves = new.accepted & free
            if config.most_visits is not None:
                gain = new.paths.returns - logged.returns
                leaves = admitted(new.paths, graph.episode, leaves, gain, visits(result), config.most_visits)
            free &= ~leaves
            advance(1, rebuilt=int((~free).sum()))
            if not leaves.any():
                break
            changes[leaves] = new.changes[leaves]
            result = without_idle_jumps(choose(replace(result, jumps=new.paths.jumps), new.paths, leaves))
            closed = None if config.most_visits is None else visits(result) >= config.most_visits
    return result, summary(result, int(proposed.sum()), int((~free).sum()), int(changes.sum()))


def visits(paths: Paths) -> Integer[np.ndarray, " nodes"]:
    return np.bincount(paths.node, minlength=paths.nodes)


def admitted(
    new: Paths,
    episode: Integer[np.ndarray, " nodes"],
    wanting: Bool[np.ndarray, " episodes"],
    gain: Float[np.ndarray, " episodes"],
    load: Integer[np.ndarray, " nodes"],
    most: int,
) -> Bool[np.ndarray, " episodes"]:
    """Who may leave its logged trajectory for the new one, the highest gain first, so that no node has too many visits.

    `load` counts the visits as they are; a trajectory that leaves gives up its own.
    """
    load, chosen = load.copy(), np.zeros(len(wanting), bool)
    rank = np.empty(len(wanting), np.int64)
    rank[np.argsort(-gain, kind="stable")] = np.arange(len(wanting))
    walker = np.repeat(np.arange(len(wanting)), new.lengths + 1)
    inside = wanting[walker]
    walker, node = walker[inside], new.node[inside]
    order = np.lexsort((rank[walker], node))
    walker, node = walker[order], node[order]
    own = episode[node] == walker
    while len(walker):
        room = most - load[node] + own  # how many may come
        hopeless = np.zeros(len(wanting), bool)
        hopeless[walker[room <= 0]] = True
        keep = ~hopeless[walker]
        walker, node, own, room = walker[keep], node[keep], own[keep], room[keep]
        if not len(walker):
            break
        first = np.flatnonzero(np.concatenate(([True], node[1:] != node[:-1])))
        place = np.arange(len(node)) - np.repeat(first, np.diff(np.append(first, len(node))))
        waits = np.zeros(len(wanting), bool)
        waits[walker[place >= room]] = True
        now = np.zeros(len(wanting), bool)
        now[walker] = True
        now &= ~waits
        chosen |= now
        load += np.bincount(node[now[walker]], minlength=len(load))
        load -= now[episode]
        keep = waits[walker]
        walker, node, own = walker[keep], node[keep], own[keep]
    return chosen
