"""`make soak`: try every kind of trouble for long; print, and write as a page, what was tried and what failed.

A kind is a module whose `python -m soak.NAME FIRST COUNT` prints a line of JSON for each case it has tried, with its
`case` and its `verdict`, of which `failed` must not occur. A case that crashes or hangs counts as failed too: its
process is ended, and another goes on after it. Hostile files are made by hand, one test each, and run by pytest.

What came of each case is kept in a file, line by line, so that a second call goes on where the first one ended: it
tries again what failed, and then what has not been tried.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any

from trajstitch.errors import one_line
from trajstitch.experiments.provenance import now, this_call
from trajstitch.storage.markdown import markdown_table, safe_markdown


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
    "kills": Kind(300, 4, 900, "a job is killed before one of its file events, and repeated: the same files"),
    "files": Kind(20_000, 0.03, 300, "a damaged file is opened: the right data, or one line, within 10 s and 2 GiB"),
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


HAND_MADE = "hostile"
WHAT = {name: kind.what for name, kind in KINDS.items()} | {
    HAND_MADE: "hostile and bad files, damaged runs, links, made by hand: refused"
}


class Record:
    """What came of each case, in a file that is added to; the last word on each case counts."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path, self.commit, self.lock = path, commit, Lock()
        text = path.read_text() if path.exists() else ""
        if text and not text.endswith("\n"):  # the machine stopped while a line was written
            text = text[: text.rfind("\n") + 1]
            path.write_text(text)
        self.found: dict[tuple[str, int], dict[str, Any]] = {}
        for one in map(json.loads, text.splitlines()):
            self.found[one["kind"], one["case"]] = one

    def add(self, kind: str, outcome: dict[str, Any], seconds: float) -> None:
        """Keep what came of a case."""
        failed = outcome["verdict"] == "failed"
        facts = {"kind": kind, "case": outcome["case"], "verdict": outcome["verdict"], "commit": self.commit}
        one: dict[str, Any] = {**facts, "seconds": round(seconds, 3)}
        one |= {"detail": _last_line(outcome)} if failed else {}
        with self.lock:
            self.found[kind, one["case"]] = one
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as lines:
                lines.write(json.dumps(one) + "\n")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for (name, _), one in sorted(self.found.items()) if name == kind]

    def due(self, kind: str, numbers: Sequence[int]) -> list[int]:
        """Return those of the cases that failed, then those that were not tried."""
        before = {number: self.found.get((kind, number)) for number in numbers}
        failed = [number for number, one in before.items() if one is not None and one["verdict"] == "failed"]
        return failed + [number for number, one in before.items() if one is None]

    def forget(self, kind: str) -> None:
        """Take out all cases of a kind."""
        self.found = {key: one for key, one in self.found.items() if key[0] != kind}
        if self.path.exists():
            self.path.write_text("".join(json.dumps(one) + "\n" for one in self.found.values()))


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the count of each run of numbers that follow each other."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return found


stopped = Event()
"""Set by Ctrl-C: what is being tried then is no outcome."""


def cases(kind: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of these cases, in as many processes as it takes."""
    case, stop, patience = first, first + count, KINDS[kind].patience
    while case < stop and not stopped.is_set():
        command = [sys.executable, "-m", f"soak.{kind}", str(case), str(stop - case)]
        # In a session of its own, so that Ctrl-C reaches this process alone.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment(), start_new_session=True
        )
        assert process.stdout is not None
        try:
            while _says_more(process, patience):
                line = process.stdout.readline()
                if not line:
                    break
                yield json.loads(line)
                case += 1
            if case < stop and not stopped.is_set():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1)  # it has closed its output, and is about to end
                ended = process.poll()
                detail = f"hung for {patience:.0f} s" if ended is None else f"ended with {ended}"
                yield {"case": case, "verdict": "failed", "detail": detail}
                case += 1
        finally:
            process.kill()
            process.wait()


def _says_more(process: subprocess.Popen[bytes], patience: float) -> bool:
    """Return whether a line, or the end, comes in time."""
    assert process.stdout is not None
    waited = 0.0
    while waited < patience and not stopped.is_set():
        if select.select([process.stdout], [], [], 0.5)[0]:
            return True
        waited += 0.5
    return False


def _environment() -> dict[str, str]:
    here = Path(__file__).parents[1]
    paths = [str(here.parent / "src"), str(here), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}


def soak(kind: str, numbers: Sequence[int], processes: int, record: Record) -> None:
    """Try these cases of a kind, and keep what came of each."""

    def share(own: Sequence[int]) -> None:
        for first, count in runs(own):
            start = time.monotonic()
            for outcome in cases(kind, first, count):
                record.add(kind, outcome, time.monotonic() - start)
                start = time.monotonic()

    size = max(1, -(-len(numbers) // processes))
    with ThreadPoolExecutor(processes) as pool:
        try:
            list(pool.map(share, [numbers[at : at + size] for at in range(0, len(numbers), size)]))
        except KeyboardInterrupt:
            stopped.set()
            raise


def hostile(processes: int, record: Record) -> None:
    """Run the tests of what was made by hand, unless all of them passed with this version of the code already."""
    before = record.of(HAND_MADE)
    if before and all(one["verdict"] != "failed" and one["commit"] == record.commit for one in before):
        return
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = [str(Path(__file__).parents[1] / name) for name in HOSTILE]
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(processes), f"--junitxml={report}", *tests]
        subprocess.run(command, env=_environment(), stdout=subprocess.DEVNULL, check=False)
        record.forget(HAND_MADE)
        for number, test in enumerate(ElementTree.parse(report).iter("testcase")):
            wrong = [part for part in test if part.tag in ("failure", "error")]
            skipped = any(part.tag == "skipped" for part in test)
            verdict = "failed" if wrong else "skipped" if skipped else "passed"
            detail = f"{test.get('name')}: {wrong[0].get('message')}" if wrong else ""
            found = {"case": number, "verdict": verdict, "detail": detail}
            record.add(HAND_MADE, found, float(test.get("time") or 0))


def page(record: Record, call: dict[str, Any]) -> str:
    """Return the page."""
    rows, failures = [], []
    for kind, what in WHAT.items():
        found = record.of(kind)
        if not found:
            continue
        counts = Counter(one["verdict"] for one in found)
        whole = KINDS[kind].cases if kind in KINDS else len(found)
        came = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        rows.append((kind, what, f"{len(found):,}", f"{whole:,}", f"{counts['failed']:,}", came))
        failures += [f"- {kind}, case {one['case']}: {one['detail']}" for one in found if one["verdict"] == "failed"]
    head = ("kind", "what is tried, and what must come of it", "tried", "of a whole soak", "failed", "came of it")
    packages = ", ".join(f"{name} {version}" for name, version in call["versions"].items())
    commits = Counter(one["commit"] for one in record.found.values())
    minutes = sum(one["seconds"] for one in record.found.values()) / 60
    return "\n".join(
        [
            "# Trust: what was tried to break files, runs and jobs",
            "",
            "Written by `make soak`, which takes less than an hour on 2 cores; `MINUTES=10` does a part of each, and "
            "the next call goes on from there. Each case is a number and can be tried again alone: `python -m "
            "soak.KIND CASE 1`, with `tests` on the path. A case that failed stands here until a later call passes it.",
            "",
            markdown_table(head, rows),
            "",
            "## What failed",
            "",
            *(map(safe_markdown, failures) if failures else ["Nothing."]),
            "",
            "## How it was made",
            "",
            f"- command: `{call['command']}`",
            f"- commits: {', '.join(f'{name} ({count:,} cases)' for name, count in commits.items())}",
            f"- machine: {call['machine']}; {minutes:,.0f} minutes of one process in all, until {now()}",
            f"- versions: {packages}",
            "",
        ]
    )


def _last_line(outcome: dict[str, Any]) -> str:
    lines = str(outcome.get("detail")).strip().splitlines()
    what = [str(outcome.get(name, "")) for name in ("job", "race", "save", "kind", "mutation", "event")]
    return one_line(" ".join(filter(None, [*what, lines[-1][:200] if lines else ""])))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    names = [*KINDS, HAND_MADE]
    parser.add_argument("--kinds", nargs="*", default=names, choices=names)
    parser.add_argument("--minutes", type=float, help="do as much of each kind as takes about this long on 2 cores")
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", type=Path, default=Path(".soak.jsonl"), help="what came of each case, line by line")
    parser.add_argument("--fresh", action="store_true", help="forget what was tried before")
    parser.add_argument("--page", type=Path, help="where to write the page")
    asked = parser.parse_args()
    call = this_call()
    record = Record(asked.record, call["commit"])
    whole = sum(kind.cases * kind.seconds for kind in KINDS.values()) / 2 / 60
    share = 1.0 if asked.minutes is None else min(1.0, asked.minutes / whole)
    try:
        for kind in asked.kinds:
            if asked.fresh:
                record.forget(kind)
            if kind == HAND_MADE:
                hostile(asked.processes, record)
            else:
                numbers = range(asked.first, asked.first + (asked.count or KINDS[kind].cases))
                due = record.due(kind, numbers)
                soak(kind, due[: max(1, round(share * len(numbers)))], asked.processes, record)
            tell(kind, record.of(kind))
            write_page(asked.page, record, call)
    except KeyboardInterrupt:
        write_page(asked.page, record, call)
        print("stopped; the same command goes on", file=sys.stderr)
        sys.exit(130)
    sys.exit(any(one["verdict"] == "failed" and kind in asked.kinds for (kind, _), one in record.found.items()))


def write_page(path: Path | None, record: Record, call: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(record, call))


def tell(kind: str, found: list[dict[str, Any]]) -> None:
    """Print what came of a kind, and each case that failed."""
    counts = Counter(one["verdict"] for one in found)
    print(f"{kind}: {len(found):,} tried, " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    for one in found:
        if one["verdict"] == "failed":
            print(f"  case {one['case']}: {one['detail']}", flush=True)


if __name__ == "__main__":
    main()
