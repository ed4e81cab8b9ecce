"""`make mutants`: put small faults into the core, one at a time, and count those that the nearest tests notice.

A sample of all faults is tried, drawn with a seed; what was tried is kept in a file, so that a second call goes on
where the first one ended. A fault counts as noticed if a test fails that passes without it, or if the tests take much
longer than they ever should. `--report` writes the page from the file.
"""

import argparse
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mutants.faults import Fault, chosen_faults, faults_of
from mutants.nearest import NEAREST
from mutants.report import write_page

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/trajstitch"
PATIENCE = 300.0
"""Seconds after which the tests of a fault are ended: no file's nearest tests take half of that on two quiet cores."""
RECYCLED = 40
"""Faults that one process tries, since compiled programs stay in its memory."""


def every_fault() -> list[Fault]:
    """Return all faults of the files in the table."""
    return [fault for path in NEAREST for fault in faults_of(path, ROOT / PACKAGE)]


def sampled(faults: list[Fault], seed: int) -> list[Fault]:
    """Return the faults in random order: the first n are a sample of n, and begin every larger one."""
    return random.Random(seed).sample(faults, len(faults))


class Worker:
    """A process that tests faults, replaced when it hangs, dies or has grown."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process, self.asked = folder, None, 0

    def ask(self, path: str, code: str, tests: list[str]) -> dict[str, Any]:
        """Return what the tests said of a file's code."""
        if self.process is None or self.asked >= RECYCLED:
            self.restart()
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.asked += 1
        self.process.stdin.write(json.dumps({"path": path, "code": code, "tests": tests}) + "\n")
        self.process.stdin.flush()
        line = ""
        if select.select([self.process.stdout], [], [], PATIENCE)[0]:
            line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        ended = self.process.poll()
        self.stop()
        return {
            "code": -1,
            "test": "(no end)" if ended is None else f"(process ended with {ended})",
            "seconds": PATIENCE,
        }

    def restart(self) -> None:
        self.stop()
        fresh(self.folder)
        self.asked = 0
        environment = {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests"),
            "JAX_PLATFORMS": "cpu",
            "JAXTYPING_DISABLE": "1",  # its checks remember the classes of a package that was unloaded
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mutants.worker", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def fresh(folder: Path) -> None:
    """Copy the package and its tests into the folder."""
    for name in ("src", "tests"):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


class Trial:
    """Tries faults, and makes sure that a test which notices one passes without it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.passes: dict[str, bool] = {}

    def of(self, fault: Fault) -> dict[str, Any]:
        """Return the verdict on one fault."""
        tests, path = list(NEAREST[fault.path]), f"{PACKAGE}/{fault.path}"
        found = self.worker.ask(path, fault.code, tests)
        verdict = "survived" if found["code"] == 0 else "noticed"
        if verdict == "noticed" and found["code"] >= 0:
            # Where nothing could be imported, no test has a name: then all of them have to be found without the fault.
            names = [found["test"].removeprefix("tests/")] if found["test"] else ["--collect-only", *tests]
            verdict = verdict if self.pass_without(path, names) else "unclear"
        told = {name: getattr(fault, name) for name in ("key", "path", "operator", "line")}
        before, after = fault.lines
        return {
            **told,
            "before": before,
            "after": after,
            "verdict": verdict,
            "by": found["test"],
            "seconds": round(found["seconds"], 1),
        }

    def pass_without(self, path: str, names: list[str]) -> bool:
        name = " ".join(names)
        if name not in self.passes:
            found = self.worker.ask(path, (ROOT / path).read_text(), names)
            self.passes[name] = found["code"] == 0
        return self.passes[name]


def known(results: Path) -> dict[str, dict[str, Any]]:
    """Return what was tried before, by the faults' keys: the last verdict on each, and under `first` the first one."""
    found: dict[str, dict[str, Any]] = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        one = json.loads(line)
        found[one["key"]] = {**one, "first": found.get(one["key"], {}).get("first", one["verdict"])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument(
        "--sample", type=int, default=200, help="how many faults to try in all, with those tried before"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--files", nargs="*", default=[""], help="only files whose path begins so, such as models/")
    parser.add_argument("--again", action="store_true", help="try again what survived, such as after adding a test")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--results", type=Path, default=ROOT / ".mutants.jsonl", help="what was tried, line by line")
    parser.add_argument("--report", type=Path, help="write the page and try nothing")
    asked = parser.parse_args()
    faults = every_fault()
    drawn = chosen_faults(ROOT / PACKAGE) + sampled(faults, asked.seed)[: asked.sample]
    drawn = [one for one in drawn if one.path.startswith(tuple(asked.files))]
    done = known(asked.results)
    if asked.report is not None:
        write_page(asked.report, faults, [done[one.key] for one in drawn if one.key in done], asked.seed)
        return
    due = [one for one in drawn if one.key not in done or (asked.again and done[one.key]["verdict"] != "noticed")]
    print(f"{len(faults):,} faults in {len(NEAREST)} files; {len(drawn):,} drawn, {len(due):,} to try", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, asked.results.open("a") as lines:
        trial = Trial(Worker(Path(folder).resolve()))
        try:
            for number, fault in enumerate(due, start=1):
                found = trial.of(fault)
                lines.write(json.dumps(found) + "\n")
                lines.flush()
                passed = time.monotonic() - started
                left = passed / number * (len(due) - number) / 60
                print(
                    f"{number}/{len(due)}, {left:.0f} min left: {found['verdict']} {fault.path}:{fault.line} "
                    f"{found['before']} -> {found['after']} [{found['by']}] {found['seconds']} s",
                    flush=True,
                )
                if passed > 60 * asked.minutes:
                    break
        finally:
            trial.worker.stop()


if __name__ == "__main__":
    main()
