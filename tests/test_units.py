"""A policy learns from observations in any unit, and says when it learned nothing."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajstitch.data.normalise import IGNORED, robust_normaliser
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.policies.action_error import compare_with_constant
from trajstitch.policies.bc import BC
from trajstitch.policies.iql import IQL
from trajstitch.policies.policy import NetworkPolicy, load_policies, save_policies
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import train, train_run, train_together

SMALL: dict[str, Any] = {"steps": 400, "hidden": (32,), "learning_rate": 3e-3}


def log(columns: dict[str, np.ndarray] | None = None, episodes: int = 20, length: int = 25) -> Trajectories:
    """Actions that follow the two columns of a plain state; `columns` are put beside them."""
    random = np.random.default_rng(0)
    steps = episodes * length
    states = random.normal(size=(steps + episodes, 2))
    offsets = np.arange(0, steps + 1, length)
    last = np.isin(np.arange(steps), offsets[1:] - 1)
    rows = np.arange(steps) + np.repeat(np.arange(episodes), length)
    action = np.tanh(states[rows] @ [[1.0], [-0.5]])
    extra = [] if columns is None else [column[: len(states), None] for column in columns.values()]
    return Trajectories(
        observations=np.concatenate((states, *extra), axis=1),
        actions=action,
        rewards=random.normal(size=steps),
        terminated=last & (np.arange(steps) % 2 == 0),
        truncated=last,
        offsets=offsets,
        metadata=Metadata("plain"),
    )


ROWS = 600
NOISE = np.random.default_rng(1).normal(size=ROWS)
COLUMNS = {
    "pressure in Pa": 101_325 + 50 * NOISE,
    "time in ms": 1.7e12 + 20.0 * np.arange(ROWS),
    "power in W": 1e6 * (1 + 0.1 * NOISE),
    "tiny": 1e-9 * NOISE,
    "constant": np.full(ROWS, 1e12),
    "constant zero": np.zeros(ROWS),
    "constant but for rounding": np.full(ROWS, 0.1) * 3e5 + 1e-11 * NOISE,
    "constant but for float32 rounding": (101_325 + 0.004 * NOISE).astype(np.float32).astype(np.float64),
    "one outlier": np.where(np.arange(ROWS) == 7, 1e9, 5.0),
    "nearly constant with one outlier": np.where(np.arange(ROWS) == 7, 1e9, 5 + 1e-4 * NOISE),
    "heavy tails": np.sinh(8 * NOISE),
    "cauchy": NOISE / np.roll(NOISE, 1) ** 3,
    "huge": 1e200 * NOISE,
}


def error(policy: Any, data: Trajectories) -> float:
    return float(np.sqrt(np.square(policy.act(data.observations[data.state_rows]) - data.actions).mean()))


@pytest.fixture(scope="module")
def plain_error() -> float:
    return error(train(log(), BC(**SMALL), seeds=1)[0], log())


def test_a_clone_ignores_no_input_in_any_units_of_other_columns(plain_error: float) -> None:
    sets = [log({name: column}) for name, column in COLUMNS.items()]
    for data, (policy,), name in zip(sets, train_together(sets, BC(**SMALL), 1), COLUMNS, strict=True):
        assert error(policy, data) < 2 * plain_error + 0.02, name


@pytest.mark.parametrize("unit", [(1e-3, 1e4), (1e-8, 1e8)])
@pytest.mark.parametrize("algorithm", [BC(**SMALL), TD3BC(**SMALL, alpha=0.0), IQL(**SMALL, temperature=0.0)])
def test_the_columns_that_matter_may_have_any_unit(
    algorithm: Any, unit: tuple[float, float], plain_error: float
) -> None:
    data = log()
    data = replace(data, observations=data.observations * unit + [0, 1e3 * unit[1]])
    policies = train(data, algorithm, seeds=1)
    assert error(policies[0], data) < 2 * plain_error + 0.1
    assert not compare_with_constant(policies, data)["no_better_than_constant"]


@pytest.mark.parametrize("name", COLUMNS)
def test_no_column_is_lost_or_blows_up_when_standardised(name: str) -> None:
    column = COLUMNS[name]
    policy = train(log({name: column}), BC(steps=1, hidden=(4,)), seeds=1)[0]
    assert isinstance(policy, NetworkPolicy)
    seen = policy.normaliser.observe(log({name: column}).observations)[:, 2]
    assert np.abs(seen).max() < 100
    if name.startswith("constant"):
        assert (seen == 0).all()
    elif name != "one outlier":
        low, high = np.quantile(seen, (0.05, 0.95))
        assert 0.5 < high - low < 20


def test_a_column_that_was_constant_does_not_matter_when_it_changes() -> None:
    data = log({"constant": np.full(ROWS, 3.0)})
    policy = train(data, BC(**SMALL), seeds=1)[0]
    moved = data.observations + np.array([0, 0, 1e6])
    np.testing.assert_array_equal(policy.act(moved), policy.act(data.observations))


def test_what_lies_far_outside_of_the_data_is_compressed_and_kept_in_order(tmp_path: Path) -> None:
    policy = train(log(), BC(**SMALL), seeds=1)[0]
    assert isinstance(policy, NetworkPolicy)
    far = np.array([5.0, 9.0, 20, 1e3, 1e6, 1e30])[:, None] * np.ones(2)
    seen = policy.normaliser.observe(far)[:, 0]
    assert (np.diff(seen) > 0).all()
    assert seen[-1] < 100
    save_policies([policy], tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(load_policies(tmp_path / "policy.safetensors")[0].act(far), policy.act(far))


def test_whole_numbers_are_no_rounding() -> None:
    counts = (10_000_000 + np.arange(200) % 3).astype(np.float64)[:, None]
    assert robust_normaliser(counts).std[0] < 10
    assert robust_normaliser(np.full((20, 1), 7.0)).std[0] == IGNORED


def test_ordinary_columns_are_standardised_in_float32_as_before() -> None:
    rows = np.random.default_rng(0).normal(3, 2, (500, 4)).astype(np.float32)
    found = robust_normaliser(rows)
    np.testing.assert_array_equal(found.mean, rows.mean(0, dtype=np.float64).astype(np.float32))
    np.testing.assert_array_equal(found.std, rows.std(0, dtype=np.float64).astype(np.float32))
    assert found.mean.dtype == np.float32


# A policy that learned nothing


def test_a_clone_that_ignores_its_input_is_said(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    data = log({"pressure in Pa": 1e6 + 1e5 * NOISE})
    with caplog.at_level(logging.WARNING, "trajstitch"):
        run = train_run(data, BC(**SMALL, standardise=False), tmp_path / "raw", seeds=2)
    assert (
        "2 of 2 policies (seeds 0, 1) predict the logged actions no better than always the mean action" in caplog.text
    )
    assert "held-out steps" in caplog.text
    facts = json.loads((run.folder / "action-error.json").read_text())
    assert facts["no_better_than_constant"] == [0, 1]
    assert facts["held_out"]
    assert min(facts["action_error"]) >= facts["baseline"] > 0
    caplog.clear()
    with caplog.at_level(logging.WARNING, "trajstitch"):
        run = train_run(data, BC(**SMALL), tmp_path / "standardised", seeds=2)
        train(data, BC(**SMALL), seeds=1)
    assert not caplog.records
    facts = json.loads((run.folder / "action-error.json").read_text())
    assert max(facts["action_error"]) < facts["baseline"]


def test_in_memory_it_is_said_too_by_the_steps_learned_from(caplog: pytest.LogCaptureFixture) -> None:
    data = log()
    noise = replace(data, actions=np.random.default_rng(2).choice([-1.0, 1.0], data.actions.shape))
    with caplog.at_level(logging.WARNING, "trajstitch"):
        train(noise, BC(steps=1, hidden=(4,)), seeds=1)
    assert "training steps" in caplog.text
