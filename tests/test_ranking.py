"""The best part of stitched data: better than usual from their starts, and starts as varied as all are."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.data import ragged
from trajstitch.data.ranking import best_for_their_starts, full_length, usual_returns, with_missing_costs
from trajstitch.data.stitch_record import holds_originals
from trajstitch.data.summary import inspect
from trajstitch.data.trajectories import Provenance, Trajectories, concatenate
from trajstitch.policies.bc import BC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import note_on_stitched


def episodes(
    starts: np.ndarray,
    returns: np.ndarray,
    lengths: np.ndarray | None = None,
    terminated: np.ndarray | None = None,
    jumps: bool = True,
) -> Trajectories:
    """Episodes from these starts with these returns; the first step of each is a jump, if any are."""
    starts = np.asarray(starts, float).reshape(len(returns), -1)
    lengths = np.full(len(returns), 4) if lengths is None else lengths
    offsets = ragged.offsets_of(lengths)
    rows = ragged.owners(lengths + 1)
    last = offsets[1:] - 1
    ended = np.zeros(offsets[-1], bool)
    ended[last] = False if terminated is None else terminated
    made = Trajectories(
        observations=starts[rows] + 0.01 * ragged.positions(lengths + 1)[:, None],
        actions=np.zeros((offsets[-1], 1)),
        rewards=np.repeat(returns / lengths, lengths),
        terminated=ended,
        truncated=np.isin(np.arange(offsets[-1]), last) & ~ended,
        offsets=offsets,
    )
    provenance = Provenance.logged(offsets)
    if jumps:
        provenance = replace(provenance, stitched=np.isin(np.arange(offsets[-1]), offsets[:-1]))
    return replace(made, provenance=provenance)


def pendulum(random: np.random.Generator, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Starts at any angle and speed; all trajectories are good, and those that start hanging cost the most."""
    angle, speed = random.uniform(-np.pi, np.pi, count), random.uniform(-1, 1, count)
    returns = -200 * (1 - np.cos(angle)) + 10 * random.normal(size=count)
    return np.stack([np.cos(angle), np.sin(angle), speed], axis=1), returns


@pytest.mark.parametrize("seed", range(5))
def test_the_best_tenth_of_good_trajectories_keeps_hard_starts(seed: int) -> None:
    starts, returns = pendulum(np.random.default_rng(seed))
    data = episodes(starts, returns)
    best = data.best(0.1)
    assert len(best) == 20
    chosen = best.observations[best.first_rows]
    hard = chosen[:, 0] < -0.5
    assert hard.mean() == pytest.approx((starts[:, 0] < -0.5).mean(), abs=0.1)
    assert np.ptp(chosen, axis=0).min() > 1.5  # of 2: every angle and speed
    logged = replace(data, provenance=Provenance.logged(data.offsets)).best(0.1)
    assert (logged.observations[logged.first_rows][:, 0] > 0.8).all()  # returns alone rank starts


def test_of_each_kind_of_start_the_better_half_is_chosen() -> None:
    random = np.random.default_rng(0)
    starts, returns = pendulum(random)
    clumsy = random.random(len(returns)) < 0.5
    data = episodes(starts, returns - 150 * clumsy)
    best = data.best(0.1)
    found = np.isin(data.returns, best.returns)
    assert clumsy[found].mean() < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_where_starts_do_not_predict_returns_the_highest_returns_are_chosen(seed: int) -> None:
    random = np.random.default_rng(seed)
    starts, returns = random.normal(size=(100, 3)), random.normal(size=100)
    assert usual_returns(starts, returns) is None
    assert sorted(episodes(starts, returns).best(0.1).returns) == pytest.approx(sorted(returns)[-10:])


def test_of_logged_data_the_highest_returns_are_chosen_for_any_starts() -> None:
    starts, returns = pendulum(np.random.default_rng(1))
    for data in (episodes(starts, returns, jumps=False), replace(episodes(starts, returns), provenance=None)):
        assert sorted(data.best(0.1).returns) == pytest.approx(sorted(returns)[-20:])


@pytest.mark.parametrize(
    ("count", "fraction", "expected"), [(1, 0.1, 1), (14, 0.1, 1), (15, 0.1, 2), (37, 0.5, 18), (9, 1, 9)]
)
def test_a_fraction_is_that_many_episodes(count: int, fraction: float, expected: int) -> None:
    random = np.random.default_rng(0)
    data = episodes(random.normal(size=count), np.full(count, 5.0) + np.arange(count) / 1000)
    assert len(data.best(fraction)) == expected


def test_predicted_gains_count_as_they_are() -> None:
    data = episodes(np.zeros(4), np.array([100.0, 95, 89, 94]))
    assert data.best(0.5).returns.tolist() == pytest.approx([100, 95])


def test_any_starts_can_be_ranked() -> None:
    random = np.random.default_rng(0)
    for starts in (np.zeros((40, 2)), np.full((40, 2), 1e12), random.integers(0, 2, (40, 1)).astype(float)):
        returns = np.arange(40.0)
        assert len(np.unique(best_for_their_starts(starts, returns, 4))) == 4


def test_a_trajectory_that_is_only_cut_off_sooner_has_not_saved_costs() -> None:
    returns, lengths = np.array([-100.0, -50.0, -50.0, 50.0]), np.array([10, 5, 5, 5])
    terminated = np.array([False, False, True, False])
    found = with_missing_costs(returns, lengths, terminated, 10)
    assert found.tolist() == [-100, -100, -50, 50]
    data = episodes(np.zeros(4), returns, lengths, terminated)
    # Half of what the second one lacks is known by itself, at 10 a step, and half by all steps, at 6.
    assert data.corrected_returns.tolist() == pytest.approx([-100, -90, -50, 50])
    facts = inspect(data)
    assert facts["returns"]["mean"] == pytest.approx(-37.5)
    assert facts["corrected_mean_return"] == pytest.approx(-47.5)
    logged = replace(data, provenance=None)
    assert "corrected_mean_return" not in inspect(logged)


def test_a_cut_off_trajectory_of_costs_is_not_among_the_best() -> None:
    lengths = np.array([10] * 9 + [3])
    returns = np.array([-90.0] * 8 + [-80.0, -60.0])  # the last one costs 20 a step
    assert episodes(np.zeros(10), returns, lengths).best(0.1).returns.tolist() == pytest.approx([-80])


def test_the_best_of_a_log_that_was_split_are_no_snippets() -> None:
    """A log of costs whose blank cells split its episodes: snippets cost little in all, or happen to be cheap."""
    random = np.random.default_rng(0)
    whole = np.array([80] * 12 + [1, 2, 3, 4] * 25)
    each = np.concatenate((np.linspace(-3, -1, 12), random.uniform(-3.5, -0.9, 100)))
    log = replace(episodes(np.zeros(112), each * whole, whole), provenance=None)
    assert (log.best(0.05).lengths == 80).sum() >= 4


def test_one_very_long_episode_does_not_set_the_full_length() -> None:
    assert full_length(np.array([100] * 50 + [10_000]), np.zeros(51, bool)) == 100
    assert full_length(np.array([100, 50]), np.array([True, True])) == 0


def test_a_union_is_told_from_a_replaced_set() -> None:
    random = np.random.default_rng(0)
    starts, returns = random.normal(size=20), random.normal(size=20)
    logged, stitched = (episodes(starts, returns, jumps=jumps) for jumps in (False, True))
    assert holds_originals(concatenate([logged, stitched]))
    assert not holds_originals(stitched)
    assert not holds_originals(logged)


def test_a_training_says_which_kind_of_stitched_data_it_has_and_which_suits_it() -> None:
    random = np.random.default_rng(0)
    starts, returns = random.normal(size=20), random.normal(size=20)
    logged, stitched = (episodes(starts, returns, jumps=jumps) for jumps in (False, True))
    both = concatenate([logged, stitched])
    for algorithm in (BC(), TD3BC(), IQL()):
        assert note_on_stitched(logged, algorithm) is None
    assert "in place of the original ones, which suits a clone" in str(note_on_stitched(stitched, BC()))
    assert "better without the originals" in str(note_on_stitched(both, BC()))
    for learner in (TD3BC(), IQL()):
        assert "stitch with `keep_original=True`" in str(note_on_stitched(stitched, learner))
        assert "beside the original ones, which suits a learner of values" in str(note_on_stitched(both, learner))
