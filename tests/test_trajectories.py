"""The data type: what it refuses, what it computes, and that choosing episodes changes nothing else."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import trajectories
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories, concatenate
from trajstitch.errors import InputError

ARRAYS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")


def two_episodes() -> Trajectories:
    """Two steps worth 3 that terminate, then one step worth 5 that is cut off."""
    return Trajectories(
        observations=np.arange(10.0).reshape(5, 2),
        actions=np.array([[0.1], [0.2], [0.3]]),
        rewards=np.array([1.0, 2.0, 5.0]),
        terminated=np.array([False, True, False]),
        truncated=np.array([False, False, True]),
        offsets=np.array([0, 2, 3]),
    )


def test_facts_of_a_small_set_by_hand() -> None:
    data = two_episodes()
    assert (len(data), data.steps, data.observation_size, data.action_size) == (2, 3, 2, 1)
    assert data.lengths.tolist() == [2, 1]
    assert data.returns.tolist() == [3, 5]
    assert data.episode_of_step.tolist() == [0, 0, 1]
    assert data.state_rows.tolist() == [0, 1, 3]
    assert data.first_rows.tolist() == [0, 3]
    assert data.episode_terminated.tolist() == [True, False]
    assert data.episode_truncated.tolist() == [False, True]
    summary = data.summary()
    assert summary["returns"] == {"mean": 4, "std": 1, "min": 3, "median": 4, "max": 5}
    assert summary["lengths"]["mean"] == 1.5
    assert (summary["terminated"], summary["truncated"], summary["mean_reward"]) == (1, 1, 8 / 3)


@given(trajectories(empty_episodes=True))
def test_returns_and_ends_match_a_loop_over_episodes(data: Trajectories) -> None:
    for episode in range(len(data)):
        steps = range(data.offsets[episode], data.offsets[episode + 1])
        assert data.returns[episode] == pytest.approx(sum(float(data.rewards[step]) for step in steps))
        assert data.episode_terminated[episode] == any(data.terminated[step] for step in steps)
        assert data.episode_truncated[episode] == any(data.truncated[step] for step in steps)
        assert all(data.episode_of_step[step] == episode for step in steps)


@given(trajectories(empty_episodes=True))
def test_the_row_after_a_steps_state_is_its_next_state(data: Trajectories) -> None:
    rows = [
        data.first_rows[episode] + step for episode, length in enumerate(data.lengths) for step in range(int(length))
    ]
    assert data.state_rows.tolist() == rows
    assert len(data.observations) == data.steps + len(data)


@given(trajectories(empty_episodes=True), st.data())
def test_choosing_episodes_gives_exactly_those_in_that_order(data: Trajectories, draw: st.DataObject) -> None:
    chosen = draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=8))
    part = data[chosen]
    assert len(part) == len(chosen)
    for place, episode in enumerate(chosen):
        assert part[place].equals(data[episode])
        assert np.array_equal(part.returns[place], data.returns[episode])
    assert part.metadata is data.metadata


@given(trajectories())
def test_the_episodes_put_together_again_are_the_whole(data: Trajectories) -> None:
    again = concatenate(list(data))
    assert again.equals(data)
    assert (again.provenance is None) == (data.provenance is None)
    if data.provenance is not None and again.provenance is not None:
        for item in fields(Provenance):
            np.testing.assert_array_equal(getattr(again.provenance, item.name), getattr(data.provenance, item.name))


def test_indices_masks_and_slices_all_choose_episodes() -> None:
    data = two_episodes()
    for which in (1, -1, [1], np.array([1]), slice(1, None), np.array([False, True])):
        assert data[which].rewards.tolist() == [5]
        assert data[which].observations.tolist() == [[6, 7], [8, 9]]
    assert data[[1, 0]].rewards.tolist() == [5, 1, 2]


def test_an_empty_choice_and_an_episode_that_is_not_there_are_errors() -> None:
    with pytest.raises(InputError, match="no episodes"):
        two_episodes()[[]]
    with pytest.raises(IndexError):
        two_episodes()[2]


def fingerprints(data: Trajectories) -> list[str]:
    return [episode.fingerprint for episode in data]


@given(trajectories(), st.floats(0.01, 1))
def test_no_episode_left_out_of_the_best_is_better_than_one_in_it(data: Trajectories, fraction: float) -> None:
    data = replace(data, provenance=None)
    best = data.best(fraction)
    assert len(best) == max(1, round(fraction * len(data)))
    # With the costs that episodes cut off early have not paid; a part of the data may have another usual length.
    known = dict(zip(fingerprints(data), data.corrected_returns, strict=True))
    ranked = sorted(zip(data.lengths > 0, data.corrected_returns, strict=True), reverse=True)
    found = ((length > 0, known[id_]) for length, id_ in zip(best.lengths, fingerprints(best), strict=True))
    assert sorted(found, reverse=True) == ranked[: len(best)]


def test_the_best_keep_their_order() -> None:
    data = concatenate([two_episodes(), two_episodes()])
    assert data.best(0.75).returns.tolist() == [3, 5, 5]
    assert data.best(1).equals(data)


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, float("nan")])
def test_a_fraction_that_is_none_is_an_error(fraction: float) -> None:
    with pytest.raises(InputError, match="fraction"):
        two_episodes().best(fraction)


def test_nothing_in_it_can_be_changed() -> None:
    data = replace(two_episodes(), provenance=Provenance.logged(np.array([0, 2, 3])))
    for name in (*ARRAYS, "lengths", "returns", "episode_of_step", "state_rows", "first_rows"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(data, name)[0] = 0
    assert data.provenance is not None
    with pytest.raises(ValueError, match="read-only"):
        data.provenance.stitched[0] = True
    with pytest.raises(FrozenInstanceError):
        data.rewards = np.zeros(3)  # pyright: ignore[reportAttributeAccessIssue]


def test_making_one_leaves_the_callers_array_writable() -> None:
    rewards = np.array([1.0, 2.0, 5.0])
    replace(two_episodes(), rewards=rewards)
    rewards[0] = 7


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("observations", np.zeros((4, 2)), "observations: has 4 rows, but 3 steps in 2 episodes need 5"),
        ("observations", np.zeros((5, 2, 2)), r"observations: expected 2 dimension\(s\)"),
        ("observations", np.zeros((5, 2), np.uint8), "observations: expected floating-point"),
        ("actions", np.zeros((2, 1)), "actions: has 2 rows"),
        ("actions", np.zeros((3, 1), np.int64), "actions: expected floating-point"),
        ("rewards", np.zeros((3, 1)), r"rewards: expected 1 dimension\(s\)"),
        ("terminated", np.zeros(3, np.int8), "terminated: expected boolean"),
        ("truncated", np.zeros(4, bool), "truncated: has 4 rows"),
        ("offsets", np.array([0, 2, 4]), "offsets: must rise from 0"),
        ("offsets", np.array([0, 4, 3]), "offsets: must rise from 0"),
        ("offsets", np.array([1, 2, 3]), "offsets: must rise from 0"),
        ("offsets", np.array([0.0, 2, 3]), "offsets: expected integer"),
        ("offsets", np.array([0]), "no episodes"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_arrays_that_do_not_fit_are_refused_by_name(name: str, value: np.ndarray, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(two_episodes(), **{name: value})


@pytest.mark.usefixtures("wrong_types")
def test_provenance_must_cover_every_step() -> None:
    with pytest.raises(InputError, match="provenance: has 2 rows for 3 steps"):
        replace(two_episodes(), provenance=Provenance.logged(np.array([0, 2])))
    logged = Provenance.logged(np.array([0, 2, 3]))
    with pytest.raises(InputError, match="margin has another length"):
        replace(logged, margin=np.zeros(2))


def test_untouched_data_comes_from_itself() -> None:
    logged = Provenance.logged(np.array([0, 2, 2, 3]))
    assert logged.source_episode.tolist() == [0, 0, 2]
    assert logged.source_step.tolist() == [0, 1, 0]
    assert not logged.stitched.any()
    assert np.isnan(logged.margin).all()


def test_sets_of_different_sizes_do_not_concatenate() -> None:
    wider = replace(two_episodes(), actions=np.zeros((3, 2)))
    with pytest.raises(InputError, match="differ in observation and action size"):
        concatenate([two_episodes(), wider])
    with pytest.raises(InputError, match="nothing to concatenate"):
        concatenate([])


def test_a_concatenation_keeps_provenance_only_if_all_have_it() -> None:
    plain = two_episodes()
    traced = replace(plain, provenance=Provenance.logged(plain.offsets))
    assert concatenate([plain, traced]).provenance is None
    both = concatenate([traced, traced]).provenance
    assert both is not None
    assert both.source_episode.tolist() == [0, 0, 1, 0, 0, 1]


def test_a_concatenation_takes_the_first_sets_metadata() -> None:
    first = replace(two_episodes(), metadata=Metadata(name="first"))
    assert concatenate([first, two_episodes()]).metadata.name == "first"


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminated", "truncated"])
def test_one_different_value_makes_two_sets_unequal(name: str) -> None:
    data = two_episodes()
    changed = getattr(data, name).copy()
    changed.flat[0] = not changed.flat[0] if changed.dtype == bool else changed.flat[0] + 1
    assert data.equals(two_episodes())
    assert not data.equals(replace(data, **{name: changed}))


def test_equality_is_also_about_dtype_and_boundaries_but_not_nan() -> None:
    data = two_episodes()
    assert not data.equals(replace(data, rewards=data.rewards.astype(np.float32)))
    assert not data.equals(replace(data, offsets=np.array([0, 1, 3])))
    holed = replace(data, rewards=np.array([1, np.nan, 5]))
    assert holed.equals(holed)
