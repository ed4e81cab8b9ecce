"""The results table: measured in pieces that add up, and reported as it was measured, losses and gaps included."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from point import collect
from test_stitching import GREEDY, SMALL
from trajstitch.data.environments import REFERENCE
from trajstitch.errors import InputError
from trajstitch.experiments import table
from trajstitch.experiments.table import Measure, Measurement
from trajstitch.experiments.table_report import BEGIN, END, Report, report
from trajstitch.experiments.table_results import Cell, Results, merged, read, scores
from trajstitch.experiments.table_scores import Table
from trajstitch.experiments.table_work import Clock, OutOfTimeError, Work
from trajstitch.formats.npz import load
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.policy import Policy, load_policies
from trajstitch.policies.train import train
from trajstitch.stitching import config as stitching
from trajstitch.stitching import pipeline as stitch_run

HOPPER = "hopper/medium-replay"
CALL = {"commit": "abc", "command": "measure", "machine": "one core", "versions": {"python": "3.13"}}


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stitching.PRESETS, "default", SMALL)
    monkeypatch.setitem(stitching.PRESETS, "paper", GREEDY)


def tiny(folder: Path, *methods: str, **more) -> Measure:
    asked = Measure((HOPPER,), methods, 600, steps=40, seeds=2, episodes=1, to=folder / "a.json", work=folder / "work")
    return replace(asked, **more)


def add(results: Results, name: str, method: str, found: list[float], run: int = 0, call=CALL, **config) -> None:
    """A cell whose seeds have these scores in two episodes."""
    low, high = REFERENCE[name.split("/")[0]]
    row = {
        "set": name,
        "method": method,
        "run": run,
        "config": Measure(run=run).cell_config(Cell(name, method)) | {"seeds": len(found), "episodes": 2} | config,
        "returns": [[low + (high - low) * (score + way) / 100 for way in (-1, 1)] for score in found],
        "seconds": {"train": 10.0, "evaluate": 2.0},
        "together": 3,
        "commits": ["abc"],
    }
    results.add("policies", row, call)


def add_stitching(results: Results, name: str, before: float, after: float, error: float, run: int = 0) -> None:
    truth = {"steps": 9, "median_ratio": error, "median_reward_error": 0.5} if after != before else {"steps": 0}
    row = {
        "set": name,
        "preset": "default",
        "run": run,
        "config": {},
        "before": before,
        "after": after,
        "trajectories": 10,
        "changed": 4,
        "jumps": 0.01,
        "states_kept": 0.9,
        "left_alone": None if after != before else "the data is of one quality",
        "return_predictability": 0.8 if after != before else 0.1,
        "truth": truth,
        "passes": [{"proposed": 8, "accepted": 3}, {"proposed": 2, "accepted": 1}] if after != before else [],
        "commits": ["abc", "older"],
        "seconds": {"collect": 1.0, "models": 2.0, "graph": 3.0, "passes": 4.0, "truth": 5.0},
    }
    results.add("stitchings", row, CALL)


def test_every_column_is_measured_once(tmp_path):
    config = tiny(tmp_path, "bc", "top-bc", "ts-bc")
    table.measure(config)
    first = config.to.read_text()
    rows = read(config.to)
    assert {row["method"]: row["together"] for row in rows["policies"]} == {"bc": 4, "top-bc": 4, "ts-bc": 2}
    assert all(np.shape(row["returns"]) == (2, 1) for row in rows["policies"])
    (stitched,) = rows["stitchings"]
    assert stitched["preset"] == "default"
    assert stitched["after"] >= stitched["before"]
    assert {"collect", "models", "truth"} <= {*stitched["seconds"]}
    assert [call["commit"] != "" for call in rows["calls"]] == [True]
    assert str(tmp_path) not in first

    table.measure(config)
    assert config.to.read_text() == first
    with pytest.raises(InputError, match="with another configuration"):
        table.measure(replace(config, episodes=2))

    data = load(str(config.work / "data" / "hopper-medium-replay-600-seed-0.npz"))
    for method, part in (("bc", data), ("top-bc", data.best(0.1))):
        (path,) = (config.work / "policies").glob(f"hopper-medium-replay-{method}-*")
        assert same(train(part, config.algorithm(method), seeds=2), load_policies(path))


def test_prepared_sets_are_stitched_together_to_what_each_becomes_alone(tmp_path, monkeypatch):
    sets, methods = ("hopper/medium-replay", "hopper/expert"), ("paper-ts-bc", "paper-ts-top-bc")
    config = tiny(tmp_path, *methods, sets=sets)
    for name in sets:
        table.measure(replace(config, sets=(name,), prepare=True))
    assert not config.to.exists()
    made = {path.name for path in (config.work / "stitched").rglob("*.safetensors")}
    assert made == {"models.safetensors", "graph.safetensors"}

    def again(*_: object) -> None:
        raise AssertionError("this was prepared")

    with monkeypatch.context() as patch:
        patch.setattr(stitch_run, "fit_models", again)
        patch.setattr(stitch_run, "build", again)
        table.measure(config)
    together = read(config.to)
    assert {row["together"] for row in together["policies"]} == {8}
    alone = replace(config, to=tmp_path / "b.json", work=tmp_path / "other")
    for name in sets:
        table.measure(replace(alone, sets=(name,)))
    assert returns_of(together) == returns_of(read(alone.to))
    assert {row["set"]: row["after"] for row in together["stitchings"]} == {
        row["set"]: row["after"] for row in read(alone.to)["stitchings"]
    }


def returns_of(rows) -> dict[Cell, list[list[float]]]:
    return {Cell(row["set"], row["method"]): row["returns"] for row in rows["policies"]}


@pytest.mark.parametrize(("preset", "made", "ts"), [("default", SMALL, "ts"), ("paper", GREEDY, "paper-ts")])
def test_data_that_was_left_alone_is_not_cloned_again(tmp_path, monkeypatch, preset, made, ts):
    monkeypatch.setitem(stitching.PRESETS, preset, replace(made, quality=0.5))
    monkeypatch.setattr(stitch_run, "return_predictability", lambda data: 0.1)
    config = tiny(tmp_path, f"{ts}-bc", f"{ts}-top-bc", "bc", "top-bc")
    table.measure(config)
    rows = read(config.to)
    returns = {row["method"]: row["returns"] for row in rows["policies"]}
    assert returns[f"{ts}-bc"] == returns["bc"]
    assert returns[f"{ts}-top-bc"] == returns["top-bc"]
    assert len([*(config.work / "policies").glob("*.safetensors")]) == 2
    (stitched,) = rows["stitchings"]
    assert "one quality" in stitched["left_alone"]
    assert stitched["truth"] == {"steps": 0}


def test_nothing_begins_when_time_is_over_and_all_is_told_as_missing(tmp_path, capsys):
    config = tiny(tmp_path, "bc", "iql", seconds=0)
    table.measure(config)
    assert not config.to.exists()
    assert "0 of 2 cells are measured" in capsys.readouterr().err


def test_one_failure_costs_its_own_cells_alone(tmp_path, monkeypatch):
    trained = Work.trained
    monkeypatch.setattr(Work, "trained", lambda work, algorithm, *rest: trained(work, sound(algorithm), *rest))
    config = tiny(tmp_path, "weighted-bc", "bc")
    with pytest.raises(SystemExit, match="weighted BC"):
        table.measure(config)
    assert [row["method"] for row in read(config.to)["policies"]] == ["bc"]


def sound(algorithm):
    assert not isinstance(algorithm, WeightedBC)
    return algorithm


def test_a_training_that_the_clock_stops_goes_on_to_the_same_policies(tmp_path):
    class Brief(Clock):
        looks = 0

        @property
        def left(self) -> float:
            self.looks += 1
            return 100.0 if self.looks < 3 else 0.0

    algorithm = BC(steps=2500, hidden=(8,), batch_size=16)
    data = {"one": collect(5, 20), "two": collect(8, 20, seed=1)}
    with pytest.raises(OutOfTimeError, match="stopped at step 2,000 of 2,500"):
        Work(tmp_path, Brief(None), "older").trained(algorithm, data, range(2), 0, "BC")
    assert len(list((tmp_path / "training").glob("*.safetensors"))) == 1
    found = Work(tmp_path, Clock(None), "newer").trained(algorithm, data, range(2), 0, "BC")
    assert found["one"][0].config["commits"] == ["newer", "older"]
    assert not list((tmp_path / "training").glob("*.safetensors"))
    for name, some in data.items():
        assert same(train(some, algorithm, seeds=2), found[name])


def same(ones: list[Policy], others: list[Policy]) -> bool:
    return [one.seed for one in ones] == [other.seed for other in others] and all(
        np.array_equal(a, b)
        for one, other in zip(ones, others, strict=True)
        for a, b in zip(one.tensors().values(), other.tensors().values(), strict=True)
    )


def test_long_methods_share_a_training_by_the_sizes_of_their_sets(tmp_path):
    config = tiny(tmp_path, "bc", "top-bc", "td3-bc", sets=("hopper/medium", "walker2d/medium", "halfcheetah/medium"))
    jobs = Measurement(config).jobs()
    assert [[cell.method for cell in job] for job in jobs] == [["bc", "top-bc"]] * 3 + [["td3-bc"], ["td3-bc"] * 2]
    assert [cell.set for cell in jobs[-1]] == ["walker2d/medium", "halfcheetah/medium"]


def test_report_names_losses_ties_and_gaps(tmp_path):
    first, second = Results(tmp_path / "a.json"), Results(tmp_path / "b.json")
    add(first, "hopper/medium", "bc", [50, 52, 54])
    add(first, "hopper/medium", "top-bc", [40, 52, 60])
    add(second, "hopper/medium", "ts-bc", [10, 12, 14])
    add(second, "hopper/medium", "ts-top-bc", [41, 51, 61])
    add(second, "walker2d/expert", "bc", [90, 91, 92])
    add(second, "walker2d/expert", "ts-bc", [100, 101, 102])
    add_stitching(first, "hopper/medium", 30, 20, 0.4)
    add_stitching(second, "walker2d/expert", 90, 90, 0)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    to = tmp_path / "docs" / "table.json"
    report(Report((first.path, second.path), to, readme))
    page, summary = to.with_suffix(".md").read_text(), readme.read_text()

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
    assert to.with_suffix(".svg").read_text().startswith("<?xml")
    assert summary.startswith(f"before\n{BEGIN}\nThe built-in sets at full size")
    assert summary.endswith(f"{END}\nafter\n")
    assert "worse by more than chance on hopper/medium" in summary
    assert "old" not in summary.replace("gold", "")

    report(Report((), to, readme))
    assert to.with_suffix(".md").read_text() == page
    assert readme.read_text() == summary


def test_of_two_files_with_one_cell_the_later_one_counts(tmp_path, capsys):
    first, second = Results(tmp_path / "a.json"), Results(tmp_path / "b.json")
    add(first, "hopper/medium", "bc", [50, 60])
    add(second, "hopper/medium", "bc", [10, 20])
    (row,) = merged((first.path, second.path))["policies"]
    np.testing.assert_allclose(scores(row), [10, 20], atol=0.1)
    assert "hopper/medium bc 0: taken from" in capsys.readouterr().err


def test_runs_of_one_policy_have_each_a_stitching_of_its_own_and_make_up_a_cell(tmp_path):
    config = tiny(tmp_path, "ts-bc", seeds=1)
    for run in (0, 1):
        table.measure(replace(config, run=run, to=tmp_path / f"{run}.json"))
    data = load(str(config.work / "data" / "hopper-medium-replay-600-seed-0.npz"))
    algorithm = config.algorithm("ts-bc")
    expected = [train(stitching.stitch(data, SMALL, seed), algorithm, seeds=1, seed=seed)[0] for seed in (0, 1)]
    found = [load_policies(path)[0] for path in (config.work / "policies").glob("*-ts-bc-*")]
    assert same(expected, sorted(found, key=lambda policy: policy.seed))
    assert not same(expected[:1], expected[1:])

    rows = merged((tmp_path / "0.json", tmp_path / "1.json"))
    assert [(row["run"], np.shape(row["returns"])) for row in rows["policies"]] == [(0, (1, 1)), (1, (1, 1))]
    assert [row["run"] for row in rows["stitchings"]] == [0, 1]
    assert Table(**rows).scores[HOPPER, "ts-bc"].shape == (2,)


def test_the_page_tells_whose_spread_it_is_and_takes_the_mean_of_several_stitchings(tmp_path):
    results, to, readme = Results(tmp_path / "a.json"), tmp_path / "table.json", tmp_path / "README.md"
    add(results, "hopper/medium", "bc", [50, 54])
    add(results, "hopper/medium", "ts-bc", [60], run=0)
    add(results, "hopper/medium", "ts-bc", [70], run=1)
    add_stitching(results, "hopper/medium", 30, 40, 0.1)
    add_stitching(results, "hopper/medium", 30, 50, 0.3, run=1)
    report(Report((results.path,), to, readme))
    page = to.with_suffix(".md").read_text()
    assert "| hopper/medium | 52.0 ± 2.8 | – | **65.0 ± 7.1** |" in page
    assert "| hopper/medium | 0.80 | 30.0 | 45.0 ± 7.1 | 4 of 10 | 4 of 10 | 1.00% | 90% | 0.200 |" in page
    assert "Each policy has a stitching of its own with `default` on hopper/medium; others share one." in page
    assert "The data of 1 sets" in page

    add(results, "walker2d/expert", "bc", [50, 54])
    add(results, "walker2d/expert", "ts-bc", [60, 70])
    add_stitching(results, "walker2d/expert", 30, 40, 0.1)
    del results.rows["policies"][1:3], results.rows["stitchings"][1]
    add(results, "hopper/medium", "ts-bc", [60, 70])
    report(Report((results.path,), to, readme))
    assert "A set is stitched once for all policies of a cell" in to.with_suffix(".md").read_text()


def test_what_is_measured_again_stays_on_the_page(tmp_path):
    first, second, third = (Results(tmp_path / f"{name}.json") for name in "abc")
    to, readme = tmp_path / "table.json", tmp_path / "README.md"
    for method in ("bc", "top-bc", "ts-top-bc"):
        add(first, "hopper/medium", method, [50, 52])
    add(first, "hopper/medium", "ts-bc", [60, 62])
    add(second, "hopper/medium", "ts-bc", [70, 72], call=CALL | {"commit": "def"})
    add(third, "hopper/medium", "top-bc", [0, 2], steps=5)  # by other settings, so this is no repetition
    report(Report((first.path, second.path, third.path), to, readme))
    page = to.with_suffix(".md").read_text()
    assert "| set | TS + BC, before | TS + BC |" in page
    assert "| hopper/medium | 61.0 ± 1.4 | 71.0 ± 1.4 |" in page
    assert "| IQM [95 %] | 61.0 [60.0, 62.0] | 71.0 [70.0, 72.0] |" in page
    report(Report((), to, readme))
    assert to.with_suffix(".md").read_text() == page

    for run, score in enumerate((80, 90)):  # the third time, with a stitching for each
        add(Results(tmp_path / f"{run}.json"), "hopper/medium", "ts-bc", [score], run=run)
    report(Report((to, tmp_path / "0.json", tmp_path / "1.json"), to, readme))
    assert "| hopper/medium | 66.0 ± 5.9 | 85.0 ± 7.1 |" in to.with_suffix(".md").read_text()


def test_cells_that_can_not_be_compared_make_no_table(tmp_path):
    results = Results(tmp_path / "a.json")
    add(results, "hopper/medium", "bc", [50, 60])
    add(results, "hopper/expert", "bc", [50, 60], episodes=3)
    with pytest.raises(InputError, match="different episodes \\(2, 3\\)"):
        report(Report((results.path,), tmp_path / "table.json", tmp_path / "README.md"))
    add(few := Results(tmp_path / "b.json"), "hopper/medium", "bc", [50, 60])
    add(few, "hopper/medium", "ts-bc", [50], run=3)
    with pytest.raises(InputError, match="different seeds \\(1, 2\\)"):
        report(Report((few.path,), tmp_path / "table.json", tmp_path / "README.md"))
    with pytest.raises(InputError, match="not a file of the table's measurements"):
        merged([Path(__file__)])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ("cql",)}, "unknown method 'cql'"),
        ({"sets": ("hoper/medium",)}, "did you mean"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_what_can_not_be_measured_is_refused_at_once(tmp_path, wrong, said):
    with pytest.raises(InputError, match=said):
        table.measure(tiny(tmp_path, "bc", **wrong))
