"""A dozen kills: a job that is killed before one of its file events, and started again, ends in the same files.

`make soak` tries 300.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

CASES = {
    "convert to CSV": ("renameat2 made.csv.sha256", "renameat2 made.csv"),
    "replace CSV": ("os.rename made.csv.sha256", "os.rename made.csv"),
    "convert to Minari": ("fsync minari/my/point",),
    "replace Minari": ("renameat2 minari/my/point/log-v0", "os.remove main_data.hdf5"),
    "convert to D4RL": ("renameat2 made.hdf5",),
    "train BC": (
        "renameat2 clone/state.safetensors",
        "renameat2 clone/checkpoints/000000020.safetensors",
        "renameat2 clone/action-error.json",
    ),
    "stitch": ("os.remove run/model-inverse.safetensors", "renameat2 better.npz", "renameat2 run/passes.json"),
}
"""Before which events of which jobs; the last one, where there are several."""


def test_a_killed_job_ends_in_the_same_files():
    cases = [(job, event) for job, events in CASES.items() for event in events]
    # In a process of its own: jobs are forked, and this one has computed with JAX.
    command = [sys.executable, "-m", "soak.kills", *(word for case in cases for word in case)]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["job"], one["event"]) for one in found] == cases
    assert not [one for one in found if one["verdict"] != "same"]
