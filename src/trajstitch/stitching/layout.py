"""Where the folder of a `trajstitch stitch` run has the files of a seed; `pipeline` says which files these are."""

from typing import NamedTuple

from trajstitch.errors import InputError
from trajstitch.storage.runs import Run


class Place(NamedTuple):
    """Where in a run's folder the files of a seed are."""

    shared: str
    """Of the models and the graph."""
    own: str
    """Of the result and what each pass did."""


def place(run: Run, seed: int | None = None) -> Place:
    """Return where the files of a seed are; the first seed's if not given."""
    config = run.facts["config"]
    first, seeds = config["seed"], config.get("seeds", 1)
    stitchings = config["stitching"].get("stitchings", 1)
    seed, last = first if seed is None else seed, first + max(seeds, stitchings) - 1
    if not first <= seed <= last:
        raise InputError(f"{run.folder}: holds no seed {seed}; the seeds are {first} to {last}")
    if stitchings > 1:
        return Place(f"stitching-{seed}/", f"stitching-{seed}/")
    return Place("", f"seed-{seed}/" if seeds > 1 else "")
