"""How much memory a stitching takes, told before the work.

Most of it holds the graph's edges, and what a plan knows of each. How many candidates become edges is not known before
models have scored them, so there are two numbers: the least, if none does, and the most, if all do.
benchmarks/memory.py measures the most.
"""

from dataclasses import replace
from typing import NamedTuple

from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.limits import free_memory
from trajstitch.progress import logger
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.nearby import MOST

GIB = 2**30
COMPILED = 400 << 20
"""Bytes of compiled programs, and of the blocks that are scored at once."""
EDGE = 14
"""Bytes of an edge: source, target, reward, and by which rules it is a candidate."""
SCORES = {"likelihood": 2, "consistency": 2}
"""Scores that a test keeps for each edge, if it is not one."""
PLANNED_EDGE = 40
"""Bytes that planning takes for an edge: target, gain, the gain around full states, value, uses left, and flags."""
NODE = 400
"""Bytes that planning and rebuilding take for a state, whatever its size."""
SOME_GIB = 1.0
"""Below this, nothing is said: it fits anywhere."""


class Need(NamedTuple):
    """Bytes that a stitching takes beside the data, at its peak."""

    least: float
    """If no candidate becomes an edge."""
    most: float
    """If all do."""


def needed(data: Trajectories, config: StitchConfig) -> Need:
    """Return what stitching the data takes; with a radius and no `k`, the most is not known: as for 32 neighbours."""
    nodes, size, actions = len(data.observations), data.observation_size, data.action_size
    near = config.neighbours.k or MOST
    # The states as walks see them and on the device, the transitions that models learn from, and the neighbours.
    node = NODE + 2 * size * data.observations.itemsize + 4 * (2 * size + 2 * actions) + 4 * (near + min(near, MOST))
    scores = sum(SCORES.get(name, 1) for name in config.tests)
    edge = EDGE + 4 * scores + 4 * actions + (PLANNED_EDGE if config.plan is not None else 8)
    least = COMPILED + nodes * node
    return Need(least, least + nodes * 2 * near * edge)


def check_memory(data: Trajectories, config: StitchConfig) -> None:
    """Say how much memory stitching the data takes, and what lowers it; raise if it can't fit."""
    need, free = needed(data, config), free_memory()
    if need.most < SOME_GIB * GIB and need.most < free:
        return
    k = config.neighbours.k
    lower = "`neighbours.k` lowers it" if k is None or k > 1 else "less data lowers it"
    told = (
        f"stitching {data.steps:,} transitions takes {_gib(need.least)} to {_gib(need.most)} GiB of memory, by how "
        f"many jumps pass their tests; {_gib(free)} GiB are available"
    )
    if need.least > free:
        raise InputError(f"{told}: stitch a part of the data, or use a machine with more memory")
    if need.most <= free:
        logger.info(f"{told}; {lower}")
        return
    fits = next((less for less in range((k or MOST) - 1, 0, -1) if needed(data, _with_k(config, less)).most <= free), 1)
    logger.warning(f"{told}. It may not fit: `neighbours.k={fits}` makes sure that it does")


def _with_k(config: StitchConfig, k: int) -> StitchConfig:
    return replace(config, neighbours=replace(config.neighbours, k=k))


def _gib(count: float) -> str:
    return f"{count / GIB:.2g}" if count < 10 * GIB else f"{count / GIB:.0f}"
