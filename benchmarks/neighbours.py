"""Which exact engine finds neighbours fastest, by dimension and size?

    python benchmarks/neighbours.py --sizes 25000 100000 --json neighbours.json

Measures on the states of built-in sets (as stitching does) and on normal noise of other dimensions (`normal/27`), where
no tree can help. On a machine with an accelerator, its engine is measured, too.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import jax
import numpy as np
from rich.table import Table

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import stdout
from trajstitch.progress import logger
from trajstitch.stitching.neighbours import Method, NeighbourSearch, find_neighbours

SETS = ("hopper/medium-replay", "halfcheetah/medium-replay", "normal/8", "normal/27")


def states_of(name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised states and the episode of each."""
    kind, _, dimensions = name.partition("/")
    if kind == "normal":
        states = np.random.default_rng(0).normal(size=(size, int(dimensions))).astype(np.float32)
        return states, np.arange(size) // 1000
    data = collect(Collect(name, transitions=size))
    states = (data.observations - data.observations.mean(0)) / data.observations.std(0)
    return states[:size].astype(np.float32), np.repeat(np.arange(len(data)), data.lengths + 1)[:size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--sizes", nargs="+", type=int, default=(25_000, 50_000, 100_000))
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--engines", nargs="+")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engines: list[Method] = options.engines or ["tree", "flat", "approximate"]
    if jax.default_backend() != "cpu":
        engines.append("accelerator")
    rows = []
    for name in options.sets:
        for size in options.sizes:
            states, episode = states_of(name, size)
            for engine in engines:
                small = min(size, 2000)
                find_neighbours(states[:small], episode[:small] % 7, NeighbourSearch(options.k, method=engine))
                start = time.perf_counter()
                find_neighbours(states, episode, NeighbourSearch(options.k, method=engine))
                seconds = time.perf_counter() - start
                rows.append(
                    {
                        "set": name,
                        "dimensions": states.shape[1],
                        "states": size,
                        "engine": engine,
                        "seconds": round(seconds, 2),
                        "microseconds_a_state": round(1e6 * seconds / size, 1),
                    }
                )
                logger.info(f"{name} {size:,} {engine}: {seconds:.2f} s")
    table = Table("set", "dimensions", "states", *engines, title="seconds for all states' neighbours")
    for name in options.sets:
        for size in options.sizes:
            here = [row for row in rows if row["set"] == name and row["states"] == size]
            table.add_row(name, str(here[0]["dimensions"]), f"{size:,}", *(f"{row['seconds']:.2f}" for row in here))
    stdout().print(table)
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        result = {"machine": machine, "device": jax.devices()[0].device_kind, "k": options.k}
        options.json.write_text(json.dumps({**result, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
