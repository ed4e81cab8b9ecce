"""Stitch the data sets of an experiment, and record what stitching did to each: the one place that knows the pipeline.

The record of a stitching, `stitched.json` in its run, is part of the result of every cell that uses it.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from trajstitch.data.environments import normalised
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.simulator_check import check_jumps
from trajstitch.experiments.cells import rounded
from trajstitch.stitching import pipeline
from trajstitch.stitching.pipeline import Stitched, StitchJob


def stitch_together(jobs: Sequence[StitchJob]) -> list[tuple[Trajectories, dict[str, Any]]]:
    """Stitch data sets, each from the stage that its run lacks, with their greedy passes made together.

    Returns each job's stitched data and its record.
    """
    found = []
    for job, (outcome,) in zip(jobs, pipeline.stitch_together(jobs), strict=True):
        assert job.run is not None
        if not job.run.has("stitched"):
            job.run.write_json("stitched", record(job, outcome))
        for graph in job.run.folder.rglob("graph.safetensors"):
            graph.unlink()  # by far the largest file, and no longer needed
        found.append((outcome.after, job.run.read_json("stitched")))
    return found


def record(job: StitchJob, stitched: Stitched) -> dict[str, Any]:
    """Return what stitching did to a data set, how far its jumps miss in the simulator, and what it took."""
    run, before, after, passes = job.run, stitched.before, stitched.after, stitched.passes
    assert run is not None
    assert after.provenance is not None
    jumps = after.provenance.stitched
    start = time.monotonic()
    checked = check_jumps(before, after).summary()
    return rounded(
        {
            "config": asdict(job.config),
            "reason": stitched.reason,
            "before": normalised(before.returns, before.metadata).mean(),
            "after": normalised(after.returns, before.metadata).mean(),
            "trajectories": len(after),
            "changed": len(np.unique(after.episode_of_step[jumps])),
            "jumps": jumps.mean(),
            "states_kept": passes[-1]["states_kept"] if passes else 1.0,
            "proposed": sum(one["proposed"] for one in passes),
            "accepted": sum(one["accepted"] for one in passes),
            "simulator_check": checked,
            "fit_reports": [asdict(report) for report in stitched.reports],
            "seconds": {**stitched.seconds, "simulator_check": time.monotonic() - start},
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "commits": run.read_json("commits", list),
        }
    )
