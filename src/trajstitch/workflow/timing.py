"""How fast this machine is with this data: a few hundred steps of each learner, timed once it is compiled."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from trajstitch.data import environments
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.engines.workers import cores
from trajstitch.evaluation import estimates
from trajstitch.evaluation.compare import compare
from trajstitch.evaluation.estimates import horizon_of
from trajstitch.policies import algorithm_class
from trajstitch.policies.bc import BC
from trajstitch.policies.train import train_together
from trajstitch.progress import logger
from trajstitch.stitching.config import Preset, preset
from trajstitch.stitching.graph import build_graph
from trajstitch.stitching.improve import improve_together
from trajstitch.stitching.pipeline import Stages, StitchJob, fit_model
from trajstitch.workflow.budget import (
    SEEDS,
    STITCHING,
    Speed,
    StitchSpeed,
    Timings,
    may_fit_default,
    may_fit_iql,
    model_configs,
    with_models,
)

Measured = TypeVar("Measured")

STEPS = 300
"""Gradient steps, and steps in the environment, that are timed."""
PARTS = 3
"""Parts of these steps: the time between their ends is that of steps alone."""
SAMPLE = 4_000
"""Transitions that are learned from and stitched, at most (but two episodes)."""


def measure(data: Trajectories, budget: float, play: Metadata | None, *, clones_only: bool = False) -> Timings:
    """Time what may fit into the budget; `play` is the metadata that names an environment, if there is one to use."""
    start = time.monotonic()
    some = _sample(data)
    policies = {"bc": _timed("bc", lambda: _policy_speed("bc", some))}
    estimate = _timed("estimates of returns", lambda: _estimate_seconds(data, some)) if play is None else 0.0
    stitching: dict[Preset, StitchSpeed] = {}
    if len(some) > 1:
        stitching["quick"] = _timed("stitching by the preset quick", lambda: _stitch_speed("quick", some))
        if may_fit_default(budget - (time.monotonic() - start), stitching["quick"], data.steps):
            stitching["default"] = _timed("stitching by the preset default", lambda: _stitch_speed("default", some))
    left = (1 - STITCHING) * budget - (time.monotonic() - start)
    if not clones_only and np.ptp(data.returns) > 0 and may_fit_iql(left, policies["bc"]):
        policies["iql"] = _timed("iql", lambda: _policy_speed("iql", some))
    episode = None if play is None else _timed("the environment", lambda: _episode_seconds(data, play))
    return Timings(stitching, policies, episode, estimate)


def _sample(data: Trajectories) -> Trajectories:
    """Return some whole episodes: two at least, if there are as many."""
    order = np.random.default_rng(0).permutation(np.flatnonzero(data.lengths > 0))
    within = np.cumsum(data.lengths[order]) <= SAMPLE
    if within.sum() < 2:
        shortest = order[np.argsort(data.lengths[order], kind="stable")[:2]]
        return data[np.sort(shortest)]
    return data[np.sort(order[within])]


def _policy_speed(name: str, data: Trajectories) -> Speed:
    algorithm, at = algorithm_class(name)(steps=STEPS), []

    def train() -> None:
        at.clear()
        train_together([data], algorithm, SEEDS, each=lambda *_: at.append(time.monotonic()), every=STEPS // PARTS)

    first, again = _seconds(train), _seconds(train)
    step = (at[-1] - at[0]) / (STEPS - STEPS // PARTS)
    return Speed(max(first - again, 0.0), step, max(again - STEPS * step, 0.0))


def _stitch_speed(name: Preset, data: Trajectories) -> StitchSpeed:
    whole = preset(name).for_data(data.metadata)
    short: dict[str, Any] = {n: replace(m, steps=STEPS, epochs=None) for n, m in model_configs(whole).items()}
    config = with_models(whole, short)
    stages = Stages(StitchJob(data, config))
    start = _seconds(stages.models)
    step = {}
    for model in short:
        took = _seconds(lambda: fit_model(config, model, stages.recorded, stages.models_key, stages.roles))  # noqa: B023
        start, step[model] = start - took, took / STEPS
    compiled = _seconds(stages.graph)
    graph = _seconds(lambda: build_graph(stages.data, stages.scorer(), config.neighbours))
    passes = _seconds(lambda: improve_together(config, stages.tasks(), stages.begun(), lambda _: None))
    return StitchSpeed(max(start, 0.0) + max(compiled - graph, 0.0), step, (graph + passes) / data.steps)


def _episode_seconds(data: Trajectories, play: Metadata) -> float:
    """Return how long an episode of full length takes, when every core plays one."""
    environment = environments.make(play)
    actions = data.actions[np.random.default_rng(0).integers(data.steps, size=STEPS)]

    def steps() -> None:
        environment.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, _ = environment.step(action.reshape(environment.action_space.shape))
            if terminated or truncated:
                environment.reset()

    took = _seconds(steps)
    environment.close()
    limit = environment.spec.max_episode_steps if environment.spec is not None else None
    return took / STEPS * (limit or horizon_of(data)) / cores()


def _estimate_seconds(data: Trajectories, some: Trajectories) -> float:
    """Return how long the estimate of one policy's return takes, judging by some of the episodes."""
    policies = train_together([some], BC(steps=STEPS), SEEDS)[0]
    took = _seconds(lambda: compare({"bc": policies}, some))
    return took / SEEDS * min(data.steps, estimates.MOST_STEPS) / some.steps


def _timed(what: str, measured: Callable[[], Measured]) -> Measured:
    """Say what is timed, since it may take a while, and return what is measured."""
    logger.info(f"timing {what}")
    with _quiet():
        return measured()


def _seconds(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing: what short trials find is no finding."""
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
