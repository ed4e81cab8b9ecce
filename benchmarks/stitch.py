"""What a pass costs a transition, on the graph and step by step, and what each stage costs.

    python benchmarks/stitch.py --set hopper/medium-replay --transitions 200000 --json stitch.json

The step-by-step way is the one of the paper's authors' public code: at each step a KD-tree query around s and s',
then the dynamics ensemble and V on the candidates. It is timed on a sample of steps, in the same process, on the
same data, models and candidates as the graph. Models are trained briefly: their quality does not matter here.
"""

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table
from scipy.spatial import KDTree

from trajstitch import console
from trajstitch.graph import Judge, Models, Reach, build
from trajstitch.models.value import TwinValue, Value, fit_value, values
from trajstitch.neighbours import Near, neighbours
from trajstitch.passes import Rules, one_pass, rebuild
from trajstitch.paths import Paths
from trajstitch.plan import Plan, plan
from trajstitch.sets.collect import Collect, collect
from trajstitch.stitching import PRESETS, fit_models
from trajstitch.trajectories import Trajectories
from trajstitch.transitions import Scale

PAD = 64
"""Candidates that the step-by-step way evaluates at once, so that nothing compiles twice."""


def step_by_step(data: Trajectories, models: Models, value: Value, k: int, sample: int) -> float:
    """Seconds a transition."""
    scale = Scale(data.observations)
    states = np.asarray(scale.apply(jnp.asarray(data.observations, jnp.float32)))
    tree = KDTree(states)
    last = np.zeros(len(states), bool)
    last[data.first_rows + data.lengths] = True

    @eqx.filter_jit
    def judge(models: Models, value: Value, state: jax.Array, following: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = eqx.filter_vmap(lambda one: one.log_likelihood(state[None], following))(models.dynamics)
        return each.min(0), value(following)

    rows = np.random.default_rng(0).permutation(data.state_rows)[: sample + 10]
    start = 0.0
    for number, row in enumerate(rows):
        if number == 10:
            start = time.perf_counter()
        near, near_next = (np.asarray(tree.query(states[at], k)[1]) for at in (row, row + 1))
        padded = np.resize(np.concatenate((near[~last[near]] + 1, near_next, [row + 1])), PAD)
        low, worth = judge(models, value, jnp.asarray(data.observations[row]), jnp.asarray(data.observations[padded]))
        jax.block_until_ready((low, worth))
    return (time.perf_counter() - start) / sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="hopper/medium-replay")
    parser.add_argument("--transitions", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=500, help="gradient steps a model")
    parser.add_argument("--sample", type=int, default=200, help="steps of the step-by-step way")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    stages: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        stages[name] = time.perf_counter() - start
        console.log(f"{name}: {stages[name]:.2f} s")
        return result

    data = timed("collect", lambda: collect(Collect(options.set, transitions=options.transitions)))
    quick = PRESETS["quick"]
    assert quick.forward is not None
    brief = replace(
        quick,
        dynamics=replace(quick.dynamics, members=5, keep=5, hidden=(200, 200, 200), steps=options.steps),
        inverse=replace(quick.inverse, hidden=(256, 256), steps=options.steps),
        reward=replace(quick.reward, hidden=(512, 512), steps=options.steps),
        forward=replace(quick.forward, members=3, steps=options.steps),
    )
    key = jax.random.key(0)
    models, _ = timed("models", lambda: fit_models(brief, data, key))
    value, _ = timed("value", lambda: fit_value(TwinValue(steps=options.steps), data, key))
    near = Near(k=options.k)
    scale = Scale(data.observations)
    states = np.asarray(scale.apply(jnp.asarray(data.observations, jnp.float32)))
    episode = np.repeat(np.arange(len(data)), data.lengths + 1)
    timed("neighbours alone", lambda: neighbours(states, episode, near))
    graph = timed("graph, neighbours included", lambda: build(data, models, near, Reach(64.0, 0.2)))
    judge = Judge(models, data.observations)

    def value_of(nodes: np.ndarray) -> np.ndarray:
        return values(value, data.observations[nodes])

    paths = timed("first pass, compiling", lambda: one_pass(Paths.of(data), graph, judge, value_of, Rules()))[0]
    timed("first pass", lambda: one_pass(Paths.of(data), graph, judge, value_of, Rules()))
    timed("second pass", lambda: one_pass(paths, graph, judge, value_of, Rules()))
    decisions, _ = timed("plan", lambda: plan(data, graph, Plan()))
    timed("rebuild by the plan", lambda: rebuild(Paths.of(data), graph, decisions, judge, Rules()))
    slow = timed("step by step", lambda: step_by_step(data, models, value, options.k, options.sample))

    fast = stages["first pass"] / data.steps
    table = Table("stage", "seconds", title=f"{options.set}, {data.steps:,} transitions × {data.observation_size}")
    for name, seconds in stages.items():
        table.add_row(name, f"{seconds:,.2f}")
    console.stdout().print(table)
    console.stdout().print(
        f"a transition costs {1e6 * slow:,.0f} µs step by step and {1e6 * fast:,.3f} µs on the graph: "
        f"1/{slow / fast:,.0f}; {len(graph.edges):,} edges; "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:,.1f} GiB at most"
    )
    if options.json:
        result = {
            "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "device": jax.devices()[0].device_kind,
            "set": options.set,
            "transitions": data.steps,
            "dimensions": data.observation_size,
            "edges": len(graph.edges),
            "stages": stages,
            "microseconds_step_by_step": 1e6 * slow,
            "microseconds_on_the_graph": 1e6 * fast,
            "ratio": slow / fast,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
