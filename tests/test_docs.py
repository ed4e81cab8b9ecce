"""The documentation is true: the tutorial's commands and Python run, and every page is in the site's contents."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from test_stitching import SMALL
from trajstitch import cli
from trajstitch.stitching.config import PRESETS
from trajstitch.workflow import timing
from trajstitch.workflow.budget import FEWEST_STEPS, model_configs, with_models

DOCS = Path(__file__).parents[1] / "docs"
LEFT_OUT = {
    "tutorial.md": 1,
    "how-it-works.md": 0,
    "index.md": 0,
    "report.md": 1,
    "formats.md": 0,
    "deploy.md": 0,
    "api.md": 0,
}
"""Blocks that `<!-- not run: reason -->` marks in each page; the others are run."""
SHORT = with_models(
    replace(SMALL, tests={"consistency": SMALL.tests["consistency"]}),
    {name: replace(model, steps=timing.STEPS) for name, model in model_configs(SMALL).items()},
)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return each block's language and text, and why it is not run."""
    fence = r"(?:<!-- not run: (.*?) -->\n)?^```(python|bash)\n(.*?)^```"
    found = re.findall(fence, (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [(language, text, reason) for reason, language, text in found]


@pytest.mark.parametrize("page", LEFT_OUT)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "quick", SHORT)
    monkeypatch.setitem(FEWEST_STEPS, "bc", 30)
    known: dict[str, object] = {}
    for language, text, reason in blocks(page):
        if reason:
            continue
        if language == "python":
            small = text.replace('"1m"', '"1s"').replace('Collect("maze/mixed")', 'Collect("maze/mixed", 600)')
            exec(compile(small, page, "exec"), known)
            continue
        for line in text.splitlines():
            first, *arguments = shlex.split(line)
            assert first == "trajstitch"
            small = ["1s" if word in ("1m", "30m") else word for word in arguments]
            more = ["--transitions", "600"] if small[0] == "collect" and "--transitions" not in small else []
            assert cli.run([*small, *more]) == 0, (line, capsys.readouterr().err)


def test_every_page_with_code_is_run():
    with_code = {
        page.name for page in DOCS.rglob("*.md") if re.search("^```(python|bash)$", page.read_text(), re.MULTILINE)
    }
    assert with_code == set(LEFT_OUT)


@pytest.mark.parametrize("page", LEFT_OUT)
def test_blocks_that_are_not_run_are_counted_and_have_a_reason(page):
    assert sum(bool(reason) for _, _, reason in blocks(page)) == LEFT_OUT[page]
    assert (DOCS / page).read_text().count("<!-- not run") == LEFT_OUT[page]


def test_every_page_is_in_the_contents_of_the_site():
    named = set(re.findall(r": ([\w/-]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
