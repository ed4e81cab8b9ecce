"""The viewer: rebuilt trajectories step by step, with their sources, curves and jumps."""

from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from trajstitch.data import ragged
from trajstitch.data.trajectories import Trajectories
from trajstitch.report.jumps import JumpTable
from trajstitch.report.state_map import StateMap
from trajstitch.report.values import short

CURVE = 300
"""Points of a curve, at most; jumps and the states around them are always among them."""


def choose_trajectories(
    before: Trajectories | None, after: Trajectories, most: int
) -> tuple[Integer[np.ndarray, " some"], Float[np.ndarray, " episodes"]]:
    """Return which changed trajectories to show, from the largest gain to the smallest, and the gain of each.

    Of more than `most`, those at equal distances in the order of their gains.
    """
    assert after.provenance is not None
    changed = np.flatnonzero(ragged.sums(after.provenance.stitched, after.lengths) > 0)
    gain = after.returns.copy()
    if before is not None:
        start = after.provenance.source_episode[np.minimum(after.offsets[:-1], max(after.steps - 1, 0))]
        if before.provenance is None:
            gain -= before.returns[start]
        elif len(after) == len(before):
            gain -= before.returns
    order = changed[np.argsort(-gain[changed], kind="stable")]
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
    return order, gain


def trajectory_payload(
    after: Trajectories,
    jumps: JumpTable,
    episode: int,
    gain: float,
    made: StateMap,
    columns: Integer[np.ndarray, " telling"],
) -> dict[str, Any]:
    """Return one trajectory for the viewer: points, curves, the stretches of source episodes, and each jump."""
    origin = after.provenance
    assert origin is not None
    first, length = int(after.offsets[episode]), int(after.lengths[episode])
    steps = np.arange(first, first + length)
    here = np.flatnonzero((jumps.step >= first) & (jumps.step < first + length))
    at = jumps.step[here] - first
    points = _points(length, at)
    rows = after.filled().observations if len(after.unknown_rows) else after.observations
    states = rows[after.first_rows[episode] + points]
    place = made.place(states)
    earned = np.concatenate(([0.0], np.cumsum(after.rewards[steps], dtype=np.float64)))
    return {
        "episode": episode,
        "length": length,
        "return": float(earned[-1]),
        "gain": float(gain),
        "point": points.tolist(),
        "x": short(place[:, 0], made.digits),
        "y": short(place[:, 1], made.digits),
        "earned": short(earned[points]),
        "columns": [short(states[:, column].astype(np.float64)) for column in columns],
        "stretches": _stretches(origin.source_episode[steps], origin.source_step[steps], origin.stitched[steps]),
        "jumps": [_jump(after, jumps, int(number), first) for number in here],
    }


def _points(length: int, jumps: Integer[np.ndarray, " jumps"]) -> Integer[np.ndarray, " points"]:
    """Return the states that are drawn: evenly spaced ones, and those that jumps leave and lead to."""
    even = np.linspace(0, length, min(length + 1, CURVE)).round().astype(np.int64)
    most = jumps if len(jumps) <= CURVE else jumps[np.linspace(0, len(jumps) - 1, CURVE).round().astype(int)]
    return np.unique(np.concatenate((even, most, most + 1)))


def _stretches(
    episode: Integer[np.ndarray, " steps"], step: Integer[np.ndarray, " steps"], stitched: np.ndarray
) -> list[list[int]]:
    """Return the stretches between jumps: first and last state, source episode, and its first and last step."""
    found, first = [], 0
    for last in (*np.flatnonzero(stitched).tolist(), len(episode) - 1):
        if last >= first:
            found.append([first, last, int(episode[first]), int(step[first]), int(step[last])])
        first = last + 1
    return found


def _jump(after: Trajectories, jumps: JumpTable, number: int, first: int) -> dict[str, Any]:
    step = int(jumps.step[number])
    known = {
        "at": step - first,
        "action": short(after.actions[step].astype(np.float64), 3),
        "reward": short(jumps.reward[number]),
        "logged_reward": short(jumps.logged_reward[number]),
        "margin": short(jumps.margin[number]),
        "miss": short(jumps.miss[number], 3),
    }
    scores = {name: short(values[number], 3) for name, values in jumps.scores.items()}
    return {**known, "scores": scores}


def jumps_payload(after: Trajectories, jumps: JumpTable, made: StateMap, most: int) -> dict[str, Any]:
    """Return some of the jumps for the map: from where to where, and in which trajectory."""
    chosen = np.arange(len(jumps))
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng(0).choice(len(chosen), most, replace=False))
    rows = after.state_rows[jumps.step[chosen]]
    states = after.filled().observations
    start, end = made.place(states[rows]), made.place(states[rows + 1])
    return {
        "from": short(start, made.digits),
        "to": short(end, made.digits),
        "trajectory": after.episode_of_step[jumps.step[chosen]].tolist(),
        "reward": short(jumps.reward[chosen], 3),
        "consistency": short(jumps.scores["consistency"][chosen], 3) if "consistency" in jumps.scores else None,
        "of": len(jumps),
    }
