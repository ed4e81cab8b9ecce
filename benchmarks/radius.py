"""How many states lie within the paper's authors' radius, and what the graph of the preset paper takes.

    python benchmarks/radius.py --set halfcheetah/medium-replay --transitions 50000
    python benchmarks/radius.py --set halfcheetah/medium-replay --transitions 50000 --k 32

The dynamics are trained briefly (5 members, 6,000 steps at most), and the models that do not score jumps not at all, so
the number of jumps is not the preset's. The neighbours are. The memory is the process's highest, all imports included.
"""

import argparse
import json
import resource
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import stdout
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.models.dynamics import Dynamics
from trajstitch.stitching.config import preset
from trajstitch.stitching.graph import EdgeScorer, Models, build_graph
from trajstitch.stitching.jump_tests import Likelihood
from trajstitch.storage.circumstances import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", default="hopper/medium-replay")
    parser.add_argument("--transitions", type=int, default=50_000)
    parser.add_argument("--k", type=int, help="at most this many neighbours, the nearest; if not given, all")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = collect(Collect(options.set, options.transitions))
    config = preset("paper").for_data(data.metadata)
    test = Likelihood(Dynamics(members=5, keep=5, steps=6_000, patience=3_000, learning_rate=1e-3))
    key = jax.random.key(0)
    others = config.inverse.init(key, data), config.reward.untrained(key, data)
    models = Models(*others, {"likelihood": test.fit(data, key, ColumnRoles.none(data.observation_size))[0]})
    scorer = EdgeScorer(models, {"likelihood": test}, data)
    start = time.monotonic()
    graph = build_graph(data, scorer, replace(config.neighbours, k=options.k))
    count = np.diff(graph.neighbours.offsets)
    facts = {
        "set": options.set,
        "transitions": data.steps,
        "k": options.k,
        "neighbours": {"mean": float(count.mean()), "most": int(count.max()), "pairs": int(count.sum())},
        "edges": len(graph.edges),
        "seconds": time.monotonic() - start,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "machine": machine(),
    }
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    stdout().print(text, soft_wrap=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
