"""The built-in benchmark sets: their names, and the recipe by which each is collected.

They follow D4RL's recipes with policies of our own; they are not D4RL's data. A recipe is a sequence of parts, and a
part is a policy of the task's ladder: a deterministic one with an amount of action noise, or a stochastic one sampled.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trajstitch.benchmark.ladder import TASKS, shipped
from trajstitch.errors import InputError, did_you_mean

EXPERT_FRACTIONS = (0, 0.1, 2.5, 5, 10, 20, 30, 40)
"""Percent of clean expert trajectories in the paper's second experiment."""

_SIZES = {"medium": 1_000_000, "medium-expert": 2_000_000, "expert": 1_000_000}
_REPLAY_SIZES = {"hopper": 400_000, "walker2d": 300_000, "halfcheetah": 200_000}
_KINDS = ("medium", "medium-replay", "medium-expert", "expert")


MAZE = "maze/mixed"
"""The set that needs no MuJoCo (`benchmark/maze.py`)."""


@dataclass(frozen=True)
class BuiltIn:
    """A built-in set, `TASK/KIND`; by default it has as many transitions as D4RL's set of that kind."""

    task: str
    kind: str
    transitions: int
    expert_percent: float | None = None
    """For the expert-fraction family: percent of the trajectories that are clean expert ones."""

    @property
    def name(self) -> str:
        return f"{self.task}/{self.kind}"

    @property
    def algorithm(self) -> str:
        """What trained the shipped ladder that it is made with: SAC where there is one, as D4RL's sets; TD3 for the
        expert-fraction family, as in the paper."""
        return "sac" if self.expert_percent is None and shipped(self.task, "sac").exists() else "td3"

    @property
    def minari_id(self) -> str:
        """Its name in the local Minari store (Minari's names hold no dots); a version for each kind of ladder."""
        return f"trajstitch/{self.task}/{self.kind.replace('.', 'p')}-v{int(self.algorithm == 'sac')}"

    @property
    def recipe(self) -> str:
        """What is in it, in words."""
        if self.name == MAZE:
            return "two drivers, each good at half of the way"
        if self.expert_percent is not None:
            return f"noisy expert, {self.expert_percent:g} % clean episodes"
        sampled = self.algorithm == "sac"
        return {
            "medium": f"one mediocre policy, {'sampled' if sampled else 'noisy'}",
            "medium-replay": "a run up to the medium policy" if sampled else "all policies up to medium",
            "medium-expert": "half medium, half expert",
            "expert": f"the expert, {'sampled' if sampled else 'hardly noisy'}",
        }[self.kind]


def built_in(name: str) -> BuiltIn:
    """Return the set of this name; raise with the most similar name if there is none."""
    match = re.fullmatch(r"(\w+)/noisy-expert-(\d+(?:\.\d+)?)", name)
    if match and match[1] in TASKS and float(match[2]) < 100:
        return BuiltIn(match[1], f"noisy-expert-{match[2]}", 200_000, float(match[2]))
    if name in NAMES:
        task, kind = name.split("/")
        if name == MAZE:
            return BuiltIn(task, kind, 12_000)
        return BuiltIn(task, kind, _REPLAY_SIZES[task] if kind == "medium-replay" else _SIZES[kind])
    raise InputError(f"no built-in set {name!r}{did_you_mean(name, NAMES, cutoff=0.5)}: `trajstitch sets` lists them")


def made_with(name: str) -> str | None:
    """Return a short hash of the policies that a built-in set is made with, or None for other data and those of TD3.

    Results on sets that were made with other policies are of other data.
    """
    if name not in NAMES or (which := built_in(name)).algorithm == "td3" or name == MAZE:
        return None
    return _hash(shipped(which.task, which.algorithm))


@cache
def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:10]


LIKE_D4RL = tuple(f"{task}/{kind}" for task in TASKS for kind in _KINDS)
"""The twelve sets that follow D4RL's recipes, which the paper's experiments are of."""
NAMES = (
    MAZE,
    *LIKE_D4RL,
    *(f"{task}/noisy-expert-{percent:g}" for task in TASKS for percent in EXPERT_FRACTIONS),
)
