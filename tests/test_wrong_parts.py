"""What a user plugs in is checked where it comes in: one line that says what was expected."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import numpy as np
import pytest

import trajstitch
from point import collect
from test_stitching import SMALL
from trajstitch import BC, InputError, StitchConfig, cli, formats, policies
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching.jump_tests import Likelihood

pytestmark = pytest.mark.usefixtures("wrong_types")


class Nothing(eqx.Module):
    pass


@dataclass(frozen=True)
class Own:
    """A jump test that lets all jumps through, but for what a test makes wrong."""

    score_gives: Any = None
    logged_gives: Any = None
    passes_gives: Any = None

    def fit(self, data, key, *others):
        return Nothing(), FitReport("own", True, {})

    def untrained(self, data, key):
        return Nothing()

    def score(self, model, candidates):
        return candidates if self.score_gives is None else self.score_gives(candidates)

    def score_logged(self, model, steps):
        return {} if self.logged_gives is None else self.logged_gives(steps)

    def passes(self, scores, replaced):
        count = len(scores["log_likelihood"])
        return np.ones(count, bool) if self.passes_gives is None else self.passes_gives(count)


@pytest.mark.parametrize("name", ["inverse", "reward", "", "a/b", "../x", "5"])
def test_names_of_jump_tests_that_collide_are_refused(name):
    with pytest.raises(InputError, match="can't be named"):
        StitchConfig(tests={name: Likelihood()})


@pytest.mark.parametrize("test", [5, "likelihood", Likelihood, None, {}])
def test_what_is_no_jump_test_is_refused(test):
    with pytest.raises(InputError, match="'mine' must be a jump test"):
        StitchConfig(tests={"mine": test})


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (Own(score_gives=lambda candidates: {"a": 1}), "`score` of 'own' must return the candidates"),
        (Own(score_gives=lambda candidates: 5), "`score` of 'own'"),
        (Own(score_gives=lambda candidates: candidates.take(np.arange(1))), "`score` of 'own'"),
        (
            Own(score_gives=lambda candidates: replace(candidates, scores={"a": np.zeros(1, np.float32)})),
            "a float for each of .* as 'a'",
        ),
        (Own(logged_gives=lambda steps: np.zeros(len(steps))), "`score_logged` of 'own' must give a dict"),
        (Own(passes_gives=lambda count: np.ones(count + 1, bool)), "`passes` of 'own' must return a bool for each"),
        (Own(passes_gives=lambda count: np.ones(count)), "`passes` of 'own' .* not float64"),
        (Own(passes_gives=lambda count: [True] * count), "`passes` of 'own' .* not a list"),
    ],
)
def test_what_a_jump_test_returns_is_checked(own, said):
    config = replace(SMALL, tests={"likelihood": SMALL.tests["likelihood"], "own": own})
    with pytest.raises(InputError, match=said):
        trajstitch.stitch(collect(episodes=10, length=15), config)


@pytest.mark.parametrize("data", [5, None, np.zeros(3)])
def test_what_is_no_data_is_refused(data):
    for attempt in (lambda: trajstitch.stitch(data), lambda: trajstitch.train(data)):
        with pytest.raises(InputError, match="`data` must be Trajectories"):
            attempt()


@pytest.mark.parametrize("algorithm", ["bc", BC, 5, {}])
def test_what_is_no_algorithm_is_refused(algorithm):
    with pytest.raises(InputError, match=r"`algorithm` must be an algorithm with its settings, such as BC\(\)"):
        trajstitch.train(collect(episodes=6, length=10), algorithm)


@pytest.mark.parametrize("config", [5, None, StitchConfig])
def test_what_is_no_config_is_refused(config):
    with pytest.raises(InputError, match="`config` must be"):
        trajstitch.stitch(collect(episodes=6, length=10), config)


@pytest.mark.parametrize(
    "line", ["no.such.module:BC", "trajstitch.policies.bc:No", "trajstitch.policies.bc", "json:loads"]
)
def test_wrong_line_of_the_policies_is_one_line(line, monkeypatch, capsys):
    monkeypatch.setitem(policies.POLICIES, "mine", line)
    with pytest.raises(InputError, match="the line 'mine'"):
        policies.algorithm_class("mine")
    assert cli.run(["train", "mine", "npz:log.npz"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "the line 'mine'" in error


@pytest.mark.parametrize("line", ["no.such.module", "json", ""])
def test_wrong_line_of_the_formats_is_one_line(line, monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "mine", line)
    with pytest.raises(InputError, match="the line 'mine'"):
        formats.load("mine:log")
