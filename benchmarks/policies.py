"""How fast policies train: updates per second of each, for one seed and for several at once.

    python benchmarks/policies.py --json rates.json
    python benchmarks/policies.py --full --policies bc iql --json h200.json
    python benchmarks/policies.py --write-docs rates.json h200.json

The targets on one H200 are 15 BC seeds × 100,000 steps in 15 s, and 5 seeds × 1,000,000 steps of TD3+BC or IQL in six
minutes; `--full` trains exactly those and measures the time, compilation included. The values of the data don't matter
to the speed, so they are random, with Hopper's shapes. `--write-docs` measures nothing: it writes
docs/results/policies.md from files of measurements.
"""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from gymnasium.spaces import Box
from rich.table import Table

from trajstitch.cli.output import stdout
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.learning.fit import fit
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import CHUNK, Algorithm, initial_state
from trajstitch.storage.circumstances import command_line, machine, versions
from trajstitch.storage.markdown import markdown_table

TARGETS = {
    "bc": (BC(standardise=False), 15, 15.0),
    "td3-bc": (TD3BC(), 5, 360.0),
    "iql": (IQL(standardise=False), 5, 360.0),
}
"""Algorithm, seeds, and the seconds its published number of steps may take on an H200."""


@dataclass(frozen=True)
class Benchmark:
    """Measure updates per second, once compiled."""

    seconds: float = 5.0
    """Measure each for at least this long."""
    transitions: int = 300_000
    """Steps of data."""
    full: bool = False
    """Train what the targets name to the end instead, and time it."""
    policies: tuple[Literal["bc", "td3-bc", "iql"], ...] = ("bc", "td3-bc", "iql")
    """Policies to measure."""
    note: str = ""
    """A remark on the circumstances, kept with the numbers or put on the page."""
    json: Path | None = None
    """Write the numbers here."""
    write_docs: tuple[Path, ...] = ()
    """Write the page from these files instead."""


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
    """Return steps per second of the loop itself, in chunks as long as in training."""
    times: list[float] = []

    def each(state: Any, metrics: dict[str, float]) -> None:
        times.append(time.perf_counter())
        if times[-1] - times[0] > seconds and len(times) > 1:
            raise StopIteration

    begin = time.perf_counter()
    length = CHUNK if jax.default_backend() != "cpu" else 100
    with suppress(StopIteration):
        fit(
            algorithm,
            initial_state(algorithm, given, range(seeds)),
            samples,
            every=length,
            each=each,
            title="measuring",
        )
    steps = length * (len(times) - 1) / (times[-1] - times[0])
    return {
        "policy": type(algorithm).__name__,
        "seeds": seeds,
        "steps_per_second": steps,
        "updates_per_second": steps * seeds,
        "compile_seconds": max(times[0] - begin - length / steps, 0),
        "published_steps": algorithm.steps,
        "seconds_for_published_steps": algorithm.steps / steps,
    }


def whole(algorithm: Algorithm, samples: Any, given: Trajectories, seeds: int, target: float) -> dict[str, Any]:
    begun = time.perf_counter()
    state = fit(algorithm, initial_state(algorithm, given, range(seeds)), samples, every=CHUNK, title="full training")
    jax.block_until_ready(state.model)
    seconds = time.perf_counter() - begun
    return {
        "policy": type(algorithm).__name__,
        "seeds": seeds,
        "steps": algorithm.steps,
        "seconds": seconds,
        "target_seconds": target,
    }


def rates(given: Trajectories, seconds: float) -> list[dict[str, Any]]:
    accelerated = jax.default_backend() != "cpu"
    rows = []
    for algorithm in (BC(), BC(gaussian=True), WeightedBC(value_steps=1), TD3BC(), IQL()):
        samples = algorithm.training_data(given).samples
        for seeds in (1, 5, *((15,) if isinstance(algorithm, BC) and accelerated else ())):
            row = rate(algorithm, samples, given, seeds, seconds)
            rows.append(row | {"gaussian": getattr(algorithm, "gaussian", False)})
    return rows


HEADS = {
    "rates": ("policy", "seeds", "steps/s", "updates/s", "published steps", "would take, s"),
    "full": ("policy", "seeds", "steps", "took, s", "target, s"),
}


def cells(kind: str, row: dict[str, Any]) -> list[str]:
    if kind == "full":
        return [
            row["policy"],
            str(row["seeds"]),
            f"{row['steps']:,}",
            f"{row['seconds']:.1f}",
            f"{row['target_seconds']:.0f}",
        ]
    name = row["policy"] + " (Gaussian)" * row["gaussian"]
    keys = ("steps_per_second", "updates_per_second", "published_steps", "seconds_for_published_steps")
    return [name, str(row["seeds"]), *(f"{row[key]:,.0f}" for key in keys)]


def page(measured: list[dict[str, Any]], note: str) -> str:
    lines = [
        "# How fast policies train",
        "",
        "All seeds of a policy train at once. Steps per second of the loop once compiled; times the seeds, updates per "
        "second; and whole trainings of the published length, compilation included, beside what they may take on one "
        "H200. Written by `python benchmarks/policies.py --write-docs` from measurements by the same script.",
        *(["", note] if note else []),
    ]
    for facts in measured:
        known = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
        for kind, head in HEADS.items():
            if facts[kind]:
                rows = [cells(kind, row) for row in facts[kind]]
                lines += ["", f"## {facts['machine']}", "", markdown_table(head, rows)]
        lines += ["", " ".join(filter(None, (facts.get("note"), f"Command: `{facts['asked']}`. Versions: {known}.")))]
    return "\n".join(lines) + "\n"


def main(config: Benchmark) -> None:
    if config.write_docs:
        measured = [json.loads(file.read_text()) for file in config.write_docs]
        Path("docs/results/policies.md").write_text(page(measured, config.note))
        return
    given, out = data(config.transitions), stdout()
    facts: dict[str, Any] = {"machine": machine(), "versions": versions(), "asked": command_line()}
    facts |= {"note": config.note, "rates": [], "full": []}
    if config.full:
        for algorithm, seeds, target in map(TARGETS.__getitem__, config.policies):
            facts["full"].append(whole(algorithm, algorithm.training_data(given).samples, given, seeds, target))
            write(facts, config.json)
    else:
        facts["rates"] = rates(given, config.seconds)
        write(facts, config.json)
    for kind, head in HEADS.items():
        if facts[kind]:
            table = Table(*head, box=None, pad_edge=False)
            for row in facts[kind]:
                table.add_row(*cells(kind, row))
            out.print(table)
    out.print(f"on {machine()}", soft_wrap=True)


def write(facts: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
