"""Every reason to leave data unchanged: when it holds, when it doesn't, and its sentence."""

from dataclasses import replace

import numpy as np
import pytest

from small_graphs import logged
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching import gate, result
from trajstitch.stitching.config import ColumnChoice, StitchConfig
from trajstitch.stitching.pipeline import Stages, StitchJob, stitch_together
from worlds import ALL, WORLDS

NAMES = np.array(["level", "price", "goal"])


def roles(fixed: str = "", exogenous: str = "") -> ColumnRoles:
    return ColumnRoles(np.isin(NAMES, fixed), np.isin(NAMES, exogenous), np.zeros(3, bool))


def with_column(column: np.ndarray) -> Trajectories:
    """Return data of three columns, of which the second is given as (episode, time)."""
    random = np.random.default_rng(0)
    goal = np.repeat(np.arange(len(column))[:, None] % 3, column.shape[1], 1)
    return logged(np.stack((random.normal(size=column.shape), column, goal), 2))


def with_goals(goals: list[float]) -> Trajectories:
    states = np.random.default_rng(0).normal(size=(len(goals), 6, 3))
    states[..., 2] = np.array(goals)[:, None]
    return logged(states)


def test_one_trajectory_has_none_to_jump_to() -> None:
    assert gate.single_trajectory(with_goals([1.0])) == "there is one trajectory, and jumps lead to others"
    assert gate.single_trajectory(with_goals([1.0, 2.0])) is None


def test_a_context_of_its_own_leaves_every_trajectory_alone() -> None:
    reason = gate.separate_contexts(with_goals([1.0, 2.0, 3.0]), roles(fixed="goal"), NAMES)
    assert reason is not None
    assert reason.startswith("every trajectory has a context of its own: column goal never changes within an episode")
    assert "`columns.fixed`" in reason


def test_contexts_that_any_two_trajectories_share_are_no_reason() -> None:
    assert gate.separate_contexts(with_goals([1.0, 2.0, 1.0]), roles(fixed="goal"), NAMES) is None
    assert gate.separate_contexts(with_goals([1.0, 2.0, 3.0]), roles(), NAMES) is None


def test_surroundings_that_move_by_chance_are_luck() -> None:
    random = np.random.default_rng(1)
    price = np.zeros((30, 41))
    for time in range(40):
        price[:, time + 1] = 0.9 * price[:, time] + random.normal(size=30)
    reason = gate.random_surroundings(with_column(price), roles(exogenous="price"), NAMES)
    assert reason is not None
    assert reason.startswith("column price moves by chance, not by actions")
    assert "`columns.exogenous`" in reason
    assert gate.random_surroundings(with_column(price), roles(), NAMES) is None


@pytest.mark.parametrize(
    "column",
    [np.tile(np.arange(41.0), (30, 1)), 0.97 ** np.arange(41) * np.arange(1.0, 31)[:, None]],
    ids=["clock", "decay"],
)
def test_surroundings_that_can_be_predicted_are_no_luck(column: np.ndarray) -> None:
    assert gate.random_surroundings(with_column(column), roles(exogenous="price"), NAMES) is None


def test_many_columns_are_named_briefly() -> None:
    names = np.array([f"c{number}" for number in range(9)])
    every = np.ones(9, bool)
    contexts = np.repeat(np.arange(5.0)[:, None, None], 4, 1) * np.ones(9)
    reason = gate.separate_contexts(logged(contexts), ColumnRoles(every, ~every, ~every), names)
    assert reason is not None
    assert "each of the columns c0, c1, c2, c3 and 5 more" in reason


def ending(terminal: np.ndarray) -> Trajectories:
    """Return walks on a circle that terminate in these states (episode, column)."""
    angle = np.random.default_rng(0).uniform(0, 6, (len(terminal), 1)) + 0.1 * np.arange(21)
    states = np.stack((np.cos(angle), np.sin(angle)), 2)
    states[:, -1] = terminal
    return logged(states, terminated=np.ones(len(terminal), bool))


def test_ends_that_states_do_not_show_are_a_reason() -> None:
    angle = np.random.default_rng(1).uniform(0, 6, 40)
    reason = gate.invisible_ends(ending(np.stack((np.cos(angle), np.sin(angle)), 1)))
    assert reason is not None
    assert reason.startswith("episodes terminate in states that others pass through")
    assert "mark them as truncated" in reason


@pytest.mark.parametrize("seed", range(10))
def test_where_ends_are_many_some_lie_beside_others_by_chance(seed: int) -> None:
    """Each 30th state is an end: of 100 ends up to 5 are nearest to one by chance."""
    assert gate.invisible_ends(WORLDS["delayed"].collect(seed)) is not None
    assert gate.invisible_ends(WORLDS["delayed-with-clock"].collect(seed)) is None
    assert gate.invisible_ends(ALL["pole"].collect(seed)) is None


def test_ends_that_states_show_are_no_reason() -> None:
    assert gate.invisible_ends(ending(3 + 0.1 * np.random.default_rng(1).normal(size=(40, 2)))) is None


def test_where_ends_are_rare_one_in_seven_beside_another_is_no_chance() -> None:
    """One state in 200 is terminal, so few would be nearest to one if ends could not be seen."""
    random = np.random.default_rng(0)
    angle = random.uniform(0, 6, (100, 1)) + 0.01 * np.arange(201)
    states = np.stack((np.cos(angle), np.sin(angle)), 2)
    states[:14, -1] = 3 + 0.1 * random.normal(size=(14, 2))
    assert gate.invisible_ends(logged(states, terminated=np.ones(100, bool))) is None


def test_few_ends_or_truncations_tell_nothing() -> None:
    angle = np.random.default_rng(1).uniform(0, 6, 40)
    data = ending(np.stack((np.cos(angle), np.sin(angle)), 1))
    assert gate.invisible_ends(data[np.arange(5)]) is None
    assert gate.invisible_ends(replace(data, terminated=data.truncated, truncated=data.terminated)) is None


def test_falls_of_a_walking_robot_are_visible_in_few_episodes_of_many_columns() -> None:
    """Six falls in eleven columns are each nearest to a state of another episode that goes on."""
    random = np.random.default_rng(0)
    states = random.normal(size=(6, 100, 11))
    states[:, -1, 0] = -3
    assert gate.invisible_ends(logged(states, terminated=np.ones(6, bool))) is None


def test_ends_in_states_that_were_not_recorded_tell_nothing() -> None:
    assert gate.invisible_ends(ending(np.full((40, 2), np.nan))) is None


def test_models_that_learned_nothing_are_named() -> None:
    reports = [FitReport("reward", False, {}), FitReport("inverse dynamics", True, {}), FitReport("forward", False, {})]
    assert gate.uninformative_models(reports) == "no better than their baseline on held-out steps: reward, forward"
    assert gate.uninformative_models(reports[1:2]) is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("single", "there is one trajectory"),
        ("set-point", "every trajectory has a context of its own: column 1 "),
        ("exogenous", "column 1 moves by chance"),
        ("delayed", "what ends them is not in the observation"),
    ],
)
def test_data_comes_back_as_it_was_before_any_model_is_fitted(
    name: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = WORLDS[name].collect(0)
    (done,) = stitch_together([StitchJob(data, StitchConfig())])[0]
    assert done.reason is not None
    assert sentence in done.reason
    assert f"the data is left unchanged: {done.reason}" in caplog.text
    assert done.reports == []
    assert done.passes == []
    assert done.after.equals(data)
    assert done.after.provenance is not None
    assert not done.after.provenance.stitched.any()


@pytest.mark.parametrize("name", ["set-point", "exogenous", "delayed"])
def test_without_the_gate_data_is_stitched_all_the_same(name: str) -> None:
    assert Stages(StitchJob(WORLDS[name].collect(0), StitchConfig(gate=False))).reason() is None


def test_what_stitched_data_is_doubted_for_is_told(caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "warnings", lambda before, after: ["few states are left"])
    stitch_together([StitchJob(WORLDS["single"].collect(0), StitchConfig())])
    assert "few states are left" in caplog.text


def test_one_trajectory_has_nowhere_to_jump_to_without_the_gate_either() -> None:
    assert Stages(StitchJob(WORLDS["single"].collect(0), StitchConfig(gate=False))).reason() is not None


def test_the_user_can_say_that_a_column_is_no_context() -> None:
    data = WORLDS["set-point"].collect(0)
    for choice, kept in ((ColumnChoice(), True), (ColumnChoice(fixed=("none",)), False)):
        stages = Stages(StitchJob(data, StitchConfig(columns=choice)))
        assert stages.columns["fixed"] == (["1"] if kept else [])
        assert (gate.separate_contexts(stages.data, stages.roles, stages.names) is not None) is kept
