"""The experiments run for real at a tiny size, and their pages say what the numbers say."""

import json

import pytest

from test_stitching import SMALL
from trajstitch.experiments import demo
from trajstitch.stitching import config as stitching


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stitching.PRESETS, "quick", SMALL)


def test_demo_shows_what_improved_and_where_it_is(tmp_path, capsys):
    folder = tmp_path / "demo"
    demo.run(demo.Run(to=folder, transitions=600, seeds=2, steps=20, episodes=1))
    shown = capsys.readouterr().out
    assert "Checks" in shown
    assert "scored" in shown
    assert str(folder / "demo.png") in shown.replace("\n", "")
    assert {path.name for path in folder.iterdir()} == {"logged.npz", "stitched.npz", "demo.json", "demo.png"}
    demo.report(demo.Report((folder / "demo.json",), to=tmp_path / "demo.md"))
    page = (tmp_path / "demo.md").read_text()
    facts = json.loads((folder / "demo.json").read_text())
    assert f"| 0 | {facts['data']['logged']:.1f} | {facts['data']['stitched']:.1f} |" in page
