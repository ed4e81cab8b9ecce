"""How fast `collect` steps Hopper, compared with one plain Gymnasium loop over the same policy in the same run."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import tyro

from trajstitch.benchmark.collect import MEDIUM_NOISE, Collect, collect
from trajstitch.benchmark.ladder import load_ladder
from trajstitch.cli.output import stdout
from trajstitch.policies.policy import act


@dataclass(frozen=True)
class Benchmark:
    """Measure steps per second of `collect hopper/medium`, including the start of its processes."""

    transitions: int = 100_000
    """Transitions that `collect` makes."""
    json: Path | None = None
    """Write the numbers here."""


def plain_loop(seconds: float) -> float:
    """Return steps per second of the loop everyone writes: one environment, one policy call per step."""
    ladder = load_ladder("hopper")
    environment = gymnasium.make(ladder.environment)
    random = np.random.default_rng(0)
    observation, _ = environment.reset(seed=0)
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        action = act(ladder.medium.layers, observation) + random.normal(0, MEDIUM_NOISE, 3)
        observation, _, terminated, truncated, _ = environment.step(np.clip(action, -1, 1).astype(np.float32))
        if terminated or truncated:
            observation, _ = environment.reset()
        steps += 1
    return steps / (time.perf_counter() - start)


def main(config: Benchmark) -> None:
    plain = plain_loop(5)
    start = time.perf_counter()
    data = collect(Collect("hopper/medium", config.transitions))
    ours = data.steps / (time.perf_counter() - start)
    result = {"cores": os.cpu_count(), "plain_loop": plain, "collect": ours, "ratio": ours / plain}
    stdout().print(
        f"plain loop {plain:,.0f} steps/s, collect {ours:,.0f} steps/s on {os.cpu_count()} cores: {ours / plain:.1f}×"
    )
    if config.json:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
