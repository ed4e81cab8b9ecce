"""Experiments: a grid of cells is measured piece by piece, to the same bits as in one go; the demo runs."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trajstitch
from test_stitching import GREEDY, SMALL
from trajstitch import Metadata, formats, stitch, train
from trajstitch.benchmark import sets
from trajstitch.errors import InputError
from trajstitch.experiments import demo, grid
from trajstitch.experiments.cells import (
    Cell,
    Data,
    Learner,
    Result,
    Stitching,
    digest,
    is_stale,
    read_results,
    save_results,
    score,
)
from trajstitch.learning.fit import State
from trajstitch.policies.bc import BC
from trajstitch.policies.policy import Policy, load_policies
from trajstitch.policies.train import train_together
from trajstitch.stitching.jump_tests import Consistency, Likelihood
from trajstitch.storage.markdown import markdown_table

REPLAY, EXPERT = Data("hopper/medium-replay", 1_500), Data("hopper/expert", 600)  # the latter is one episode
BRIEF = BC(steps=40, hidden=(8,), batch_size=16)
LIKELIHOOD, CONSISTENCY = SMALL.tests.values()
assert isinstance(LIKELIHOOD, Likelihood)
assert isinstance(CONSISTENCY, Consistency)
LOOSE = {"likelihood": replace(LIKELIHOOD, margin=None), "consistency": replace(CONSISTENCY, limit=None)}
PLANNED = Stitching("planned", replace(SMALL, tests=LOOSE))  # limits that let every jump through
GREEDILY = Stitching("greedy", replace(GREEDY, tests=LOOSE), seed=1)


# A whole experiment is as small as this


def cells(seeds: int = 2) -> list[Cell]:
    """Behavioural cloning, of all data and of its best half."""
    learners = [Learner(BC(steps=2500, hidden=(8,), batch_size=16), top) for top in (1.0, 0.5)]
    return [Cell(REPLAY, learner, seed=seed, episodes=1) for learner in learners for seed in range(seeds)]


def page(results: list[Result]) -> str:
    rows = [[f"{one['config']['learner']['top']:.0%}", f"{score(one):.1f}"] for one in results]
    return markdown_table(["share of the data", "score"], rows) + "\n"


def test_an_experiment_that_the_time_limit_stops_resumes_to_the_same_policies(measured, tmp_path, monkeypatch, caplog):
    (tmp_path / "data").symlink_to(measured[0] / "data")
    clock = SimpleNamespace(time=lambda: clock.now, monotonic=time.monotonic, now=0.0)
    monkeypatch.setattr(grid, "time", clock)

    def slow(*rest, each, **more):
        def then(state: State, metrics: dict[str, float]) -> None:
            clock.now += 50.0
            each(state, metrics)

        return train_together(*rest, each=then, **more)

    monkeypatch.setattr(grid, "train_together", slow)
    monkeypatch.setenv("TRAJSTITCH_COMMIT", "older")
    with caplog.at_level("INFO", "trajstitch"):
        assert grid.run(cells(), tmp_path, time_limit=100) == []
    assert "stopped at step 2,000 of 2,500" in caplog.text
    assert "0 of 4 cells are measured" in caplog.text
    assert read_results(tmp_path) == []
    (state,) = (tmp_path / "training").glob("*.safetensors")
    monkeypatch.setenv("TRAJSTITCH_COMMIT", "newer")
    assert grid.run(cells(), tmp_path) == []
    assert not state.exists()

    results = read_results(tmp_path)
    assert len(results) == 4
    assert {one["together"] for one in results} == {4}
    assert {tuple(one["commits"]) for one in results} == {("newer", "older")}
    assert page(results).count("| 50% |") == 2
    data = collected(tmp_path, REPLAY)
    for top in (1.0, 0.5):
        some = [cell for cell in cells() if cell.learner.top == top]
        expected = train(data.best(top) if top < 1 else data, some[0].learner.algorithm, seeds=2)
        assert same(expected, [trained(tmp_path, cell) for cell in some])

    monkeypatch.setattr(grid, "train_together", None)
    before = [path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")]
    assert grid.run(cells(), tmp_path) == []
    assert [path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")] == before


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, list[Cell]]:
    """Two data sets, logged and stitched by a plan and by greedy passes, cloned whole and from the best half."""
    folder = tmp_path_factory.mktemp("grid")
    asked = [
        Cell(data, Learner(BRIEF, top), how, seed, episodes=2)
        for how in (None, PLANNED, GREEDILY)
        for data in (REPLAY, EXPERT)
        for top in (1.0, 0.5)
        for seed in (0, 1)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "evaluate", weights)
        assert grid.run(asked, folder) == []
    return folder, asked


def weights(policies: list[Policy], metadata: Metadata, episodes: int) -> np.ndarray:
    """Numbers that tell policies apart, without the time that episodes take."""
    return np.array([[1000 * float(vars(policy)["layers"][0][0].sum())] * episodes for policy in policies])


def test_every_cell_has_one_small_file_that_says_how_it_was_made(measured):
    folder, asked = measured
    assert {path.stem for path in (folder / "cells").iterdir()} == {cell.key for cell in asked}
    for cell in asked:
        text = (folder / "cells" / f"{cell.key}.json").read_text()
        result = json.loads(text)
        assert result["config"] == cell.config
        assert len(result["returns"]) == 2
        assert {"commit", "command", "machine", "versions"} == {*result["call"]}
        assert str(folder) not in text
        if cell.stitching is not None:
            assert result["stitched"]["after"] >= result["stitched"]["before"]
            assert {"median_ratio", "steps"} & {*result["stitched"]["simulator_check"]}


def test_what_cells_share_is_made_once_and_equals_what_each_becomes_alone(measured):
    folder, _ = measured
    assert len([*(folder / "stitched").iterdir()]) == 4
    data = collected(folder, REPLAY)
    for how in (PLANNED, GREEDILY):
        assert how.config is not None
        stitched = stitch(data, how.config, how.seed)
        assert stitched.provenance is not None
        assert stitched.provenance.stitched.any()
        for top in (1.0, 0.5):
            some = [Cell(REPLAY, Learner(BRIEF, top), how, seed, episodes=2) for seed in (0, 1)]
            expected = train(stitched.best(top) if top < 1 else stitched, BRIEF, seeds=2)
            assert same(expected, [trained(folder, cell) for cell in some])
    assert not [*folder.rglob("graph.safetensors")]


def test_data_that_was_left_unchanged_is_not_cloned_again(measured):
    folder, asked = measured
    for cell in (one for one in asked if one.data == EXPERT and one.stitching):
        result, logged = (
            json.loads((folder / "cells" / f"{one.key}.json").read_text())
            for one in (cell, replace(cell, stitching=None))
        )
        assert result["stitched"]["reason"]
        assert result["stitched"]["simulator_check"] == {"steps": 0}
        assert result["returns"] == logged["returns"]
        assert not (folder / "policies" / f"{cell.policy_name}.safetensors").exists()


def test_results_in_one_file_are_the_results(measured, tmp_path):
    results = read_results(measured[0])
    save_results(results, tmp_path / "results.json")
    assert read_results(tmp_path / "results.json") == results
    with pytest.raises(InputError, match="not the results of an experiment"):
        read_results(Path(__file__))


def test_cells_that_another_process_measures_are_left_to_it(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "evaluate", weights)
    first, second = [Cell(REPLAY, Learner(BRIEF), seed=seed, episodes=1) for seed in (0, 1)]
    (tmp_path / "data").symlink_to(measured[0] / "data")
    with grid.FileLock(tmp_path / "locks" / f"cell-{first.key}.lock"):
        assert grid.run([first, second], tmp_path) == []
    (result,) = read_results(tmp_path)
    assert result["config"] == second.config


def test_a_failure_costs_no_cells_but_its_own(measured, tmp_path, monkeypatch):
    (tmp_path / "data").symlink_to(measured[0] / "data")
    sound, broken = (Cell(data, Learner(BRIEF), episodes=1) for data in (REPLAY, EXPERT))
    diverged, missing = replace(sound, seed=1), replace(sound, data=Data("npz:nowhere.npz"))
    only = collected(tmp_path, EXPERT).fingerprint

    def failing(sets, *rest, **more):
        assert all(data.fingerprint != only for data in sets), "this can't be learned from"
        return train_together(sets, *rest, **more)

    def finite(policies: list[Policy], *rest) -> np.ndarray:
        assert all(policy.seed != diverged.seed for policy in policies), "this can't be evaluated"
        return weights(policies, *rest)

    monkeypatch.setattr(grid, "train_together", failing)
    monkeypatch.setattr(grid, "evaluate", finite)
    failures = grid.run([sound, diverged, broken, missing], tmp_path)
    assert [failure.split(":")[0] for failure in failures] == ["BC on npz", str(diverged), str(broken)]
    (result,) = read_results(tmp_path)
    assert result["config"] == sound.config


def test_nothing_starts_after_the_time_limit_and_all_is_reported_missing(tmp_path, caplog):
    with caplog.at_level("INFO", "trajstitch"):
        assert grid.run(cells(), tmp_path, time_limit=0) == []
    assert "0 of 4 cells are measured" in caplog.text
    assert not [path for path in tmp_path.rglob("*.*") if path.suffix != ".lock"]


def test_another_engine_can_measure_the_groups(measured):
    folder, asked = measured
    seen = []
    more = [replace(cell, seed=7) for cell in asked]
    grid.run([*asked, *more], folder, engine=lambda measure, groups: seen.extend(groups) or [])
    assert [len(group) for group in seen] == [4, 4, 4]


def test_cells_of_one_learner_and_size_are_grouped():
    walker, cheetah = Data("walker2d/medium"), Data("halfcheetah/medium")
    sizes = {REPLAY: (11, 3), EXPERT: (11, 3), walker: (17, 6), cheetah: (17, 6)}
    asked = [Cell(data, Learner(BRIEF, top), how) for how in (None, PLANNED) for data in sizes for top in (1.0, 0.1)]
    found = grid.groups([*asked, Cell(REPLAY, Learner(BC()))], sizes)
    assert [len(group) for group in found] == [4, 4, 4, 4, 1]


def test_a_set_of_other_policies_is_other_data(monkeypatch):
    cell = Cell(REPLAY, Learner(BRIEF))
    result = {"config": cell.config}
    assert not is_stale(result)
    monkeypatch.setattr(sets, "made_with", lambda name: "others")
    assert is_stale(result)
    assert Cell(REPLAY, Learner(BRIEF)).key != digest(result["config"])
    assert REPLAY.name != cell.data.source


def test_sets_of_td3_and_own_data_are_named_as_ever():
    assert sets.made_with("hopper/medium") is not None
    assert {sets.made_with(name) for name in ("hopper/noisy-expert-5", sets.MAZE, "npz:log.npz")} == {None}


def test_data_that_has_changed_is_refused(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "evaluate", weights)
    data = collected(measured[0], REPLAY)
    formats.save(data, f"npz:{tmp_path / 'data.npz'}")
    cell = Cell(Data(f"npz:{tmp_path / 'data.npz'}"), Learner(BRIEF), episodes=1)
    assert grid.run([cell], tmp_path / "folder") == []
    formats.save(data[np.arange(2)], f"npz:{tmp_path / 'data.npz'}", force=True)
    (failure,) = grid.run([replace(cell, seed=1)], tmp_path / "folder")
    assert "has changed since" in failure


def collected(folder: Path, data: Data):
    return formats.load(f"npz:{folder / 'data' / f'{data.name}.npz'}")


def trained(folder: Path, cell: Cell) -> Policy:
    return load_policies(folder / "policies" / f"{cell.policy_name}.safetensors")[0]


def same(ones: list[Policy], others: list[Policy]) -> bool:
    return [one.seed for one in ones] == [other.seed for other in others] and all(
        np.array_equal(a, b)
        for one, other in zip(ones, others, strict=True)
        for layer, layer_too in zip(vars(one)["layers"], vars(other)["layers"], strict=True)
        for a, b in zip(layer, layer_too, strict=True)
    )


@pytest.fixture
def tiny_demo(monkeypatch):
    monkeypatch.setattr(demo, "preset", lambda _: replace(SMALL, gate=False))  # its models are poor
    collect, learn = trajstitch.collect, trajstitch.learn
    monkeypatch.setattr(trajstitch, "collect", lambda asked: collect(replace(asked, transitions=600)))
    tiny = {"steps": 20, "seeds": 2, "episodes": 1}
    monkeypatch.setattr(trajstitch, "learn", lambda *given, **named: learn(*given, **{**named, **tiny}))


@pytest.mark.usefixtures("tiny_demo")
def test_demo_ends_with_a_verdict_and_its_page(tmp_path, capsys):
    demo.run(demo.Run(to=tmp_path / "demo"))
    shown = capsys.readouterr().out
    assert "clone of the original" in shown
    page = tmp_path / "demo" / "seed-0" / "report.html"
    assert f"page    {page}" in shown
    assert page.is_file()


@pytest.mark.usefixtures("tiny_demo")
def test_demo_of_several_seeds_is_counted_and_kept(tmp_path, monkeypatch):
    asked = demo.Measure(seeds=1, results=tmp_path, to=tmp_path / "demo.md")
    demo.measure(asked)
    page = asked.to.read_text()
    assert "in 0 of 1 seeds" in page or "in 1 of 1 seeds" in page
    facts = json.loads((tmp_path / "seed-0.json").read_text())
    assert f"| 0 | {demo.Interval(**facts['scores'][demo.LOGGED])} |" in page
    monkeypatch.setattr(demo, "learned", lambda *_: pytest.fail("it measures again"))
    demo.measure(asked)
    (tmp_path / "seed-0.json").write_text("{}")
    with pytest.raises(InputError, match="remove it, and measure again"):
        demo.measure(asked)
