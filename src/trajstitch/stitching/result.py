"""The data set that stitching gives: trajectories replaced by better ones, or added to the original ones.

*Replaced*, the default, is what a clone should learn from: every original trajectory is there once, as it was or
better. Several stitchings are joined by putting one after the other, so that every trajectory is there once for each,
changed or not: a trajectory that no stitching could improve keeps its weight among the others.

*With the original kept*, D ∪ TS(D), is what a learner of Q should learn from: all original trajectories as they were,
in their order, then those that each stitching changed. An unchanged one is there once.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from trajstitch.data import ragged
from trajstitch.data.source_facts import source_facts
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Provenance, Trajectories, concatenate
from trajstitch.stitching.guards import warnings


def assemble(
    before: Trajectories, stitchings: Sequence[Trajectories], *, keep_original: bool, doubts: Sequence[str] = ()
) -> Trajectories:
    """Return the data set of one or several stitchings of the same data, with the record of what it consists of.

    `doubts` are what the data alone does not tell about changed trajectories.
    """
    which = [changed(before, after) for after in stitchings]
    count = sum(int(found.sum()) for found in which)
    original = replace(before, provenance=before.provenance or Provenance.logged(before.offsets))
    if count == 0:
        made = original
    elif keep_original:
        added = [after[np.flatnonzero(found)] for after, found in zip(stitchings, which, strict=True) if found.any()]
        made = concatenate((original, *added))
    else:
        made = concatenate(stitchings)
    found = [*doubts] if count else []
    found += [doubt for after in stitchings for doubt in warnings(before, after)]
    facts = source_facts(before)
    source = {name: facts[name] for name in ("source", "columns", "fingerprint")}
    record = StitchRecord(
        keep_original, len(stitchings), len(before), len(made), count, tuple(dict.fromkeys(found)), source
    )
    return replace(made, metadata=record.added_to(before.metadata))


def changed(before: Trajectories, after: Trajectories) -> Bool[np.ndarray, " episodes"]:
    """Return which trajectories of a stitching differ in any bit from the original; those beyond its number do."""
    count = len(before)
    same = before.lengths == after.lengths[:count]
    episodes = np.flatnonzero(same)
    lengths = before.lengths[episodes]
    for name, extra in (("observations", 1), ("actions", 0), ("rewards", 0), ("terminated", 0), ("truncated", 0)):
        old, new = (
            getattr(data, name)[ragged.rows_of(data.offsets[episodes] + extra * episodes, lengths + extra)]
            for data in (before, after)
        )
        differs = ((old != new) & ((old == old) | (new == new))).reshape(len(old), -1).any(1)  # NaN is NaN
        same[episodes] &= ragged.sums(differs, lengths + extra) == 0
    return np.concatenate((~same, np.ones(len(after) - count, bool)))
