"""`make soak`: try every kind of trouble for long; print, and write as a page, what was tried and what failed.

A kind is a module whose `python -m soak.NAME FIRST COUNT` prints a line of JSON for each case it has tried, with its
`case` and its `verdict`, of which `failed` must not occur. A case that crashes or hangs counts as failed too: its
process is ended, and another goes on after it. Hostile files are made by hand, one test each, and run by pytest.
"""

import argparse
import json
import os
import select
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trajstitch.experiments.provenance import now, this_call
from trajstitch.storage.markdown import markdown_table


@dataclass(frozen=True)
class Kind:
    """A kind of trouble."""

    cases: int
    """How many are tried if not given."""
    seconds: float
    """About how long a case takes on one core."""
    patience: float
    """Seconds without a line after which a case counts as hung; the first one also makes what others start from."""
    what: str
    """What is tried and what must come of it."""


KINDS = {
    "kills": Kind(300, 10, 900, "a job is killed before one of its file events, and repeated: the same files"),
    "files": Kind(20_000, 0.1, 300, "a damaged file is opened: the right data, or one line, within 10 s and 2 GiB"),
    "flips": Kind(8_000, 0.03, 300, "one bit of a file of ours is flipped: noticed, or the same data"),
    "races": Kind(300, 0.4, 300, "jobs start together on one target or run: one wins, and its data is whole"),
    "faults": Kind(1_500, 0.05, 300, "a file event of a save fails: one line, and the old data or the new is whole"),
}
HOSTILE = (
    "test_hostile_files.py",
    "test_bad_files.py",
    "test_untrusted_files.py",
    "test_damaged_runs.py",
    "test_strange_folders.py",
    "test_locks.py",
    "test_rot.py",
)
"""Tests of what was made by hand: hostile files and their cousins, damaged runs, races."""


def cases(kind: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of these cases, in as many processes as it takes."""
    case, stop, patience = first, first + count, KINDS[kind].patience
    while case < stop:
        command = [sys.executable, "-m", f"soak.{kind}", str(case), str(stop - case)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment())
        assert process.stdout is not None
        try:
            while select.select([process.stdout], [], [], patience)[0]:
                line = process.stdout.readline()
                if not line:
                    break
                yield json.loads(line)
                case += 1
            if case < stop:
                ended = process.poll()
                detail = f"hung for {patience:.0f} s" if ended is None else f"ended with {ended}"
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


def hostile(processes: int) -> list[dict[str, Any]]:
    """Return the outcomes of the tests of what was made by hand."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = [str(Path(__file__).parents[1] / name) for name in HOSTILE]
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), f"--junitxml={report}", *tests]
        subprocess.run(command, env=_environment(), stdout=subprocess.DEVNULL, check=False)
        found = []
        for number, test in enumerate(ElementTree.parse(report).iter("testcase")):
            wrong = [part for part in test if part.tag in ("failure", "error")]
            skipped = any(part.tag == "skipped" for part in test)
            verdict = "failed" if wrong else "skipped" if skipped else "passed"
            detail = f"{test.get('name')}: {wrong[0].get('message')}" if wrong else ""
            found.append({"case": number, "verdict": verdict, "detail": detail})
        return found


def page(report: dict[str, Any], call: dict[str, Any], seconds: float) -> str:
    """Return the page."""
    rows, failures = [], []
    for kind, part in report.items():
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(part["counts"].items()))
        rows.append((kind, part["what"], f"{part['tried']:,}", f"{part['whole']:,}", f"{part['failed']:,}", counts))
        failures += [f"- {kind}, case {one['case']}: {_last_line(one)}" for one in part["failures"]]
    head = ("kind", "what is tried, and what must come of it", "tried", "of a whole soak", "failed", "came of it")
    packages = ", ".join(f"{name} {version}" for name, version in call["versions"].items())
    return "\n".join(
        [
            "# Trust: what was tried to break files, runs and jobs",
            "",
            "Written by `make soak`, which takes about an hour on 2 cores; `MINUTES=10` does a part of each kind. Each "
            "case is a number and can be tried again alone: `python -m soak.KIND CASE 1`, with `tests` on the path.",
            "",
            markdown_table(head, rows),
            "",
            "## What failed",
            "",
            *(failures or ["Nothing."]),
            "",
            "## How it was made",
            "",
            f"- command: `{call['command']}`",
            f"- commit: {call['commit']}",
            f"- machine: {call['machine']}; {seconds / 60:,.0f} minutes, until {now()}",
            f"- versions: {packages}",
            "",
        ]
    )


def _last_line(one: dict[str, Any]) -> str:
    lines = str(one.get("detail")).strip().splitlines()
    return f"{one.get('job', one.get('kind', ''))} {one.get('event', '')} {lines[-1][:200] if lines else ''}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    names = [*KINDS, "hostile"]
    parser.add_argument("--kinds", nargs="*", default=names, choices=names)
    parser.add_argument("--minutes", type=float, help="do as much of each kind as takes about this long on 2 cores")
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="where to write the counts and the failures")
    parser.add_argument("--page", type=Path, help="where to write the page")
    asked = parser.parse_args()
    call, start = this_call(), time.monotonic()
    whole = sum(kind.cases * kind.seconds for kind in KINDS.values()) / 2 / 60
    share = 1.0 if asked.minutes is None else min(1.0, asked.minutes / whole)
    report: dict[str, Any] = {}
    for kind in asked.kinds:
        if kind == "hostile":
            found, of = hostile(asked.processes), None
        else:
            of = KINDS[kind].cases
            found = soak(kind, asked.first, asked.count or max(1, round(share * of)), asked.processes)
        failed = [one for one in found if one["verdict"] == "failed"]
        counts = Counter(one["verdict"] for one in found)
        what = (
            KINDS[kind].what if kind in KINDS else "hostile and bad files, damaged runs, links, made by hand: refused"
        )
        report[kind] = {
            "what": what,
            "tried": len(found),
            "whole": of or len(found),
            "counts": dict(counts),
            "failed": len(failed),
            "failures": failed,
        }
        print(f"{kind}: {len(found):,} tried, " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
        for one in failed:
            print(f"  case {one['case']}: {_last_line(one)}", flush=True)
        if asked.json is not None:
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(report, indent=1) + "\n")
        if asked.page is not None:
            asked.page.parent.mkdir(parents=True, exist_ok=True)
            asked.page.write_text(page(report, call, time.monotonic() - start))
    sys.exit(any(part["failed"] for part in report.values()))


if __name__ == "__main__":
    main()
