"""Without the value test, stitching adds varied trajectories: nothing is lost, and more is seen."""

from dataclasses import replace

import numpy as np
import pytest

from point import collect
from test_stitching import GREEDY, SMALL
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.stitching import improve
from trajstitch.stitching.acceptance import Rules
from trajstitch.storage.runs import Run
from trajstitch.workflow.calls import stitch

DIVERSE = replace(GREEDY, rules=Rules(value_test=False), passes=2)


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return collect(episodes=40, length=30)


@pytest.fixture(scope="module")
def result(data: Trajectories) -> Trajectories:
    return stitch(data, DIVERSE)


def distinct(rows: np.ndarray) -> int:
    return len(np.unique(rows, axis=0))


def pairs(data: Trajectories) -> int:
    """Distinct (state, action) pairs."""
    return distinct(np.hstack((data.observations[data.state_rows], data.actions)))


def test_every_logged_episode_stays_and_different_ones_are_added(data, result):
    assert result[range(len(data))].equals(data)
    assert len(result) > 1.5 * len(data)
    visits = {episode.observations.tobytes() for episode in result}
    assert len(visits) == len(result)
    assert result.provenance is not None
    jumps = np.bincount(result.episode_of_step, result.provenance.stitched)
    assert (jumps[: len(data)] == 0).all()
    assert (jumps[len(data) :] > 0).all()
    assert np.isnan(result.provenance.value_gain).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_variety_rises(seed):
    data = collect(episodes=40, length=30, seed=seed)  # of one size, so that nothing compiles twice
    found = stitch(data, DIVERSE)
    assert distinct(found.observations) == distinct(data.observations)
    assert pairs(found) > 1.3 * pairs(data)
    walks = found[range(len(data), len(found))]
    assert distinct(walks.observations) > 0.6 * distinct(data.observations), "walks share a few stretches"


def test_jumps_are_possible(result):
    rows, jumps = result.state_rows, result.provenance.stitched
    miss = result.observations[rows + 1] - result.observations[rows] - 0.1 * result.actions
    assert np.median(np.linalg.norm(miss[jumps], axis=1)) < 0.03


def test_several_passes_add_more(data, result):
    one, four = (stitch(data, DIVERSE, passes=passes) for passes in (1, 4))
    assert len(data) < len(one) < len(result) < len(four)
    assert pairs(one) < pairs(result) < pairs(four)
    assert result[range(len(one))].equals(one)


def test_walks_that_can_not_differ_are_not_added_again(data):
    """With one jump at most, an episode has few walks."""
    found = stitch(data, replace(DIVERSE, rules=Rules(value_test=False, max_jumps=1), passes=20))
    assert len({episode.observations.tobytes() for episode in found}) == len(found)


def test_no_value_is_fitted(data, result, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("V is not needed")

    monkeypatch.setattr(improve, "fit_values", refuse)
    assert stitch(data, DIVERSE).equals(result)


def test_seeds_add_other_walks(data):
    one, other = stitch(data, DIVERSE, seeds=2)
    assert not one.equals(other)
    assert all(found[range(len(data))].equals(data) for found in (one, other))


def test_diversifying_needs_no_likelihood_but_no_plan(data, result):
    consistent = replace(DIVERSE, tests={"consistency": DIVERSE.tests["consistency"]}, passes=1)
    assert len(stitch(data, consistent)) > len(data)
    with pytest.raises(InputError, match="goes with greedy passes"):
        replace(SMALL, rules=Rules(value_test=False))


def test_job_that_stopped_between_passes_resumes_to_the_same_bits(data, result, tmp_path, monkeypatch):
    add_walks, made = improve.add_walks, []

    def stopping(*given):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(1)
        return add_walks(*given)

    run = Run.start(tmp_path / "run", "stitch", {})
    monkeypatch.setattr(improve, "add_walks", stopping)
    with pytest.raises(KeyboardInterrupt):
        stitch(data, DIVERSE, run=run)
    made.clear()
    assert stitch(data, DIVERSE, run=Run.open(tmp_path / "run")).equals(result)
    assert made == [1], "the first pass was made again"
