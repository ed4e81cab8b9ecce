"""Every number of a preset has a source: the paper's table and text, what it leaves open, or what a limit means."""

from dataclasses import asdict
from typing import Any

import jax
import numpy as np
import pytest

import plain
from point import collect
from random_data import random_data, scorer
from small_graphs import graph_on, logged
from test_losses import first_steps
from trajstitch.errors import InputError
from trajstitch.policies.bc import BC
from trajstitch.policies.iql import IQL
from trajstitch.policies.sac import SAC
from trajstitch.policies.td3 import TD3
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.stitching.capacity import plan_with_capacity
from trajstitch.stitching.config import PRESETS, StitchConfig, preset
from trajstitch.stitching.neighbours import AUTHORS_RADII, NeighbourSearch
from trajstitch.stitching.planning import Plan

PAPER = "paper"
TABLE_2 = """
Forward Dynamics model | Optimiser         | Adam
Forward Dynamics model | Learning rate     | 3e-4
Forward Dynamics model | Batch size        | 256
Forward Dynamics model | Ensemble size     | 7
Inverse Dynamics model | Optimiser         | Adam
Inverse Dynamics model | Learning rate     | 1e-4
Inverse Dynamics model | Batch size        | 100
Inverse Dynamics model | Latent dim        | 2*action dim
Reward Function        | Optimiser         | Adam
Reward Function        | β                 | (0.5, 0.999)
Reward Function        | Learning rate     | 1e-4
Reward Function        | Batch size        | 256
Reward Function        | Latent dim        | 2
Reward Function        | L2 regularisation | 1e-4
Value Function         | Optimiser         | Adam
Value Function         | Learning rate     | 3e-4
Value Function         | Batch size        | 256
"""
"""Hepburn & Montana (2022), Table 2: "Hyperparameters and values for models used in TS"."""
ROWS = [tuple(part.strip() for part in line.split("|")) for line in TABLE_2.strip().splitlines()]

MODELS = {
    "Forward Dynamics model": lambda config: config.tests["likelihood"].dynamics,
    "Inverse Dynamics model": lambda config: config.inverse,
    "Reward Function": lambda config: config.reward,
    "Value Function": lambda config: config.value,
}
FIELDS = {
    "Learning rate": "learning_rate",
    "Batch size": "batch_size",
    "Ensemble size": "members",
    "L2 regularisation": "decay",
}


def adam_of(model: Any) -> list[tuple[float, float]]:
    """The betas of each optimiser of a model, from the changes that it makes."""
    found = []
    for objective in model.objectives():
        gradients, changes = first_steps(objective, 40)
        fits = [
            betas
            for betas in ((0.9, 0.999), (0.5, 0.999), (0.9, 0.99), (0.0, 0.999))
            if np.allclose(changes, plain.adam(gradients, model.learning_rate * np.ones(40), *betas), rtol=1e-3)
        ]
        assert len(fits) == 1
        found.append(fits[0])
    return found


@pytest.mark.parametrize(("component", "name", "value"), ROWS, ids=[f"{row[0]}, {row[1]}" for row in ROWS])
def test_the_paper_s_preset_is_table_2(component: str, name: str, value: str) -> None:
    model = MODELS[component](preset(PAPER))
    if name in FIELDS:
        assert getattr(model, FIELDS[name]) == float(value)
    elif name in ("Optimiser", "β"):
        assert value in ("Adam", "(0.5, 0.999)")
        expected = (0.5, 0.999) if component == "Reward Function" else (0.9, 0.999)  # Adam's defaults elsewhere
        assert set(adam_of(model)) == {expected}
    else:
        data = random_data(np.random.default_rng(0), coarse=False)
        size = model.init(jax.random.key(0), data).latent_size
        assert size == {"2*action dim": 2 * data.action_size, "2": 2}[value]


THE_PAPER_SAYS: dict[str, Any] = {
    # "notable the acceptance threshold of p̃ = 0.1"
    "rules.threshold": 0.1,
    # "a neural network with three hidden layers of size 200"
    "tests.likelihood.dynamics.hidden": (200, 200, 200),
    # "an ensemble size of 7 is used with the best 5 being chosen"
    "tests.likelihood.dynamics.members": 7,
    "tests.likelihood.dynamics.keep": 5,
    # "min over i of p_i(ŝ'|s) > mean over i of p_i(s'|s)": without a margin
    "tests.likelihood.margin": 0.0,
    # "when the dataset has less than 900,000 transitions the layer has 256 nodes; when larger, it has 750 nodes"
    "inverse.hidden": (),
    # "The CVAE is trained for 400,000 gradient steps"
    "inverse.steps": 400_000,
    "inverse.epochs": None,
    # "a conditional-WGAN with two hidden layers of size 512"
    "reward.hidden": (512, 512),
    # "the minimum of two value functions [...] two hidden layers of size 256"
    "value.hidden": (256, 256),
    # "In all our experiments, we choose 5 iterations", each "using a newly estimated value function"
    "passes": 5,
    "value.warm_steps": None,
    # "All states within an ε-ball of the current state": in the data's own units, and not the nearest of them
    "neighbours.k": None,
    "neighbours.radius": "authors",
    "neighbours.standardise": False,
    # "z is a noise vector sampled independently from N(0, 1)"
    "sample_latents": True,
    # Algorithm 1 jumps to a higher V, in greedy passes, any number of times, and replaces trajectories
    "plan": None,
    "rules.value_test": True,
    "rules.max_jumps": None,
    "keep_original": False,
    "stitchings": 1,
}
IN_TABLE_2 = {
    "tests.likelihood.dynamics.learning_rate": 3e-4,
    "tests.likelihood.dynamics.batch_size": 256,
    "inverse.learning_rate": 1e-4,
    "inverse.batch_size": 100,
    "reward.latent_size": 2,
    "reward.learning_rate": 1e-4,
    "reward.decay": 1e-4,
    "reward.batch_size": 256,
    "value.learning_rate": 3e-4,
    "value.batch_size": 256,
}
LEFT_OPEN: dict[str, Any] = {
    # docs/method.md, "What the preset paper does otherwise"
    "tests.likelihood.dynamics.steps": 200_000,
    "tests.likelihood.dynamics.patience": 10_000,
    "tests.likelihood.dynamics.held_out": 0.2,
    "inverse.divergence_weight": 0.5,
    "inverse.held_out": 0.05,
    "reward.critic_steps": 5,
    "reward.steps": 500_000,  # 100,000 of the generator
    "reward.slope_penalty": 10.0,
    "reward.held_out": 0.05,
    "value.steps": 1_000_000,
    "value.discount": 0.99,
    "value.target_rate": 0.005,
    "value.held_out": 0.05,
    "neighbours.method": "auto",
    "neighbours.recall": 0.99,
    "rules.horizon": None,
    "gate": True,
    "columns.fixed": None,
    "columns.exogenous": None,
}


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """A config's fields, each by its path."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


def test_every_field_of_the_paper_s_preset_has_a_source() -> None:
    assert flat(asdict(preset(PAPER))) == THE_PAPER_SAYS | IN_TABLE_2 | LEFT_OPEN


@pytest.mark.parametrize(("transitions", "width"), [(899_999, 256), (900_000, 750)])
def test_the_inverse_model_is_as_wide_as_the_paper_says(transitions: int, width: int) -> None:
    data = logged(np.zeros((1, transitions + 1, 1)))
    model = preset(PAPER).inverse.init(jax.random.key(0), data)
    for network in (model.encoder, model.decoder):
        assert [bias.shape for _, bias in network.layers[:-1]] == [(width,), (width,)]


def test_the_radius_is_the_authors_for_their_tasks_alone() -> None:
    assert AUTHORS_RADII == {"hopper": 0.1, "halfcheetah": 3.0, "walker2d": 1.0}
    search = preset(PAPER).neighbours
    for task, radius in AUTHORS_RADII.items():
        assert search.for_task(task) == NeighbourSearch(k=None, radius=radius, standardise=False)
    assert search.for_task("ant") == search.for_task(None) == NeighbourSearch(k=16)


def test_cloning_is_as_the_paper_says() -> None:
    """ "a 2-layer MLP of size 256 [...] a learning rate of 1e-3 and a batch size of 256", "100k gradient steps"."""
    config = BC()
    assert (config.hidden, config.learning_rate, config.batch_size, config.steps) == ((256, 256), 1e-3, 256, 100_000)
    assert adam_of(config) == [(0.9, 0.999)]
    assert not config.gaussian


# Algorithms of other papers

ACTOR_CRITIC: dict[str, Any] = {
    "hidden": (256, 256),
    "learning_rate": 3e-4,
    "batch_size": 256,
    "discount": 0.99,
    "target_rate": 0.005,
}
SMOOTHED: dict[str, Any] = {"target_noise": 0.2, "target_noise_clip": 0.5, "policy_delay": 2}
OFFLINE: dict[str, Any] = {"steps": 1_000_000, "standardise": True}
THEIRS = (
    (TD3(), ACTOR_CRITIC | SMOOTHED | {"exploration_noise": 0.1, "start_steps": 25_000}),
    (SAC(), ACTOR_CRITIC | {"entropy_per_action": -1.0, "start_steps": 10_000}),
    (TD3BC(), ACTOR_CRITIC | SMOOTHED | OFFLINE | {"alpha": 2.5}),
    (IQL(), ACTOR_CRITIC | OFFLINE | {"expectile": 0.7, "temperature": 3.0, "scale_rewards": True}),
)


@pytest.mark.parametrize(("config", "told"), THEIRS, ids=lambda one: type(one).__name__)
def test_learners_are_set_as_their_authors_say(config: Any, told: dict[str, Any]) -> None:
    """The tables of Fujimoto et al. 2018, Haarnoja et al. 2018 (its second version), Fujimoto and Gu 2021, and
    Kostrikov et al. 2021, for the tasks of MuJoCo."""
    assert asdict(config) == told


# The presets default and quick

OURS = ("default", "quick")
SAME_IN_BOTH: dict[str, Any] = {
    "tests.precedent.limit": 1.0,  # as near as what counts as near
    "tests.consistency.limit": 0.2,  # a fifth of the jump's length, beyond what is usual
    "tests.consistency.forward.hidden": (256, 256),
    "tests.consistency.forward.batch_size": 256,
    "tests.consistency.forward.patience": 10_000,
    "tests.consistency.forward.held_out": 0.1,
    "inverse.batch_size": 256,
    "inverse.divergence_weight": 0.5,
    "inverse.held_out": 0.05,
    "reward.batch_size": 256,
    "neighbours.k": 16,
    "neighbours.radius": None,
    "neighbours.standardise": True,
    "neighbours.method": "auto",
    "neighbours.recall": 0.99,
    "rules.threshold": 0.1,  # the paper's p̃
    "rules.value_test": True,
    "rules.max_jumps": None,
    "rules.horizon": None,
    "plan.discount": 0.99,
    "plan.pessimism": 1.0,  # an error costs what returns change over its distance
    "plan.predicted_rewards": True,
    "plan.reward_range": True,
    "plan.improvements": 200,
    "plan.max_visits": 1 / 40,
    "plan.parts": 10,
    "plan.doubt": 0.1,  # as much as a walk must gain
    "keep_original": False,
    "stitchings": 1,
    "sample_latents": False,
    "gate": True,
    "columns.fixed": None,
    "columns.exogenous": None,
}
UNUSED_BY_A_PLAN = ("value.", "passes")
SIZES: dict[str, dict[str, Any]] = {
    "default": {
        "tests.consistency.forward.members": 3,
        "tests.consistency.forward.learning_rate": 1e-3,
        "tests.consistency.forward.steps": 50_000,
        "tests.consistency.forward.epochs": 200,
        "inverse.hidden": (),
        "inverse.learning_rate": 3e-4,
        "inverse.steps": 100_000,
        "inverse.epochs": 200,
        "reward.hidden": (512, 512),
        "reward.learning_rate": 3e-4,
        "reward.steps": 50_000,
        "reward.epochs": 200,
    },
    "quick": {
        "tests.consistency.forward.members": 2,
        "tests.consistency.forward.learning_rate": 2e-3,
        "tests.consistency.forward.steps": 4_000,
        "tests.consistency.forward.epochs": 100,
        "inverse.hidden": (128, 128),
        "inverse.learning_rate": 1e-3,
        "inverse.steps": 6_000,
        "inverse.epochs": 100,
        "reward.hidden": (128, 128),
        "reward.learning_rate": 1e-3,
        "reward.steps": 2_000,
        "reward.epochs": 100,
    },
}


@pytest.mark.parametrize("name", OURS)
def test_no_field_of_a_preset_changes_unnoticed(name: str) -> None:
    fields = flat(asdict(preset(name)))
    used = {field: value for field, value in fields.items() if not field.startswith(UNUSED_BY_A_PLAN)}
    assert used == SAME_IN_BOTH | SIZES[name]
    assert [*preset(name).tests] == ["precedent", "consistency"]


@pytest.mark.parametrize("name", OURS)
def test_a_jump_may_miss_by_a_fifth_of_its_length_beyond_what_is_usual(name: str) -> None:
    test = preset(name).tests["consistency"]
    assert test.passes({"consistency": np.array([0.0, 0.2, 0.2001, 1.0])}, {}).tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", OURS)
def test_a_jump_needs_a_precedent_that_counts_as_near(name: str) -> None:
    found = {"precedent": np.array([0.5, 1.0, 1.001, np.inf])}
    assert preset(name).tests["precedent"].passes(found, {}).tolist() == [True, True, False, False]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("episodes", "visits", "uses"), [(9, 3, 2), (400, 20, 4), (2000, 50, 10)])
def test_a_fortieth_of_the_trajectories_or_their_square_root_may_visit_a_state(
    name: str, episodes: int, visits: int, uses: int, caplog: pytest.LogCaptureFixture
) -> None:
    """And a fifth of them may make the same jump, at least two."""
    plan = preset(name).plan
    assert plan is not None
    caplog.set_level("INFO", "trajstitch")
    data = logged(np.zeros((episodes, 2, 2)), rewards=np.zeros((episodes, 1)))
    small = Plan(max_visits=plan.max_visits, predicted_rewards=False, parts=1)
    plan_with_capacity(data, graph_on(data, {}), scorer(data), small, preset(name).rules)
    assert f"at most {visits} trajectories may visit a state, and {uses} may make the same jump" in caplog.text


def test_an_own_config_starts_as_the_paper_s_method_with_a_regression() -> None:
    own, paper = flat(asdict(StitchConfig())), flat(asdict(preset(PAPER)))
    differ = {field for field in own.keys() & paper.keys() if own[field] != paper[field]}
    assert {field for field in differ if not field.startswith("reward.")} == {
        "neighbours.k",
        "neighbours.radius",
        "neighbours.standardise",
        "sample_latents",
    }


def test_presets_are_three_and_have_names_that_are_found() -> None:
    assert [*PRESETS] == [PAPER, *OURS]
    with pytest.raises(InputError, match="the presets are paper, default, quick"):
        preset("papr")
    assert preset(PAPER).for_data(collect(episodes=2).metadata).neighbours == NeighbourSearch()
