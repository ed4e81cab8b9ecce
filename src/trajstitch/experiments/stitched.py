"""Stitch the data sets of an experiment, and record what stitching did to each: the one place that knows the pipeline.

The record of a stitching, `stitched.json` in its run, is part of the result of every cell that uses it. Stitchings that
differ only in what follows the models share the models, and greedy passes are continued from those with fewer passes.
"""

import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from trajstitch.data.environments import environment_id, normalised
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.simulator_check import check_jumps
from trajstitch.experiments.cells import rounded
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching import pipeline
from trajstitch.stitching.guards import states_kept
from trajstitch.stitching.pipeline import Stitched, StitchJob, read_stitched
from trajstitch.stitching.result import assemble
from trajstitch.storage.runs import Run

MODELS = ("inverse", "reward", "columns")
"""The parts of a config that its models depend on, beside the jump tests' own."""
LIMITS = ("limit", "margin")
"""The fields of a jump test that its model doesn't depend on."""


@runtime_checkable
class World(Protocol):
    """Where data is logged and policies are scored without Gymnasium, and the truth about data is known."""

    def collect(self, seed: int = 0) -> Trajectories:
        """Return logged data."""
        ...

    def score(self, act: Callable[[np.ndarray], np.ndarray], episodes: int = 100, seed: int = 0) -> np.ndarray:
        """Return the returns of a policy's episodes."""
        ...

    def true_returns(self, data: Trajectories) -> np.ndarray:
        """Return what the episodes of data truly return."""
        ...


def stitch_together(
    jobs: Sequence[StitchJob], worlds: Sequence[World | None]
) -> list[tuple[Trajectories, dict[str, Any]]]:
    """Stitch data sets, each from the stage that its run lacks, with their greedy passes made together.

    Returns each job's stitched data and its record; the records of data from `worlds` hold the true returns.
    """
    due = [number for number, job in enumerate(jobs) if not _run_of(job).has("stitched")]
    made: dict[int, Trajectories] = {}
    for number, (outcome,) in zip(due, pipeline.stitch_together([jobs[number] for number in due]), strict=True):
        job, world, made[number] = jobs[number], worlds[number], outcome.after
        truth = {}
        if world is not None:
            truth["true"] = float(normalised(world.true_returns(outcome.after), job.data.metadata).mean())
        for graph in _run_of(job).folder.rglob("graph.safetensors"):
            graph.unlink()  # by far the largest file, and no longer needed
        _run_of(job).write_json("stitched", record(job, outcome) | rounded(truth))
    found = []
    for number, job in enumerate(jobs):
        known = _run_of(job).read_json("stitched")
        reports = [FitReport.from_json(report) for report in known["fit_reports"]]
        found.append((made[number] if number in made else read_stitched(job, reports), known))
    return found


def _run_of(job: StitchJob) -> Run:
    assert job.run is not None
    return job.run


def record(job: StitchJob, stitched: Stitched) -> dict[str, Any]:
    """Return what stitching did to a data set, how far its jumps miss in the simulator, and what it took."""
    run, before, after, passes = _run_of(job), stitched.before, stitched.after, stitched.passes
    assert after.provenance is not None
    jumps = after.provenance.stitched
    start = time.monotonic()
    checked = check_jumps(before, after).summary() if environment_id(before.metadata) else {"steps": 0}
    return rounded(
        {
            "config": asdict(job.config),
            "reason": stitched.reason,
            "before": normalised(before.returns, before.metadata).mean(),
            "after": normalised(after.returns, before.metadata).mean(),
            "trajectories": len(after),
            "changed": len(np.unique(after.episode_of_step[jumps])),
            "jumps": jumps.mean(),
            "states_kept": states_kept(before, after),
            "proposed": sum(one["proposed"] for one in passes),
            "accepted": sum(one["accepted"] for one in passes),
            "simulator_check": checked,
            "fit_reports": [asdict(report) for report in stitched.reports],
            "seconds": {**stitched.seconds, "simulator_check": time.monotonic() - start},
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "commits": run.read_json("commits", list),
        }
    )


def learned_from(gives: str, logged: Trajectories, after: Trajectories, record: dict[str, Any]) -> Trajectories:
    """Return what is learned from, by `Stitching.gives`: the stitched data, its union with the logged, or a control."""
    if gives == "union":
        parts = [after[np.arange(first, first + len(logged))] for first in range(0, len(after), len(logged))]
        made = StitchRecord.of(after.metadata)
        return assemble(logged, parts, keep_original=True, doubts=() if made is None else made.warnings)
    return best_covering(logged, record["states_kept"]) if gives == "filtered" else after


def best_covering(data: Trajectories, share: float) -> Trajectories:
    """Return the episodes with the highest returns, as many as come closest to this share of the states."""
    order = np.argsort(-data.returns, kind="stable")
    covered = np.cumsum(data.lengths[order]) / max(data.steps, 1)
    return data[np.sort(order[: 1 + int(np.abs(covered - share).argmin())])]


def borrow(run: Run, folder: Path) -> None:
    """Copy into a new run what another stitching of the same data and seed in the folder has made and it would make.

    These are the models, if the configs agree in what they depend on, and greedy passes, if all but their number is
    the same.
    """
    if run.has("passes") or run.config["config"]["stitchings"] > 1:
        return
    mine, own = run.config, run.config["config"]
    passes = -1
    for place in sorted(folder.glob("*/run.json")):
        other = json.loads(place.read_text())["config"]
        if place.parent == run.folder or (other["data"], other["seed"]) != (mine["data"], mine["seed"]):
            continue
        theirs = other["config"]
        if not run.has("models") and _of_models(theirs) == _of_models(own):
            _copy("models", Run.open(place.parent), run)
        same = {**theirs, "passes": own["passes"]} == own
        if same and own["plan"] is None and passes < theirs["passes"] < own["passes"]:
            passes = theirs["passes"]
            _copy("progress", Run.open(place.parent), run)


def _of_models(config: dict[str, Any]) -> Any:
    """Return what a config's models depend on."""
    tests = [
        (name, {field: value for field, value in test.items() if field not in LIMITS})
        for name, test in config["tests"].items()
    ]
    return tests, [config[name] for name in MODELS]


def _copy(name: str, source: Run, target: Run) -> None:
    if source.has(name):
        tensors, facts = source.read(name)
        target.write_tensors(name, tensors, **facts)
