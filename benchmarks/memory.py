"""How much memory each stage of stitching takes, beside what `stitch` says before the work.

    python benchmarks/memory.py --sizes 50000 200000 1000000 5000000 --page docs/results/memory.md

The data is random, with HalfCheetah's sizes, every candidate is an edge, and the values used by passes let every
tenth step jump: hardly a data set can need more. Networks are tiny and hardly trained, since their memory does not
grow with the data. A stage's peak is the most that the process held while it ran, including the results of the stages
before it. Each size is measured in a process of its own, and kept for this commit: the same command goes on where it
was ended. Linux only, as it reads /proc.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gymnasium.spaces import Box
from rich.table import Table

from trajstitch import formats
from trajstitch.cli.output import stdout
from trajstitch.data import ragged
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.experiments import pages, provenance
from trajstitch.experiments.figures import svg
from trajstitch.models.value import TwinValue, fit_value
from trajstitch.progress import logger
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.config import PRESETS, StitchConfig
from trajstitch.stitching.graph import StitchGraph, build_graph
from trajstitch.stitching.greedy import one_pass
from trajstitch.stitching.improve import StitchingTask, improve_together
from trajstitch.stitching.jump_tests import Consistency, JumpTest, Likelihood
from trajstitch.stitching.memory import needed
from trajstitch.stitching.neighbours import NeighbourSearch, find_neighbours
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.stitching.precedent import Precedent
from trajstitch.storage.markdown import markdown_table

GIB = 2**30
SWEEPS = 20
"""Improvements of a plan at most: logged data needs 10 to 20, and random data never settles."""
KEPT = Path("benchmarks/results/memory")
"""What was measured, a file for each commit, preset and size."""


def random_data(steps: int, length: int = 1000, size: int = 17, actions: int = 6) -> Trajectories:
    """Return noisy states near a curved surface of three dimensions."""
    random = np.random.default_rng(0)
    episodes = steps // length
    ends = np.tile(np.arange(length) == length - 1, episodes)
    surface = random.standard_normal((episodes * (length + 1), 3), np.float32)
    observations = np.tanh(surface @ random.standard_normal((3, size), np.float32))
    observations += 0.01 * random.standard_normal(observations.shape, np.float32)
    return Trajectories(
        observations=observations,
        actions=random.uniform(-1, 1, (episodes * length, actions)).astype(np.float32),
        rewards=random.standard_normal(episodes * length, np.float32),
        terminated=np.zeros_like(ends),
        truncated=ends,
        offsets=np.arange(episodes + 1) * length,
        metadata=Metadata("random", action_space=Box(-1, 1, (actions,), np.float32)),
    )


def brief(preset: str, steps: int, k: int) -> StitchConfig:
    """Return a preset with tiny networks that train for a few steps, and with every candidate as an edge."""
    config = PRESETS[preset]
    small = {"hidden": (16,), "steps": steps}

    def brief_test(test: JumpTest) -> JumpTest:
        match test:
            case Likelihood():
                return Likelihood(replace(test.dynamics, **small), margin=None)
            case Consistency():
                return Consistency(replace(test.forward, **small), limit=None)
            case Precedent():
                return Precedent(limit=None)
            case _:
                return test

    return replace(
        config,
        tests={name: brief_test(test) for name, test in config.tests.items()},
        inverse=replace(config.inverse, **small),
        reward=replace(config.reward, **small),
        value=TwinValue(**small),
        plan=config.plan and replace(config.plan, improvements=SWEEPS),
        neighbours=NeighbourSearch(k),
    )


class Peaks:
    """The peak of each stage and what was left after it, in bytes beyond what the process held before the first."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int]] = {}
        self.seconds: dict[str, float] = {}
        gc.collect()
        self.before = _memory("VmRSS")

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # from here on, the peak is of what follows
        started = time.monotonic()
        result = work()
        self.seconds[name] = round(time.monotonic() - started, 1)
        self.rows[name] = _memory("VmHWM") - self.before, _memory("VmRSS") - self.before
        logger.info(f"{name}: at most {self.rows[name][0] / GIB:.2f} GiB, {self.seconds[name]:,.1f} s")
        return result


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure every stage, in this process."""
    peaks, config, key = Peaks(), brief(options.preset, options.steps, options.k), jax.random.key(0)
    data = peaks.measure("data", lambda: random_data(options.transitions))
    stages = Stages(StitchJob(data, config))
    peaks.measure("models", stages.models)
    episode = ragged.owners(data.lengths + 1).astype(np.int32)
    peaks.measure("neighbours", lambda: find_neighbours(data.observations, episode, config.neighbours))
    # Not `stages.graph`, which would keep this graph beside the one that is loaded.
    graph = peaks.measure("graph", lambda: build_graph(data, stages.scorer(), config.neighbours))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.safetensors"
        peaks.measure("saving the graph", lambda: graph.save(path))
        edges = len(graph.edges)
        del graph
        graph = peaks.measure("loading the graph", lambda: StitchGraph.load(path))
        if config.plan is None:
            paths = Paths.of(data)
            for number in (1, 2):
                now = paths.trajectories(provenance=False)
                peaks.measure(f"V of pass {number}", partial(fit_value, config.value, now, key))
                del now
                random = (np.random.default_rng(number).random(len(graph)) < 1 / 300).astype(np.float32)
                rules = Rules(threshold=-1.0)
                work = partial(one_pass, paths, graph, stages.scorer(), random.__getitem__, rules)
                paths, found = peaks.measure(f"pass {number}", work)
                del work
                logger.info(str(found))
        else:
            task = StitchingTask(data, stages.scorer(), graph, key)
            paths = peaks.measure("plan", lambda: improve_together(config, [task])[0].paths)
        better = peaks.measure("result", paths.trajectories)
        peaks.measure("saving the result", lambda: formats.save(better, f"npz:{folder}/result.npz"))
    facts = {
        "transitions": data.steps,
        "edges": edges,
        "before": peaks.before,
        "stages": peaks.rows,
        "seconds": peaks.seconds,
    }
    return facts | {"told": needed(data, config).most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50_000, 100_000, 200_000], help="transitions")
    parser.add_argument("--preset", choices=("paper", "default"), default="default")
    parser.add_argument("--steps", type=int, default=20, help="gradient steps per model")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--page", type=Path, help="write a page here, such as docs/results/memory.md, and a plot beside it"
    )
    parser.add_argument("--here", action="store_true", help="measure the first size in this process, and print JSON")
    options = parser.parse_args()
    if options.here:
        measure(argparse.Namespace(**{**vars(options), "transitions": 4000}))  # what is compiled stays
        print(json.dumps(measure(argparse.Namespace(**vars(options), transitions=options.sizes[0]))))
        return
    call = provenance.this_call()
    found = [_kept(options, size, call["commit"]) for size in sorted(options.sizes)]
    least, whole = found[0], found[-1]
    rows = []
    for name, (peak, after) in whole["stages"].items():
        grows = (peak - least["stages"][name][0]) / max(whole["transitions"] - least["transitions"], 1)
        rows.append([name, _gib(peak), _gib(after), f"{grows:,.0f}", f"{whole['seconds'][name]:,.0f}"])
    head = ("stage", "peak", "left after it", "bytes per transition", "seconds")
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    out = stdout()
    out.print(table)
    told = [[f"{one['transitions']:,}", _gib(_peak(one)), _gib(one["told"])] for one in found]
    for row in told:
        out.print(f"{row[0]} transitions: {row[1]}, told before the work: {row[2]}")
    facts = {"preset": options.preset, "k": options.k, "sizes": found} | call
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(facts, indent=2) + "\n")
    if options.page:
        _draw(found, options.page.with_suffix(".svg"))
        packages = ", ".join(f"{package} {version}" for package, version in call["versions"].items())
        pages.write(
            options.page,
            f"# Memory\n\nWhat each stage of stitching with `{options.preset}` takes beside what the process held "
            f"before, at {whole['transitions']:,} transitions of 17 columns and 6 actions: its peak, what is left "
            f"after it, and how it grows from {least['transitions']:,} transitions on; before the first stage it held "
            f"{_gib(whole['before'])}. Seconds are of networks that hardly train and of plans of {SWEEPS} improvements "
            "a part, and other work may have run beside. "
            f"The data is random and every candidate is an edge ({whole['edges'] / whole['transitions']:.0f} a "
            "transition), so hardly a data set needs more.\n\n"
            f"{markdown_table(head, rows)}\n\n`stitch` says before the work what it will take at most:\n\n"
            f"{markdown_table(('transitions', 'measured', 'told'), told)}\n\n"
            f"![Memory by the number of transitions]({options.page.with_suffix('.svg').name})\n\n"
            f"Command: `python benchmarks/{call['command']}`. Commit {call['commit']}. Machine: {call['machine']}. "
            f"Versions: {packages}.\n",
        )


def _draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw the measured peak and what is told, by the number of transitions."""
    with svg(path, 1, (7, 4)) as (_, (axes,)):
        size = [one["transitions"] for one in found]
        axes.plot(size, [_peak(one) / GIB for one in found], "o-", label="measured")
        axes.plot(size, [one["told"] / GIB for one in found], "s--", label="told before the work")
        axes.set(xlabel="transitions", ylabel="GiB", xscale="log", yscale="log")
        axes.legend()


def _peak(one: dict[str, Any]) -> float:
    """Return the highest peak of any stage."""
    return max(peak for peak, _ in one["stages"].values())


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB"


def _kept(options: argparse.Namespace, transitions: int, commit: str) -> dict[str, Any]:
    path = KEPT / f"{commit}-{options.preset}-{options.steps}-{options.k}-{transitions}.json"
    if not path.exists():
        found = _elsewhere(options, transitions)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found) + "\n")
    return json.loads(path.read_text())


def _elsewhere(options: argparse.Namespace, transitions: int) -> dict[str, Any]:
    asked = {"sizes": transitions, "preset": options.preset, "steps": options.steps, "k": options.k}
    flags = [text for name, value in asked.items() for text in (f"--{name}", str(value))]
    # Memory that is freed goes back at once, as it does by itself from 32 MiB on: of a large set, that is all.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    command = [sys.executable, __file__, "--here", *flags]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(ran.stdout)


if __name__ == "__main__":
    main()
