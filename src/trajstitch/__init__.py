"""Better offline-RL data from the data you have, by model-based trajectory stitching.

    import trajstitch

    data = trajstitch.load("minari:mujoco/hopper/medium-v0")
    trajstitch.save(data.best(0.1), "d4rl:best.hdf5")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajstitch.errors import InputError
    from trajstitch.formats import load, save
    from trajstitch.inspection import inspect
    from trajstitch.sets.collect import Collect, collect
    from trajstitch.stitching import stitch
    from trajstitch.trajectories import Metadata, Provenance, Trajectories, concatenate

# Looked up on first use, so that `trajstitch --help` and worker processes import only what they need.
_HOME = {
    "InputError": "errors",
    "load": "formats",
    "save": "formats",
    "inspect": "inspection",
    "Collect": "sets.collect",
    "collect": "sets.collect",
    "Metadata": "trajectories",
    "Provenance": "trajectories",
    "Trajectories": "trajectories",
    "concatenate": "trajectories",
    "stitch": "stitching",
}

__all__ = [
    "Collect",
    "InputError",
    "Metadata",
    "Provenance",
    "Trajectories",
    "collect",
    "concatenate",
    "inspect",
    "load",
    "save",
    "stitch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trajstitch' has no attribute {name!r}")
    return getattr(import_module(f"trajstitch.{_HOME[name]}"), name)
