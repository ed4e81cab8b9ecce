"""Guards: what a user should know before trusting stitched data, in one sentence each."""

from collections.abc import Sequence

import numpy as np

from trajstitch.data import ragged
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import FitReport
from trajstitch.models.hidden_state import HIDDEN, TOLD, StepBefore

BEYOND = 0.05
"""Share of the span of logged returns by which a stitched return may exceed the best logged one without a warning."""
FEW_STATES = 0.1
"""Share of the logged states that must remain."""


def warnings(before: Trajectories, after: Trajectories) -> list[str]:
    """Return what is doubtful about stitched data, given the data it was made from; nothing if it was not changed."""
    origin = after.provenance
    if origin is None or not origin.stitched.any():
        return []
    found = (_beyond_best(before, after), _rewards(before, after), _few_states(before, after))
    return [one for one in found if one is not None]


def hidden_state(reports: Sequence[FitReport]) -> list[str]:
    """Return that part of the state is hidden, if the models' reports say so."""
    share = max((report.metrics.get(TOLD, 0.0) for report in reports), default=0.0)
    found = []
    for seen in (StepBefore.seen_by(report.metrics) for report in reports):
        if seen:
            found.append(
                f"part of the state is hidden: {seen} tells {seen.told:.0%} of the changes that observation and action "
                "don't, so the models were shown it; a policy sees it only if it is added to the observations"
            )
    if share > HIDDEN:
        left = "still tells" if found else "tells"
        found.append(
            f"part of the state is hidden: the step before {left} {share:.0%} of the changes that observation and "
            "action don't, as where a velocity is not observed or an action counts late; a jump may lead elsewhere "
            "than it claims; add what is missing to the observations, such as the change since the step before, or the "
            "last action"
        )
    return list(dict.fromkeys(found))


def _beyond_best(before: Trajectories, after: Trajectories) -> str | None:
    best = float(before.returns.max())
    beyond = after.returns > best + BEYOND * np.ptp(before.returns)
    if not beyond.any():
        return None
    return (
        f"{int(beyond.sum()):,} of {len(after):,} trajectories claim a return beyond the best logged one "
        f"({float(after.returns.max()):,.5g}, logged {best:,.5g}): possible where good parts were joined, but nobody "
        "has seen it"
    )


def _rewards(before: Trajectories, after: Trajectories) -> str | None:
    assert after.provenance is not None
    low, high = float(before.rewards.min()), float(before.rewards.max())
    rewards = after.rewards[after.provenance.stitched]
    outside = int(((rewards < low) | (rewards > high)).sum())
    if not outside:
        return None
    return (
        f"{outside:,} of {len(rewards):,} jumps were given a reward outside the logged range {low:,.5g} to "
        f"{high:,.5g}: the reward model extrapolates"
    )


def _few_states(before: Trajectories, after: Trajectories) -> str | None:
    assert after.provenance is not None
    kept = states_kept(before, after)
    changed = float((ragged.sums(after.provenance.stitched, after.lengths) > 0).mean())
    if kept >= FEW_STATES:
        return None
    return (
        f"only {kept:.1%} of the logged states remain ({changed:.0%} of the trajectories were changed): a policy will "
        "have seen few situations; let fewer trajectories share a state with `plan.max_visits`, or keep the original "
        "data with `keep_original=True`"
    )


def states_kept(before: Trajectories, after: Trajectories) -> float:
    """Return the share of the logged states, without the last ones of episodes, that stitched data still visits."""
    assert after.provenance is not None
    episode, step = after.provenance.source_episode, after.provenance.source_step
    longest = int(before.lengths.max()) + 1
    return len(np.unique(episode.astype(np.int64) * longest + step)) / max(before.steps, 1)
