"""How much memory each stage of stitching takes, in bytes per transition: 2M × 17 must fit into 16 GiB.

    python benchmarks/memory.py --transitions 200000 --json memory.json

The data is random, with HalfCheetah's sizes, every candidate is an edge, and the values used by passes let every
tenth step jump: hardly a data set can need more. Networks are tiny and hardly trained, since their memory does not
grow with the data. A stage's peak is the most that the process held while it ran, including the results of the stages
before it. It is measured at half the transitions too, in a process of its own; the memory of 2M transitions is
extrapolated from the difference. Linux only, as it reads /proc.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
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
from trajstitch.models.value import TwinValue, fit_value
from trajstitch.progress import logger
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.config import PRESETS, StitchConfig
from trajstitch.stitching.graph import StitchGraph, build_graph
from trajstitch.stitching.greedy import one_pass
from trajstitch.stitching.improve import StitchingTask, improve_together
from trajstitch.stitching.jump_tests import Consistency, JumpTest, Likelihood
from trajstitch.stitching.neighbours import NeighbourSearch, find_neighbours
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.pipeline import Stages, StitchJob

GIB = 2**30


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
            case _:
                return test

    return replace(
        config,
        tests={name: brief_test(test) for name, test in config.tests.items()},
        inverse=replace(config.inverse, **small),
        reward=replace(config.reward, **small),
        value=TwinValue(**small),
        neighbours=NeighbourSearch(k),
    )


class Peaks:
    """The peak of each stage and what was left after it, in bytes beyond what the process held before the first."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, int]] = {}
        gc.collect()
        self.before = _memory("VmRSS")

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # from here on, the peak is of what follows
        result = work()
        self.rows[name] = _memory("VmHWM") - self.before, _memory("VmRSS") - self.before
        logger.info(f"{name}: at most {self.rows[name][0] / GIB:.2f} GiB")
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
    return {"transitions": data.steps, "edges": edges, "before": peaks.before, "stages": peaks.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=200_000)
    parser.add_argument("--preset", choices=("paper", "default"), default="paper")
    parser.add_argument("--steps", type=int, default=20, help="gradient steps per model")
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help="measure one size in this process, and print JSON")
    options = parser.parse_args()
    if options.here:
        measure(argparse.Namespace(**{**vars(options), "transitions": 5000}))  # what is compiled stays
        print(json.dumps(measure(options)))
        return
    half, whole = (_elsewhere(options, size) for size in (options.transitions // 2, options.transitions))
    more = whole["transitions"] - half["transitions"]
    rows: dict[str, dict[str, float]] = {}
    table = Table("stage", "peak", "left after it", "bytes per transition", "2M transitions", box=None, pad_edge=False)
    for name, (peak, after) in whole["stages"].items():
        grows = [(now - before) / more for now, before in zip((peak, after), half["stages"][name], strict=True)]
        expected = whole["before"] + peak + grows[0] * (2_000_000 - whole["transitions"])
        rows[name] = {
            "peak": peak,
            "after": after,
            "bytes_a_transition": grows[0],
            "left": grows[1],
            "2M": expected,
        }
        sizes = (f"{size / GIB:.2f} GiB" for size in (peak, after))
        table.add_row(name, *sizes, f"{grows[0]:,.0f}, {grows[1]:,.0f} left", f"{expected / GIB:.1f} GiB")
    out = stdout()
    out.print(table)
    out.print(f"preset {options.preset}, {whole['transitions']:,} transitions × 17, {whole['edges']:,} edges")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {"preset": options.preset, **{name: whole[name] for name in ("transitions", "edges")}, "stages": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


def _elsewhere(options: argparse.Namespace, transitions: int) -> dict[str, Any]:
    asked = {"transitions": transitions, "preset": options.preset, "steps": options.steps, "k": options.k}
    flags = [text for name, value in asked.items() for text in (f"--{name}", str(value))]
    # Memory that is freed goes back at once, as it does by itself from 32 MiB on: of a large set, that is all.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    command = [sys.executable, __file__, "--here", *flags]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return json.loads(ran.stdout)


if __name__ == "__main__":
    main()
