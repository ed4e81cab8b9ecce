"""The verdict of `learn` on stitching: it pays, it does not, or that can't be told."""

import numpy as np
import pytest

import trajstitch
from test_learn import LOG, TINY, registered  # noqa: F401
from trajstitch.evaluation.compare import LOGGED
from trajstitch.workflow.verdict import by_estimates, by_rollouts


def scores(mean: float, spread: float = 1.0) -> np.ndarray:
    return mean + spread * np.random.default_rng(0).normal(size=(3, 10))


@pytest.mark.parametrize(
    ("original", "tenth", "head", "said"),
    [
        (10, 20, "Stitching pays:", "better than one of the original (+30.0 ["),
        (10, 40, "Stitching pays in part:", "and not surely other than one of its best tenth (+0.0 ["),
        (10, 60, "Stitching does not pay here:", "and worse than one of its best tenth (-20.0 ["),
        (40, 10, "Whether stitching pays can't be told:", "better than one of its best tenth (+30.0 ["),
        (40, 40, "Whether stitching pays can't be told:", "not surely other than one of the original (+0.0 ["),
    ],
)
def test_verdict_needs_an_interval_that_leaves_out_zero(original, tenth, head, said) -> None:
    found = by_rollouts({"ts-bc": scores(40), "bc": scores(original), "best-tenth": scores(tenth)}, "score")
    assert found is not None
    assert found.startswith(f"{head} by its score, a clone of the stitched data is ")
    assert said in found


def test_one_episode_each_of_two_seeds_tells_nothing() -> None:
    found = by_rollouts({"ts-bc": np.array([[90.0], [91]]), "bc": np.array([[1.0], [2]])}, "score")
    assert found is not None
    assert "can't be told" in found
    assert "(+89.0)" in found


def test_estimates_give_their_own_verdicts() -> None:
    verdicts = [
        {"name": "ts-bc", "than": "bc", "verdict": "better"},
        {"name": "bc", "than": "ts-bc", "verdict": "worse"},
        {"name": "ts-bc", "than": LOGGED, "verdict": "worse"},
    ]
    assert by_estimates({"verdicts": verdicts}, "estimated return") == (
        "Stitching pays: by its estimated return, a clone of the stitched data is better than one of the original."
    )


def test_without_stitched_data_there_is_no_verdict() -> None:
    assert by_rollouts({"bc": scores(1)}, "score") is None
    assert by_estimates({"verdicts": [{"name": "bc", "than": LOGGED, "verdict": "worse"}]}, "score") is None


@pytest.mark.usefixtures("registered")
def test_compare_clones_alone_and_ends_with_the_verdict() -> None:
    data = LOG[np.arange(18)]
    found = trajstitch.learn(data, "5m", environment="Point-v0", episodes=3, compare=True, **TINY)
    assert {row.name for row in found.table} <= {LOGGED, "bc", "best-tenth", "ts-bc", "ts-best-tenth"}
    assert found.verdict is not None
    assert "a clone of the stitched data is" in found.verdict
