"""The README is true: its commands run, its Python runs, its links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trajstitch import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_commands_and_python_of_the_first_minute_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(line) for block in blocks("bash") for line in block.splitlines()]
    assert {command[1] for command in commands} == set(cli.VERBS) - {"sets", "expert", "reproduce"}
    for command in commands:
        assert command[0] == "trajstitch"
        assert cli.run(command[1:]) == 0, capsys.readouterr().err
    (python,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"mean return \d+ -> \d+\n\[[-\d. ]+\]\n", done.stdout)
    assert (tmp_path / "better.npz").exists()


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`?make (\w+)", README))
    assert named >= {"demo", "test", "bench", "interop"}
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_links_lead_somewhere(target):
    file, _, anchor = target.partition("#")
    assert (ROOT / file).exists()
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE) if anchor else []
    assert not anchor or anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
