"""The first table is reported as it was measured, losses and gaps included."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trajstitch.experiments.table1_page import TWELVE, method_of

from trajstitch.data.environments import REFERENCE
from trajstitch.errors import InputError
from trajstitch.experiments.cells import Result, read_results, save_results
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.table1 import BEGIN, END, Measure, Report, cells, report

ROOT = Path(__file__).parents[1]
CALL = {"commit": "abc", "command": "measure", "machine": "one core", "versions": {"python": "3.13"}}


def results(
    name: str, method: str, found: list[float], stitched: Any = None, commit: str = "abc", first: int = 0, **asked
) -> list[Result]:
    """Results of policies that have these scores in two episodes."""
    low, high = REFERENCE[name.split("/")[0]]
    count = first + len(found)
    made = cells(replace(Measure(sets=(name,), methods=(method,), seeds=count, episodes=2), **asked))[first:]
    return [
        {
            "config": cell.config,
            "returns": [low + (high - low) * (score + way) / 100 for way in (-1, 1)],
            "stitched": stitched,
            "reference": [low, high],
            "transitions": 1_000_000,
            "seconds": {"load": 1.0, "train": 10.0, "evaluate": 2.0},
            "together": 3,
            "commits": [commit, *(stitched["commits"] if stitched else ())],
            "measured": "2026-11-18",
            "call": CALL | {"commit": commit},
        }
        for cell, score in zip(made, found, strict=True)
    ]


def stitching(before: float, after: float, error: float = 0.0) -> dict[str, Any]:
    """What stitching did to a data set: nothing, if its score is the same."""
    changed = after != before
    return {
        "reason": None if changed else "the data is of one quality",
        "return_predictability": 0.8 if changed else 0.1,
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


def folder_of(path: Path, *some: list[Result]) -> Path:
    """A file of results, which `report` reads like a folder."""
    save_results([one for part in some for one in part], path)
    return path


def reported(folder: Path, *sources: Path) -> str:
    report(Report(sources, folder / "table.json", folder / "README.md"))
    return (folder / "table.md").read_text()


def test_report_names_losses_ties_and_gaps(tmp_path):
    first = folder_of(
        tmp_path / "a.json",
        results("hopper/medium", "bc", [50, 52, 54]),
        results("hopper/medium", "top-bc", [40, 52, 60]),
    )
    second = folder_of(
        tmp_path / "b.json",
        results("hopper/medium", "ts-bc", [10, 12, 14], stitching(30, 20, 0.4)),
        results("hopper/medium", "ts-top-bc", [41, 51, 61], stitching(30, 20, 0.4)),
        results("walker2d/expert", "bc", [90, 91, 92]),
        results("walker2d/expert", "ts-bc", [100, 101, 102], stitching(90, 90)),
    )
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    page = reported(tmp_path, first, second)
    summary = readme.read_text()

    assert (
        "| hopper/medium | **52.0 ± 2.0** | **50.7 ± 10.1** | 12.0 ± 2.0 | **51.0 ± 10.0** | – | – | – | – | – |"
        in page
    )
    assert "| walker2d/expert | 91.0 ± 1.0 | – | **101.0 ± 1.0** | – |" in page
    assert f"| hopper/expert | {' | '.join(['–'] * 9)} |" in page
    assert "TS + BC against BC: worse by more than chance on hopper/medium; better on walker2d/expert; neither" in page
    assert "TS + 10 % BC against 10 % BC: worse by more than chance nowhere; better nowhere; neither on 1 sets" in page
    assert "| walker2d/expert | 1.00 [1.00, 1.00] | – |" in page
    assert "| all measured | 0.50 [0.50, 0.50] |" in page
    assert "its mean return fell on hopper/medium (30.0 to 20.0)" in page
    assert "of its length or more on hopper/medium (0.40)" in page
    assert "nothing was stitched on walker2d/expert" in page
    assert "| hopper/medium | 0.80 | 30.0 | 20.0 | 4 of 10 | 4 of 10 | 1.00% |" in page
    assert "| walker2d/expert | 0.10 | 90.0 | 90.0 | none made |" in page
    assert "- weighted BC, TD3+BC, IQL: all sets" in page.replace("paper's TS + BC, paper's TS + 10 % BC, ", "")
    assert "Commits: abc, older (" in page
    assert (tmp_path / "table.svg").read_text().startswith("<?xml")
    assert summary.startswith(f"before\n{BEGIN}\nThe built-in sets at full size")
    assert summary.endswith(f"{END}\nafter\n")
    assert "worse by more than chance on hopper/medium" in summary
    assert "old" not in summary.replace("gold", "")

    assert reported(tmp_path) == page
    assert readme.read_text() == summary


def test_of_two_results_of_one_cell_the_later_one_counts():
    both = [*results("hopper/medium", "bc", [50, 60]), *results("hopper/medium", "bc", [10, 20])]
    table = Table(both, method_of, TWELVE)
    np.testing.assert_allclose(table.scores.scores["hopper/medium", "bc"], [10, 20], atol=0.1)
    assert table.replaced == both[:2]


def test_policies_may_have_each_a_stitching_of_its_own():
    asked = Measure(sets=("hopper/medium",), methods=("bc", "ts-bc", "paper-ts-bc"), seeds=3)
    seeds = [(cell.seed, cell.stitching and cell.stitching.seed) for cell in cells(replace(asked, stitchings=3))]
    assert seeds == [(0, None), (1, None), (2, None), *[(0, 0), (1, 1), (2, 2)] * 2]
    assert {cell.stitching.seed for cell in cells(asked) if cell.stitching} == {0}


def test_the_page_tells_whose_spread_it_is_and_takes_the_mean_of_several_stitchings(tmp_path):
    logged = results("hopper/medium", "bc", [50, 54])
    own = [
        *results("hopper/medium", "ts-bc", [60], stitching(30, 40, 0.1), stitchings=2),
        *results("hopper/medium", "ts-bc", [70], stitching(30, 50, 0.3), first=1, stitchings=2),
    ]
    page = reported(tmp_path, folder_of(tmp_path / "a.json", logged, own))
    assert "| hopper/medium | 52.0 ± 2.8 | – | **65.0 ± 7.1** |" in page
    assert "| hopper/medium | 0.80 | 30.0 | 45.0 ± 7.1 | 4 of 10 | 4 of 10 | 1.00% | 90% | 0.200 |" in page
    assert "Each policy has a stitching of its own with `default` on hopper/medium; others share one." in page
    assert "The data of 1 sets" in page

    (tmp_path / "table.json").unlink()
    shared = [
        *results("walker2d/expert", "bc", [50, 54]),
        *results("walker2d/expert", "ts-bc", [60, 70], stitching(30, 40, 0.1)),
        *results("hopper/medium", "ts-bc", [60, 70], stitching(30, 40, 0.1)),
    ]
    page = reported(tmp_path, folder_of(tmp_path / "b.json", logged, shared))
    assert "A set is stitched once for all policies of a cell" in page


def test_what_is_measured_again_stays_on_the_page(tmp_path):
    first = folder_of(
        tmp_path / "a.json",
        *(results("hopper/medium", method, [50, 52]) for method in ("bc", "top-bc", "ts-top-bc")),
        results("hopper/medium", "ts-bc", [60, 62]),
    )
    second = folder_of(tmp_path / "b.json", results("hopper/medium", "ts-bc", [70, 72], commit="def"))
    # By other settings, so this is no repetition.
    third = folder_of(tmp_path / "c.json", results("hopper/medium", "top-bc", [0, 2], steps=5))
    page = reported(tmp_path, first, second, third)
    assert "| set | TS + BC, before | TS + BC |" in page
    assert "| hopper/medium | 61.0 ± 1.4 | 71.0 ± 1.4 |" in page
    assert "| IQM [95 %] | 61.0 [60.0, 62.0] | 71.0 [70.0, 72.0] |" in page
    assert reported(tmp_path) == page

    # The third time, with a stitching for each.
    fourth = folder_of(tmp_path / "d.json", results("hopper/medium", "ts-bc", [80, 90], stitchings=2))
    assert "| hopper/medium | 66.0 ± 5.9 | 85.0 ± 7.1 |" in reported(tmp_path, fourth)


def test_cells_that_can_not_be_compared_make_no_table(tmp_path):
    mixed = [*results("hopper/medium", "bc", [50, 60]), *results("hopper/expert", "bc", [50, 60], episodes=3)]
    with pytest.raises(InputError, match="different episodes \\(2, 3\\)"):
        reported(tmp_path, folder_of(tmp_path / "a.json", mixed))
    few = [*results("hopper/medium", "bc", [50, 60]), *results("hopper/medium", "ts-bc", [50], first=3)]
    with pytest.raises(InputError, match="different seeds \\(1, 2\\)"):
        reported(tmp_path, folder_of(tmp_path / "b.json", few))
    assert not (tmp_path / "table.json").exists()
    with pytest.raises(InputError, match="not the results of an experiment"):
        reported(tmp_path, Path(__file__))
    with pytest.raises(InputError, match="nothing is measured yet"):
        reported(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ("cql",)}, "unknown method 'cql'"),
        ({"sets": ("hoper/medium",)}, "did you mean"),
        ({"seeds": 0}, "`seeds` must be at least 1, not 0"),
        ({"preset": "papper"}, "unknown preset 'papper'"),
    ],
)
def test_what_can_not_be_measured_is_refused_at_once(wrong, said):
    with pytest.raises(InputError, match=said):
        cells(Measure(**wrong))


def test_the_committed_page_is_what_report_makes_of_the_committed_results(tmp_path):
    committed = ROOT / "docs" / "results" / "first-table.json"
    (tmp_path / "first-table.json").write_text(committed.read_text())
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    report(Report((), tmp_path / "first-table.json", tmp_path / "README.md"))
    assert (tmp_path / "first-table.md").read_text() == committed.with_suffix(".md").read_text()
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
    assert read_results(tmp_path / "first-table.json") == read_results(committed)
