"""Logs as flat rows, one a step (D4RL, most NPZ files, tables): cut into episodes, and back."""

from dataclasses import replace
from typing import Any

import numpy as np

from trajstitch.errors import InputError
from trajstitch.trajectories import Finding, Metadata, Trajectories

MOST_CUTS = 0.2
"""More unflagged discontinuities than this share of the rows means the rows are not in order at all."""


def from_rows(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    next_observations: np.ndarray | None,
    metadata: Metadata,
    episodes: np.ndarray | None = None,
) -> Trajectories:
    """Cut rows into episodes of T steps and T+1 observations.

    An episode ends where a row is terminated or truncated, where `episodes` (a label per row, if given)
    changes, and where `next_observations` doesn't continue in the next row. Without `next_observations` the
    state that an episode's last row led to was never recorded; that row is then left out, since inventing a state
    would poison every model learned from it, and the row before it carries the end flags.
    """
    rows = len(rewards)
    if rows == 0:
        raise InputError(f"{metadata.source}: holds no rows, so no episodes")
    ends = terminated | truncated
    if episodes is not None:
        ends[:-1] |= episodes[1:] != episodes[:-1]
    findings = list(metadata.findings)
    if next_observations is not None:
        jumps = (next_observations[:-1] != observations[1:]).any(axis=1) & ~ends[:-1]
        # NaN compares unequal to itself: that is for the NaN check to say, not a cut.
        jumps &= np.isfinite(next_observations[:-1]).all(axis=1) & np.isfinite(observations[1:]).all(axis=1)
        if jumps.sum() > MOST_CUTS * rows:
            raise InputError(
                f"{metadata.source}: next_observations differ from the next row's observations in {jumps.sum():,} of "
                f"{rows:,} rows, first at row {int(np.argmax(jumps))}: the rows must be in the order they were logged"
            )
        if jumps.any():
            findings.append(
                Finding(
                    "continuity",
                    "note",
                    f"{jumps.sum():,} unflagged breaks (next_observations differ from the next row), first at row "
                    f"{int(np.argmax(jumps))}: cut into episodes there",
                )
            )
        ends[:-1] |= jumps
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    offsets = np.concatenate(([0], stops))
    if next_observations is not None:
        states = np.empty((rows + len(stops), observations.shape[1]), observations.dtype)
        states[np.arange(rows) + np.repeat(np.arange(len(stops)), np.diff(offsets))] = observations
        states[stops + np.arange(len(stops))] = next_observations[stops - 1]
    else:
        states = observations
        lengths = np.diff(offsets)
        last = stops - 1
        kept = np.ones(rows, bool)
        kept[last] = False
        before = last[lengths > 1] - 1
        terminated, truncated = terminated.copy(), truncated.copy()
        terminated[before] = terminated[before + 1]
        truncated[before] = truncated[before + 1]
        if not (lengths > 1).any():
            raise InputError(
                f"{metadata.source}: every episode has a single row and there are no next_observations: no transition "
                "can be formed"
            )
        single = int((lengths == 1).sum())
        findings.append(
            Finding(
                "continuity",
                "note",
                f"no next_observations: the last row of each of the {len(stops):,} episodes, whose next state was not "
                f"recorded, is left out{f' ({single:,} episodes of one row vanish)' if single else ''}",
            )
        )
        if single:
            states = states[np.repeat(lengths > 1, lengths)]
        actions, rewards, terminated, truncated = actions[kept], rewards[kept], terminated[kept], truncated[kept]
        offsets = np.concatenate(([0], np.cumsum(lengths[lengths > 1] - 1)))
    return Trajectories(
        observations=states,
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        offsets=offsets,
        metadata=_with_findings(metadata, findings),
    )


def to_rows(data: Trajectories) -> dict[str, Any]:
    """One row a step, with `next_observations`: what D4RL's layout and tables hold."""
    return {
        "observations": data.observations[data.state_rows],
        "actions": data.actions,
        "rewards": data.rewards,
        "next_observations": data.observations[data.state_rows + 1],
        "terminated": data.terminated,
        "truncated": data.truncated,
    }


def _with_findings(metadata: Metadata, findings: list[Finding]) -> Metadata:
    return replace(metadata, findings=tuple(findings))
