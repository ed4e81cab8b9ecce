"""Damaged files: each loads as the right data, or is refused in one line, within 10 seconds and 2 GiB.

A case is a number: the same number damages the same file in the same way. `python -m soak.files FIRST COUNT` tries
cases and prints a line of JSON for each, so that whoever started it learns which one it hung or crashed on.
"""

import json
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from safetensors.numpy import save_file

from soak.mutations import HARMLESS, mutation, pick
from soak.samples import SAMPLES
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.storage.checksums import KEY
from trajstitch.storage.tensors import read_tensors

SECONDS = 10.0
MEMORY = 2 << 30


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: int
    kind: str
    mutation: str
    verdict: str
    """`loaded`, `refused` or `failed`."""
    detail: str = ""
    seconds: float = 0.0


@cache
def _healthy() -> tuple[Path, dict[str, object]]:
    """Return a folder with every sample, and what each opens as."""
    home = Path(mkdtemp(prefix="soak-"))
    found = {}
    for kind, sample in SAMPLES.items():
        folder = home / kind
        folder.mkdir()
        os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
        sample.write(folder)
        _without_checksums(folder)
        found[kind] = sample.open(folder)
    return home, found


def _without_checksums(folder: Path) -> None:
    """Take the checksums out of runs and ladders: who damages one on purpose can, and the rest must be checked too."""
    for path in folder.glob("run/**/*.json"):
        stored = json.loads(path.read_text())
        stored.pop(KEY, None)
        path.write_text(json.dumps(stored))
    for path in folder.rglob("*.safetensors"):
        tensors, facts = read_tensors(path)
        save_file(tensors, path, facts or None)


def attempt(case: int) -> Outcome:
    """Damage a file and open it."""
    random = np.random.default_rng((18, case))
    home, right = _healthy()
    kind = list(SAMPLES)[case % len(SAMPLES)]
    sample, folder = SAMPLES[kind], home / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(home / kind, folder)
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    path = folder / pick(random, sample.files)
    damage = mutation(path, random)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        damage(path, random)
    before, start, verdict, detail = _peak(), time.monotonic(), "failed", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = sample.open(folder)
        expected = right[kind]
        if damage in HARMLESS and isinstance(found, Trajectories) and isinstance(expected, Trajectories):
            verdict = "loaded" if found.equals(expected) else "failed"
            detail = "" if verdict == "loaded" else "other data"
        else:
            verdict = "loaded"
    except InputError as error:
        verdict, detail = "refused", str(error)
        if "\n" in detail or "\x1b" in detail:
            verdict = "failed"
    except Exception:
        detail = traceback.format_exc()
    seconds = time.monotonic() - start
    if seconds > SECONDS or _peak() - before > MEMORY:
        verdict, detail = "failed", f"{seconds:.1f} s and {(_peak() - before) >> 20} MiB; {detail}"
    return Outcome(case, kind, damage.__name__, verdict, detail, round(seconds, 3))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    first, count = map(int, sys.argv[1:])
    try:
        for case in range(first, first + count):
            print(json.dumps(asdict(attempt(case))), flush=True)
    finally:
        shutil.rmtree(_healthy()[0], ignore_errors=True)


if __name__ == "__main__":
    main()
