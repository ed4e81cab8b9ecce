"""A dozen kills: a job that is killed before one of its file events, and started again, ends in the same files.

`make soak` tries 300.
"""

import pytest

from soak import kills

CASES = {
    "convert to CSV": ("renameat2 made.csv.sha256", "renameat2 made.csv"),
    "replace CSV": ("os.rename made.csv.sha256", "os.rename made.csv"),
    "convert to Minari": ("fsync minari/my/point",),
    "replace Minari": ("renameat2 minari/my/point/log-v0", "os.remove main_data.hdf5"),
    "convert to D4RL": ("renameat2 made.hdf5",),
    "train BC": ("renameat2 clone/checkpoints/000000020.safetensors", "renameat2 clone/action-error.json"),
    "stitch": ("renameat2 better.npz", "renameat2 run/passes.json"),
}
"""Before which events of which jobs; the last one, where there are several."""


@pytest.mark.parametrize(("job", "event"), [(job, event) for job, events in CASES.items() for event in events])
def test_a_killed_job_ends_in_the_same_files(job, event):
    events, right = kills._undisturbed(job)
    at = len(events) - 1 - events[::-1].index(event)
    code, seen, found, said = kills._work(job, at)
    assert len(seen) == at, "it was not killed there"
    assert code == 0 or (code == 2 and "exists already" in said), said
    assert found == right
