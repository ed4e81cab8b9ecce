"""The runs inside a run of `learn`: its stitching and its trainings, for all that takes those."""

from collections.abc import Iterable
from pathlib import Path

from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.policies.train import HELD_OUT, split_episodes
from trajstitch.storage.runs import Run
from trajstitch.workflow.methods import METHODS

STITCHING = "stitch"
"""The folder of the stitching in that of `learn`."""


def is_learned(folder: Path) -> bool:
    """Return whether a folder is that of `learn`."""
    return Run.open(folder).facts.get("kind") == "learn"


def stitching_of(folder: Path) -> Path:
    """Return the folder of the stitching: of a `learn` that within it, else the folder itself."""
    if not is_learned(folder):
        return folder
    if not (folder / STITCHING / "run.json").is_file():
        raise InputError(f"{folder}: `learn` has stitched nothing there")
    return folder / STITCHING


def trainings_of(folders: Iterable[Path]) -> list[Path]:
    """Return folders of trainings: of each `learn` those within it, in the order of its table."""
    found = []
    for folder in folders:
        if not is_learned(folder):
            found.append(folder)
            continue
        inside = [folder / method.name for method in METHODS if any((folder / method.name).glob("checkpoints/*"))]
        if not inside:
            raise InputError(f"{folder}: `learn` has trained nothing yet: continue it with `resume=True`")
        found += inside
    return found


def knowing_data(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of runs that may know what was logged: a `learn`, if data was named to it, and trainings."""
    known = [folder for folder in folders if isinstance(Run.open(folder).config.get("source"), str)]
    return [*known, *(folder for folder in trainings_of(folders) if folder not in known)]


def held_out_by(folder: Path, data: Trajectories) -> Trajectories | None:
    """Return the episodes of the data that a `learn` held out; None if it held none out, or is of other data."""
    if not is_learned(folder) or len(data) < 2:
        return None
    learned, apart = split_episodes(data, 1.0, HELD_OUT)
    first = Run.open(trainings_of([folder])[0], "train")
    return apart if first.fact("fingerprint", str) == learned.fingerprint else None
