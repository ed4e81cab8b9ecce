"""How much of stitching scales with the workers of a cluster, and what data far larger than this would need.

A stand-in for workers runs in this process, and counts the seconds of a core that each part takes, which other work on
the machine changes little. With --ray the same graph is built on a Ray cluster of this machine too, by the clock. What
is larger than was measured is computed on paper.
"""

import json
import math
import os
import pickle
import resource
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import tyro

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.engines.ray_cluster import RayCluster, RaySettings
from trajstitch.experiments import pages
from trajstitch.experiments.cells import rounded
from trajstitch.experiments.methods import limited
from trajstitch.experiments.provenance import this_call
from trajstitch.stitching.config import preset
from trajstitch.stitching.graph import StitchGraph, build_graph
from trajstitch.stitching.improve import improve_together
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.storage.markdown import markdown_table

WORKERS = (1, 2, 8, 32, 128)
PAPER = (1_000_000, 100_000_000, 1_000_000_000)
MACHINES, EACH = 16, 8
"""On paper: machines of workers, and the cores and tasks of each."""
NETWORK = 10e9 / 8
"""On paper: bytes a second of the head's link."""
NEAR, SCORED = "Searcher.neighbours", "_Scoring.edges"


@dataclass
class Timed:
    """Workers that are this process, and know how long each part took and how large it was."""

    rows: int
    first: dict[str, float] = field(default_factory=dict)
    """When each function was first sent."""
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    parts: Counter[str] = field(default_factory=Counter)
    shared: dict[str, int] = field(default_factory=dict)
    """Bytes that all parts share."""
    moved: int = 0
    """Bytes of all parts, and of what came back."""

    def map(self, function, shared, parts):
        name = function.__qualname__
        self.first[name] = time.process_time()
        self.shared[name] = len(pickle.dumps(shared))
        for part in parts:
            start = time.process_time()
            found = function(shared, part)
            self.seconds[name] += time.process_time() - start
            self.parts[name] += 1
            self.moved += len(pickle.dumps(part)) + len(pickle.dumps(found))
            yield found


@dataclass(frozen=True)
class Benchmark:
    """Measure the share of a graph that scales with workers."""

    set: str = "halfcheetah/medium-replay"
    """The built-in set."""
    transitions: int = 30_000
    """Transitions that are collected."""
    steps: int = 500
    """Gradient steps of each model: they are not what is measured."""
    rows: int = RayCluster.rows
    """States of a part."""
    ray: bool = False
    """Build the graph on a Ray cluster of this machine too, with a worker on one core and with one on each of two."""
    json: Path | None = None
    """Write the numbers here."""
    to: Path | None = None
    """Write the page here."""


def measure(config: Benchmark) -> dict[str, Any]:
    faiss.omp_set_num_threads(1)  # threads of OpenMP count as busy while they wait
    data = collect(Collect(config.set, config.transitions))
    workers = Timed(config.rows)
    stages = Stages(StitchJob(data, limited(preset("quick"), None, config.steps), workers=workers))
    scorer = stages.scorer()  # which fits the models
    start = time.process_time()
    graph = stages.graph()
    built = time.process_time() - start
    seconds = {"index": workers.first[NEAR] - start, "neighbours": workers.seconds[NEAR]}
    seconds |= {
        "scores": workers.seconds[SCORED],
        "head": built - sum(workers.seconds.values()) - workers.first[NEAR] + start,
    }
    start = time.process_time()
    improve_together(stages.config, stages.tasks())
    seconds["plan"] = time.process_time() - start
    found = {
        "transitions": data.steps,
        "columns": data.observation_size,
        "edges": len(graph.edges),
        "seconds": seconds,
        "shared_bytes": workers.shared,
        "moved_bytes": workers.moved,
        "head_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "parts": dict(workers.parts),
    }
    if config.ray:
        found["ray"], every = {}, sorted(os.sched_getaffinity(0))
        for count in (1, 2):
            os.sched_setaffinity(0, every[:count])
            cluster = RayCluster(RaySettings(workers=count))
            start = time.perf_counter()
            apart = build_graph(stages.data, scorer, stages.config.neighbours, cluster)
            found["ray"][str(count)] = time.perf_counter() - start
            cluster.ray.shutdown()
            require_same(graph, apart)
    return rounded(found)


def require_same(one: StitchGraph, other: StitchGraph) -> None:
    """Raise unless two graphs have the same bits."""
    left, right = (
        {**graph.edges.arrays(), **graph.logged, **vars(graph.neighbours), "rule": graph.by_successor}
        for graph in (one, other)
    )
    different = [name for name in left.keys() | right.keys() if left[name].tobytes() != right[name].tobytes()]
    if different:
        raise SystemExit(f"error: the graph of a cluster differs from the local one in {', '.join(different)}")


def speed(seconds: dict[str, float], workers: int) -> tuple[float, float]:
    """Return how often faster the graph, and the graph with its plan, would be, if nothing were lost to sending."""
    apart, head = seconds["neighbours"] + seconds["scores"], seconds["index"] + seconds["head"]
    plan = seconds["plan"]
    return (apart + head) / (apart / workers + head), (apart + head + plan) / (apart / workers + head + plan)


def on_paper(found: dict[str, Any], states: int) -> list[str]:
    """Return a row of what this many states need, from what was measured for each state."""
    ratio = states / found["transitions"]
    lists = math.sqrt(ratio)  # an inverted file has as many lists as the square root of the states, times four
    seconds = found["seconds"]
    apart = seconds["neighbours"] * ratio * lists + seconds["scores"] * ratio
    index, head = seconds["index"] * ratio * lists, (seconds["head"] + seconds["plan"]) * ratio
    shared = {name: size * ratio for name, size in found["shared_bytes"].items()}
    sent = MACHINES * sum(shared.values()) + found["moved_bytes"] * ratio
    machine, held = (1 + EACH) * max(shared.values()), found["head_bytes"] * ratio
    sizes = [f"{size / 2**30:,.1f}" for size in (held, machine, sent)]
    hours = [apart, apart / MACHINES / EACH, index, head, sent / NETWORK]
    return [f"{states:,} × {found['columns']}", *sizes, *(f"{one / 3600:,.2f}" for one in hours)]


def page(config: Benchmark, found: dict[str, Any], call: dict[str, Any]) -> str:
    seconds = found["seconds"]
    rows = [
        ["the neighbours' index", "head", "index"],
        ["neighbours", "workers", "neighbours"],
        ["candidates, scores, actions, rewards", "workers", "scores"],
        ["scores of logged steps, packing, joining", "head", "head"],
        ["plan and walks", "head", "plan"],
    ]
    speeds = [[str(count), *(f"{one:.1f} ×" for one in speed(seconds, count))] for count in WORKERS]
    apart, graph = seconds["neighbours"] + seconds["scores"], sum(seconds.values()) - seconds["plan"]
    titles = ["data", "head holds, GiB", "each machine of workers holds, GiB", "network, GiB", "core hours of workers"]
    titles += [f"hours of {MACHINES * EACH} cores", "index, core hours", "rest of the head, hours", "network, hours"]
    return pages.render(
        "cluster.md.j2",
        config=config,
        found=found,
        shared=sum(found["shared_bytes"].values()),
        share=f"{apart / graph:.0%}",
        whole=f"{apart / (graph + seconds['plan']):.0%}",
        stages=markdown_table(
            ["part", "where", "core seconds"], [[*row[:2], f"{seconds[row[2]]:.1f}"] for row in rows]
        ),
        speeds=markdown_table(["workers", "graph", "graph and plan"], speeds),
        paper=markdown_table(titles, [on_paper(found, states) for states in PAPER]),
        machines=MACHINES,
        each=EACH,
        call=call,
        versions=", ".join(f"{name} {one}" for name, one in call["versions"].items()),
    )


def main(config: Benchmark) -> None:
    call = this_call()
    found = measure(config)
    text = page(config, found, call)
    print(text)
    if config.json:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(found | {"call": call}, indent=2) + "\n")
    if config.to:
        pages.write(config.to, text)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
