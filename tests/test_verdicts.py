"""The counts and the page of benchmarks/verdicts.py, on cells made by hand, and its truth in an environment."""

import importlib.util
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajstitch
from controllers import controller, mean_action
from trajstitch.data import maze
from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.estimates import horizon_of

FILE = Path(__file__).parents[1] / "benchmarks" / "verdicts.py"
if not FILE.exists():
    pytest.skip("needs a checkout, with its benchmarks", allow_module_level=True)


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("verdicts", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


verdicts = loaded()
CALL = {"command": "verdicts.py", "machine": "a machine", "versions": {"python": "3"}}


def cell(place: str, said: str, gain: float, error: float = 0.0, covered: bool = True) -> dict[str, Any]:
    """Return a cell in which one policy was called this than another, and is truly better by `gain`."""
    names = ["one", "other", LOGGED]
    opposite = {"better": "worse", "worse": "better"}.get(said, said)
    told = {("one", "other"): said, ("other", "one"): opposite}
    return {
        "place": place,
        "seed": 0,
        "rows": 1_000,
        "logged": 20,
        "spread": 2.0,
        "truth": {"one": 2 * gain, "other": 0.0, LOGGED: 0.0},
        "error": {"one": 2 * error, "other": 0.0, LOGGED: 0.0},
        "comparison": {
            "estimates": [
                {"name": name, "covered": covered, "outside": 0.3, "estimated": {"low": -0.5, "high": 0.5}}
                for name in names[:2]
            ],
            "verdicts": [
                {"name": name, "than": than, "verdict": told.get((name, than), "can't tell")}
                for name, than in permutations(names, 2)
            ],
        },
        "seconds": {"train": 60.0, "compare": 60.0, "play": 0.0},
        "commit": "abc",
    }


def first(some: dict[str, Any]) -> Any:
    return next(pair for pair in verdicts.pairs(some) if (pair.name, pair.than) == ("one", "other"))


@pytest.mark.parametrize(
    ("said", "gain", "wrong"),
    [
        ("better", 0.3, False),
        ("better", -0.3, True),
        ("worse", -0.3, False),
        ("worse", 0.3, True),
        ("better", 0.0, True),
        ("worse", 0.0, True),
        ("can't tell", 0.3, False),
    ],
)
def test_a_verdict_is_wrong_if_the_truth_is_another_or_there_is_no_difference(
    said: str, gain: float, wrong: bool
) -> None:
    assert first(cell("costs", said, gain)).wrong == wrong


def test_a_verdict_is_called_wrong_only_by_a_truth_that_is_sure() -> None:
    assert first(cell("costs", "better", -0.3, error=0.01)).wrong
    unsure = first(cell("costs", "better", -0.3, error=0.2))
    assert not unsure.wrong
    assert not unsure.sure


def test_pairs_are_counted_by_what_was_said_and_by_what_is_true() -> None:
    cells = [
        cell("costs", "better", 0.3),
        cell("costs", "worse", 0.3),
        cell("costs", "better", 0.1, error=0.2),
        cell("costs", "can't tell", 0.3, covered=False),
    ]
    pairs = [first(one) for one in cells]
    assert dict(zip(verdicts.COUNTS, verdicts.counts(pairs), strict=True)) == {
        "pairs": "4",
        "told apart": "3",
        "wrong": "1",
        "not sure": "1",
        "can't tell": "1",
        "of which beyond the data": "1",
    }


def test_true_means_within_intervals_are_counted() -> None:
    assert verdicts.within(cell("costs", "better", 0.3)) == [False, True]
    assert verdicts.within(cell("costs", "better", 0.2)) == [True, True]


def test_the_page_shows_sets_and_worlds_apart_and_together() -> None:
    on_set, on_world = cell("maze/mixed", "better", 0.3), cell("costs", "worse", 0.3)
    config = verdicts.Benchmark()
    both = verdicts.page([on_set, on_world], config, CALL)
    for part in ("| together: all | 6 | 2 | 1 |", "| built-in sets: all | 3 | 1 | 0 |", "| worlds: all | 3 | 1 | 1 |"):
        assert part in both
    assert "costs, seed 0: one was called worse than other; the truth is +0.30 standard deviations" in both
    alone = verdicts.page([on_set], config, CALL)
    assert "together" not in alone
    assert "No verdict was wrong." in alone
    assert "costs" not in alone
    assert "Nothing at all" not in alone
    assert "Nothing at all is told on costs." in verdicts.page([cell("costs", "can't tell", 0.3)], config, CALL)
    assert "verdicts-sets.md" in verdicts.page([on_world], config, CALL)


def test_the_truth_is_played_on_until_it_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    data = trajstitch.collect(trajstitch.Collect("maze/mixed", 1_200))
    monkeypatch.setattr(verdicts, "EPISODES", 4)
    monkeypatch.setattr(verdicts, "MOST_EPISODES", 16)
    still = controller(data, lambda rows: np.zeros((len(rows), 2)))
    right = controller(data, lambda rows: np.array([maze.expert(row.astype(np.float64)) for row in rows]))
    policies = {"right": [right], "still": [still], "again": [still], "mean": [mean_action(data)]}
    played = verdicts.play(data, policies, horizon_of(data), [("right", "still"), ("still", "again")])
    # The first pair is plain; the second one never is, for both are the same.
    assert {name: len(each[0]) for name, each in played.items()} == {"right": 4, "still": 16, "again": 16, "mean": 4}
    truth = {name: verdicts.mean_of(each) for name, each in played.items()}
    assert truth["right"][0] > 50 > 20 > truth["still"][0]
    assert truth["still"] == truth["again"]


def test_the_truth_is_about_as_many_steps_as_the_estimates() -> None:
    data = trajstitch.collect(trajstitch.Collect("maze/mixed", 600))
    whole, half = (verdicts.play(data, {"mean": [mean_action(data)]}, steps, [])["mean"][0] for steps in (60, 30))
    assert (half < whole).all()
