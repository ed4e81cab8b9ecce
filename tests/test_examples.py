"""The examples run as they stand, and what they add is added by one file and one line, as CONTRIBUTING says."""

import ast
import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from test_stitching import SMALL
from trajstitch import cli, formats
from trajstitch.cli import train as train_command
from trajstitch.policies import POLICIES
from trajstitch.stitching import config
from trajstitch.stitching.jump_tests import JumpTest, Likelihood

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture(autouse=True)
def small_and_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    likelihood, consistency = SMALL.tests.values()
    assert isinstance(likelihood, Likelihood)
    loose = {"likelihood": replace(likelihood, margin=256.0), "consistency": consistency}
    monkeypatch.setitem(config.PRESETS, "quick", replace(SMALL, tests=loose))
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))  # an example adds to it
    monkeypatch.chdir(tmp_path)


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module that worker processes could import, too."""
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def one_line(name: str) -> tuple[str, str]:
    """The line of a table that CONTRIBUTING tells to add for an example: its key and its value."""
    found = re.search(rf'`"([\w-]+)": ([^`]+)`[^\n]*<!-- {name} -->', CONTRIBUTING)
    assert found is not None, f"CONTRIBUTING.md has no line for {name}"
    return found[1], found[2].strip('"')


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, monkeypatch, capsys):
    module = imported(path, monkeypatch)
    module.main(*((3_000, 300) if path.stem == "demo" else ()))
    assert capsys.readouterr().out
    assert len(path.read_text().splitlines()) < 60


def test_policy_is_one_file_and_one_line(monkeypatch, tmp_path, capsys):
    name, place = one_line("policy")
    imported(ROOT / "examples" / "own_policy.py", monkeypatch)
    monkeypatch.setitem(POLICIES, name, f"own_policy:{place.partition(':')[2]}")
    monkeypatch.setattr(train_command, "Command", train_command.subcommands())
    collect = ["collect", "hopper/expert", "--transitions", "500", "--to", "npz:log.npz"]
    assert cli.run(collect) == 0
    train = ["train", name, "npz:log.npz", "--steps", "20", "--seeds", "1", "--delta", "0.5", "--run", "run"]
    assert cli.run(train) == 0
    assert cli.run(["evaluate", "run", "--episodes", "1"]) == 0
    assert "last" in capsys.readouterr().out


def test_format_is_one_file_and_one_line(monkeypatch, capsys):
    scheme, _ = one_line("format")
    imported(ROOT / "examples" / "own_format.py", monkeypatch)
    monkeypatch.setitem(formats.FORMATS, scheme, "own_format")
    assert cli.run(["collect", "hopper/expert", "--transitions", "500", "--to", f"{scheme}:log.{scheme}"]) == 0
    assert cli.run(["convert", f"{scheme}:log.{scheme}", "npz:log.npz"]) == 0
    assert cli.run(["inspect", f"{scheme}:log.{scheme}"]) == 0
    assert "Fit to learn from" in capsys.readouterr().out


def test_jump_test_is_one_file_and_one_line(monkeypatch, capsys):
    name, made = one_line("jump test")
    module = imported(ROOT / "examples" / "own_jump_test.py", monkeypatch)
    test = eval(compile(ast.parse(made, mode="eval"), "CONTRIBUTING.md", "eval"), vars(module))
    assert isinstance(test, JumpTest)
    quick = config.PRESETS["quick"]
    monkeypatch.setitem(config.PRESETS, "quick", replace(quick, tests=quick.tests | {name: test}))
    with pytest.raises(SystemExit):
        cli.run(["stitch", "--preset", "quick", "--help"])
    assert f"--tests.{name}.quantile" in capsys.readouterr().out


def test_verb_is_one_file_and_one_line(monkeypatch, tmp_path, capsys):
    block = re.search(r"```python\n(\"\"\"`trajstitch count URI`.*?)```", CONTRIBUTING, re.DOTALL)
    assert block is not None
    (tmp_path / "count.py").write_text(block[1])
    spec = importlib.util.spec_from_file_location("trajstitch.cli.count", tmp_path / "count.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "trajstitch.cli.count", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(cli.VERBS, *one_line("verb"))
    assert cli.run(["collect", "hopper/expert", "--transitions", "500", "--to", "npz:log.npz"]) == 0
    capsys.readouterr()
    assert cli.run(["count", "npz:log.npz"]) == 0
    assert "episodes" in capsys.readouterr().out
