"""Rot: one flipped bit in a file that we wrote is noticed, or changes nothing.

A case is a number: it says which file, and which of its bits. `python -m soak.flips FIRST COUNT` tries cases and prints
a line of JSON for each.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from soak.samples import MINARI, SAMPLES, logged
from trajstitch import formats
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.evaluate import stored_metadata
from trajstitch.policies.policy import load_policies
from trajstitch.stitching.layout import place, read_graph, read_result
from trajstitch.storage.checksums import checksum
from trajstitch.storage.runs import Run


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: int
    kind: str
    verdict: str
    """`refused`, `same`, or `failed`: it was read as something else."""
    detail: str = ""


def facts_of(data: Trajectories) -> list[str]:
    """Return all that a data set is, as texts that are the same for the same data."""
    arrays = [getattr(data, name) for name in ("observations", "actions", "rewards", "terminated", "truncated")]
    if data.provenance is not None:
        arrays += [getattr(data.provenance, item.name) for item in fields(Provenance)]
    known = data.metadata
    extra = {name: one for name, one in known.extra.items() if not name.startswith("trajstitch_")}
    texts = (known.name, known.environment, known.evaluation_environment, known.reference, json.dumps(extra))
    spaces = (known.observation_space, known.action_space)
    return [checksum(np.diff(data.offsets), *arrays), *map(str, (*texts, *spaces))]


def _data(uri: str) -> Callable[[Path], Any]:
    return lambda folder: facts_of(formats.load(uri.replace("@", str(folder)), allow_nonfinite=True))


def _checksums(tensors: dict[str, np.ndarray]) -> list[str]:
    return [checksum(name, tensors[name]) for name in sorted(tensors)]


def _trained(folder: Path) -> Any:
    run = Run.open(folder / "run", "train")
    known = stored_metadata(run)
    policies = [(one.seed, one.steps, one.config, _checksums(one.tensors())) for one in load_policies(run.folder)]
    return run.config, known.environment, known.reference, policies


def _stitched(folder: Path) -> Any:
    run, data = Run.open(folder / "run", "stitch"), logged()
    shared, own = place(run)
    graph, (found, passes) = read_graph(run, shared, data), read_result(run, own, data)
    arrays = {**graph.edges.arrays(), "index": graph.neighbours.index, "episode": graph.episode}
    return run.config, _checksums(arrays), graph.candidates, facts_of(found), passes


READ: dict[str, Callable[[Path], Any]] = {
    "npz": _data("npz:@/log.npz"),
    "d4rl": _data("d4rl:@/log.hdf5"),
    "parquet": _data("table:@/log.parquet"),
    "csv": _data("table:@/log.csv"),
    "minari": _data("minari:my/log-v0"),
    "nested minari": _data("minari:my/log-v0"),
    "training": _trained,
    "stitching": _stitched,
}
"""How each sample is read, all of it."""


@cache
def _healthy() -> tuple[Path, dict[str, Any]]:
    home = Path(mkdtemp(prefix="flips-"))
    found = {}
    for kind, read in READ.items():
        (home / kind).mkdir()
        os.environ["MINARI_DATASETS_PATH"] = str(home / kind / "minari")
        SAMPLES[kind].write(home / kind)
        found[kind] = read(home / kind)
    return home, found


def attempt(case: int) -> Outcome:
    """Flip a bit of a file and read it."""
    random = np.random.default_rng((1, case))
    home, right = _healthy()
    kind = list(READ)[case % len(READ)]
    folder = home / kind
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    paths = [folder / name for name in (MINARI if "minari" in kind else SAMPLES[kind].files)]
    path = paths[int(random.integers(len(paths)))]
    healthy = path.read_bytes()
    content, at, bit = bytearray(healthy), int(random.integers(len(healthy))), int(random.integers(8))
    content[at] ^= 1 << bit
    path.write_bytes(content)
    where = f"{path.name}, bit {bit} of byte {at}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = READ[kind](folder)
    except InputError as error:
        return Outcome(case, kind, "refused" if "\n" not in str(error) else "failed", f"{where}: {error}")
    except Exception as error:
        return Outcome(case, kind, "failed", f"{where}: {type(error).__name__}: {error}")
    finally:
        path.write_bytes(healthy)
    return Outcome(case, kind, "same" if found == right[kind] else "failed", where)


def main() -> None:
    first, count = map(int, sys.argv[1:])
    try:
        for case in range(first, first + count):
            print(json.dumps(asdict(attempt(case))), flush=True)
    finally:
        shutil.rmtree(_healthy()[0], ignore_errors=True)


if __name__ == "__main__":
    main()
