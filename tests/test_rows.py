"""Flat rows cut into episodes: against a loop over the rows that anyone can check by eye."""

from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajstitch.data.checks import check
from trajstitch.data.labels import Labels
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import rows
from trajstitch.formats.rows import from_rows, split_at_ends

METADATA = Metadata(source="npz:log.npz")


@dataclass
class Log:
    """Rows of a log; observation and action are the row's number, so that every value tells where it came from."""

    terminated: np.ndarray
    truncated: np.ndarray
    episodes: np.ndarray | None = None
    breaks: np.ndarray | None = None
    """Rows whose next observation is not the next row's, if next observations are recorded at all."""
    observations: np.ndarray = field(init=False)
    next_observations: np.ndarray | None = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.terminated)
        self.observations = np.stack([np.arange(count), -np.arange(count)], axis=1).astype(np.float64)
        self.next_observations = None
        if self.breaks is not None:
            self.next_observations = np.concatenate([self.observations[1:], [[count, -count]]])
            self.next_observations[self.breaks] += 0.5

    def cut(self) -> Trajectories:
        numbers = self.observations[:, 0]
        return from_rows(
            self.observations,
            numbers[:, None] + 1000,
            numbers + 2000,
            self.terminated,
            self.truncated,
            self.next_observations,
            METADATA,
            self.episodes,
        )

    def cut_slowly(self) -> list[dict[str, list]]:
        """The same, one row after the other."""
        episodes, current = [], []
        for row in range(len(self.terminated)):
            current.append(row)
            last = row == len(self.terminated) - 1
            if (
                last
                or self.terminated[row]
                or self.truncated[row]
                or (self.episodes is not None and self.episodes[row] != self.episodes[row + 1])
                or (self.breaks is not None and self.breaks[row])
            ):
                episodes.append(current)
                current = []
        cut = []
        for numbers in episodes:
            states = [self.observations[row].tolist() for row in numbers]
            ended, following = numbers[-1], self.next_observations
            states.append([np.nan, np.nan] if following is None else following[ended].tolist())
            cut.append(
                {
                    "states": states,
                    "steps": numbers,
                    "terminated": [*[False] * (len(numbers) - 1), bool(self.terminated[ended])],
                    "truncated": [*[False] * (len(numbers) - 1), bool(self.truncated[ended])],
                    "next_known": [*[True] * (len(numbers) - 1), following is not None],
                }
            )
        return cut


@st.composite
def logs(draw: st.DrawFn) -> Log:
    count = draw(st.integers(1, 14))

    def flags(rarely: int = 1) -> np.ndarray:
        return np.array(
            draw(st.lists(st.integers(0, 3 * rarely).map(lambda x: x == 0), min_size=count, max_size=count))
        )

    labels = draw(st.none() | st.lists(st.integers(0, 2), min_size=count, max_size=count).map(np.array))
    breaks = flags(rarely=3) if draw(st.booleans()) else None
    return Log(flags(), flags(), labels, breaks)


@given(logs(), st.sampled_from([1, 2, 3, 1 << 15]))
def test_rows_are_cut_as_by_a_loop_over_them(log: Log, block: int) -> None:
    expected = log.cut_slowly()
    # Breaks at flagged ends are no news, so they don't count against the limit; here there is none.
    with patch.object(rows, "BLOCK", block), patch.object(rows, "MOST_CUTS", 1):
        data = log.cut()
    assert len(data) == len(expected)
    for episode, wanted in zip(data, expected, strict=True):
        np.testing.assert_array_equal(episode.observations, wanted["states"])
        assert episode.next_known.tolist() == wanted["next_known"]
        assert episode.actions[:, 0].tolist() == [row + 1000 for row in wanted["steps"]]
        assert episode.rewards.tolist() == [row + 2000 for row in wanted["steps"]]
        assert episode.terminated.tolist() == wanted["terminated"]
        assert episode.truncated.tolist() == wanted["truncated"]


def flags(*rows: int, count: int = 10) -> np.ndarray:
    result = np.zeros(count, bool)
    result[list(rows)] = True
    return result


def test_with_next_observations_no_step_is_lost() -> None:
    data = Log(flags(3), flags(9), breaks=flags()).cut()
    assert data.lengths.tolist() == [4, 6]
    assert data.metadata.findings == ()


def test_without_next_observations_no_step_is_lost_either_and_the_final_states_are_unknown() -> None:
    data = Log(flags(3), flags(9)).cut()
    assert data.lengths.tolist() == [4, 6]
    assert data.episode_terminated.tolist() == [True, False]
    assert data.episode_truncated.tolist() == [False, True]
    assert np.flatnonzero(~data.next_known).tolist() == [3, 9]
    (finding,) = (finding for finding in check(data) if finding.check == "continuity")
    assert finding.verdict == "note"
    assert "2 of 2 episodes was not recorded" in finding.detail


def test_an_end_flag_within_a_label_ends_the_episode_and_is_said() -> None:
    data = Log(flags(3), flags(9), np.zeros(10, int)).cut()
    assert data.lengths.tolist() == [4, 6]
    (finding,) = data.metadata.findings
    assert finding.check == "ends"
    assert "1 rows in the middle of an episode are flagged as its end, first row 3" in finding.detail


def test_episodes_with_flags_inside_are_split_and_keep_every_step_and_state() -> None:
    whole = Log(flags(), flags(9), breaks=flags()).cut()
    flagged = replace(whole, terminated=flags(3), provenance=Provenance.logged(whole.offsets))
    data = split_at_ends(flagged)
    assert data.lengths.tolist() == [4, 6]
    assert data.episode_terminated.tolist() == [True, False]
    np.testing.assert_array_equal(data.observations, np.insert(whole.observations, 4, whole.observations[4], axis=0))
    np.testing.assert_array_equal(data.rewards, whole.rewards)
    assert data.provenance is not None
    assert "first in episode 0, step 3" in data.metadata.findings[-1].detail
    assert split_at_ends(whole) is whole


def test_split_episodes_keep_their_names_beside_episodes_without_steps() -> None:
    """Of four named episodes the first is split, and the second and the last hold one state each."""
    states = np.arange(7.0)[:, None]
    data = Trajectories(
        observations=states,
        actions=np.zeros((3, 1)),
        rewards=np.zeros(3),
        terminated=np.array([True, False, False]),
        truncated=np.array([False, True, True]),
        offsets=np.array([0, 2, 2, 3, 3]),
        labels=Labels(np.array(["a", "b", "c", "d"]), states[:, 0]),
    )
    found = split_at_ends(data)
    assert found.labels is not None
    assert found.labels.episodes is not None
    assert found.labels.episodes.tolist() == ["a", "a", "b", "c", "d"]
    assert found.lengths.tolist() == [1, 1, 0, 1, 0]
    assert found.labels.times is not None
    assert found.labels.times.tolist() == found.observations[:, 0].tolist() == [0, 1, 1, 2, 3, 4, 5, 6]


def test_an_unflagged_break_cuts_and_is_said() -> None:
    data = Log(flags(), flags(9), breaks=flags(4)).cut()
    assert data.lengths.tolist() == [5, 5]
    assert not data.terminated.any()
    assert "1 unflagged breaks" in data.metadata.findings[0].detail
    assert "first at row 4" in data.metadata.findings[0].detail


def test_a_state_recorded_twice_and_rounded_once_is_no_break() -> None:
    log = Log(flags(), flags(9), breaks=flags())
    assert log.next_observations is not None
    log.observations = log.observations + np.pi
    log.next_observations = (log.next_observations + np.pi).astype(np.float32).astype(np.float64)
    assert len(log.cut()) == 1


def test_rows_out_of_order_are_refused() -> None:
    with pytest.raises(InputError, match="in 5 of 10 rows, first at row 0: the rows must be in the order"):
        Log(flags(), flags(9), breaks=flags(0, 2, 4, 6, 8)).cut()


def test_nan_is_not_taken_for_a_break() -> None:
    log = Log(flags(), flags(9), breaks=flags())
    log.observations[4] = np.nan
    assert len(log.cut()) == 1


def test_no_rows_are_an_error_that_names_the_file() -> None:
    with pytest.raises(InputError, match=r"npz:log\.npz: holds no rows"):
        Log(flags(count=0), flags(count=0)).cut()


def test_the_callers_arrays_stay_as_they_were() -> None:
    log = Log(flags(3), flags(9), np.arange(10) // 2)
    before = [log.terminated.copy(), log.truncated.copy(), log.observations.copy()]
    log.cut()
    for array, copy in zip((log.terminated, log.truncated, log.observations), before, strict=True):
        np.testing.assert_array_equal(array, copy)
