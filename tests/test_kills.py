"""A dozen kills: a job that is killed before any of its file events, and started again, ends in the same files.

`make soak` tries 300.
"""

import pytest

from soak import kills

CASES = {
    "convert to CSV": ("os.rename made.csv", "open"),
    "replace CSV": ("fsync", "os.rename made.csv"),
    "replace Minari": ("renameat2 minari/my/point/log-v0", "os.remove"),
    "convert to D4RL": ("renameat2", "fsync "),
    "train BC": ("os.rename clone/checkpoints", "os.rename clone/data.json"),
    "stitch": ("os.rename run/saved.json", "os.rename run/passes.json", "renameat2 better.npz"),
}
"""Before which events of which jobs: the last one whose name starts so."""


@pytest.mark.parametrize(("job", "event"), [(job, event) for job, events in CASES.items() for event in events])
def test_a_killed_job_ends_in_the_same_files(job, event):
    events, right = kills._undisturbed(job)
    at = max(number for number, one in enumerate(events) if one.startswith(event))
    code, seen, found, said = kills._work(job, at)
    assert len(seen) == at, "it was not killed there"
    assert code == 0 or (code == 2 and "exists already" in said), said
    assert found == right
