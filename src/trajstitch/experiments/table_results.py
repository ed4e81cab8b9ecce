"""What the results table is made of: its methods, its cells, and the file of their measurements.

A file holds one measurement a line, so that a change shows as a line:

    policies      (set, method, run): the return of every episode of every seed's last checkpoint
    stitchings    (set, preset, run): the data before and after, what models are worth, the simulator's word on jumps
    replaced      (set, method, run, call): policies that were measured again since
    calls         the commands that measured them, each with commit, versions and machine

A measurement has its configuration, the commits that made what it measures, and the name of its call.
"""

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from trajstitch.benchmark import sets
from trajstitch.data.environments import normalised
from trajstitch.data.trajectories import Metadata
from trajstitch.errors import InputError
from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing
from trajstitch.storage.runs import command_line, machine, versions

TWELVE = sets.NAMES[:12]
"""The sets of the table, in its order."""

Row = dict[str, Any]
"""Plain JSON values by name."""


@dataclass(frozen=True)
class Method:
    """A column of the table."""

    title: str
    policy: str
    """The algorithm, by its name in `trajstitch train`."""
    top: float = 1.0
    """It learns from this best fraction of the trajectories."""
    preset: str | None = None
    """It learns from stitched data: of this preset, or of the one asked for where it says `default`."""
    long: bool = False
    """Takes so long that all sets with states and actions of the same sizes share one training."""


METHODS = {
    "bc": Method("BC", "bc"),
    "top-bc": Method("10 % BC", "bc", top=0.1),
    "ts-bc": Method("TS + BC", "bc", preset="default"),
    "ts-top-bc": Method("TS + 10 % BC", "bc", top=0.1, preset="default"),
    "paper-ts-bc": Method("paper's TS + BC", "bc", preset="paper", long=True),
    "paper-ts-top-bc": Method("paper's TS + 10 % BC", "bc", top=0.1, preset="paper", long=True),
    "weighted-bc": Method("weighted BC", "weighted-bc"),
    "td3-bc": Method("TD3+BC", "td3-bc", long=True),
    "iql": Method("IQL", "iql", long=True),
}


class Cell(NamedTuple):
    """One set by one method."""

    set: str
    method: str

    def __str__(self) -> str:
        return f"{self.set} {METHODS[self.method].title}"


KEYS = {
    "policies": ("set", "method", "run"),
    "stitchings": ("set", "preset", "run"),
    "replaced": ("set", "method", "run", "call"),
    "calls": ("call",),
}
"""What the rows of each kind are known by."""
Rows = dict[str, list[Row]]


class Results:
    """The measurements in a file, which is written anew, whole, with each one that is added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read(path) if path.exists() else {kind: [] for kind in KEYS}
        self.lock = threading.Lock()

    def has(self, kind: str, key: Row, config: Row) -> bool:
        """Whether it is measured; raises where it is, but with another configuration."""
        for row in self.rows[kind]:
            if all(row[name] == value for name, value in key.items()):
                if row["config"] == as_json(config):
                    return True
                raise InputError(
                    f"{self.path} holds {' '.join(map(str, key.values()))} with another configuration: name another "
                    "file by --to, or ask for the same"
                )
        return False

    def add(self, kind: str, row: Row, call: Row) -> None:
        """Add what `call` has measured."""
        name = digest(call)
        with self.lock:
            self.rows[kind].append(as_json({**row, "call": name}))
            if all(one["call"] != name for one in self.rows["calls"]):
                self.rows["calls"].append(as_json({"call": name, **call}))
            write(self.rows, self.path)


def read(path: Path) -> Rows:
    try:
        found = json.loads(path.read_text())
        return {kind: list(found[kind]) for kind in KEYS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a file of the table's measurements ({error!r})") from error


def write(rows: Rows, path: Path) -> None:
    lines = {kind: ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows[kind]) for kind in rows}
    with replacing(path, force=True) as fresh:
        fresh.write_text("{\n" + ",\n".join(f'"{kind}": [\n{some}\n]' for kind, some in lines.items()) + "\n}\n")


def merged(paths: Iterable[Path]) -> Rows:
    """The measurements of several files, in the table's order; of two of the same, the later file's.

    What it replaces is kept, if these are policies by the same settings: the difference shows what chance does.
    """
    found: dict[str, dict[tuple[str | int, ...], Row]] = {kind: {} for kind in KEYS}
    for path in paths:
        for kind, rows in read(path).items():
            for row in rows:
                key = tuple(row[name] for name in KEYS[kind])
                before = found[kind].get(key, row)
                if before != row:
                    logger.info(f"{' '.join(map(str, key))}: taken from {path}, not from an earlier file")
                    if kind == "policies" and settings(before) == settings(row):
                        found["replaced"][(*key, before["call"])] = before
                found[kind][key] = row
    used = {row["call"] for kind in ("policies", "stitchings", "replaced") for row in found[kind].values()}
    found["calls"] = {key: row for key, row in found["calls"].items() if row["call"] in used}
    order = {name: place for place, name in enumerate((*TWELVE, *METHODS))}

    def place(key: tuple[str | int, ...]) -> list[tuple[int, str]]:
        return [(part, "") if isinstance(part, int) else (order.get(part, len(order)), part) for part in key]

    return {kind: [kept[key] for key in sorted(kept, key=place)] for kind, kept in found.items()}


def settings(row: Row) -> Row:
    """What a cell's numbers depend on but for chance: how many policies there are, and of which seeds, is chance."""
    return {name: value for name, value in row["config"].items() if name not in ("run", "seeds")}


def as_json(value: Any) -> Any:
    """As it will be read again."""
    return json.loads(json.dumps(value))


def scores(row: Row) -> Float[np.ndarray, " seeds"]:
    """A measured cell's normalised score, one a seed."""
    return normalised(np.array(row["returns"]), Metadata(name=sets.built_in(row["set"]).task)).mean(1)


def digest(value: Any) -> str:
    """A short name for a configuration."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def this_call() -> Row:
    """What is said of how a measurement was made, with no paths of the machine's own.

    Asked once, at the start: what was typed is hidden while worker processes start.
    """
    command = " ".join(Path(word).name if word.startswith("/") else word for word in command_line().split())
    return {"commit": commit(), "command": command, "machine": machine(), "versions": versions()}


def commit() -> str:
    """Of the code that is running: TRAJSTITCH_COMMIT if set, else git's, with a plus where files differ from it."""
    if told := os.environ.get("TRAJSTITCH_COMMIT"):
        return told[:10]

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(Path(__file__).parents[1]))
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
