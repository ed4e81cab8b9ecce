"""How far policies' actions are from logged ones, and whether that is closer than always taking the mean action."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from trajstitch.data.normalise import action_bounds
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import explained
from trajstitch.policies.policy import NetworkPolicy, Policy, PolicyNormaliser
from trajstitch.progress import logger

MOST_STEPS = 5_000
"""Steps that policies are compared with the mean action on, at most."""


def action_errors(
    policies: Sequence[Policy],
    data: Trajectories,
    steps: Bool[np.ndarray, " steps"] | None = None,
    constant: Float[np.ndarray, " action"] | None = None,
) -> dict[str, Any]:
    """Return how far the policies' actions are from the data's, scaled to ±1: at these steps, or at all.

    The baseline is the error of the action `constant`; if not given, of the mean action of these steps.
    """
    steps = np.ones(data.steps, bool) if steps is None else steps
    normaliser = action_normaliser(policies, data)
    logged = normaliser.to_unit(data.actions[steps])
    rows = data.observations[data.state_rows[steps]]
    squares = [float(np.square(normaliser.to_unit(policy.act(rows)) - logged).mean()) for policy in policies]
    always = logged.mean(0) if constant is None else normaliser.to_unit(constant)
    baseline = float(np.square(logged - always).mean())
    return {
        "action_error": [square**0.5 for square in squares],
        "baseline": baseline**0.5,
        "explained": [explained(square, baseline) for square in squares],
        "steps": len(rows),
    }


def compare_with_constant(
    policies: Sequence[Policy], learned: Trajectories, held_out: Trajectories | None = None
) -> dict[str, Any]:
    """Return the policies' action errors beside that of the mean action learned from; warn if they are no better.

    They are measured on held-out steps in states that were not learned from; if there are none, on those learned from,
    where a policy that ignores its input shows as well.
    """
    measured, usable = learned, np.ones(learned.steps, bool)
    if held_out is not None and (new := unseen(held_out, learned)).any():
        measured, usable = held_out, new
    steps = np.zeros(measured.steps, bool)
    steps[np.random.default_rng(0).permutation(np.flatnonzero(usable))[:MOST_STEPS]] = True
    errors = action_errors(policies, measured, steps, learned.actions.mean(0, dtype=np.float64))
    # An error that is NaN is no better either.
    no_better = [policy.seed for policy, share in zip(policies, errors["explained"], strict=True) if not share > 0]
    where = "held-out" if measured is held_out else "training"
    if no_better:
        worst = max(errors["action_error"])
        logger.warning(
            f"{len(no_better)} of {len(policies)} policies (seed{'s' * (len(no_better) > 1)} "
            f"{', '.join(map(str, no_better))}) predict the logged actions no better than always the mean action does: "
            f"error up to {worst:.3g}, where the mean action has {errors['baseline']:.3g} ({where} steps, actions "
            "scaled to ±1). Either the observations don't tell the actions, or training failed: look at the data with "
            "`trajstitch inspect`, standardise, or train for more `steps`"
        )
    return {"held_out": measured is held_out, **errors, "no_better_than_constant": no_better}


def unseen(held: Trajectories, learned: Trajectories) -> Bool[np.ndarray, " steps"]:
    """Return which held-out steps start in a state that the episodes learned from don't visit.

    Stitched episodes share many states.
    """
    if held.provenance is None or learned.provenance is None:
        return np.ones(held.steps, bool)
    ours, theirs = (
        part.source_episode.astype(np.int64) << 32 | part.source_step for part in (held.provenance, learned.provenance)
    )
    return ~np.isin(ours, theirs)


def action_normaliser(policies: Sequence[Policy], data: Trajectories) -> PolicyNormaliser:
    """Return the action bounds that errors are measured by: those of a network's actions, or else the data's."""
    if isinstance(policies[0], NetworkPolicy):
        return policies[0].normaliser
    size = data.observation_size
    return PolicyNormaliser(np.zeros(size), np.ones(size), *action_bounds(data))
