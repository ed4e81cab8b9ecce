"""How fast policies train: updates a second of each, for one seed and for several at once.

The targets on one H200 are 15 BC seeds × 100,000 steps in 15 s, and 5 seeds × 1,000,000 steps of TD3+BC or IQL in six
minutes; `--full` does exactly those and takes the time, compilation included. The values of the data don't matter to
the speed, so they are random, with Hopper's shapes.
"""

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from gymnasium.spaces import Box
from rich.table import Table

from trajstitch import console
from trajstitch.fit import fit
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.runs import machine
from trajstitch.training import CHUNK, Algorithm, start
from trajstitch.trajectories import Metadata, Trajectories

TARGETS = ((BC(), 15, 15.0), (TD3BC(), 5, 360.0), (IQL(), 5, 360.0))
"""Algorithm, seeds, and the seconds its published number of steps may take on an H200."""


@dataclass(frozen=True)
class Benchmark:
    """Updates a second, once compiled."""

    seconds: float = 5.0
    """Measure each at least this long."""
    transitions: int = 300_000
    """Steps of data."""
    full: bool = False
    """Train what the targets name to the end, and time it."""
    json: Path | None = None
    """Write the numbers here."""


def data(steps: int, length: int = 500) -> Trajectories:
    random = np.random.default_rng(0)
    episodes = steps // length
    ends = np.tile(np.arange(length) == length - 1, episodes)
    return Trajectories(
        observations=random.normal(size=(episodes * (length + 1), 11)).astype(np.float32),
        actions=random.uniform(-1, 1, (episodes * length, 3)).astype(np.float32),
        rewards=random.normal(size=episodes * length).astype(np.float32),
        terminated=ends,
        truncated=np.zeros_like(ends),
        offsets=np.arange(episodes + 1) * length,
        metadata=Metadata("random", action_space=Box(-1, 1, (3,), np.float32)),
    )


def rate(algorithm: Algorithm, samples: Any, given: Trajectories, seeds: int, seconds: float) -> dict[str, Any]:
    """Steps a second of the loop itself, by chunks as long as in training."""
    times: list[float] = []

    def each(state: Any, metrics: dict[str, float]) -> None:
        times.append(time.perf_counter())
        if times[-1] - times[0] > seconds and len(times) > 1:
            raise StopIteration

    begun = time.perf_counter()
    length = CHUNK if jax.default_backend() != "cpu" else 100
    with suppress(StopIteration):
        fit(algorithm, start(algorithm, given, range(seeds)), samples, every=length, each=each, title="measuring")
    steps = length * (len(times) - 1) / (times[-1] - times[0])
    return {
        "policy": type(algorithm).__name__,
        "seeds": seeds,
        "steps_per_second": steps,
        "updates_per_second": steps * seeds,
        "compile_seconds": max(times[0] - begun - length / steps, 0),
        "published_steps": algorithm.steps,
        "seconds_for_published_steps": algorithm.steps / steps,
    }


def whole(algorithm: Algorithm, samples: Any, given: Trajectories, seeds: int, target: float) -> dict[str, Any]:
    begun = time.perf_counter()
    state = fit(algorithm, start(algorithm, given, range(seeds)), samples, every=CHUNK, title="full training")
    jax.block_until_ready(state.model)
    seconds = time.perf_counter() - begun
    return {
        "policy": type(algorithm).__name__,
        "seeds": seeds,
        "steps": algorithm.steps,
        "seconds": seconds,
        "target_seconds": target,
    }


def main(config: Benchmark) -> None:
    given = data(config.transitions)
    accelerated = jax.default_backend() != "cpu"
    rows = []
    for algorithm in (BC(), BC(gaussian=True), WeightedBC(value_steps=1), TD3BC(), IQL()):
        samples = algorithm.problem(given).samples
        for seeds in (1, 5, *((15,) if isinstance(algorithm, BC) and accelerated else ())):
            row = rate(algorithm, samples, given, seeds, config.seconds)
            rows.append(row | {"gaussian": getattr(algorithm, "gaussian", False)})
    table = Table("policy", "seeds", "steps/s", "updates/s", "published steps", "would take", box=None, pad_edge=False)
    for row in rows:
        name = row["policy"] + " (Gaussian)" * row["gaussian"]
        shown = (f"{row[key]:,.0f}" for key in ("steps_per_second", "updates_per_second", "published_steps"))
        table.add_row(name, str(row["seeds"]), *shown, f"{row['seconds_for_published_steps']:,.0f} s")
    out = console.stdout()
    out.print(table)
    full = []
    for algorithm, seeds, target in TARGETS if config.full else ():
        full.append(whole(replace(algorithm), algorithm.problem(given).samples, given, seeds, target))
        out.print(
            f"{full[-1]['policy']}, {seeds} seeds × {algorithm.steps:,} steps: {full[-1]['seconds']:.1f} s "
            f"(target on an H200: {target:.0f} s)"
        )
    out.print(f"on {machine()}", soft_wrap=True)
    if config.json:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {"machine": machine(), "config": asdict(replace(config, json=None)), "rates": rows, "full": full}
        config.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
