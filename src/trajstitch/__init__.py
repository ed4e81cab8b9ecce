"""Better offline-RL data from the data you have, by model-based trajectory stitching.

import trajstitch

data = trajstitch.load("minari:mujoco/hopper/medium-v0")
trajstitch.save(data.best(0.1), "d4rl:best.hdf5")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajstitch.accelerator import keep_programs

if TYPE_CHECKING:
    from trajstitch.errors import InputError
    from trajstitch.evaluation import evaluate
    from trajstitch.formats import load, save
    from trajstitch.inspection import inspect
    from trajstitch.policies.policy import Policy, load_policy
    from trajstitch.sets.collect import Collect, collect
    from trajstitch.stitching import stitch
    from trajstitch.training import train, train_together
    from trajstitch.trajectories import Metadata, Provenance, Trajectories, concatenate

# Looked up on first use, so that `trajstitch --help` and worker processes import only what they need.
_HOME = {
    "InputError": "errors",
    "evaluate": "evaluation",
    "load": "formats",
    "save": "formats",
    "inspect": "inspection",
    "Policy": "policies.policy",
    "load_policy": "policies.policy",
    "Collect": "sets.collect",
    "collect": "sets.collect",
    "Metadata": "trajectories",
    "Provenance": "trajectories",
    "Trajectories": "trajectories",
    "concatenate": "trajectories",
    "stitch": "stitching",
    "train": "training",
    "train_together": "training",
}

__all__ = [
    "Collect",
    "InputError",
    "Metadata",
    "Policy",
    "Provenance",
    "Trajectories",
    "collect",
    "concatenate",
    "evaluate",
    "inspect",
    "load",
    "load_policy",
    "save",
    "stitch",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trajstitch' has no attribute {name!r}")
    return getattr(import_module(f"trajstitch.{_HOME[name]}"), name)


keep_programs()
