"""Stitch the data sets of an experiment, and record what stitching did to each: the one place that knows the pipeline.

The record of a stitching, `stitched.json` in its run, is part of the result of every cell that uses it.
"""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from trajstitch.data.environments import normalised
from trajstitch.data.normalise import rescale_for_float32
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.simulator_check import check_jumps
from trajstitch.experiments.cells import rounded
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.pipeline import Stages, Stitched, all_together
from trajstitch.stitching.predictability import return_predictability
from trajstitch.storage.runs import Run

Job = tuple[Run, StitchConfig, Trajectories, int]
"""The run's folder, how to stitch, the data, and the seed."""


def stitch_together(jobs: Sequence[Job], before: Callable[[str], None]) -> list[tuple[Trajectories, dict[str, Any]]]:
    """Stitch data sets, each from the stage that its run lacks, with their greedy passes made together.

    `before` is called with the name of each stage before it starts. Returns each job's stitched data and its record.
    """
    found = all_together([Stages(*job, before=before) for job in jobs])
    for (run, config, _, _), (outcome,) in zip(jobs, found, strict=True):
        if not run.has("stitched"):
            run.write_json("stitched", record(outcome, config))
        run.path("graph.safetensors").unlink(missing_ok=True)  # by far the largest file, and no longer needed
    return [(outcome.after, outcome.run.read_json("stitched")) for (outcome,) in found]


def record(stitched: Stitched, config: StitchConfig) -> dict[str, Any]:
    """Return what stitching did to a data set, what the simulator says of its jumps, and what it took."""
    run, before, after, passes = stitched.run, stitched.before, stitched.after, stitched.passes
    assert after.provenance is not None
    jumps = after.provenance.stitched
    start = time.monotonic()
    checked = check_jumps(before, after).summary()
    return rounded(
        {
            "config": asdict(config),
            "reason": stitched.left_alone,
            "return_predictability": return_predictability(rescale_for_float32(before)),
            "before": normalised(before.returns, before.metadata).mean(),
            "after": normalised(after.returns, before.metadata).mean(),
            "trajectories": len(after),
            "changed": len(np.unique(after.episode_of_step[jumps])),
            "jumps": jumps.mean(),
            "states_kept": passes[-1]["states_kept"] if passes else 1.0,
            "proposed": sum(one["proposed"] for one in passes),
            "accepted": sum(one["accepted"] for one in passes),
            "simulator_check": checked,
            "fit_reports": run.read_json("models") if run.has("models") else [],
            "seconds": {**stitched.seconds, "simulator_check": time.monotonic() - start},
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "commits": run.read_json("commits"),
        }
    )
