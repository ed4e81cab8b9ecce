"""How much of stitching scales with the workers of a cluster, and what data far larger than this would need.

A stand-in for workers runs in this process and times each part that it would send, so that neither Ray nor other
machines are needed; `docs/cluster.md` says how to use those. What is larger than was measured is computed on paper.
"""

import json
import math
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.experiments import pages
from trajstitch.experiments.cells import rounded
from trajstitch.experiments.methods import limited
from trajstitch.experiments.provenance import this_call
from trajstitch.stitching.config import preset
from trajstitch.stitching.improve import improve_together
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.storage.markdown import markdown_table

WORKERS = (1, 2, 8, 32, 128)
PAPER = (1_000_000, 100_000_000, 1_000_000_000)
COLUMNS, ACTIONS = 17, 6
"""Of the data on paper: HalfCheetah's."""


@dataclass
class Timed:
    """Workers that are this process, and know how long each part took and how large it was."""

    rows: int
    seconds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    back: dict[str, int] = field(default_factory=dict)

    def map(self, function, shared, parts):
        name = function.__qualname__
        self.sent[name] = len(pickle.dumps(shared))
        for part in parts:
            start = time.perf_counter()
            found = function(shared, part)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            self.parts[name] = self.parts.get(name, 0) + 1
            self.back[name] = self.back.get(name, 0) + len(pickle.dumps(found))
            yield found


@dataclass(frozen=True)
class Benchmark:
    """Measure the share of a graph that scales with workers."""

    set: str = "hopper/medium-replay"
    """The built-in set."""
    transitions: int = 30_000
    """Transitions that are collected."""
    steps: int = 500
    """Gradient steps of each model: they are not what is measured."""
    rows: int = 2_048
    """States of a part."""
    json: Path | None = None
    """Write the numbers here."""
    to: Path | None = None
    """Write the page here."""


def measure(config: Benchmark) -> dict[str, Any]:
    data = collect(Collect(config.set, config.transitions))
    workers = Timed(config.rows)
    stages = Stages(StitchJob(data, limited(preset("quick"), None, config.steps), workers=workers))
    stages.scorer()  # which fits the models
    start = time.perf_counter()
    graph = stages.graph()
    built = time.perf_counter() - start
    start = time.perf_counter()
    improve_together(stages.config, stages.tasks())
    planned = time.perf_counter() - start
    near, scored = "Searcher.neighbours", "_Scoring.edges"
    apart = workers.seconds[near] + workers.seconds[scored]
    return rounded(
        {
            "transitions": data.steps,
            "edges": len(graph.edges),
            "neighbours": workers.seconds[near],
            "scores": workers.seconds[scored],
            "head": built - apart,
            "plan": planned,
            "sent_bytes": workers.sent[near] + workers.sent[scored],
            "back_bytes": workers.back[near] + workers.back[scored],
            "parts": workers.parts,
        }
    )


def speed(found: dict[str, Any], workers: int) -> tuple[float, float]:
    """Return how often faster the graph, and the graph with its plan, would be, if nothing were lost to sending."""
    apart, head, plan = found["neighbours"] + found["scores"], found["head"], found["plan"]
    return (apart + head) / (apart / workers + head), (apart + head + plan) / (apart / workers + head + plan)


def on_paper(found: dict[str, Any], states: int) -> list[str]:
    """Return a row of what this many states need, from what was measured for each state."""
    count = found["transitions"]
    # An inverted file has lists, and probes, of the square root of the states.
    search = found["neighbours"] / count * math.sqrt(max(states / count, 1))
    hours = (search + found["scores"] / count) * states / 3600
    held = states * (COLUMNS + ACTIONS + 2) * 4 + states * found["sent_bytes"] / count / 2
    edges = states * found["back_bytes"] / count
    head = states * (found["head"] + found["plan"]) / count / 3600
    sizes = [f"{size / 2**30:,.1f} GiB" for size in (held, edges, held + edges)]
    return [f"{states:,} × {COLUMNS}", *sizes, f"{hours:,.1f}", f"{hours / 128:,.2f}", f"{head:,.1f}"]


def page(config: Benchmark, found: dict[str, Any], call: dict[str, Any]) -> str:
    stages = [
        ["neighbours", "workers", f"{found['neighbours']:.1f}"],
        ["candidates, scores, actions, rewards", "workers", f"{found['scores']:.1f}"],
        ["scores of logged steps, joining", "head", f"{found['head']:.1f}"],
        ["plan and walks", "head", f"{found['plan']:.1f}"],
    ]
    rows = [[str(count), *(f"{one:.1f} ×" for one in speed(found, count))] for count in WORKERS]
    shares = [found["neighbours"] + found["scores"], found["neighbours"] + found["scores"] + found["head"]]
    return pages.render(
        "cluster.md.j2",
        config=config,
        found=found,
        share=f"{shares[0] / shares[1]:.0%}",
        whole=f"{shares[0] / (shares[1] + found['plan']):.0%}",
        stages=markdown_table(["part", "where", "seconds"], stages),
        speeds=markdown_table(["workers", "graph", "graph and plan"], rows),
        paper=markdown_table(
            [
                "data",
                "each worker's machine holds",
                "comes back",
                "head holds",
                "core hours",
                "hours of 128 cores",
                "hours of the head",
            ],
            [on_paper(found, states) for states in PAPER],
        ),
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
        config.json.write_text(json.dumps(found, indent=2) + "\n")
    if config.to:
        pages.write(config.to, text)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
