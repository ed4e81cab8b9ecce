"""What each stage of stitching costs as the data grows, and a pass on the graph compared with walking step by step.

    python benchmarks/stitch.py --sizes 50000 100000 200000 --json stitch.json
    python benchmarks/stitch.py --write-docs stitch.json h200.json --runs runs/paper runs/quick

The paper's authors' public code walks step by step: at each step a KD-tree query around s and s', then the dynamics
ensemble and V on the candidates. That is timed on a sample of steps, in the same process, on the same data, models and
candidates as the graph, in turns with passes on it; of both, the median turn counts. Models are trained briefly: their
quality does not matter here, and the cost of training is reported as rates. Each size is measured in a process of its
own, so that its memory is, too. `--write-docs` measures nothing: it writes
docs/results/speed.md from files of measurements, and from the folders of whole runs of `trajstitch stitch`.
"""

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table
from scipy.spatial import KDTree

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import stdout
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import transitions
from trajstitch.learning.fit import begin, fit
from trajstitch.learning.networks import normaliser_of
from trajstitch.models.dynamics import Dynamics, Gaussian
from trajstitch.models.forward import ForwardDynamics
from trajstitch.models.value import TwinValue, Value, fit_value, values
from trajstitch.progress import logger
from trajstitch.stitching.config import PRESETS
from trajstitch.stitching.greedy import one_pass
from trajstitch.stitching.improve import improve_together
from trajstitch.stitching.jump_tests import Consistency, Likelihood
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.storage.circumstances import command_line, machine, versions
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.runs import Run

TURNS = 5
PAD = 64
"""Candidates that a step evaluates at once, so that nothing compiles twice."""


def step_by_step(data: Trajectories, dynamics: Gaussian, value: Value, k: int) -> Callable[[int], float]:
    """Return a function that walks N steps, as the authors' code does, and returns the seconds per step."""
    scale = normaliser_of(data.observations)
    states = np.asarray(scale.apply(jnp.asarray(data.observations, jnp.float32)))
    tree = KDTree(states)
    last = np.zeros(len(states), bool)
    last[data.first_rows + data.lengths] = True
    rows = iter(np.random.default_rng(0).permutation(data.state_rows))

    @eqx.filter_jit
    def score(dynamics: Gaussian, value: Value, state: jax.Array, following: jax.Array) -> tuple[jax.Array, jax.Array]:
        each = eqx.filter_vmap(lambda one: one.log_likelihood(state[None], following))(dynamics)
        return each.min(0), value(following)

    def take(steps: int) -> float:
        start = time.perf_counter()
        for row in itertools.islice(rows, steps):
            near, near_next = (np.asarray(tree.query(states[at], k)[1]) for at in (row, row + 1))
            padded = np.resize(np.concatenate((near[~last[near]] + 1, near_next, [row + 1])), PAD)
            batch = jnp.asarray(data.observations[row]), jnp.asarray(data.observations[padded])
            jax.block_until_ready(score(dynamics, value, *batch))
        return (time.perf_counter() - start) / steps

    take(10)  # to compile
    return take


def value_rate(data: Trajectories, seeds: int, seconds: float) -> float:
    """Return updates of V per second, where an update is one of all seeds together."""
    config = TwinValue()
    init = eqx.filter_vmap(lambda key: config.init(key, data))
    state = begin(config, init(jax.random.split(jax.random.key(0), seeds)), jax.random.split(jax.random.key(1), seeds))
    chunk = 200 if jax.default_backend() == "cpu" else 5000
    times: list[float] = []

    def each(state: Any, metrics: dict[str, float]) -> None:
        times.append(time.perf_counter())
        if times[-1] - times[0] > seconds and len(times) > 1:
            raise StopIteration

    with suppress(StopIteration):
        fit(config, state, transitions(data), every=chunk, title="value, for its rate", each=each)
    return chunk * (len(times) - 1) / (times[-1] - times[0])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything at one size."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - start
        logger.info(f"{name}: {seconds[name]:.2f} s")
        return result

    data = timed("collect", lambda: collect(Collect(options.set, transitions=options.sizes[0])))
    quick, steps = PRESETS["quick"], options.steps
    config = replace(
        quick,
        tests={
            "likelihood": Likelihood(Dynamics(members=5, keep=5, learning_rate=1e-3, steps=steps), margin=256.0),
            "consistency": Consistency(ForwardDynamics(members=3, steps=steps), limit=0.2),
        },
        inverse=replace(quick.inverse, hidden=(256, 256), steps=steps),
        reward=replace(quick.reward, hidden=(512, 512), steps=steps),
        neighbours=NeighbourSearch(k=options.k),
    )
    stages = Stages(StitchJob(data, config))
    models, _ = stages.models()
    value, _ = fit_value(TwinValue(steps=steps), data, jax.random.key(0))
    graph = timed("graph", stages.graph)

    def value_of(nodes: np.ndarray) -> np.ndarray:
        return values(value, data.observations[nodes])

    def greedy_pass(paths: Paths) -> Paths:
        return one_pass(paths, graph, stages.scorer(), value_of, config.rules)[0]

    paths = greedy_pass(Paths.of(data))  # to compile
    take, slow, fast = step_by_step(data, models.tests["likelihood"], value, options.k), [], []
    for _ in range(TURNS):
        slow.append(take(options.sample // TURNS))
        timed("first pass", lambda: greedy_pass(Paths.of(data)))
        fast.append(seconds["first pass"])
    seconds["first pass"] = statistics.median(fast)
    timed("second pass", lambda: greedy_pass(paths))
    timed("plan for all", lambda: improve_together(config, stages.tasks()))
    a_step, a_transition = statistics.median(slow), statistics.median(fast) / data.steps
    return {
        "set": options.set,
        "transitions": data.steps,
        "dimensions": data.observation_size,
        "edges": len(graph.edges),
        "stages": seconds,
        "microseconds_step_by_step": 1e6 * a_step,
        "microseconds_on_the_graph": 1e6 * a_transition,
        "ratio": a_step / a_transition,
        "value_updates_per_second": {str(n): value_rate(data, n, options.seconds) for n in (1, 3)},
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "machine": machine(),
        "versions": versions(),
    }


STAGES = ("collect", "graph", "first pass", "second pass", "plan for all")


def columns(row: dict[str, Any]) -> list[str]:
    one, three = (row["value_updates_per_second"][seeds] for seeds in ("1", "3"))
    return [
        row["set"],
        f"{row['transitions']:,} × {row['dimensions']}",
        *(f"{row['stages'][stage]:,.2f}" for stage in STAGES),
        f"{row['microseconds_step_by_step']:,.0f}",
        f"{row['microseconds_on_the_graph']:,.2f}",
        f"1/{row['ratio']:,.0f}",
        f"{one:,.0f}",
        f"{one / three:.2f}",
        f"{row['peak_bytes'] / 2**30:.1f}",
    ]


TITLES = ("set", "transitions", *STAGES, "step by step, µs", "pass, µs", "ratio", "V/s", "3 seeds", "GiB")


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("", *(f"{row['transitions']:,}" for row in rows), box=None, pad_edge=False, title=rows[0]["set"])
    for title, *cells in zip(TITLES, *map(columns, rows), strict=True):
        if title not in ("set", "transitions"):
            table.add_row(title, *cells)
    stdout().print(table)


def whole_run(folder: Path) -> list[str]:
    """Return the seconds that a run of `trajstitch stitch` took, from its folder."""
    run = Run.open(folder, "stitch")
    asked, seconds = run.facts["config"], run.read_json("seconds")
    stages = [seconds.get(stage, 0.0) for stage in ("models", "graph", "passes")]
    name = Path(asked["source"].removeprefix("npz:")).stem
    words = [name, f"{asked['transitions']:,}", asked["preset"], str(asked["seeds"])]
    return [*words, *(f"{took:,.0f}" for took in (*stages, sum(stages))), run.facts["machine"]]


def page(rows: list[dict[str, Any]], runs: list[list[str]]) -> str:
    lines = [
        "# How fast stitching is",
        "",
        "Seconds by stage: collecting the data, the graph (neighbours, likelihoods, actions, rewards), one greedy pass "
        "of Algorithm 1 over logged data and one over stitched data, and the default preset's plan for all "
        "trajectories. Microseconds per transition: walking step by step (a KD-tree query and model calls at each, as "
        "the authors' public code does) and a pass on the graph, in the same run, and their ratio. V/s: updates of the "
        "value function per second; 3 seeds: the time of an update of three seeds together over that of one. GiB: the "
        "most memory the process held. Written by `python benchmarks/stitch.py --write-docs` from measurements by the "
        "same script.",
    ]
    by_machine: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_machine.setdefault(row["machine"], []).append(row)
    for name, group in by_machine.items():
        known = ", ".join(f"{package} {version}" for package, version in group[0]["versions"].items())
        lines += ["", f"## {name}", "", markdown_table(TITLES, [columns(row) for row in group])]
        lines += ["", f"Command: `{group[0]['asked']}`. Versions: {known}."]
    if runs:
        heads = ("data", "transitions", "preset", "seeds", "models", "graph", "passes", "together", "machine")
        note = (
            "Seconds of `trajstitch stitch DATA … --preset PRESET --seeds SEEDS`, as recorded in its run's folder; "
            "other work may have run at the same time."
        )
        lines += ["", "## Whole runs", "", note, "", markdown_table(heads, runs)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="hopper/medium-replay")
    parser.add_argument("--sizes", type=int, nargs="+", default=[50_000, 100_000, 200_000], help="transitions")
    parser.add_argument("--steps", type=int, default=500, help="gradient steps per model")
    parser.add_argument("--sample", type=int, default=200, help="steps walked one by one")
    parser.add_argument("--seconds", type=float, default=3.0, help="measure V's rate for at least this long")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write-docs", type=Path, nargs="+", metavar="JSON")
    parser.add_argument("--runs", type=Path, nargs="+", default=[], metavar="FOLDER", help="whole runs, for the page")
    options = parser.parse_args()
    if options.write_docs:
        rows = [row for file in options.write_docs for row in json.loads(file.read_text())]
        Path("docs/results/speed.md").write_text(page(rows, [whole_run(folder) for folder in options.runs]))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes if len(options.sizes) > 1 else ():
            part = Path(folder) / f"{size}.json"
            words = ("set", "steps", "sample", "seconds", "k")
            flags = [word for name in words for word in (f"--{name}", str(getattr(options, name)))]
            command = [sys.executable, __file__, *flags, "--sizes", str(size), "--json", str(part)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows += json.loads(part.read_text())
    rows = rows or [measure(options)]
    rows = [{**row, "asked": command_line()} for row in rows]
    show(rows)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
