"""How long `trajstitch stitch` takes now, beside an earlier revision, by turns on this machine.

    python benchmarks/before_after.py --revision e80af65 --transitions 100000

Both versions stitch the same file in processes of their own, one after the other, several times. Other work on the
machine slows both; of each version the median turn counts, and their ratio is what to look at.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.table import Table

from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import stdout
from trajstitch.data.trajectories import Trajectories
from trajstitch.experiments import pages, provenance
from trajstitch.storage.markdown import markdown_table

ROOT = Path(__file__).parents[1]
STAGES = ("models", "graph", "passes", "whole command")


@dataclass(frozen=True)
class Benchmark:
    """Time `trajstitch stitch` now and at an earlier revision."""

    revision: str = "e80af65"
    """The earlier revision, in this repository."""
    flags: str = "--quality 0"
    """Flags that the earlier version needs; this one switches off its gate, which the version now has not."""
    set: str = "hopper/medium-replay"
    """Built-in set."""
    transitions: int = 100_000
    """Its size."""
    preset: str = "quick"
    """Preset of both."""
    turns: int = 3
    """Stitchings by each version."""
    json: Path | None = None
    """Write all times here."""
    page: Path | None = None
    """Write a page here, such as docs/results/before-after.md."""


def main(asked: Benchmark) -> None:
    call = provenance.this_call()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        save_plainly(collect(Collect(asked.set, asked.transitions)), here / "data.npz")
        archive = subprocess.run(["git", "archive", asked.revision, "src"], cwd=ROOT, check=True, capture_output=True)
        (here / "before").mkdir()
        subprocess.run(["tar", "-x", "-C", here / "before"], input=archive.stdout, check=True)
        sources = {asked.revision: here / "before" / "src", "now": ROOT / "src"}
        found: dict[str, list[dict[str, float]]] = {version: [] for version in sources}
        for turn in range(asked.turns):
            for version, source in sources.items():
                flags = ["--preset", asked.preset, *(asked.flags.split() if version != "now" else [])]
                found[version].append(timed(here, source, f"{version}-{turn}", flags))
                print(f"turn {turn + 1} of {asked.turns}, {version}: {found[version][-1]}", file=sys.stderr, flush=True)
    rows = []
    for stage in STAGES:
        before, now = (statistics.median(one.get(stage, 0.0) for one in some) for some in found.values())
        rows.append([stage, f"{before:.1f}", f"{now:.1f}", f"{now / before:.2f}" if before else "–"])
    head = ("seconds", asked.revision, "now", "ratio")
    table = Table(*head, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    stdout().print(table)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(call | {"seconds": found}, indent=1) + "\n")
    if asked.page:
        known = ", ".join(f"{package} {version}" for package, version in call["versions"].items())
        pages.write(
            asked.page,
            f"# Stitching before and now\n\n`trajstitch stitch` on {asked.transitions:,} transitions of {asked.set}, "
            f"preset {asked.preset}: medians of {asked.turns} turns of each version, one after the other. The whole "
            "command includes starting, loading and saving. Written by `python benchmarks/before_after.py`.\n\n"
            f"{markdown_table(head, rows)}\n\nCommand: `python benchmarks/{call['command']}`. Commit {call['commit']}. "
            f"Machine: {call['machine']}. Versions: {known}.\n",
        )


def save_plainly(data: Trajectories, path: Path) -> None:
    """Write the arrays under the names that every version reads: ours of today have a checksum."""
    rows = data.state_rows
    np.savez(
        path,
        observations=data.observations[rows],
        next_observations=data.observations[rows + 1],
        actions=data.actions,
        rewards=data.rewards,
        terminated=data.terminated,
        truncated=data.truncated,
    )


def timed(here: Path, source: Path, name: str, flags: list[str]) -> dict[str, float]:
    """Stitch the data with the code in `source`, and return the seconds of each stage."""
    run = here / name
    command = [sys.executable, "-m", "trajstitch", "stitch", f"npz:{here / 'data.npz'}", f"npz:{run}.npz"]
    start = time.monotonic()
    subprocess.run(
        [*command, *flags, "--run", str(run)],
        env=os.environ | {"PYTHONPATH": str(source)},
        check=True,
        capture_output=True,
    )
    whole = time.monotonic() - start
    stages = json.loads((run / "seconds.json").read_text()) if (run / "seconds.json").exists() else {}
    known = {stage: round(took, 2) for stage, took in stages.items() if not isinstance(took, str)}  # but the checksum
    return known | {"whole command": round(whole, 2)}


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
