"""The examples run as they stand, and what they add is added by one file and one line, as CONTRIBUTING says."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
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
    module.main()
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
        cli.run(["stitch", "--preset", "quick", "--help-all"])
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


USE = """
import sys
from trajstitch import cli, formats, policies
from trajstitch.stitching.config import PRESETS
assert "length" in PRESETS["default"].tests
assert policies.algorithm_class("huber-bc").__name__ == "HuberBC"
assert formats.parse("jsonl:log.jsonl") == ("jsonl", "log.jsonl")
sys.exit(cli.run(["convert", "jsonl:log.jsonl", "npz:log.npz"]))
"""


def test_additions_to_a_copy_of_the_package_pass_lint_and_work(tmp_path):
    """Everything but `main` is moved, and the lines are added, exactly as CONTRIBUTING says."""
    package = tmp_path / "src" / "trajstitch"
    shutil.copytree(ROOT / "src" / "trajstitch", package, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for example, place in (
        ("own_policy", "policies/huber"),
        ("own_format", "formats/json_lines"),
        ("own_jump_test", "stitching/step_length"),
    ):
        text = (ROOT / "examples" / f"{example}.py").read_text().partition("\ndef main(")[0]
        (package / f"{place}.py").write_text(text)
    imports = re.search(r"`(from [^`]+)` <!-- import of the jump test -->", CONTRIBUTING)
    assert imports is not None
    for file, before, kind in (
        ("policies/__init__.py", "POLICIES = {\n", "policy"),
        ("formats/__init__.py", "FORMATS = {\n", "format"),
        ("stitching/config.py", '"default": StitchConfig(\n        tests={\n', "jump test"),
    ):
        name, value = one_line(kind)
        text = (package / file).read_text()
        assert text.count(before) == 1
        value = value if kind == "jump test" else f'"{value}"'
        (package / file).write_text(text.replace(before, f'{before}"{name}": {value},\n'))
    config_file = package / "stitching" / "config.py"
    config_file.write_text(config_file.read_text().replace("\nimport ", f"\n{imports[1]}\nimport ", 1))
    ends = '"terminated": [true], "truncated": [false]'
    episode = f'{{"observations": [[0.0], [1.0]], "actions": [[0.5]], "rewards": [1.0], {ends}}}'
    (tmp_path / "log.jsonl").write_text(f"{episode}\n")
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    for code in (lint, USE):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("text", ["broken\n", "{}\n", "5\n", '{"observations": 1}\n', ""])
def test_broken_line_of_the_format_is_one_line(text, monkeypatch, tmp_path, capsys):
    imported(ROOT / "examples" / "own_format.py", monkeypatch)
    monkeypatch.setitem(formats.FORMATS, "jsonl", "own_format")
    (tmp_path / "log.jsonl").write_text(text)
    assert cli.run(["inspect", "jsonl:log.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: jsonl:log.jsonl")
