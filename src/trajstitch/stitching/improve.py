"""Plan, make greedy passes or diversify, for several seeds or data sets at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Integer, PRNGKeyArray

from trajstitch.data.trajectories import Trajectories
from trajstitch.models.value import Value, fit_values, values
from trajstitch.progress import logger
from trajstitch.stitching.acceptance import Summary
from trajstitch.stitching.capacity import plan_with_capacity
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.diversify import add_walks
from trajstitch.stitching.graph import EdgeScorer, StitchGraph
from trajstitch.stitching.greedy import one_pass
from trajstitch.stitching.paths import Jumps, Paths
from trajstitch.storage.tensors import under
from trajstitch.storage.trees import tensors_of, tree_from


@dataclass(frozen=True)
class StitchingTask:
    """What the passes of one seed work on: seeds of one data set share all but the key."""

    data: Trajectories
    scorer: EdgeScorer
    graph: StitchGraph
    key: PRNGKeyArray
    """Of V and the latents."""


@dataclass(frozen=True)
class Progress:
    """D_k of one task, after some passes."""

    paths: Paths
    value: Value | None = None
    """The V of the last pass, if it was a greedy one."""
    summaries: tuple[Summary, ...] = ()
    """What each pass did."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every array by a name of its own."""
        return {
            **{name: getattr(self.paths, name) for name in _PATHS},
            **{f"jumps/{name}": array for name, array in self.paths.jumps.arrays().items()},
            **{f"value/{name}": array for name, array in tensors_of(self.value).items()},
        }

    @classmethod
    def of(
        cls,
        arrays: dict[str, np.ndarray],
        summaries: list[dict[str, Any]],
        data: Trajectories,
        config: StitchConfig,
        where: str,
    ) -> "Progress":
        """Return progress from what `arrays` gave."""
        fitted = under(arrays, "value/")
        return cls(
            Paths(data, **{name: arrays[name] for name in _PATHS}, jumps=Jumps.of(under(arrays, "jumps/"))),
            tree_from(fitted, config.value.init(jax.random.key(0), data), where) if fitted else None,
            tuple(Summary(**summary) for summary in summaries),
        )


_PATHS = ("node", "kind", "offsets", "terminated", "truncated")


def improve_together(
    config: StitchConfig,
    tasks: Sequence[StitchingTask],
    begun: Sequence[Progress] | None = None,
    after_pass: Callable[[list[Progress]], None] | None = None,
) -> list[Progress]:
    """Plan and rebuild each task's trajectories, or make K passes: greedy ones whose V's train together, or diversify.

    `after_pass` is called after every pass; what it was given can be passed as `begun` later, to resume to the same
    bits.
    """
    keys = [jax.random.split(task.key) for task in tasks]
    several = [Progress(Paths.of(task.data)) for task in tasks] if begun is None else list(begun)

    def latents(at: int, number: int) -> PRNGKeyArray | None:
        return jax.random.fold_in(keys[at][1], number) if config.sample_latents else None

    def log(at: int, number: int, summary: Summary) -> Summary:
        which = f"{_title(tasks, at)}, " if len(tasks) > 1 else ""
        logger.info(f"{which}pass {number + 1}: {summary}")
        return summary

    if config.plan is not None:
        for at, task in enumerate(tasks):
            paths, summary = plan_with_capacity(
                task.data, task.graph, task.scorer, config.plan, config.rules, latents(at, 0)
            )
            several[at] = Progress(paths, summaries=(log(at, 0, summary),))
        return several
    while (number := min(len(progress.summaries) for progress in several)) < config.passes:
        due = [at for at, progress in enumerate(several) if len(progress.summaries) == number]
        own = [jax.random.fold_in(keys[at][0], number) for at in due]
        fitted = _fit_values(config, [several[at] for at in due], own) if config.rules.value_test else [None] * len(due)
        for at, key, value in zip(due, own, fitted, strict=True):
            task, paths, rules = tasks[at], several[at].paths, config.rules
            if value is None:
                paths, summary = add_walks(paths, task.graph, task.scorer, rules, key, latents(at, number))
            else:
                value_of = partial(_value_of, value, task.data)
                paths, summary = one_pass(paths, task.graph, task.scorer, value_of, rules, latents(at, number))
            several[at] = Progress(paths, value, (*several[at].summaries, log(at, number, summary)))
        if after_pass is not None:
            after_pass(several)
    return several


def _fit_values(config: StitchConfig, due: Sequence[Progress], keys: Sequence[PRNGKeyArray]) -> list[Value]:
    """Fit V to each D_k, all at once, from the V's of the last pass if there are any."""
    fitted = fit_values(
        config.value,
        [progress.paths.trajectories(provenance=False) for progress in due],
        keys,
        [progress.value for progress in due if progress.value is not None] or None,
        room=sum(progress.paths.data.steps for progress in due),  # D_k is mostly shorter than the data
    )
    for _, report in fitted:
        logger.info(str(report))
    return [value for value, _ in fitted]


def _title(tasks: Sequence[StitchingTask], at: int) -> str:
    """Return a task's name among others: by its data set and its seed, where these differ."""
    data = tasks[at].data
    name = "" if all(task.data is data for task in tasks) else data.metadata.name
    alike = [number for number, task in enumerate(tasks) if task.data is data]
    seed = f"seed {alike.index(at) + 1} of {len(alike)}" if len(alike) > 1 else ""
    return ", ".join(filter(None, (name, seed)))


def _value_of(value: Value, data: Trajectories, nodes: Integer[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
    return values(value, data.observations[nodes])
