"""Which of several policies to deploy, told from logged data alone: better, worse, or can't tell."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.stats import t as student

from trajstitch.data.checks import require_trajectories
from trajstitch.data.stitch_record import original_of
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.estimates import (
    FEWEST_EPISODES,
    Rollouts,
    horizon_of,
    logged_returns,
    rolled_out,
)
from trajstitch.evaluation.scores import Interval
from trajstitch.policies.action_error import MOST_STEPS, action_errors
from trajstitch.policies.policy import Policy

Verdict = Literal["better", "worse", "can't tell"]

LOGGED = "logged behaviour"
CONFIDENCE = 0.975
"""Of each bound of an interval."""
MOST_OUTSIDE = 0.25
"""Share of a policy's steps that may be beyond the data; above it, the data can't say how good the policy is."""
SMALLEST = 0.05
"""Difference that counts, as a share of the standard deviation of logged returns."""


@dataclass(frozen=True)
class Estimate:
    """What logged data tells about the policies of one name."""

    name: str
    policies: int
    """Seeds; the estimate is their mean."""
    estimated: Interval | None
    """Return over the usual length of an episode. The bounds hold whatever happens beyond the data."""
    outside: float | None
    """Share of its steps that are beyond the data."""
    distance: float | None
    """Mean distance of its steps to the nearest logged step; 1: as far as logged steps are from other episodes'."""
    settled: bool
    """Whether the estimate would be about the same with half of the data."""
    action_error: float
    """Root mean square distance of its actions from the logged ones, scaled to ±1."""

    @property
    def covered(self) -> bool:
        """Whether the data says how good it is."""
        return self.outside is not None and self.outside <= MOST_OUTSIDE


@dataclass(frozen=True)
class Comparison:
    """Estimates of policies' returns on the same logged data, and what they say about each pair."""

    estimates: tuple[Estimate, ...]
    logged: Interval
    """Return of the logged behaviour over as many steps: measured, not estimated."""
    horizon: int
    """Steps that returns are about."""
    constant_error: float
    """Action error of always taking the mean action."""
    held_out: bool
    """Whether action errors are on episodes that the policies did not learn from."""
    verdicts: dict[tuple[str, str], Verdict]
    """How the first of two compares with the second; the logged behaviour is one of them."""
    reason: str | None = None
    """Why nothing can be told at all."""

    def verdict(self, name: str, than: str = LOGGED) -> Verdict:
        """Return whether the policies of one name are better than those of another, or than the logged behaviour."""
        if name == than:
            return "can't tell"
        for one in (name, than):
            if not any(one in pair for pair in self.verdicts):
                raise InputError(f"no policy {one!r} was compared: there are {', '.join(self.names)}")
        return self.verdicts[name, than]

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.estimates]

    @property
    def deploy(self) -> str | None:
        """The name that is better than every other and than the logged behaviour; None if there is none."""
        for name in self.names:
            if all(self.verdict(name, other) == "better" for other in (*self.names, LOGGED) if other != name):
                return name
        return None

    @property
    def unbeaten(self) -> list[str]:
        """The names that nothing is better than, the logged behaviour included."""
        everyone = (*self.names, LOGGED)
        return [name for name in self.names if all(self.verdict(one, name) != "better" for one in everyone)]

    @property
    def sentence(self) -> str:
        """Which one to deploy and why, or why that can't be told."""
        if self.reason is not None:
            return f"Can't tell which to deploy: {self.reason}."
        if (chosen := self.deploy) is not None:
            others = f"the logged behaviour{' and the others' if len(self.names) > 1 else ''}"
            found = next(one for one in self.estimates if one.name == chosen)
            return f"Deploy {chosen}: its estimate, {found.estimated}, is better than {others}."
        good = [name for name in self.unbeaten if self.verdict(name) == "better"]
        if good:
            rest = [name for name in self.unbeaten if name not in good]
            doubt = f"; whether {_listed(rest)} would do better still, the data can't tell" if rest else ""
            which = good[0] if len(good) == 1 else f"any of {_listed(good)}, which can't be told apart"
            return f"Deploy {which}: better than the logged behaviour{doubt}."
        if not self.unbeaten:
            return "Deploy none of them: the logged behaviour is better."
        reasons = "; ".join(f"{name}: {self.doubt(name)}" for name in self.unbeaten)
        return f"Can't tell whether any is better than the logged behaviour. {reasons}."

    def doubt(self, name: str) -> str:
        """Return why it can't be told whether the policies of this name are better than the logged behaviour."""
        one = next(one for one in self.estimates if one.name == name)
        if not one.covered:
            return f"{one.outside:.0%} of its steps are beyond the data"
        if not one.settled:
            return "its estimate still moves with more data"
        return "its interval and that of the logged behaviour overlap"

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "estimates": [
                asdict(one) | {"estimated": one.estimated and one.estimated._asdict(), "covered": one.covered}
                for one in self.estimates
            ],
            "logged": self.logged._asdict(),
            "horizon": self.horizon,
            "constant_error": self.constant_error,
            "held_out": self.held_out,
            "verdicts": [
                {"name": name, "than": than, "verdict": verdict} for (name, than), verdict in self.verdicts.items()
            ],
            "deploy": self.deploy,
            "sentence": self.sentence,
        }


def compare(
    policies: Mapping[str, Policy | Sequence[Policy]],
    data: Trajectories,
    *,
    held_out: Trajectories | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare policies by what logged data tells about their returns, without an environment.

    `policies` are named; a name may stand for several seeds, whose mean counts. `data` is what was logged: of stitched
    data that holds the original episodes, these are taken. Action errors are measured on the `held_out` episodes; if
    not given, on the data.
    """
    require_trajectories(data)
    original = original_of(data)
    if original is None:
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: is stitched, and estimates need what was logged: give the "
            "original data as `data`"
        )
    groups = {name: [one] if isinstance(one, Policy) else list(one) for name, one in policies.items()}
    if not groups or not all(groups.values()):
        raise InputError("there are no policies to compare")
    if LOGGED in groups:
        raise InputError(f"{LOGGED!r} is the name of what the data did: choose another name for the policy")
    everyone = [policy for group in groups.values() for policy in group]
    _require_fitting(everyone, original)
    measured = original if held_out is None else held_out
    errors, constant = _action_errors(everyone, measured)
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups.values()])
    horizon = horizon_of(original)
    returns = logged_returns(original, horizon)[original.lengths > 0]
    usual, spread, known = float(returns.mean()), float(returns.std()), len(returns)
    error = [float(errors[owner == number].mean()) for number in range(len(groups))]
    if known < FEWEST_EPISODES:
        return Comparison(
            tuple(
                Estimate(name, len(group), None, None, None, False, error[number])
                for number, (name, group) in enumerate(groups.items())
            ),
            Interval(usual, None, None),
            horizon,
            constant,
            held_out is not None,
            dict.fromkeys(permutations((*groups, LOGGED), 2), "can't tell"),
            f"{known:,} episodes are too few to say anything about others; {FEWEST_EPISODES} are the least",
        )
    rollouts = rolled_out(everyone, original, seed)
    full, smaller = (_Fits.of(part, owner) for part in rollouts)
    reason = None
    if np.median(rollouts[0].reward_explained) <= 0:
        # A policy that learned from luck would look good on the same luck.
        reason = "observations and actions don't predict the rewards of other episodes"
    estimates = tuple(
        full.estimate_of(number, smaller, name, len(group), error[number], SMALLEST * spread)
        for number, (name, group) in enumerate(groups.items())
    )
    names = (*groups, LOGGED)
    covered = {one.name: one.covered for one in estimates} | {LOGGED: True}
    better = {
        (name, than): reason is None
        and covered[name]
        and covered[than]
        and full.surely_better(names.index(name), names.index(than), smaller, SMALLEST * spread)
        for name, than in permutations(names, 2)
    }
    verdicts: dict[tuple[str, str], Verdict] = {
        (name, than): "better" if found else "worse" if better[than, name] else "can't tell"
        for (name, than), found in better.items()
    }
    wide = float(student.ppf(CONFIDENCE, known - 1)) * spread / (known - 1) ** 0.5
    return Comparison(
        estimates,
        Interval(usual, usual - wide, usual + wide),
        horizon,
        constant,
        held_out is not None,
        verdicts,
        reason,
    )


@dataclass(frozen=True)
class _Fits:
    """Returns in each fit from each start: of each name's policies and, as the last one, of the logged behaviour."""

    estimate: Float[np.ndarray, "fits names starts"]
    lower: Float[np.ndarray, "fits names starts"]
    upper: Float[np.ndarray, "fits names starts"]
    outside: Float[np.ndarray, " policies"]
    distance: Float[np.ndarray, " policies"]
    between: Float[np.ndarray, " names"]
    """Variance of the mean over seeds."""

    @classmethod
    def of(cls, rollouts: Rollouts, owner: np.ndarray) -> "_Fits":
        groups = [owner == number for number in range(owner.max() + 1)]

        def grouped(values: np.ndarray) -> np.ndarray:
            return np.stack([values[:, group].mean(1) for group in groups], 1)

        def with_logged(values: np.ndarray) -> np.ndarray:
            return np.concatenate((grouped(values), rollouts.logged[:, None]), 1)

        each = [np.nanmean(rollouts.estimate[:, group], (0, 2)) for group in groups]
        between = [one.var(ddof=1) / len(one) if len(one) > 1 else 0.0 for one in each]
        return cls(
            with_logged(rollouts.estimate),
            with_logged(rollouts.lower),
            with_logged(rollouts.upper),
            grouped(rollouts.outside).mean(0),
            grouped(rollouts.distance).mean(0),
            np.array([*between, 0.0]),
        )

    def interval(self, values: Float[np.ndarray, "fits starts"], *numbers: int) -> tuple[float, float]:
        """Return the mean of values that depend on these names' policies, and half the width of its interval.

        Starts are a sample, and so is what was fitted: both errors are added, and that of the seeds.
        """
        used = ~np.isnan(values).all(0)
        values = values[:, used]
        each = np.nanmean(values, 0)
        often = (~np.isnan(values)).sum(0).mean()
        fits = np.nanmean(values - each, 1)
        # The means contain each fit's own effect, so that the rest of it is too small.
        variance = fits.var(ddof=1) * often / max(often - 1, 1) + each.var(ddof=1) / len(each)
        variance += self.between[list(numbers)].sum()
        return float(each.mean()), float(student.ppf(CONFIDENCE, len(fits) - 1) * variance**0.5)

    def estimate_of(
        self, number: int, smaller: "_Fits", name: str, policies: int, action_error: float, negligible: float
    ) -> Estimate:
        value, wide = self.interval(self.estimate[:, number], number)
        low, below = self.interval(self.lower[:, number], number)
        high, above = self.interval(self.upper[:, number], number)
        return Estimate(
            name,
            policies,
            Interval(value, low - below, high + above),
            float(self.outside[number]),
            float(self.distance[number]),
            _moved(self.estimate[:, number], smaller.estimate[:, number]) <= max(wide, negligible),
            action_error,
        )

    def surely_better(self, number: int, than: int, smaller: "_Fits", negligible: float) -> bool:
        """Return whether one is better by more than is negligible, whatever happens beyond the data.

        Both are compared in the same fits. How far the difference moves with half of the data counts as doubt too.
        """
        gap, wide = self.interval(self.lower[:, number] - self.upper[:, than], number, than)
        ours, others = (part.estimate[:, number] - part.estimate[:, than] for part in (self, smaller))
        return gap - wide - _moved(ours, others) > negligible


def _moved(full: Float[np.ndarray, "fits starts"], smaller: Float[np.ndarray, "less starts"]) -> float:
    """Return how far the mean over the same starts is from that with less data."""
    both = ~(np.isnan(full).all(0) | np.isnan(smaller).all(0))
    return abs(float((np.nanmean(full[:, both], 0) - np.nanmean(smaller[:, both], 0)).mean()))


def _require_fitting(policies: Sequence[Policy], data: Trajectories) -> None:
    """Raise if policies don't take the data's observations, or give no numbers."""
    sizes = data.observation_size, data.action_size
    some = data.observations[data.first_rows[:1]]
    for policy in policies:
        if (policy.observation_size, policy.action_size) != sizes:
            raise InputError(
                f"the data has {sizes[0]} observations and {sizes[1]} actions, but a policy {policy.observation_size} "
                f"and {policy.action_size}"
            )
        if not np.isfinite(policy.act(some)).all():
            raise InputError(
                f"the policy of seed {policy.seed} gives actions that are NaN or infinite: its training diverged"
            )


def _action_errors(policies: Sequence[Policy], data: Trajectories) -> tuple[Float[np.ndarray, " policies"], float]:
    """Return the action error of each policy, and that of the mean action."""
    steps = np.zeros(data.steps, bool)
    steps[np.random.default_rng(0).permutation(data.steps)[:MOST_STEPS]] = True
    found = action_errors(policies, data, steps)
    return np.array(found["action_error"]), found["baseline"]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
