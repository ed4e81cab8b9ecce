"""Help on one screen; misspelt commands and bad input of the experiments: a short hint, and never a traceback."""

import contextlib
import importlib
import math
import re
import subprocess
import sys

import pytest

from trajstitch import cli
from trajstitch.cli import short_help
from trajstitch.policies import POLICIES


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
    assert cli.run(["train", "iql", "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example: trajstitch train iql" in text
    assert "built-in set" in text


ASKED = [*((verb,) for verb in cli.VERBS), *(("train", policy) for policy in POLICIES)]
SCREEN = 40
"""Lines of 80 characters."""


def helped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        assert cli.run(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("asked", ASKED, ids=" ".join)
def test_help_fits_one_screen_and_names_true_flags(asked, monkeypatch, capsys):
    text = helped(monkeypatch, capsys, *asked, "--help")
    assert sum(max(1, math.ceil(len(line) / 80)) for line in text.splitlines()) <= SCREEN
    assert text.startswith(f"usage: trajstitch {' '.join(asked)} ")
    shown = set(re.findall(r"^  (--[\w.-]+)", text, re.MULTILINE))
    everything = helped(monkeypatch, capsys, *asked, "--help-all").replace(",", " ").split()
    assert shown <= set(everything)
    assert shown or asked == ("train",)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_common_flags_are_fields_of_the_verb(verb, monkeypatch, capsys):
    common = getattr(importlib.import_module(f"trajstitch.cli.{verb}"), "COMMON", ())
    asked = (verb, "bc") if verb == "train" else (verb,)
    text = helped(monkeypatch, capsys, *asked, "--help")
    for name in common:
        flag = name.removeprefix("config.").replace("_", "-")
        assert f"  --{flag}" in text or name == "policy"


def test_flags_of_columns_are_shown_for_tables_alone(monkeypatch, capsys):
    assert "--columns." not in helped(monkeypatch, capsys, "learn", "--help")
    for named in ("table:log.csv", "log.csv", "logs/log.parquet"):
        text = helped(monkeypatch, capsys, "learn", named, "--help")
        assert "--columns.reward STR" in text
        assert "--columns.cost STR" in text
        assert "--missing {split,interpolate,drop}" in text


def test_help_of_a_verb_is_instant_and_imports_nothing_heavy():
    line = (
        "import sys; from trajstitch import cli; [cli.run([*asked, '--help']) for asked in "
        f"{ASKED}]; print(sorted({{'jax', 'numpy', 'tyro', 'rich', 'gymnasium'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_without_a_source_to_read_is_the_full_one(monkeypatch, capsys):
    monkeypatch.setattr(short_help.Source, "of", unreadable)
    assert "--columns.reward" in helped(monkeypatch, capsys, "inspect", "--help")


def unreadable(module: str) -> short_help.Source:
    raise short_help.UnreadableError(module)


def test_planning_flag_names_the_presets_that_plan(capsys):
    text = shown(capsys, "stitch", "npz:a.npz", "npz:b.npz", "--preset", "paper", "--plan.discount", "0.9")
    assert "default, quick" in text


def test_value_flag_is_refused_where_nothing_uses_it(capsys):
    text = shown(capsys, "stitch", "npz:a.npz", "npz:b.npz", "--value.steps", "10")
    assert "--value goes with greedy passes" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "run", "--seed", "-1"), "--seed must not be negative"),
        (("demo", "measure", "--seeds", "0"), "--seeds must be at least 1"),
    ],
)
def test_experiments_say_what_is_wrong_in_one_line(arguments, said, tmp_path):
    module, *rest = arguments
    command = [sys.executable, "-m", f"trajstitch.experiments.{module}", *rest]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line
