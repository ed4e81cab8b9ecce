"""What fits into a time budget on this machine: steps of models and policies, seeds, episodes.

Everything here is arithmetic on measured speeds (`workflow/timing.py` measures them).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

from trajstitch.errors import InputError
from trajstitch.models.fitting import SizedConfig, epochs_of, limited
from trajstitch.policies.bc import BC
from trajstitch.policies.iql import IQL
from trajstitch.stitching.config import MODELS, Preset, StitchConfig, preset
from trajstitch.workflow.methods import METHODS, Method

STITCHING, TRAINING, EVALUATING = 0.4, 0.65, 0.25
"""Share of the budget for stitching, and shares of what is left after it; a tenth of that is for the page. Where
evaluation can't use its share, training gets the rest."""
SEEDS, MOST_SEEDS = 3, 5
"""Policies of each method: three show a spread, and more than five are better spent as steps."""
FEWEST_EPISODES, MOST_EPISODES = 5, 20
"""Episodes of each policy that methods are chosen by; as many others are reported."""
SMALLEST_SHARES: dict[Preset, float] = {"default": 0.5, "quick": 0.25}
"""Share of a preset's gradient steps that its models need at least, best preset first."""
FEWEST_STEPS = {"bc": 1_000, "iql": 10_000}
"""Gradient steps below which a policy of this algorithm is not worth training."""
MOST_STEPS = {"bc": BC().steps, "iql": IQL().steps}

UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Return a time such as 90s, 5m, 2h or 1h30m in seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < seconds < math.inf:
        raise InputError(f"`budget` is a time such as 5m, 30m or 2h, not {text!r}")
    return seconds


def in_words(seconds: float) -> str:
    """Return a time as people say it: 40 s, 3.8 min, 12 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.2g} min" if minutes < 9.5 else f"{minutes:.0f} min"
    return f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class StitchSpeed:
    """How fast stitching with one preset is."""

    start: float
    """Seconds that don't depend on the data: mostly compiling."""
    step: dict[str, float]
    """Seconds for a gradient step of each model."""
    transition: float
    """Seconds for each transition: the graph, and the plan."""


@dataclass(frozen=True)
class Speed:
    """How fast an algorithm trains `SEEDS` policies."""

    start: float
    """Seconds before the first training: mostly compiling."""
    step: float
    method: float = 0.0
    """Seconds that each training takes beside its steps."""


@dataclass(frozen=True)
class Timings:
    """What was measured on this machine, with this data."""

    stitching: dict[Preset, StitchSpeed]
    """By preset; one that can't fit into the budget is not measured."""
    policies: dict[str, Speed]
    """By algorithm."""
    episode: float | None
    """Seconds for a rollout of full length, with all cores; None without an environment."""
    estimate: float = 0.0
    """Without an environment: seconds for estimating the return of one policy."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, part: Mapping[str, Any]) -> "Timings":
        """Return what `to_json` gave."""
        return cls(
            {name: StitchSpeed(**speed) for name, speed in part["stitching"].items()},
            {name: Speed(**speed) for name, speed in part["policies"].items()},
            part["episode"],
            part["estimate"],
        )


@dataclass(frozen=True)
class StitchPlan:
    """How the data is stitched."""

    preset: Preset
    share: float
    """Share of the preset's gradient steps."""
    seconds: float

    @property
    def config(self) -> StitchConfig:
        return with_share(preset(self.preset), self.share)


@dataclass(frozen=True)
class PolicyPlan:
    """What is trained, and how it is evaluated."""

    steps: dict[str, int]
    """Gradient steps by algorithm; only these are trained."""
    seeds: int
    episodes: int
    """Episodes of each policy to choose by; as many others are reported. Without an environment they don't count."""
    seconds: float

    @classmethod
    def fixed(cls, steps: int) -> "PolicyPlan":
        """Return a plan with the same gradient steps for every algorithm, made without timings."""
        return cls(dict.fromkeys(FEWEST_STEPS, steps), SEEDS, FEWEST_EPISODES, 0.0)


def model_configs(config: StitchConfig) -> dict[str, SizedConfig]:
    """Return the configs of a stitching's trained models, by the models' names."""
    found = {name: getattr(config, name) for name in MODELS}
    found |= {name: part for name, test in config.tests.items() if (part := _trained(test)) is not None}
    return found


def with_models(config: StitchConfig, models: Mapping[str, Any]) -> StitchConfig:
    """Return the config with other configs for some of its models, named as by `model_configs`."""
    tests = dict(config.tests)
    for name in models.keys() & tests.keys():
        test: Any = tests[name]
        part = next(item.name for item in fields(test) if getattr(test, item.name) is _trained(test))
        tests[name] = replace(test, **{part: models[name]})
    return replace(config, tests=tests, **{name: models[name] for name in MODELS if name in models})


def _trained(test: Any) -> Any:
    """Return the config of a jump test's model; None if it trains none."""
    parts = [getattr(test, item.name) for item in fields(test)]
    return next((part for part in parts if is_dataclass(part) and hasattr(part, "steps")), None)


def with_share(config: StitchConfig, share: float) -> StitchConfig:
    """Return the config with this share of every model's gradient steps and epochs."""

    def fewer(model: Any) -> Any:
        whole = epochs_of(model)
        limits = {} if whole is None else {"epochs": max(1, round(share * whole))}
        return replace(model, steps=_rounded(share * model.steps), **limits)

    return config if share == 1 else with_models(config, {n: fewer(m) for n, m in model_configs(config).items()})


def stitch_seconds(speed: StitchSpeed, config: StitchConfig, transitions: int, share: float = 1.0) -> float:
    """Return how long stitching takes with this share of the gradient steps."""
    steps = {name: limited(model, transitions).steps for name, model in model_configs(config).items()}
    models = sum(share * count * speed.step[name] for name, count in steps.items())
    return speed.start + models + speed.transition * transitions


def plan_stitching(budget: float, timings: Timings, transitions: int, spent: float = 0.0) -> StitchPlan | None:
    """Return the best stitching that fits into its share of what is left of the budget, or the least there is.

    None if even the graph alone would take longer than the whole budget.
    """
    least, room = None, STITCHING * (budget - spent)
    for name, smallest in SMALLEST_SHARES.items():
        speed = timings.stitching.get(name)
        if speed is None:
            continue
        fixed, whole = (stitch_seconds(speed, preset(name), transitions, share) for share in (0.0, 1.0))
        share = (room - fixed) / max(whole - fixed, 1e-9)
        share = math.floor(100 * min(max(share, smallest), 1.0)) / 100
        least = StitchPlan(name, share, fixed + share * (whole - fixed))
        if least.seconds <= 1.01 * room:
            return least
        if speed.transition * transitions > budget:
            least = None
    return least


def plan_policies(left: float, timings: Timings, stitched: bool) -> PolicyPlan:
    """Return what to train in the time that is left, where the data was `stitched` or not."""
    left = max(left, 0.0)
    counts = {name: len(due(stitched, name)) for name in FEWEST_STEPS}

    def cost(name: str, steps: int) -> float:
        speed = timings.policies[name]
        return speed.start + counts[name] * (speed.method + steps * speed.step)

    def fitting(name: str, room: float) -> int:
        return min(_rounded((room - cost(name, 0)) / (cost(name, 1) - cost(name, 0))), MOST_STEPS[name])

    def evaluating(names: Iterable[str], seeds: int, episodes: int) -> float:
        each = timings.estimate if timings.episode is None else 2 * episodes * timings.episode
        return seeds * sum(counts[name] for name in names) * each

    def training(names: Iterable[str]) -> float:
        both = (TRAINING + EVALUATING) * left
        least, most = (evaluating(names, SEEDS, episodes) for episodes in (FEWEST_EPISODES, MOST_EPISODES))
        return max(min(TRAINING * left, both - least), both - most)  # what evaluation can't use is trained in

    steps = {}
    if "iql" in timings.policies:
        # Cloning needs far fewer steps: Q-learning gets half of the time, or what cloning can't use.
        room = training(FEWEST_STEPS)
        found = fitting("iql", max(room / 2, room - cost("bc", MOST_STEPS["bc"])))
        steps = {"iql": found} if found >= FEWEST_STEPS["iql"] else {}
    room, used = training(("bc", *steps)), sum(cost(name, count) for name, count in steps.items())
    steps = {"bc": max(fitting("bc", room - used), FEWEST_STEPS["bc"]), **steps}
    used += cost("bc", steps["bc"])
    seeds = min(max(math.floor(SEEDS * room / used), SEEDS), MOST_SEEDS)
    most = math.floor(EVALUATING * left / max(evaluating(steps, seeds, 1), 1e-9))
    episodes = min(max(most, FEWEST_EPISODES), MOST_EPISODES)
    return PolicyPlan(steps, seeds, episodes, used * seeds / SEEDS + evaluating(steps, seeds, episodes))


def due(stitched: bool, algorithm: str) -> list[Method]:
    """Return the methods of an algorithm, with or without those that learn from stitched data."""
    return [one for one in METHODS if one.algorithm == algorithm and (stitched or one.data == "logged")]


def may_fit_iql(left: float, cloning: Speed) -> bool:
    """Return whether Q-learning may fit, judging by the speed of cloning: IQL moves four networks of the same size."""
    return 4 * cloning.step * len(due(True, "iql")) * FEWEST_STEPS["iql"] <= TRAINING * left


def may_fit_default(left: float, quick: StitchSpeed, transitions: int) -> bool:
    """Return whether the preset `default` may fit, judging by the speed of the smaller models of `quick`.

    Timing it takes time as well: most of that is compiling.
    """
    least = stitch_seconds(quick, preset("default"), transitions, SMALLEST_SHARES["default"])
    return least <= STITCHING * (left - quick.start)


def _rounded(steps: float) -> int:
    """Return a number of steps with two digits, rounded down; at least 1."""
    if steps < 100:
        return max(1, math.floor(steps))
    unit = 10 ** (math.floor(math.log10(steps)) - 1)
    return math.floor(steps / unit) * unit
