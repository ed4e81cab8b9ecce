"""`make soak`: try every kind of trouble for long, and print and write what was tried and what failed.

A kind is a module whose `python -m soak.NAME FIRST COUNT` prints a line of JSON for each case it has tried, with its
`case` and its `verdict`, of which `failed` must not occur. A case that crashes or hangs counts as failed too: its
process is ended, and another goes on after it.
"""

import argparse
import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KINDS = {"files": 20_000}
"""Each kind of trouble, and how many cases are tried if not given."""
PATIENCE = 30.0
"""Seconds without a line after which a case counts as hung; the first one also makes the samples."""


def cases(kind: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of these cases, in as many processes as it takes."""
    case, stop = first, first + count
    while case < stop:
        command = [sys.executable, "-m", f"soak.{kind}", str(case), str(stop - case)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment())
        assert process.stdout is not None
        try:
            while select.select([process.stdout], [], [], PATIENCE)[0]:
                line = process.stdout.readline()
                if not line:
                    break
                yield json.loads(line)
                case += 1
            if case < stop:
                ended = process.poll()
                detail = f"hung for {PATIENCE:.0f} s" if ended is None else f"ended with {ended}"
                yield {"case": case, "verdict": "failed", "detail": detail}
                case += 1
        finally:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    here = Path(__file__).parents[1]
    paths = [str(here.parent / "src"), str(here), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}


def soak(kind: str, first: int, count: int, processes: int) -> list[dict[str, Any]]:
    """Return the outcomes of all cases of a kind."""
    share = -(-count // processes)
    parts = [(first + start, min(share, count - start)) for start in range(0, count, share)]
    with ThreadPoolExecutor(processes) as pool:
        return [one for part in pool.map(lambda part: list(cases(kind, *part)), parts) for one in part]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="where to write the counts and the failures")
    asked = parser.parse_args()
    report: dict[str, Any] = {}
    for kind in asked.kinds:
        found = soak(kind, asked.first, asked.count or KINDS[kind], asked.processes)
        failed = [one for one in found if one["verdict"] == "failed"]
        counts = Counter(one["verdict"] for one in found)
        report[kind] = {"tried": len(found), **counts, "failed": len(failed), "failures": failed}
        print(f"{kind}: {len(found):,} tried, " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
        for one in failed:
            print(f"  case {one['case']}: {str(one.get('detail')).strip().splitlines()[-1:]}")
    if asked.json is not None:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(any(part["failed"] for part in report.values()))


if __name__ == "__main__":
    main()
