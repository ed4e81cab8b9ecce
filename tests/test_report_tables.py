"""An experiment is reported as it was measured, losses and gaps included."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajstitch.data.environments import REFERENCE
from trajstitch.errors import InputError
from trajstitch.experiments.cells import Result, read_results, save_results
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.methods import Asked, cells_of
from trajstitch.experiments.reproduce import EXPERIMENTS, markers, write

ROOT = Path(__file__).parents[1]
TABLE1 = EXPERIMENTS["table1"]
CALL = {"commit": "abc", "command": "measure", "machine": "one core", "versions": {"trajstitch": "0.1.0"}}


def results(name: str, method: str, found: list[list[float]], stitched: Any = None, **more) -> list[Result]:
    """Results of policies that have these scores in two episodes, and 5 more at an earlier checkpoint: a row for each
    stitching."""
    low, high = REFERENCE[name.split("/")[0]]
    asked = Asked(
        sets=(name,), methods=(method,), stitchings=len(found), seeds=len(found[0]), episodes=2, checkpoints=2
    )
    asked = replace(asked, **more)
    made = cells_of(asked, TABLE1.methods, ())[name, method]

    def returns(score: float) -> list[float]:
        return [low + (high - low) * (score + way) / 100 for way in (-1, 1)]

    return [
        {
            "config": cell.config,
            "set": name,
            "method": method,
            "returns": returns(score),
            "checkpoints": [{"steps": 1, "returns": returns(score + 5)}, {"steps": 2, "returns": returns(score)}],
            "stitched": stitched,
            "reference": [low, high],
            "transitions": 2_000_000,
            "seconds": {"load": 1.0, "train": 10.0, "evaluate": 2.0},
            "together": 3,
            "commits": ["abc", *(stitched["commits"] if stitched else ())],
            "measured": "2026-11-18",
            "call": CALL,
        }
        for cell, score in zip(made, [score for row in found for score in row], strict=True)
    ]


def stitching(before: float, after: float, error: float = 0.0) -> dict[str, Any]:
    """What stitching did to a data set: nothing, if its score is the same."""
    changed = after != before
    return {
        "reason": None if changed else "there is one trajectory",
        "before": before,
        "after": after,
        "trajectories": 10,
        "changed": 4,
        "jumps": 0.01,
        "states_kept": 0.9,
        "proposed": 10 if changed else 0,
        "accepted": 4 if changed else 0,
        "simulator_check": {"steps": 9, "median_ratio": error, "median_reward_error": 0.5} if changed else {"steps": 0},
        "seconds": {"models": 2.0, "graph": 3.0, "passes": 4.0, "simulator_check": 5.0},
        "peak_bytes": None,
        "commits": ["older"],
    }


def reported(folder: Path, *some: list[Result], readme: Path | None = None) -> str:
    save_results([one for part in some for one in part], folder / "table1.json")
    return write(TABLE1, folder, readme).read_text()


def test_report_names_losses_ties_and_gaps(tmp_path):
    readme = tmp_path / "README.md"
    begin, end = markers(TABLE1)
    readme.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    page = reported(
        tmp_path,
        results("hopper/medium", "bc", [[50, 52, 52, 54]]),
        results("hopper/medium", "top-bc", [[40, 52, 52, 60]]),
        results("hopper/medium", "ts-bc", [[10], [12], [12], [14]], stitching(30, 20, 0.4)),
        results("hopper/medium", "ts-top-bc", [[41], [51], [51], [61]], stitching(30, 20, 0.4)),
        results("walker2d/expert", "bc", [[90, 91, 91, 92]]),
        results("walker2d/expert", "ts-bc", [[100], [101], [101], [102]], stitching(90, 90)),
        readme=readme,
    )
    summary = readme.read_text()
    assert "| set | BC | 10 % BC | TS + BC | TS + best tenth |" in page
    assert "| hopper/medium | **52.0 ± 1.6** | **51.0 ± 8.2** | 12.0 ± 1.6 | **51.0 ± 8.2** |" in page
    assert "| hopper/medium | **57.0 ± 1.6** | **56.0 ± 8.2** | 17.0 ± 1.6 | **56.0 ± 8.2** |" in page  # the best
    assert "| walker2d/expert | 91.0 ± 0.8 | – | **101.0 ± 0.8** | – |" in page
    assert "TS + BC against BC: worse by more than chance on hopper/medium; better on walker2d/expert; neither" in page
    assert "in the mean of the sets 56.5 against 71.5" in page
    assert "| walker2d/expert | 1.00 [1.00, 1.00] | – |" in page
    assert "of its length or more on hopper/medium (0.40)" in page
    assert "nothing was stitched on walker2d/expert" in page
    assert "| hopper/medium | 30.0 | 20.0 ± 0.0 | 4 of 10 | 4 of 10 | 1.00% | 90% | 0.400 | 0.500 |" in page
    assert "- BC, TS + BC: hopper/medium-replay" in page
    assert "At full size" in page
    assert "4 stitchings × 1 policy" in page
    assert "Version 0.1.0, commit abc, older, 2026-11-18" in page
    assert "55.3 | 52.0 ± 1.6 |" in page  # the paper's beside ours
    assert summary.startswith(f"before\n{begin}\nAt full size")
    assert summary.endswith(f"{end}\nafter\n")
    assert "Version 0.1.0, commit abc" in summary
    assert "worse by more than chance on hopper/medium" in summary
    assert write(TABLE1, tmp_path, readme).read_text() == page
    assert readme.read_text() == summary


def test_intervals_are_of_stitchings_and_policies():
    some = results("hopper/medium", "ts-bc", [[0, 0], [50, 50], [100, 100]], stitching(30, 40))
    table = Table(some, tuple(TABLE1.methods))
    assert table.last.scores["hopper/medium", "ts-bc"].shape == (3, 2)
    np.testing.assert_allclose(table.last.scores["hopper/medium", "ts-bc"][:, 0], [0, 50, 100], atol=0.1)
    total = table.last.total("ts-bc", ["hopper/medium"])
    assert total is not None
    assert total.low is not None
    assert total.low < 1


def test_cells_that_can_not_be_compared_make_no_table(tmp_path):
    with pytest.raises(InputError, match="different episodes \\(2, 3\\)"):
        reported(
            tmp_path,
            results("hopper/medium", "bc", [[50, 60]]),
            results("hopper/expert", "bc", [[50, 60]], episodes=3),
        )
    with pytest.raises(InputError, match="different numbers of policies"):
        reported(tmp_path, results("hopper/medium", "ts-bc", [[1, 2], [3, 4]], stitching(3, 4))[:3])
    with pytest.raises(InputError, match="nothing is measured yet"):
        reported(tmp_path)


def committed() -> list[Path]:
    found = (ROOT / "docs" / "results").rglob("*.json")
    return sorted(path.relative_to(ROOT) for path in found if path.stem in EXPERIMENTS)


@pytest.mark.parametrize("path", committed(), ids=str)
def test_the_committed_page_is_what_the_committed_results_make(path, tmp_path):
    results, name = ROOT / path, path.stem
    (tmp_path / results.name).write_text(results.read_text())
    page = write(EXPERIMENTS[name], tmp_path)
    for ending in (".md", ".csv", ".tex"):
        assert page.with_suffix(ending).read_text() == results.with_suffix(ending).read_text()
    assert read_results(page.with_suffix(".json")) == read_results(results)


def test_the_readme_holds_what_is_measured_at_full_size(tmp_path):
    readme, results = tmp_path / "README.md", "docs/results/full-size/table1.json"
    readme.write_text((ROOT / "README.md").read_text().replace("| IQM of", "| mean of"))
    (tmp_path / "table1.json").write_text((ROOT / results).read_text())
    write(EXPERIMENTS["table1"], tmp_path, readme)
    assert readme.read_text() == (ROOT / "README.md").read_text()
