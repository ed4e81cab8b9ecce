"""Each check passes on good data and fails on data made to fail it."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from strategies import trajectories
from trajstitch.data import checks, spaces
from trajstitch.data.checks import check
from trajstitch.data.labels import Labels
from trajstitch.data.trajectories import Finding, Metadata, Trajectories, concatenate

EPISODES, LENGTH = 4, 5
STEPS = EPISODES * LENGTH


def good() -> Trajectories:
    """Four episodes of five steps with nothing wrong: two terminate, two are cut off."""
    random = np.random.default_rng(0)
    last = np.arange(STEPS) % LENGTH == LENGTH - 1
    return Trajectories(
        observations=random.normal(size=(STEPS + EPISODES, 3)),
        actions=random.uniform(-0.9, 0.9, (STEPS, 2)),
        rewards=random.normal(size=STEPS),
        terminated=last & (np.arange(STEPS) < STEPS // 2),
        truncated=last & (np.arange(STEPS) >= STEPS // 2),
        offsets=np.arange(0, STEPS + 1, LENGTH),
        metadata=Metadata(action_space=spaces.vector(2, np.float64, -1, 1)),
    )


def found(data: Trajectories, name: str) -> Finding:
    (finding,) = [finding for finding in check(data) if finding.check == name]
    return finding


def changed(name: str, place: object, value: object) -> Trajectories:
    data = good()
    array = getattr(data, name).copy()
    array[place] = value
    return replace(data, **{name: array})


def test_good_data_passes_every_check() -> None:
    findings = check(good())
    assert [finding.check for finding in findings] == [
        "finite values",
        "action bounds",
        "early ends",
        "empty episodes",
        "missing ends",
        "contradictory ends",
        "constant dimensions",
        "whole actions",
        "rewards",
        "duplicate episodes",
        "continuity",
    ]
    assert {finding.verdict for finding in findings} == {"ok"}


def test_actions_that_are_choices_are_noted() -> None:
    data = good()
    choices = np.random.default_rng(0).integers(0, 4, data.actions.shape).astype(data.actions.dtype)
    finding = found(replace(data, actions=choices), "whole actions")
    assert finding.verdict == "note"
    assert "one of 4 whole numbers" in finding.detail
    choices[-1, -1] = 0.5
    assert found(replace(data, actions=choices), "whole actions").verdict == "ok"


@given(trajectories(empty_episodes=True))
def test_every_check_has_a_verdict_on_whatever_it_gets(data: Trajectories) -> None:
    findings = check(data)
    assert len({finding.check for finding in findings}) == len(findings) == 11
    assert all(finding.verdict in ("ok", "note", "bad") and finding.detail for finding in findings)


@pytest.mark.parametrize(
    ("name", "row", "place"),
    [
        ("observations", 0, "episode 0, step 0"),
        ("observations", LENGTH - 1, "episode 0, step 4"),
        ("observations", LENGTH + 1, "episode 1, step 0"),
        ("actions", STEPS - 1, "episode 3, step 4"),
        ("rewards", LENGTH, "episode 1, step 0"),
    ],
)
def test_nan_and_infinity_are_bad_and_counted(name: str, row: int, place: str) -> None:
    finding = found(changed(name, row, np.nan), "finite values")
    width = getattr(good(), name).size // len(getattr(good(), name))
    assert finding.verdict == "bad"
    assert finding.detail == f"{width} NaN and 0 infinite values in {name}, first in {place}"
    finding = found(changed(name, row, -np.inf), "finite values")
    assert f"0 NaN and {width} infinite values in {name}" in finding.detail


def test_opposite_infinities_do_not_hide_each_other() -> None:
    data = changed("rewards", [3, 4], (np.inf, -np.inf))
    assert "0 NaN and 2 infinite values in rewards, first in episode 0, step 3" in found(data, "finite values").detail


def test_the_largest_numbers_are_still_numbers() -> None:
    assert found(changed("rewards", slice(None), np.finfo(float).max), "finite values").verdict == "ok"


def test_actions_beyond_their_bounds_are_bad_and_the_worst_is_named() -> None:
    data = good()
    actions = data.actions.copy()
    actions[7, 0], actions[12, 1] = 1.25, -3
    finding = found(replace(data, actions=actions), "action bounds")
    assert finding.verdict == "bad"
    assert finding.detail == "2 of 40 action values lie outside, the worst by 2 in episode 2, step 2, dimension 1"


def test_a_rounded_bound_is_not_exceeded() -> None:
    assert found(changed("actions", 0, 1 + 1e-7), "action bounds").verdict == "ok"
    assert found(changed("actions", 0, 1 + 1e-5), "action bounds").verdict == "bad"
    wide = replace(good(), metadata=Metadata(action_space=spaces.vector(2, np.float64, -1000, 1000)))
    actions = wide.actions.copy()
    actions[0] = np.float32(1000) + 1e-4
    assert found(replace(wide, actions=actions), "action bounds").verdict == "ok"


def test_bounds_on_one_side_only_are_kept_too() -> None:
    space = spaces.vector(2, np.float64, 0, np.inf)
    data = replace(good(), actions=np.abs(good().actions) + 1, metadata=Metadata(action_space=space))
    assert found(data, "action bounds").verdict == "ok"
    assert found(replace(data, actions=-data.actions), "action bounds").verdict == "bad"


def test_actions_that_are_all_at_their_bounds_are_worth_a_note() -> None:
    data = replace(good(), actions=np.sign(good().actions))
    finding = found(data, "action bounds")
    assert (finding.verdict, "bang-bang" in finding.detail) == ("note", True)
    some = changed("actions", (slice(None), 0), 1.0)
    assert found(some, "action bounds") == Finding(
        "action bounds", "ok", "all actions keep to them, 50.0% of the values touch them"
    )


@pytest.mark.parametrize("space", [None, spaces.vector(2)])
def test_unknown_bounds_are_worth_a_note(space: spaces.Box | None) -> None:
    assert found(replace(good(), metadata=Metadata(action_space=space)), "action bounds").verdict == "note"


def test_an_action_space_of_another_size_is_bad() -> None:
    data = replace(good(), metadata=Metadata(action_space=spaces.vector(3, np.float64, -1, 1)))
    assert found(data, "action bounds").detail == "the action space has 3 dimensions, the actions have 2"


@pytest.mark.parametrize("flags", ["terminated", "truncated"])
def test_a_flag_inside_an_episode_is_bad(flags: str) -> None:
    finding = found(changed(flags, [7, 8], True), "early ends")
    assert finding.verdict == "bad"
    assert finding.detail == "2 steps are flagged as ends though their episode goes on, first in episode 1, step 2"


def test_an_empty_episode_is_bad() -> None:
    data = good()
    observations = np.concatenate([data.observations, [[1.0, 2.0, 3.0]]])
    finding = found(replace(data, observations=observations, offsets=np.append(data.offsets, STEPS)), "empty episodes")
    assert (finding.verdict, finding.detail) == ("bad", "1 episodes have no steps, first episode 4")


def test_episodes_without_an_end_are_worth_a_note() -> None:
    finding = found(changed("terminated", slice(None), False), "missing ends")
    assert (finding.verdict, finding.detail[:53]) == ("note", "2 of 4 episodes have no end flag, first episode 0: ta")


def test_episodes_with_both_ends_are_worth_a_note() -> None:
    finding = found(changed("terminated", STEPS - 1, True), "contradictory ends")
    assert finding.verdict == "note"
    assert finding.detail.startswith("1 of 4 episodes have both end flags, first episode 3")


def test_dimensions_that_never_change_are_named() -> None:
    data = replace(changed("observations", (slice(None), [0, 2]), 1.5), actions=good().actions * [1, 0])
    finding = found(data, "constant dimensions")
    assert finding == Finding(
        "constant dimensions", "note", "never change: observation dimensions 0, 2; action dimension 1"
    )


def test_a_dimension_that_changes_once_is_not_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "BLOCK", 3)
    observations = np.ones((STEPS + EPISODES, 3))
    observations[-1] = 2
    assert found(replace(good(), observations=observations), "constant dimensions").verdict == "ok"


def test_rewards_that_never_change_are_worth_a_note() -> None:
    finding = found(changed("rewards", slice(None), 1), "rewards")
    assert (finding.verdict, finding.detail) == ("note", "every reward is 1: episodes differ in length alone")


def test_copies_of_episodes_are_counted_and_the_first_is_named() -> None:
    data = concatenate([good(), good()[[2, 0]]])
    finding = found(data, "duplicate episodes")
    assert finding.verdict == "note"
    assert finding.detail == "2 of 6 episodes are exact copies of others, first episode 4 of episode 2"


@pytest.mark.parametrize("name", ["observations", "actions", "rewards"])
def test_an_episode_with_one_different_value_is_no_copy(name: str) -> None:
    data = concatenate([good(), good()[1]])
    values = getattr(data, name).copy()
    values[-1] = np.nextafter(values[-1], 2)
    assert found(replace(data, **{name: values}), "duplicate episodes").verdict == "ok"


def test_episodes_of_the_same_length_and_return_are_not_copies() -> None:
    assert found(changed("rewards", slice(None), 1), "duplicate episodes").verdict == "ok"


def test_what_the_loader_found_is_passed_on_and_speaks_for_continuity() -> None:
    cut = Finding("continuity", "note", "3 unflagged breaks")
    other = Finding("left out", "note", "infos")
    data = good()
    data = replace(data, metadata=replace(data.metadata, findings=(cut, other)))
    assert found(data, "continuity") == cut
    assert found(data, "left out") == other


def test_every_bad_verdict_comes_with_advice() -> None:
    data = replace(
        good(),
        observations=np.full((STEPS + EPISODES + 1, 3), np.nan),
        actions=np.full((STEPS, 2), 5.0),
        terminated=np.ones(STEPS, bool),
        offsets=np.append(good().offsets, STEPS),
        labels=Labels(times=np.arange(STEPS + EPISODES + 1) + 9.0 * (np.arange(STEPS + EPISODES + 1) > 2)),
        metadata=replace(good().metadata, findings=(Finding("missing values", "bad", "blank cells"),)),
    )
    bad = {finding.check for finding in check(data) if finding.verdict == "bad"}
    assert bad == set(checks.ADVICE)


@pytest.mark.parametrize("make", [good, lambda: changed("actions", 3, np.nan), lambda: changed("rewards", 0, np.inf)])
def test_blocks_change_no_verdict(make: Callable[[], Trajectories], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = check(make())
    monkeypatch.setattr(checks, "BLOCK", 3)
    assert check(make()) == whole


def test_a_large_set_is_checked_in_a_moment() -> None:
    steps, episodes = 200_000, 2_000
    data = Trajectories(
        observations=np.random.default_rng(0).random((steps + episodes, 17)),
        actions=np.zeros((steps, 6), np.float32),
        rewards=np.ones(steps),
        terminated=np.zeros(steps, bool),
        truncated=np.zeros(steps, bool),
        offsets=np.arange(0, steps + 1, steps // episodes),
        metadata=Metadata(action_space=spaces.vector(6, np.float32, -1, 1)),
    )
    start = time.perf_counter()
    check(data)
    assert time.perf_counter() - start < 2  # 0.1 s on an idle core
