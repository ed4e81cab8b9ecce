"""Faults: the disk refuses a file event of a save. The save says so in one line, and what was there stays.

A case is a number: it says which save, which event and which error. `python -m soak.faults FIRST COUNT` tries cases and
prints a line of JSON for each.
"""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from soak.samples import logged, stitched
from trajstitch.errors import InputError
from trajstitch.formats import exists, load, save
from trajstitch.storage import atomic
from trajstitch.storage.runs import Run

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: int
    save: str
    event: str
    verdict: str
    """`told`, `saved` (an event that it can do without) or `failed`."""
    detail: str = ""


class _Fault:
    """Lets the n-th of some calls of the system fail."""

    NAMES = ("fsync", "mkdir", "rename", "replace", "open", "unlink", "rmdir")

    def __init__(self, at: int, number: int) -> None:
        self.at, self.number, self.seen = at, number, 0
        self.event = ""
        self.kept: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> "_Fault":
        self.kept = {name: getattr(os, name) for name in self.NAMES}
        self.rename = atomic._rename
        for name, call in self.kept.items():
            setattr(os, name, self._failing(name, call))
        atomic._rename = self._failing("renameat2", self.rename)
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self.kept.items():
            setattr(os, name, call)
        atomic._rename = self.rename

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*arguments: Any, **options: Any) -> Any:
            self.seen += 1
            if self.seen - 1 == self.at:
                self.event = name
                raise OSError(self.number, os.strerror(self.number))
            return call(*arguments, **options)

        return fail


def _save(uri: str) -> Callable[[Path], None]:
    return lambda folder: save(stitched(), uri.replace("@", str(folder)), force=True)


def _write(folder: Path) -> None:
    Run.open(folder / "run").write_tensors("state", {"weight": np.ones(9)})


URIS = {
    "NPZ": "npz:@/log.npz",
    "CSV": "table:@/log.csv",
    "Parquet": "table:@/log.parquet",
    "D4RL": "d4rl:@/log.hdf5",
    "Minari": "minari:my/log-v0",
}
SAVES = {**{name: _save(uri) for name, uri in URIS.items()}, "run": _write}


def attempt(case: int) -> Outcome:
    """Let an event of a save fail."""
    random, name = np.random.default_rng((3, case)), list(SAVES)[case % len(SAVES)]
    folder = Path(mkdtemp(prefix="fault-"))
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    uri = URIS.get(name, "").replace("@", str(folder))
    try:
        if uri:
            save(logged(), uri)
        else:
            Run.start(folder / "run", "train", {}).write_tensors("state", {"weight": np.zeros(9)})
        said = ""
        with _Fault(int(random.integers(40)), ERRORS[int(random.integers(len(ERRORS)))]) as fault:
            try:
                SAVES[name](folder)
            except InputError as error:
                said = str(error)
        if "\n" in said:
            return Outcome(case, name, fault.event, "failed", said)
        return Outcome(case, name, fault.event, *_verdict(folder, uri, said))
    except Exception as error:
        return Outcome(case, name, "", "failed", f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _verdict(folder: Path, uri: str, said: str) -> tuple[str, str]:
    """Return whether the old data, or the new, is there as a whole."""
    if not uri:
        weight = Run.open(folder / "run").read_tensors("state")["weight"]
        whole = (weight == (weight[0] if said else 1)).all()
    else:
        found = load(uri) if exists(uri) else None
        new, old = (found is not None and found.provenance is not None), found is not None
        whole = old if said else new
    return ("told" if said else "saved", said) if whole else ("failed", f"lost data; {said}")


def main() -> None:
    first, count = map(int, sys.argv[1:])
    for case in range(first, first + count):
        print(json.dumps(asdict(attempt(case))), flush=True)


if __name__ == "__main__":
    main()
