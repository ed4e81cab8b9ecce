"""StitchConfig: everything that a stitched data set depends on, beside the data and the seed; and the presets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Bool

from trajstitch.data import environments
from trajstitch.data.column_roles import ColumnRoles, column_names, find_roles
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.errors import InputError, did_you_mean
from trajstitch.learning.bounds import Bounds, check_seeds
from trajstitch.models.forward import ForwardDynamics
from trajstitch.models.inverse import InverseDynamics
from trajstitch.models.reward import GenerativeReward, RegressionReward
from trajstitch.models.value import TwinValue
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.jump_tests import Consistency, JumpTest, Likelihood
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.planning import Plan
from trajstitch.stitching.precedent import Precedent

MODELS = ("inverse", "reward")
"""The models that every stitching has, beside those of its jump tests."""

Preset = Literal["paper", "default", "quick"]


@dataclass(frozen=True)
class ColumnChoice:
    """Which observation columns are of which kind, where the data should not decide (see `data.column_roles`)."""

    fixed: tuple[str, ...] | None = None
    """Columns that no jump may change, such as a patient's parameters or a goal, by name or number (from 0); none for
    no column. If not given: those that never change within an episode."""
    exogenous: tuple[str, ...] | None = None
    """Columns that move by themselves and not by the actions, such as weather or demand, by name or number (from 0);
    none for no column. If not given, a regression tells."""

    def roles(self, data: Trajectories) -> ColumnRoles:
        """Return the role of each column of the data."""
        return find_roles(data, self._chosen("fixed", data), self._chosen("exogenous", data))

    def _chosen(self, kind: str, data: Trajectories) -> Bool[np.ndarray, " columns"] | None:
        given = getattr(self, kind)
        if given is None:
            return None
        names = column_names(data)
        chosen = np.zeros(len(names), bool)
        for name in () if given == ("none",) else map(str, given):
            if name not in names and not (name.isdecimal() and int(name) < len(names)):
                raise InputError(
                    f"`columns.{kind}`: there is no observation column {name!r}{did_you_mean(name, names)}: give a "
                    f"name or a number from 0 to {len(names) - 1}"
                )
            chosen[names.index(name) if name in names else int(name)] = True
        return chosen


@dataclass(frozen=True)
class StitchConfig:
    """How data is stitched. Without arguments it is the paper's method with a regression for the reward."""

    tests: dict[str, JumpTest] = field(default_factory=lambda: {"likelihood": Likelihood()})
    """What a jump must pass, by name; the tests are made in this order."""
    inverse: InverseDynamics = field(default_factory=InverseDynamics)
    """The model that predicts a jump's action."""
    reward: RegressionReward | GenerativeReward = field(default_factory=RegressionReward)
    """The model that predicts a jump's reward."""
    neighbours: NeighbourSearch = field(default_factory=NeighbourSearch)
    """Which states are candidates for a jump."""
    rules: Rules = field(default_factory=Rules)
    """How jumps are chosen and rebuilt trajectories accepted."""
    plan: Plan | None = None
    """Plan on the graph; None: the paper's greedy passes with a learned V."""
    value: TwinValue = field(default_factory=TwinValue)
    """V, for greedy passes."""
    keep_original: bool = False
    """Keep all original episodes and add the changed ones, for learners of Q such as IQL and TD3+BC. Otherwise changed
    episodes replace the original ones, for cloning."""
    stitchings: Annotated[int, Bounds(1)] = 1
    """Join this many stitchings into one data set, each with models of its own, for the seed and those after it. More
    depends less on chance, and takes as many times as long."""
    passes: Annotated[int, Bounds(0)] = 5
    """Greedy passes (the paper's K), with V fitted again before each. Without the value test, each adds episodes."""
    sample_latents: bool = False
    """Sample the latent of each jump's action and reward, as the paper does; otherwise take the most plausible."""
    gate: bool = True
    """On: data is left unchanged where nothing can be known about jumps. Off: it is stitched anyway."""
    columns: ColumnChoice = field(default_factory=ColumnChoice)
    """Which columns actions don't control."""

    def __post_init__(self) -> None:
        if not self.tests:
            raise InputError("stitching needs at least one jump test in `tests`")
        for name, test in self.tests.items():
            if name in MODELS or not re.fullmatch(r"[A-Za-z][\w-]*", name):
                raise InputError(
                    f"`tests`: a jump test can't be named {name!r}: choose one word, other than {' and '.join(MODELS)}"
                )
            if isinstance(test, type) or not isinstance(test, JumpTest):
                kind = f"the class {test.__name__}" if isinstance(test, type) else f"{test!r}"
                raise InputError(f"`tests`: {name!r} must be a jump test such as Likelihood(), not {kind}")
        if self.plan is not None and not self.rules.value_test:
            raise InputError(
                "`rules.value_test=False` goes with greedy passes, as in the preset 'paper': it adds varied "
                "trajectories, and a plan makes better ones"
            )

    def __hash__(self) -> int:
        return hash((tuple(self.tests.items()), *(getattr(self, item.name) for item in fields(self)[1:])))

    @property
    def keeps_original(self) -> bool:
        """Whether all original episodes are in the result: also without a value test, which only adds episodes."""
        return self.keep_original or not self.rules.value_test

    def for_data(self, metadata: Metadata) -> "StitchConfig":
        """Return the config with what depends on the data's task filled in."""
        task = environments.task_of(environments.environment_id(metadata) or metadata.name)
        return replace(self, neighbours=self.neighbours.for_task(task))

    def check_seeds(self, seeds: Sequence[int]) -> None:
        """Raise if several seeds that share their models would all give the same data, or are no seeds."""
        if not seeds:
            raise InputError("`seeds` must be at least 1, not 0")
        check_seeds(seeds[0], max(len(seeds), self.stitchings))
        if len(seeds) > 1 and self.stitchings > 1:
            raise InputError(
                "`seeds` makes several data sets that share their models, `stitchings` one data set with several "
                "models: use one of the two"
            )
        if len(seeds) > 1 and self.plan is not None and not self.sample_latents:
            raise InputError(
                "seeds that share their models differ in V and in sampled latents, and this config uses neither: every "
                "seed would give the same data; stitch with one `seed`, or several times"
            )


PRESETS: dict[str, StitchConfig] = {
    "paper": StitchConfig(
        reward=GenerativeReward(steps=500_000),  # 100,000 of the generator, as the authors have
        neighbours=NeighbourSearch(k=None, radius="authors", standardise=False),
        sample_latents=True,
    ),
    "default": StitchConfig(
        tests={
            "precedent": Precedent(),
            "consistency": Consistency(ForwardDynamics(steps=50_000, epochs=200), limit=0.2),
        },
        inverse=InverseDynamics(steps=100_000, epochs=200, learning_rate=3e-4, batch_size=256),
        reward=RegressionReward(steps=50_000, epochs=200),
        plan=Plan(max_visits=0.025, doubt=0.1),
    ),
    "quick": StitchConfig(
        tests={
            "precedent": Precedent(),
            "consistency": Consistency(
                ForwardDynamics(members=2, steps=4_000, epochs=100, learning_rate=2e-3), limit=0.2
            ),
        },
        inverse=InverseDynamics(hidden=(128, 128), steps=6_000, epochs=100, learning_rate=1e-3, batch_size=256),
        reward=RegressionReward(hidden=(128, 128), steps=2_000, epochs=100, learning_rate=1e-3),
        plan=Plan(max_visits=0.025, doubt=0.1),
    ),
}
"""paper: the paper's method; docs/method.md says what differs. default: the best we know. quick: minutes on a CPU."""


def preset(name: str) -> StitchConfig:
    """Return a preset's config; raise with the nearest name if there is none."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise InputError(f"unknown preset {name!r}{did_you_mean(name, PRESETS)}: the presets are {known}")
    return PRESETS[name]
