"""A process that runs tests against one version of the package after the other: `python -m mutants.worker FOLDER`.

Each line of standard input names a file, its new code and the tests to run; each line of standard output is the exit
code of pytest and the test that failed. What the tests import besides the package stays loaded, which saves most of
the time. `FOLDER` holds copies of `src` and `tests`.
"""

import contextlib
import importlib
import io
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

MOST_MEMORY = 12 << 30
"""Bytes that the process may take: a loop without an end may fill a list."""


class FirstFailure:
    """A plugin that keeps the name of the first test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def forget(folder: Path) -> None:
    """Unload everything that lies in the folder, and the environments that it registered."""
    for name, module in list(sys.modules.items()):
        where = getattr(module, "__file__", None)
        if name != "__main__" and where and Path(where).is_relative_to(folder):
            del sys.modules[name]
            for spec in list(gymnasium.registry.values()):
                if str(spec.entry_point).startswith(f"{name}:"):
                    del gymnasium.registry[spec.id]
    importlib.invalidate_caches()


def run(folder: Path, tests: list[str]) -> dict[str, Any]:
    forget(folder)
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()  # of functions that are gone
    failure, started, printed = FirstFailure(), time.monotonic(), io.StringIO()
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", str(folder / "pyproject.toml")]
    asked = [name if name.startswith("-") else str(folder / "tests" / name) for name in tests]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main([*arguments, *asked], plugins=[failure])
    tail = printed.getvalue()[-2000:]
    return {"code": int(code), "test": failure.name, "seconds": time.monotonic() - started, "tail": tail}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    folder = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(folder / "src"), str(folder / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the processes that tests start
    os.chdir(folder)
    answers, moment = os.fdopen(os.dup(1), "w"), time.time()
    for line in sys.stdin:
        asked = json.loads(line)
        path = folder / asked["path"]
        original = path.read_text()
        try:
            path.write_text(asked["code"])
            moment += 2  # compiled files are told apart by the second
            os.utime(path, (moment, moment))
            answer = run(folder, asked["tests"])
        finally:
            path.write_text(original)
            moment += 2
            os.utime(path, (moment, moment))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
