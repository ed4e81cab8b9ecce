"""Statistics against cases that a hand or scipy can compute."""

import json
from itertools import product

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean, ttest_1samp, ttest_ind

from trajstitch.data.environments import REFERENCE, normalised, reference
from trajstitch.data.trajectories import Metadata
from trajstitch.evaluation.scores import (
    Summary,
    interquartile_mean,
    last_and_best,
    mean_difference,
    mean_score,
    probability_of_improvement,
)


def test_score_0_is_random_and_100_is_expert() -> None:
    hopper = Metadata("hopper-medium-v2")
    np.testing.assert_allclose(normalised(np.array(REFERENCE["hopper"]), hopper), [0, 100])
    np.testing.assert_allclose(normalised(np.array([1.0, 3.0]), Metadata(reference=(1.0, 5.0))), [0, 50])
    np.testing.assert_array_equal(normalised(np.array([7.0]), Metadata("a log")), [7])


@pytest.mark.parametrize(
    ("environment", "task"),
    [("HalfCheetah-v5", "halfcheetah"), ("dm_control/hopper-hop-v0", None), ("Pendulum-v1", None)],
)
def test_d4rl_s_scale_is_that_of_the_environment_whatever_the_name(environment: str, task: str | None) -> None:
    metadata = Metadata("hopper-robot", environment=json.dumps({"id": environment}))
    assert reference(metadata) == (REFERENCE[task] if task else None)


def test_interquartile_mean_leaves_out_the_outer_quarters() -> None:
    assert interquartile_mean(np.array([-1000.0, 2, 3, 4, 1000, 3, 5, 1])).value == 3
    many = np.random.default_rng(0).normal(size=37)
    assert interquartile_mean(many).value == trim_mean(many, 0.25)


def test_its_interval_is_the_exact_bootstrap_distribution_s() -> None:
    """One in 27 resamples of three seeds is the lowest one alone, so the 2.5 % and 97.5 % quantiles are the ends."""
    assert interquartile_mean(np.array([0.0, 5.0, 10.0])) == (5.0, 0.0, 10.0)
    scores = np.array([1.0, 2.0, 4.0, 8.0])
    exact = [trim_mean(np.array(draw), 0.25) for draw in product(scores, repeat=4)]
    found = interquartile_mean(scores)
    np.testing.assert_allclose(np.array([found.low, found.high], float), np.quantile(exact, [0.025, 0.975]), atol=0.51)


def test_resampling_stays_within_each_set() -> None:
    """Seeds that agree leave no doubt, however much the sets differ."""
    assert interquartile_mean(np.full(5, 10.0), np.full(5, 90.0)) == (50.0, 50.0, 50.0)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    hits = [found.low <= 0 <= found.high for found in map(interquartile_mean, random.normal(size=(100, 20)))]  # pyright: ignore
    assert np.mean(hits) > 0.85


def test_interval_of_several_stitchings_resamples_them_as_well() -> None:
    """Policies that agree within each stitching tell as much as one each: as seeds they would seem to tell more."""
    assert interquartile_mean(np.array([[0.0] * 8, [10.0] * 8])) == (5.0, 0.0, 10.0)
    agreeing = np.repeat(np.array([0.0, 3.0, 7.0, 10.0])[:, None], 8, axis=1)
    found, as_seeds = interquartile_mean(agreeing), interquartile_mean(agreeing.ravel())
    widths = [np.subtract(one.high, one.low) for one in (found, as_seeds)]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert widths[0] > 1.5 * widths[1]
    one = np.array([1.0, 2.0, 4.0, 8.0])
    assert interquartile_mean(one[None]) == interquartile_mean(one)


def test_interval_of_stitchings_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    draws = random.normal(size=(100, 10, 1)) + 0.3 * random.normal(size=(100, 10, 3))
    hits = [found.low <= 0 <= found.high for found in map(interquartile_mean, draws)]  # pyright: ignore
    assert np.mean(hits) > 0.8
    as_seeds = [found.low <= 0 <= found.high for found in map(interquartile_mean, draws.reshape(100, -1))]  # pyright: ignore
    assert np.mean(as_seeds) < np.mean(hits)


def test_improvement_over_seeds_by_stitchings_counts_every_pair() -> None:
    ours, theirs = np.array([[3.0, 4.0], [1.0, 2.0]]), np.array([2.5, 2.5, 0.0, 2.5])
    found = probability_of_improvement([ours], [theirs])
    assert found.value == 10 / 16
    assert (found.low, found.high) == (0.0, 1.0)  # both ends have a chance of at least 1 in 32


def test_two_seeds_have_no_interval() -> None:
    two, three = np.array([0.0, 10.0]), np.array([20.0, 21.0, 22.0])
    assert interquartile_mean(two) == (5.0, None, None)
    for ours, theirs in ((two + 50, two), (three, two), (two, three)):
        found = probability_of_improvement([ours], [theirs])
        assert (found.low, found.high) == (None, None)
    assert str(Summary.of(two).iqm) == "5.0"


def test_three_seeds_of_equal_methods_are_apart_too_often_for_an_interval() -> None:
    low, high = np.arange(3.0), np.arange(3.0) + 10
    assert probability_of_improvement([high], [low]) == (1, None, None)


def test_a_difference_of_means_is_rarely_sure_where_there_is_none() -> None:
    """Three seeds each, which differ as much as their episodes do."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(1000, 2, 3, 1)) + random.normal(size=(1000, 2, 3, 5))
    found = [mean_difference(ours, theirs) for ours, theirs in scores]
    sure = [one.low is not None and one.high is not None and not one.low <= 0 <= one.high for one in found]
    assert np.mean(sure) < 0.06
    covered = [abs(one.value) <= one.high - one.value for one in map(mean_score, scores[:, 0]) if one.high is not None]
    assert 0.93 < np.mean(covered) < 0.97


def test_the_interval_of_a_mean_is_student_s() -> None:
    scores = np.array([1.0, 4.0, 2.0, 5.0])
    found = ttest_1samp(scores, 0).confidence_interval()
    np.testing.assert_allclose(np.array(mean_score(scores), float), (3, found.low, found.high))
    theirs = np.array([0.0, 7.0, 1.0])
    welch = ttest_ind(scores, theirs, equal_var=False).confidence_interval(0.9)
    np.testing.assert_allclose(np.array(mean_difference(scores, theirs, 0.9)[1:], float), (welch.low, welch.high))
    assert mean_difference(np.full(3, 2.0), np.full(3, 1.0)) == (1, 1, 1)


def test_one_seed_has_no_interval_and_no_spread() -> None:
    found = Summary.of(np.array([3.0]))
    assert (found.mean, found.std, found.iqm) == (3.0, None, (3.0, None, None))
    assert str(found) == "3.0"


def test_summary_is_mean_and_sample_deviation() -> None:
    found = Summary.of(np.array([1.0, 2.0, 3.0]))
    assert (found.mean, found.std) == (2.0, 1.0)
    assert str(found) == "2.0 ± 1.0"


def test_probability_of_improvement_is_mann_whitney_s_u_over_pairs() -> None:
    random = np.random.default_rng(1)
    ours, theirs = random.integers(0, 6, 7).astype(float), random.integers(0, 6, 5).astype(float)
    found = probability_of_improvement([ours], [theirs])
    assert found.value == pytest.approx(mannwhitneyu(ours, theirs).statistic / 35)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high


def test_probability_of_improvement_at_its_ends() -> None:
    low, high = np.arange(4.0), np.arange(4.0) + 10
    assert probability_of_improvement([high], [low]) == (1, 1, 1)
    assert probability_of_improvement([low], [high]) == (0, 0, 0)
    assert probability_of_improvement([low], [low]).value == 0.5
    assert probability_of_improvement([high, low], [low, high]).value == 0.5


def test_last_and_best_are_both_reported() -> None:
    last, best = last_and_best(np.array([[5.0, 1.0], [3.0, 9.0], [4.0, 2.0]]))
    assert last.scores == (4, 2)
    assert best.scores == (5, 9)
