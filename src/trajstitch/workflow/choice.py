"""Which policy is chosen, and why: by rollouts where there is an environment, else by what the data tells."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.scores import Interval, mean_difference, mean_score

Scores = Float[np.ndarray, "seeds episodes"]


@dataclass(frozen=True)
class Row:
    """What is known about the policies of one method."""

    name: str
    """The method, and its run's folder."""
    learns_from: str
    result: Interval | None
    """Mean score, return or estimated return, with its 95 % interval; None if nothing can be told."""
    action_error: float | None
    """Root mean square distance of its actions from logged ones, scaled to ±1: how near to the data it stays."""
    than_logged: str | None = None
    """Without an environment: better or worse than the logged behaviour, or can't tell."""
    chosen: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"result": self.result and self.result._asdict()}

    @classmethod
    def from_json(cls, part: dict[str, Any]) -> "Row":
        return cls(**{**part, "result": None if part["result"] is None else Interval(**part["result"])})


@dataclass(frozen=True)
class Choice:
    """One policy of one method."""

    name: str
    seed: int
    """Its place among the method's seeds."""
    sentence: str


def choose_by_rollouts(
    choosing: Mapping[str, Scores],
    reported: Mapping[str, Scores],
    errors: Mapping[str, Sequence[float]],
    first: int = 0,
) -> Choice:
    """Choose the method, and its seed, with the highest mean score in the episodes for choosing.

    What is said about it comes from the `reported` episodes, which chose nothing, so that no luck is reported. `errors`
    are each seed's action errors, and `first` is the first seed's number.
    """
    name = max(choosing, key=lambda one: float(choosing[one].mean()))
    seed = int(choosing[name].mean(1).argmax())
    episodes = choosing[name].shape[1]
    sentence = (
        f"{name} is chosen: it has the highest mean in {episodes} episodes of each policy, and the table shows "
        f"{reported[name].shape[1]} others; of its policies, seed {first + seed} did best, with "
        f"{mean_score(reported[name][seed])} in those others."
    )
    alike = [one for one in reported if one != name and not _surely_better(reported[name], reported[one])]
    if alike:
        safest = nearest([name, *alike], errors)
        which = "it is" if safest == name else f"{safest} is"
        sentence += f" So few can't tell it from {listed(alike)}; {which} the safest of these, the nearest to the data."
    return Choice(name, seed, sentence)


def _surely_better(ours: Scores, theirs: Scores) -> bool:
    low = mean_difference(ours, theirs).low
    return low is not None and low > 0


def choose_by_estimates(comparison: Mapping[str, Any], errors: Mapping[str, Sequence[float]]) -> Choice:
    """Choose by a comparison on logged data (`compare_runs`): what is surely best, else what is nearest to the data."""
    verdicts = {(one["name"], one["than"]): one["verdict"] for one in comparison["verdicts"]}
    names = [one["name"] for one in comparison["estimates"]]
    everyone = (*names, LOGGED)
    unbeaten = [name for name in names if all(verdicts[one, name] != "better" for one in everyone if one != name)]
    good = [name for name in unbeaten if verdicts[name, LOGGED] == "better"]
    name = comparison["deploy"] or nearest(good or unbeaten or names, errors)
    if comparison["deploy"] is not None:
        why = "its estimate is surely better than the logged behaviour and than the others'"
    elif len(good) > 1:
        why = (
            f"{listed(good)} are {'both' if len(good) == 2 else 'all'} better than the logged behaviour, the data "
            "can't tell which is best, and it is the safest of them, the nearest to the data"
        )
    elif good:
        why = "it is better than the logged behaviour; whether another is better still, the data can't tell"
    elif unbeaten:
        why = (
            "the data can't tell whether any policy is better than the logged behaviour, and it is the safest, the "
            "nearest to the data"
        )
    else:
        why = "the logged behaviour is better than every policy, so deploy none; it is the nearest to the data"
    return Choice(name, int(np.argmin(errors[name])), f"{name} is chosen: {why}.")


def nearest(names: Sequence[str], errors: Mapping[str, Sequence[float]]) -> str:
    """Return the method whose actions are nearest to the logged ones."""
    return min(names, key=lambda name: float(np.mean(errors[name])))


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
