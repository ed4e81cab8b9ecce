"""The gain in mean return by a stitching, and its interval."""

import numpy as np
from jaxtyping import Float

from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Trajectories

RESAMPLES = 1_000
FEW = 2_000
"""Up to this many trajectories the interval is a bootstrap's; of more, the mean is as good as normal."""
NORMAL = 1.96
"""Standard errors on either side of a 95 % interval."""


def gain_interval(before: Trajectories, after: Trajectories) -> tuple[float, float] | None:
    """Return a 95 % interval of the gain in mean return over trajectories; None if there are fewer than two.

    Where stitched trajectories replace original ones, the gain of each is what varies; otherwise, both sets' returns.
    """
    old, new = before.returns, after.returns
    if len(old) < 2 or len(new) < 2:
        return None
    record = StitchRecord.of(after.metadata)
    if record is not None and not record.kept_original and len(new) % len(old) == 0:
        return _interval(new.reshape(-1, len(old)).mean(0) - old)
    return _interval(new, old)


def _interval(*sets: Float[np.ndarray, " _values"]) -> tuple[float, float]:
    """Return the interval of the first set's mean, less the second's if there is one."""
    random, signs = np.random.default_rng(0), (1, -1)
    if max(map(len, sets)) > FEW:
        middle = sum(sign * values.mean() for sign, values in zip(signs, sets, strict=False))
        error = sum(values.var(ddof=1) / len(values) for values in sets) ** 0.5
        return float(middle - NORMAL * error), float(middle + NORMAL * error)
    means = np.zeros(RESAMPLES)
    for sign, values in zip(signs, sets, strict=False):
        means += sign * values[random.integers(len(values), size=(RESAMPLES, len(values)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
