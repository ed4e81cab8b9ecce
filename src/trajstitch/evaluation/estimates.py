"""Estimates of policies' returns from logged data alone, with bounds for what the data can't say.

Policies are rolled out in a model of the logged steps (`evaluation/logged_model.py`), from first states of episodes
that the model was not fitted to. A rollout stops where it leaves the data. What would follow counts as the worst logged
outcome in the lower bound and as the best one in the upper bound. Everything is done for several resamplings of the
episodes: their spread is the sampling error. Some have half as many episodes: how far they are from the others shows
whether the estimate would still move with more data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float, Integer
from scipy.stats import rankdata

from trajstitch.data import ragged
from trajstitch.data.ranking import full_length
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.logged_model import LoggedModel, LoggedSteps
from trajstitch.policies.policy import Policy
from trajstitch.progress import progress

FITS, SMALLER_FITS = 12, 5
"""Resamplings of as many episodes as there are, and of half as many."""
WITHIN = 0.9
"""A rollout has left the data if it is farther from it than this share of logged episodes ever is, either its states or
its states and actions together. What is done at random takes actions far from each other, so that their distances alone
would let a rollout go on through states that nobody was in, such as those on both sides of a wall."""
NEAR = 0.1
"""Distances that are never beyond the data, in standard deviations: dense data must not make every gap in it count."""
MOST_STEPS = 20_000
"""Logged steps to fit to, at most."""
MOST_STARTS = 100
"""First states that policies are rolled out from, at most; in each fit, from those of episodes not fitted."""
FEWEST_STARTS = 20
ROWS = 1_000_000
"""Predictions at most, if all first states were used in one fit; where there would be more, there are fewer starts."""
FEWEST_EPISODES = 10
"""With fewer episodes nothing is estimated: they say too little about others."""


@dataclass(frozen=True)
class Rollouts:
    """Returns of policies from first states of logged episodes, in each fit; NaN from those that were fitted."""

    estimate: Float[np.ndarray, "fits policies starts"]
    """What follows after leaving the data counts as usual in the data."""
    lower: Float[np.ndarray, "fits policies starts"]
    upper: Float[np.ndarray, "fits policies starts"]
    logged: Float[np.ndarray, "fits starts"]
    """Returns of the logged episodes."""
    outside: Float[np.ndarray, "fits policies"]
    """Share of the steps after leaving the data."""
    distance: Float[np.ndarray, "fits policies"]
    """Mean distance to the nearest logged step before leaving the data; 1: as of logged steps to other episodes'."""
    reward_explained: Float[np.ndarray, " fits"]
    """R² of rewards in episodes that were not fitted."""

    @classmethod
    def stacked(cls, fits: Sequence["Rollouts"]) -> "Rollouts":
        return cls(*(np.concatenate([getattr(fit, item.name) for fit in fits]) for item in fields(cls)))


def horizon_of(data: Trajectories) -> int:
    """Return how many steps are estimated: the length at which episodes are usually cut off, or the longest one's."""
    return full_length(data.lengths, data.episode_terminated) or int(data.lengths.max())


def logged_returns(data: Trajectories, horizon: int) -> Float[np.ndarray, " episodes"]:
    """Return what each episode got in its first steps; one that was cut off sooner is continued at its own mean."""
    lengths = np.minimum(data.lengths, horizon)
    rows = ragged.rows_of(data.offsets[:-1], lengths)
    returns = ragged.sums(data.rewards[rows].astype(np.float64), lengths)
    lacking = np.where(data.episode_terminated, 0, horizon - lengths)
    return returns * (1 + lacking / np.maximum(lengths, 1))


def rolled_out(policies: Sequence[Policy], data: Trajectories, seed: int = 0) -> tuple[Rollouts, Rollouts]:
    """Roll policies out in models of resampled data: of as many episodes as there are, and of half as many."""
    random = np.random.default_rng(seed)
    data = _some(data, random)
    steps, horizon = LoggedSteps(data, seed), horizon_of(data)
    most = max(min(MOST_STARTS, ROWS // (horizon * len(policies))), FEWEST_STARTS)
    starts = np.sort(random.permutation(len(data))[:most])
    with progress("Estimating returns", 2 * (FITS + SMALLER_FITS), "fits") as advance:

        def several(fits: int, episodes: int) -> Rollouts:
            """Return rollouts in several fits to as many episodes, drawn with replacement."""
            models = []
            for _ in range(fits):
                counts = np.ones(len(data), np.int64)
                while counts[starts].all():
                    counts = np.bincount(random.integers(len(data), size=episodes), minlength=len(data))
                models.append((counts[starts] == 0, LoggedModel.fit(steps, counts, random)))
                advance(1)
            limit, state_limit = limits_of(np.concatenate([model.farthest for _, model in models], 1))
            found = []
            for apart, model in models:
                found.append(_one_fit(policies, model, starts, apart, limit, state_limit, horizon, random))
                advance(1)
            return Rollouts.stacked(found)

        return several(FITS, len(data)), several(SMALLER_FITS, len(data) // 2)


def limits_of(farthest: Float[np.ndarray, "two episodes"]) -> tuple[float, float]:
    """Return the distance of a state and action, and of a state, beyond which a rollout has left the data.

    A share `WITHIN` of logged episodes never exceeds either, and either is exceeded by about as many.
    """
    ranks = rankdata(farthest, axis=1) / farthest.shape[1]
    both, state = np.maximum(np.quantile(farthest, np.quantile(ranks.max(0), WITHIN), axis=1), NEAR)
    return float(both), float(state)


def _some(data: Trajectories, random: np.random.Generator) -> Trajectories:
    """Return the data without empty episodes; of large data, some whole episodes."""
    episodes = random.permutation(np.flatnonzero(data.lengths > 0))
    within = np.cumsum(data.lengths[episodes]) <= MOST_STEPS
    within[:FEWEST_EPISODES] = True
    return data[np.sort(episodes[within])]


def _one_fit(
    policies: Sequence[Policy],
    model: LoggedModel,
    episodes: Integer[np.ndarray, " starts"],
    apart: Bool[np.ndarray, " starts"],
    limit: float,
    state_limit: float,
    horizon: int,
    random: np.random.Generator,
) -> Rollouts:
    """Roll policies out from first states of episodes that were not fitted, until they are beyond a limit."""
    data, observations = model.steps.data, model.steps.observations
    starts = episodes[apart]
    shape = len(policies), len(starts)
    remaining = np.stack(_remaining(data, horizon))
    now = np.tile(observations[data.first_rows[starts]], (len(policies), 1))
    policy = np.repeat(np.arange(len(policies)), len(starts))
    total, bounds = np.zeros(len(now)), np.zeros((3, len(now)))
    inside, beyond, distances = np.zeros(len(now)), np.zeros(len(now)), np.zeros(len(now))
    going = np.arange(len(now))
    for time in range(horizon):
        actions = np.empty((len(going), data.action_size))
        for number in np.unique(policy[going]):
            its = policy[going] == number
            actions[its] = policies[number].act(now[its])
        inputs = model.inputs(now, actions)
        distance, similar = model.similar(inputs)
        left = (distance > limit) | (model.state_distance(inputs) > state_limit)
        bounds[:, going[left]] = remaining[:, horizon - time, None]
        beyond[going[left]] = horizon - time
        going, inputs, similar = going[~left], inputs[~left], similar[~left]
        inside[going] += 1
        distances[going] += distance[~left]
        following = model.follow(inputs, similar, random)
        total[going] += following.rewards
        lasts = ~following.terminated
        going, now = going[lasts], following.observations[lasts]
        if not len(going):
            break

    def mean(values: np.ndarray) -> Float[np.ndarray, "one policies"]:
        return values.reshape(shape).mean(1)[None]

    def spread(values: np.ndarray) -> Float[np.ndarray, "one policies starts"]:
        found = np.full((1, len(policies), len(episodes)), np.nan)
        found[0][:, apart] = values.reshape(shape)
        return found

    lower, estimate, upper = (spread(total + part) for part in bounds)
    return Rollouts(
        estimate=estimate,
        lower=lower,
        upper=upper,
        logged=np.where(apart, logged_returns(data, horizon)[episodes], np.nan)[None],
        outside=mean(beyond) / (mean(beyond) + mean(inside)),
        distance=mean(distances) / np.maximum(mean(inside), 1e-9) / model.usual_distance,
        reward_explained=np.array([model.reward_explained]),
    )


def _remaining(data: Trajectories, horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the worst, usual and best return of 0, 1, ... `horizon` steps more.

    No worse than the worst reward at every step, nor than the worst that ever followed a logged state; the best
    likewise. Where episodes terminate, nothing more may follow at all.
    """
    after, lasting = data.discounted_returns(1.0), np.arange(horizon + 1)
    low, high = float(data.rewards.min()), float(data.rewards.max())
    if data.terminated.any():
        low, high = min(low, 0.0), max(high, 0.0)
    best, worst = np.minimum(after.max(), lasting * high), np.maximum(after.min(), lasting * low)
    usual = np.clip(lasting * float(data.rewards.mean(dtype=np.float64)), worst, best)
    return worst, usual, best
