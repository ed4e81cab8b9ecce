"""A data format of your own: JSON lines, one episode per line.

    python examples/own_format.py

To add it to trajstitch, move everything but `main` into src/trajstitch/formats/json_lines.py and add one line to
FORMATS in src/trajstitch/formats/__init__.py: "jsonl": "trajstitch.formats.json_lines". Every command then takes
jsonl:FILE.jsonl.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data.ragged import offsets_of
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import FORMATS, files
from trajstitch.storage.atomic import replacing

ENDINGS = (".jsonl",)
OPTIONS = ()
require_free, stored_at = files.require_free, files.stored_at
PARTS = ("observations", "actions", "rewards", "terminated", "truncated")


def load(location: str) -> Trajectories:
    files.require_readable(Path(location))
    try:
        episodes = [json.loads(line) for line in Path(location).read_text().splitlines()]
        parts: Any = {name: np.concatenate([np.array(episode[name]) for episode in episodes]) for name in PARTS}
        return Trajectories(
            **parts,
            offsets=offsets_of(np.array([len(episode["rewards"]) for episode in episodes])),
            metadata=Metadata(name=Path(location).stem, source=f"jsonl:{location}"),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"jsonl:{location}: a line holds no episode ({error!r}): write the file again") from error


def save(data: Trajectories, location: str, *, force: bool) -> None:
    with replacing(Path(location), force=force) as fresh, fresh.open("w") as file:
        for episode in data:
            print(json.dumps({name: getattr(episode, name).tolist() for name in PARTS}), file=file)


def main() -> None:
    import trajstitch

    FORMATS["jsonl"] = __name__  # the one line, for this script
    data = trajstitch.collect(trajstitch.Collect("hopper/expert", 1_000))
    trajstitch.save(data, "jsonl:log.jsonl", force=True)
    again = trajstitch.load("jsonl:log.jsonl")
    print(f"{again.steps} steps in {len(again)} episodes, the same: {np.array_equal(again.actions, data.actions)}")


if __name__ == "__main__":
    main()
