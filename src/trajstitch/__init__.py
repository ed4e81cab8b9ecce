"""Better offline-RL data from the data you have, by model-based trajectory stitching.

import trajstitch

data = trajstitch.load("minari:mujoco/hopper/medium-v0")
trajstitch.save(data.best(0.1), "d4rl:best.hdf5")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajstitch.learning.accelerator import keep_programs

if TYPE_CHECKING:
    from trajstitch.benchmark.collect import Collect, collect
    from trajstitch.benchmark.sources import load
    from trajstitch.data.summary import inspect
    from trajstitch.data.trajectories import Metadata, Provenance, Trajectories, concatenate
    from trajstitch.errors import InputError
    from trajstitch.evaluation.compare import Comparison, Estimate
    from trajstitch.evaluation.scores import Interval
    from trajstitch.formats import save
    from trajstitch.formats.columns import Columns
    from trajstitch.models.forward import ForwardDynamics
    from trajstitch.models.inverse import InverseDynamics
    from trajstitch.models.reward import GenerativeReward, RegressionReward
    from trajstitch.models.value import TwinValue
    from trajstitch.policies.bc import BC, WeightedBC
    from trajstitch.policies.iql import IQL
    from trajstitch.policies.policy import NetworkPolicy, Policy, load_policy
    from trajstitch.policies.td3_bc import TD3BC
    from trajstitch.policies.train import train_together
    from trajstitch.stitching.acceptance import Rules
    from trajstitch.stitching.config import ColumnChoice, StitchConfig, preset
    from trajstitch.stitching.jump_tests import Consistency, Likelihood
    from trajstitch.stitching.neighbours import NeighbourSearch
    from trajstitch.stitching.planning import Plan
    from trajstitch.stitching.precedent import Precedent
    from trajstitch.workflow.calls import compare, evaluate, stitch, train
    from trajstitch.workflow.export import Exported, export
    from trajstitch.workflow.learn import Learned, learn

# Looked up on first use, so that `trajstitch --help` and worker processes import only what they need.
_HOME = {
    "InputError": "errors",
    "Comparison": "evaluation.compare",
    "Estimate": "evaluation.compare",
    "Interval": "evaluation.scores",
    "compare": "workflow.calls",
    "evaluate": "workflow.calls",
    "Columns": "formats.columns",
    "ColumnChoice": "stitching.config",
    "Exported": "workflow.export",
    "export": "workflow.export",
    "Learned": "workflow.learn",
    "learn": "workflow.learn",
    "load": "benchmark.sources",
    "save": "formats",
    "inspect": "data.summary",
    "Policy": "policies.policy",
    "NetworkPolicy": "policies.policy",
    "BC": "policies.bc",
    "WeightedBC": "policies.bc",
    "TD3BC": "policies.td3_bc",
    "IQL": "policies.iql",
    "load_policy": "policies.policy",
    "Collect": "benchmark.collect",
    "collect": "benchmark.collect",
    "Metadata": "data.trajectories",
    "Provenance": "data.trajectories",
    "Trajectories": "data.trajectories",
    "concatenate": "data.trajectories",
    "StitchConfig": "stitching.config",
    "Consistency": "stitching.jump_tests",
    "Likelihood": "stitching.jump_tests",
    "Precedent": "stitching.precedent",
    "ForwardDynamics": "models.forward",
    "InverseDynamics": "models.inverse",
    "RegressionReward": "models.reward",
    "GenerativeReward": "models.reward",
    "TwinValue": "models.value",
    "NeighbourSearch": "stitching.neighbours",
    "Plan": "stitching.planning",
    "Rules": "stitching.acceptance",
    "preset": "stitching.config",
    "stitch": "workflow.calls",
    "train": "workflow.calls",
    "train_together": "policies.train",
}

__all__ = [
    "BC",
    "IQL",
    "TD3BC",
    "Collect",
    "ColumnChoice",
    "Columns",
    "Comparison",
    "Consistency",
    "Estimate",
    "Exported",
    "ForwardDynamics",
    "GenerativeReward",
    "InputError",
    "Interval",
    "InverseDynamics",
    "Learned",
    "Likelihood",
    "Metadata",
    "NeighbourSearch",
    "NetworkPolicy",
    "Plan",
    "Policy",
    "Precedent",
    "Provenance",
    "RegressionReward",
    "Rules",
    "StitchConfig",
    "Trajectories",
    "TwinValue",
    "WeightedBC",
    "collect",
    "compare",
    "concatenate",
    "evaluate",
    "export",
    "inspect",
    "learn",
    "load",
    "load_policy",
    "preset",
    "save",
    "stitch",
    "train",
    "train_together",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trajstitch' has no attribute {name!r}")
    return getattr(import_module(f"trajstitch.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


keep_programs()
