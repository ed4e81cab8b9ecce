"""Which checkpoints of a training run make a ladder, by their returns alone.

A TD3 ladder goes up to the best policy. A SAC ladder of a task that D4RL has sets of is chosen to make their twins:

- medium is the checkpoint whose sampled returns are nearest to those of D4RL's medium set, and that comes near to as
  many steps into the run as D4RL's medium-replay set has transitions;
- expert is the later checkpoint whose sampled returns are nearest to those of D4RL's expert set;
- of several seeds, the one where both are nearest is taken.

How near is the sum of the misses of mean, standard deviation and best return, each in units of its tolerance, and, for
medium, of how often the steps double or halve the transitions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trajstitch.benchmark.d4rl_facts import D4RL, SetFacts, distance
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
SHORTLIST = 8
"""Checkpoints whose recorded returns are nearest are measured again before one is taken."""

Curve = Sequence[tuple[int, float, float]]
"""(steps, mean, standard deviation) of the returns at each checkpoint, in training order."""

Measure = Callable[[Sequence[tuple[int, int]]], Sequence[Sequence[float]]]
"""Returns the returns of episodes of the checkpoints (seed, steps)."""


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


def twins(task: str, curves: Mapping[int, Curve], measure: Measure) -> Chosen:
    """Choose the ladder that makes the twins of a task's sets, as above. No seed with one checkpoint can be chosen."""
    medium, replay, expert = (D4RL[f"{task}/{kind}"] for kind in ("medium", "medium-replay", "expert"))

    def off(steps: int) -> float:
        return abs(math.log2(steps / replay.transitions))

    def shortlist(rows: Curve, original: SetFacts, extra: Callable[[int], float]) -> list[int]:
        def cost(row: tuple[int, float, float]) -> float:
            return distance(SetFacts(1, 1, row[1], row[2], row[1], row[1]), original, "mean", "sd") + extra(row[0])

        return [row[0] for row in sorted(rows, key=cost)[:SHORTLIST]]

    near = {
        seed: (shortlist(rows[:-1], medium, off), shortlist(rows[1:], expert, lambda _: 0.0))
        for seed, rows in curves.items()
        if len(rows) > 1
    }
    asked = [(seed, steps) for seed, both in near.items() for steps in dict.fromkeys((*both[0], *both[1]))]
    found = {key: SetFacts.of(np.array(returns), 1) for key, returns in zip(asked, measure(asked), strict=True)}

    def cost(seed: int, first: int, last: int) -> float:
        of_medium, of_expert = (
            distance(found[seed, steps], original, "mean", "sd", "best")
            for steps, original in ((first, medium), (last, expert))
        )
        return of_medium + off(first) + of_expert

    pairs = [
        (seed, first, last) for seed, both in near.items() for first in both[0] for last in both[1] if first < last
    ]
    seed, first, last = min(pairs, key=lambda pair: cost(*pair))
    rows = [row for row in curves[seed] if row[0] <= last]
    steps = [row[0] for row in rows]
    picked = choose(
        [row[:2] for row in rows], steps.index(first), up_to_medium=TWIN_UP_TO_MEDIUM, checkpoints=TWIN_CHECKPOINTS
    )
    return Chosen(seed, [steps[i] for i in picked], picked.index(steps.index(first)))


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
