"""The experiments run for real at a tiny size, and their pages say what the numbers say."""

import json
from dataclasses import replace

import pytest

from test_stitching import SMALL
from trajstitch import stitching
from trajstitch.experiments import demo, gain


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


def test_gain_is_measured_once_a_set_and_losses_are_named(tmp_path):
    results = tmp_path / "gain.json"
    config = gain.Measure(("hopper/medium-replay",), 600, preset="quick", steps=20, seeds=2, episodes=1, to=results)
    gain.measure(config)
    first = results.read_text()
    gain.measure(config)
    assert results.read_text() == first
    rows = json.loads(first)
    rows.append(
        {**rows[0], "set": "hopper/medium", "scores": {**rows[0]["scores"], "bc": [50.0, 60.0], "stitched": [1.0, 2.0]}}
    )
    results.write_text(json.dumps(rows))
    gain.report(gain.Report(results))
    page = results.with_suffix(".md").read_text()
    assert "Worse by more than chance: TS + BC than BC on hopper/medium" in page
    assert "55.0 ± 7.1" in page
    assert results.with_suffix(".svg").exists()
    gain.measure(replace(config, seed=1))
    assert len(json.loads(results.read_text())) == 3
