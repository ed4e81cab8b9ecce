"""Compare trained runs on logged data, where nothing can be rolled out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.compare import compare
from trajstitch.policies.policy import load_policies
from trajstitch.policies.train import split_episodes
from trajstitch.storage.circumstances import versions
from trajstitch.storage.runs import Run


def compare_runs(folders: Sequence[Path], data: Trajectories, held_out: Trajectories | None = None) -> dict[str, Any]:
    """Compare the last checkpoints of runs on the logged data; return the result as JSON values.

    Action errors are measured on `held_out` episodes; if not given, on those that all runs held out. The result is
    written into the first run's folder as estimate.json.
    """
    folders = list({folder.resolve(): folder for folder in folders}.values())
    runs = [Run.open(folder, "train") for folder in folders]
    runs[0].require_writable()
    policies = [load_policies(folder) for folder in folders]
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    found = compare(dict(zip(names, policies, strict=True)), data, held_out=held_out or _held_out(runs, data))
    trained = [
        {
            "run": str(folder),
            "name": name,
            "seeds": [policy.seed for policy in group],
            "steps": group[0].steps,
            "of_steps": run.fact("steps", int),
        }
        for folder, name, run, group in zip(folders, names, runs, policies, strict=True)
    ]
    source = data.metadata.source or data.metadata.name
    facts = {"environment": None, "data": source, "episodes": len(data), "runs": trained, "versions": versions()}
    result = facts | found.to_json()
    runs[0].write_json("estimate", result)
    return result


def _held_out(runs: Sequence[Run], data: Trajectories) -> Trajectories | None:
    """Return the episodes that all runs held out; None if there are none, or if a run learned from other data."""
    number = int, float
    shares = {(run.fact("top", number), run.fact("hold_out", number)) for run in runs}
    same = {run.fact("fingerprint", str) for run in runs} == {data.fingerprint}
    return split_episodes(data, *shares.pop())[1] if same and len(shares) == 1 else None
