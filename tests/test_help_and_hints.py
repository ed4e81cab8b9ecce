"""Misspelt commands and bad input of the experiments: a short hint, and never a traceback."""

import contextlib
import subprocess
import sys

import pytest

from trajstitch import cli


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with contextlib.suppress(SystemExit):  # tyro ends the process itself
        assert cli.run(arguments) == 2
    return capsys.readouterr().err


def test_unknown_policy_gets_the_nearest(capsys):
    assert "did you mean 'bc'?" in shown(capsys, "train", "bcc")


def test_misspelt_flag_gets_the_flags_of_its_policy_alone(capsys):
    text = shown(capsys, "train", "bc", "npz:log.npz", "--step", "5")
    assert "--steps" in text
    assert "iql" not in text
    assert "trajstitch train bc --help" in text
    assert len(text.splitlines()) < 15


def test_help_of_a_policy_has_an_example(capsys):
    with pytest.raises(SystemExit):
        cli.run(["train", "iql", "--help"])
    text = capsys.readouterr().out
    assert "Example: trajstitch train iql" in text
    assert "built-in set" in text


def test_planning_flag_names_the_presets_that_plan(capsys):
    text = shown(capsys, "stitch", "npz:a.npz", "npz:b.npz", "--preset", "paper", "--plan.discount", "0.9")
    assert "default, quick" in text


def test_value_flag_is_refused_where_nothing_uses_it(capsys):
    text = shown(capsys, "stitch", "npz:a.npz", "npz:b.npz", "--value.steps", "10")
    assert "--value goes with greedy passes" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "run", "--set", "hopper/foo"), "no built-in set 'hopper/foo'"),
        (("demo", "run", "--seed", "-1"), "--seed must not be negative"),
        (("demo", "report", "nope.json"), "nope.json: can't be read"),
    ],
)
def test_experiments_say_what_is_wrong_in_one_line(arguments, said, tmp_path):
    module, *rest = arguments
    command = [sys.executable, "-m", f"trajstitch.experiments.{module}", *rest]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line
