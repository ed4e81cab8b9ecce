"""The ablation: the preset with one part switched off or exchanged, and controls without stitching."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trajstitch.errors import InputError
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.figures import draw_totals
from trajstitch.experiments.methods import Change, Method, unchanged
from trajstitch.models.dynamics import Dynamics
from trajstitch.models.reward import GenerativeReward
from trajstitch.models.value import TwinValue
from trajstitch.policies.bc import WeightedBC
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.jump_tests import Consistency, JumpTest, Likelihood
from trajstitch.stitching.precedent import Precedent

PLANS = "the ablation is of presets that plan: choose `preset=default` or `preset=quick`"
JOINED = 3
"""Stitchings that are joined, where several are."""


def planned(**changes: Any) -> Change:
    """Return a change of the plan."""

    def change(config: StitchConfig) -> StitchConfig:
        if config.plan is None:
            raise InputError(PLANS)
        return replace(config, plan=replace(config.plan, **changes))

    return change


def configured(**changes: Any) -> Change:
    """Return a change of the config itself."""
    return lambda config: replace(config, **changes)


def _forward_steps(config: StitchConfig) -> int:
    """Return how long the preset trains its forward ensemble: what is exchanged trains in proportion."""
    test = config.tests.get("consistency")
    if not isinstance(test, Consistency):
        raise InputError(PLANS)
    return test.forward.steps


def without(*tests: type) -> Change:
    """Return the change that lets every candidate pass jump tests of these classes. They still score jumps: a plan's
    price needs the errors."""

    def loose(test: JumpTest) -> JumpTest:
        return replace(test, limit=None) if isinstance(test, Precedent | Consistency) and type(test) in tests else test

    return lambda config: replace(config, tests={name: loose(test) for name, test in config.tests.items()})


def by_likelihood(config: StitchConfig) -> StitchConfig:
    """Test jumps by the paper's likelihood instead."""
    steps = 4 * _forward_steps(config)  # the paper's 200,000 for the 50,000 of `default`
    likelihood = Likelihood(Dynamics(steps=min(Dynamics().steps, steps)))
    return replace(config, tests={"likelihood": likelihood, **without(Precedent, Consistency)(config).tests})


def greedy(config: StitchConfig) -> StitchConfig:
    """Make the paper's greedy passes by a learned V instead of a plan."""
    return replace(config, plan=None, value=TwinValue(steps=min(TwinValue().steps, 5 * _forward_steps(config))))


def by_gan(config: StitchConfig) -> StitchConfig:
    """Predict rewards by the paper's conditional GAN."""
    return replace(config, reward=GenerativeReward(steps=min(500_000, 5 * _forward_steps(config))))


def _variant(title: str, change: Callable[[StitchConfig], StitchConfig], **more: Any) -> Method:
    return Method(title, stitched=change, **more)


METHODS = {
    "bc": Method("BC, nothing stitched"),
    "weighted-bc": Method("weighted BC, nothing stitched", WeightedBC()),
    "filtered": _variant("BC of the best logged trajectories, as many states", unchanged, gives="filtered"),
    "ts-bc": _variant("TS + BC", unchanged),
    "no-precedent": _variant("without the precedent test", without(Precedent)),
    "no-consistency": _variant("without the consistency test", without(Consistency)),
    "likelihood": _variant("the paper's likelihood test instead", by_likelihood),
    "greedy": _variant("greedy passes instead of planning", greedy),
    "no-price": _variant("without the price of jumps", planned(pessimism=0.0)),
    "no-capacity": _variant("without the limit on visits", planned(max_visits=1.0)),
    "no-doubt": _variant("without ends before rewards in doubt", planned(doubt=None)),
    "no-gate": _variant("without the gate", configured(gate=False)),
    "no-reward-range": _variant("without the range of rewards", planned(reward_range=False)),
    "logged-rewards": _variant("logged rewards in the plan", planned(predicted_rewards=False)),
    "gan": _variant("the paper's GAN for rewards", by_gan),
    "sampled": _variant("sampled latents", configured(sample_latents=True)),
    "joined": _variant(f"{JOINED} stitchings joined", configured(stitchings=JOINED)),
    "union": _variant("added to the logged data", unchanged, gives="union"),
}


def draw(table: Table, experiment: Experiment, path: Path) -> None:
    draw_totals(table, {name: method.title for name, method in METHODS.items()}, "ts-bc", path)


EXPERIMENT = Experiment(
    name="ablation",
    title="Ablation: what the stitching rests on",
    about=(
        "Policies are cloned from data stitched with one part switched off or exchanged for the paper's. The controls "
        "learn from logged data: all of it, weighted by a value function as in the paper's ablation, and the best "
        "trajectories by return until they cover the same share of states as the stitched data keeps. What is trained "
        "in place of a part (V, the GAN, p(s'|s)) trains in proportion to the preset's own models."
    ),
    methods=METHODS,
    sets=("hopper/medium-replay", "walker2d/medium-replay", "halfcheetah/medium-replay", "hopper/medium"),
    pairs=tuple((name, "ts-bc") for name in METHODS if name != "ts-bc"),
    draw=draw,
    by_method=True,
)
