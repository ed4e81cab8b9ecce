"""Five hundred damaged files: each loads, or is refused in one line. `make soak` tries 20,000."""

import pytest

from soak.files import attempt
from soak.samples import SAMPLES

EACH = 36
"""Cases of each kind: 540 in all."""


@pytest.mark.usefixtures("wrong_types")  # for users, nothing checks types before a reader or `Trajectories` does
@pytest.mark.parametrize("kind", SAMPLES)
def test_damaged_files_load_or_are_refused_in_one_line(kind):
    first = list(SAMPLES).index(kind)
    outcomes = [attempt(case) for case in range(first, EACH * len(SAMPLES), len(SAMPLES))]
    assert {one.kind for one in outcomes} == {kind}
    assert {"loaded", "refused"} <= {one.verdict for one in outcomes}, "the damage is too little or too much"
    for one in outcomes:
        assert one.verdict != "failed", f"case {one.case}, {one.mutation}: {one.detail}"
