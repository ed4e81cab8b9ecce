"""The same data in other units gives the same stitching, the same policies and the same estimates, in those units."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

import trajstitch
from trajstitch.data.trajectories import Trajectories
from trajstitch.formats import load, save
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.stitching.config import PRESETS
from trajstitch.stitching.jump_tests import Consistency
from trajstitch.stitching.precedent import Precedent
from worlds import WORLDS

QUICK = PRESETS["quick"]
BRIEF: dict[str, Any] = {"steps": 600, "hidden": (64, 64)}


def in_units(data: Trajectories, observations: float = 1, actions: float = 1, rewards: float = 1) -> Trajectories:
    """The data with each number multiplied, bounds of actions included."""
    space = data.metadata.action_space
    assert isinstance(space, Box)
    scaled = Box((space.low * actions).astype(np.float64), (space.high * actions).astype(np.float64), dtype=np.float64)
    return replace(
        data,
        observations=data.observations.astype(np.float64) * observations,
        actions=data.actions.astype(np.float64) * actions,
        rewards=data.rewards.astype(np.float64) * rewards,
        metadata=replace(data.metadata, action_space=scaled),
    )


@pytest.fixture(scope="module")
def plain() -> Trajectories:
    """About 2,000 steps of a maze whose best episodes are not in the data."""
    return in_units(WORLDS["two-leg"].collect(seed=0)[:60])


def stitched(data: Trajectories) -> Trajectories:
    consistency = QUICK.tests["consistency"]
    assert isinstance(consistency, Consistency)
    config = replace(
        QUICK,
        tests={
            "precedent": Precedent(),
            "consistency": replace(consistency, forward=replace(consistency.forward, **BRIEF), limit=0.4),
        },
        inverse=replace(QUICK.inverse, **BRIEF),
        reward=replace(QUICK.reward, **BRIEF),
    )
    return trajstitch.stitch(data, config)


@pytest.fixture(scope="module")
def expected(plain: Trajectories) -> Trajectories:
    found = stitched(plain)
    assert found.provenance is not None
    assert found.provenance.stitched.sum() > 20
    return found


UNITS = [
    {"observations": 2.0**-24},
    {"actions": 2.0**-24},
    {"rewards": 2.0**-24},
    {"observations": 2.0**40, "actions": 2.0**40, "rewards": 2.0**40},
    {"observations": 2.0**-40, "actions": 2.0**-40, "rewards": 2.0**-40},
]
"""Powers of two, which round nothing, so that the same arithmetic gives the same bits: about 1e-7, 1e12 and 1e-12."""


@pytest.mark.parametrize("units", UNITS, ids=str)
def test_data_in_other_units_is_stitched_to_the_same_bits(
    plain: Trajectories, expected: Trajectories, units: dict[str, float]
) -> None:
    found = stitched(in_units(plain, **units))
    wanted = in_units(expected, **units)
    assert found.equals(replace(wanted, metadata=found.metadata))
    assert found.provenance is not None
    assert expected.provenance is not None
    np.testing.assert_array_equal(found.provenance.stitched, expected.provenance.stitched)
    np.testing.assert_array_equal(found.provenance.source_step, expected.provenance.source_step)


def test_a_column_far_from_zero_is_stitched_as_if_it_were_near(plain: Trajectories, expected: Trajectories) -> None:
    moved = replace(plain, observations=plain.observations + np.array([1e6, -1e8, *[0] * (plain.observation_size - 2)]))
    found = stitched(moved)
    assert found.provenance is not None
    assert expected.provenance is not None
    assert found.provenance.stitched.sum() == pytest.approx(expected.provenance.stitched.sum(), rel=0.2)
    assert found.returns.mean() == pytest.approx(expected.returns.mean(), rel=0.05)


LEARNERS: dict[str, Any] = {
    "bc": BC(steps=200, hidden=(32, 32)),
    "weighted-bc": WeightedBC(steps=200, hidden=(32, 32), value_steps=200),
    "td3-bc": TD3BC(steps=200, hidden=(32, 32)),
    "iql": IQL(steps=200, hidden=(32, 32)),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_policies_learned_in_other_units_act_alike_in_those_units(plain: Trajectories, name: str) -> None:
    states = plain.observations[::20]
    act = trajstitch.train(plain, LEARNERS[name], seeds=1)[0].act(states)
    for unit in (1e-12, 1e7):
        data = in_units(plain, unit, unit, unit)
        found = trajstitch.train(data, LEARNERS[name], seeds=1)[0].act(states * unit) / unit
        np.testing.assert_allclose(found, act, atol=0.02, err_msg=f"{unit:g}")


def test_estimates_in_other_units_are_the_same_in_those_units(plain: Trajectories) -> None:
    def compared(unit: float) -> Any:
        data = in_units(plain, unit, unit, unit)
        policies = {
            "short": trajstitch.train(data, LEARNERS["bc"], seeds=1),
            "none": trajstitch.train(data, BC(1), seeds=1),
        }
        return trajstitch.compare(policies, data)

    here, there = compared(1.0), compared(1e-7)
    assert there.verdicts == here.verdicts
    for one, other in zip(
        (here.logged, *(part.estimated for part in here.estimates)),
        (there.logged, *(part.estimated for part in there.estimates)),
        strict=True,
    ):
        assert other.value == pytest.approx(one.value * 1e-7, rel=0.02)


@pytest.mark.parametrize("uri", ["npz:{}/x.npz", "d4rl:{}/x.hdf5", "table:{}/x.csv", "table:{}/x.parquet"])
@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_no_format_loses_a_unit(plain: Trajectories, tmp_path: Any, uri: str, unit: float) -> None:
    data = in_units(plain[:3], unit, unit, unit)
    save(data, uri.format(tmp_path))
    found = load(uri.format(tmp_path))
    for name in ("observations", "actions", "rewards"):
        np.testing.assert_allclose(getattr(found, name), getattr(data, name), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("convert", [lambda x: x, lambda x: x.astype(np.float32)], ids=["double", "single"])
def test_a_constant_is_a_constant_in_any_unit(convert: Callable[[np.ndarray], np.ndarray]) -> None:
    from trajstitch.data.normaliser import Normaliser

    for unit in (1e-12, 1e-7, 1.0, 1e12):
        rows = convert(np.column_stack((np.full(99, 0.1), np.arange(99.0))) * unit)
        found = Normaliser.of(rows)
        assert found.std[0] == 1
        assert found.std[1] == pytest.approx(28.58 * unit, rel=1e-3)
