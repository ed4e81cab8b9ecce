"""Which checkpoints of a training run make a ladder, by their returns alone.

A TD3 ladder goes up to the best policy. A SAC ladder of a task that D4RL has sets of is chosen to make their twins: the
seed, its medium checkpoint and its later expert are those whose three sets are nearest to D4RL's, of medium, of the run
up to medium, and of expert. How near is the sum of the misses of trajectories, mean, standard deviation and best
return, each in units of its tolerance.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trajstitch.benchmark.d4rl_facts import D4RL, SetFacts, distance, scaled
from trajstitch.benchmark.ladder import first_medium

CHECKPOINTS = 17
"""Checkpoints of a TD3 ladder before its expert."""
UP_TO_MEDIUM = 10
"""How many of them lie at or before medium."""
TWIN_CHECKPOINTS = 33
TWIN_UP_TO_MEDIUM = 29
"""The same of a SAC ladder, of which many early ones are needed to make the replay of the run."""
LAST = 10
"""Seeds are compared by the mean of this many last evaluations, without an original to be near to."""
SHORTLIST = 12
"""Checkpoints whose recorded returns are nearest are played again before one is taken."""
MATCH_STEPS = 40_000
"""Environment steps that each of them is played for."""
REPLAY_STEPS = 5_000
"""Environment steps that each checkpoint up to medium is played for, to see what the replay of the run is like."""
RANDOM = 0
"""Stands for the random actions at the start of a run, where the steps of a checkpoint are asked for."""

Curve = Sequence[tuple[int, float, float]]
"""(steps, mean, standard deviation) of the returns at each checkpoint, in training order."""


class Asked(NamedTuple):
    """A policy to play."""

    seed: int
    checkpoint: int
    """Steps into the run, or RANDOM."""
    steps: int
    """Environment steps to play it for."""


class Played(NamedTuple):
    """The returns and the lengths of a policy's episodes."""

    returns: list[float]
    lengths: list[int]


Play = Callable[[Sequence[Asked]], Sequence[Played]]


class Chosen(NamedTuple):
    """The seed and the steps of the checkpoints that make a ladder, and which of them is medium."""

    seed: int
    steps: list[int]
    medium: int | None


def best_policies(curves: Mapping[int, Curve]) -> Chosen:
    """Choose a ladder up to the best policy.

    The best seed has the highest mean over its last ten evaluations, so that no single lucky checkpoint decides. The
    expert is the steadiest of those ten: highest mean return less one standard deviation.
    """
    seed = max(curves, key=lambda seed: float(np.mean([mean for _, mean, _ in curves[seed][-LAST:]])))
    rows = curves[seed]
    best = max(range(max(len(rows) - LAST, 0), len(rows)), key=lambda i: rows[i][1] - rows[i][2])
    picked = choose([(steps, mean) for steps, mean, _ in rows[: best + 1]])
    return Chosen(seed, [rows[i][0] for i in picked], None)


def twins(task: str, random_steps: int, curves: Mapping[int, Curve], play: Play) -> Chosen:
    """Choose the ladder that makes the twins of a task's sets, as above. No seed with one checkpoint can be chosen."""
    medium, replay, expert = (D4RL[f"{task}/{kind}"] for kind in ("medium", "medium-replay", "expert"))
    curves = {seed: rows for seed, rows in curves.items() if len(rows) > 1}
    mediums = {seed: _shortlist(rows[:-1], medium) for seed, rows in curves.items()}
    experts = {seed: _shortlist(rows[1:], expert) for seed, rows in curves.items()}

    single = [Asked(seed, at, MATCH_STEPS) for seed in curves for at in dict.fromkeys((*mediums[seed], *experts[seed]))]
    # Each checkpoint acts for as long as until the next, and random actions come first.
    whole = [
        Asked(seed, at, max(1, round(REPLAY_STEPS * random_steps / rows[0][0])) if at == RANDOM else REPLAY_STEPS)
        for seed, rows in curves.items()
        for at in (RANDOM, *(steps for steps, *_ in rows if steps <= max(mediums[seed])))
    ]
    played = play([*single, *whole])
    alone = dict(zip([one[:2] for one in single], played, strict=False))
    stages = list(zip(whole, played[len(single) :], strict=True))

    def cost(seed: int, first: int, last: int) -> float:
        run = [one for asked, one in stages if asked.seed == seed and asked.checkpoint <= first]
        return sum(
            distance(facts(some, original), original)
            for some, original in (([alone[seed, first]], medium), (run, replay), ([alone[seed, last]], expert))
        )

    pairs = [
        (seed, first, last) for seed in curves for first in mediums[seed] for last in experts[seed] if first < last
    ]
    seed, first, last = min(pairs, key=lambda pair: cost(*pair))
    rows = [row for row in curves[seed] if row[0] <= last]
    steps = [row[0] for row in rows]
    picked = choose(
        [row[:2] for row in rows], steps.index(first), up_to_medium=TWIN_UP_TO_MEDIUM, checkpoints=TWIN_CHECKPOINTS
    )
    return Chosen(seed, [steps[i] for i in picked], picked.index(steps.index(first)))


def _shortlist(rows: Curve, original: SetFacts) -> list[int]:
    """Return the steps of the checkpoints whose recorded returns are nearest to an original's."""

    def miss(row: tuple[int, float, float]) -> float:
        return distance(SetFacts(1, 1, row[1], row[2], row[1], row[1]), original, "mean", "sd")

    return [row[0] for row in sorted(rows, key=miss)[:SHORTLIST]]


def facts(some: Sequence[Played], original: SetFacts) -> SetFacts:
    """Return the facts of a set of these episodes together, at the original's size."""
    returns = np.concatenate([one.returns for one in some])
    return scaled(SetFacts.of(returns, sum(sum(one.lengths) for one in some)), original)


def choose(
    curve: Sequence[tuple[int, float]],
    medium: int | None = None,
    *,
    up_to_medium: int = UP_TO_MEDIUM,
    checkpoints: int = CHECKPOINTS,
) -> list[int]:
    """Return the indices of the checkpoints that make a ladder; `curve` is (steps, return) up to the expert.

    Up to medium they are spaced evenly over the steps, and from there to the expert evenly over the returns. Medium is
    the first at a third of the expert's return, if not given.
    """
    returns = [value for _, value in curve]
    medium, expert = first_medium(returns) if medium is None else medium, len(curve) - 1
    early = np.unique(np.linspace(0, medium, min(up_to_medium, medium + 1)).round().astype(int)).tolist()
    early = [i for i in early if i < expert]
    later = list(range(medium + 1, expert))
    wanted = min(checkpoints - len(early), len(later))
    chosen: list[int] = []
    for level in np.linspace(returns[medium], returns[expert], wanted + 2)[1:-1]:
        left = [i for i in later if i not in chosen]
        chosen.append(min(left, key=lambda i: abs(returns[i] - level)))
    return [*early, *sorted(chosen), expert]
