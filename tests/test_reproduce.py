"""`trajstitch reproduce`: every experiment runs, resumes, shares what it can, and learns from what it says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from point import collect
from trajstitch import Trajectories, cli, formats, stitch, train
from trajstitch.errors import InputError
from trajstitch.experiments import grid
from trajstitch.experiments.cells import read_results
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.expert_fraction import nearer, scaled_divergences
from trajstitch.experiments.iterations import data_returns
from trajstitch.experiments.methods import Asked, cells_of, limited
from trajstitch.experiments.reproduce import EXPERIMENTS, Reproduce, experiment_named, reproduce
from trajstitch.experiments.stitched import best_covering, learned_from
from trajstitch.policies.policy import load_policies
from trajstitch.stitching import pipeline
from trajstitch.stitching.config import preset
from trajstitch.stitching.guards import states_kept


class Point:
    """A world that is quickly scored: the return of a policy is minus its squared actions."""

    def collect(self, seed: int = 0) -> Trajectories:
        return collect(episodes=30, length=20, seed=seed)

    def score(self, act, episodes: int = 100, seed: int = 0) -> np.ndarray:
        states = np.random.default_rng(seed).normal(size=(episodes, 2)).astype(np.float32)
        return -np.square(act(states)).sum(1)

    def true_returns(self, data: Trajectories) -> np.ndarray:
        return data.returns


WORLDS = {"point": Point()}


def measure(folder: Path, name: str, *methods: str, **more):
    asked = Reproduce(size="small", sets=("point",), methods=methods, folder=folder, **more)
    page, failures = reproduce(EXPERIMENTS[name], asked, WORLDS)
    assert failures == []
    assert page is not None
    return page, read_results(page.with_suffix(".json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("experiment")


def test_table1_writes_a_page_from_the_command_line_and_resumes(tmp_path, capsys, monkeypatch):
    command = ["reproduce", "table1", "--size", "small", "--sets", "hopper/medium-replay"]
    command += ["--methods", "bc", "ts-bc", "--transitions", "600", "--folder", str(tmp_path)]
    assert cli.run(command) == 0, capsys.readouterr().err
    pages = tmp_path / "pages"
    assert capsys.readouterr().out.strip().endswith("table1.md")
    assert {path.name for path in pages.iterdir()} == {
        f"table1.{end}" for end in ("md", "csv", "tex", "json", "svg", "png")
    }
    page = (pages / "table1.md").read_text()
    assert "| set | BC | TS + BC |" in page
    assert "NOT at full size" in page
    assert "200 of the usual 100,000 steps" in page
    assert "| hopper/medium-replay | 29.6 |" in page  # the paper's
    assert "- 10 % BC, weighted BC," in page.partition("## Not measured")[2]
    assert len((pages / "table1.csv").read_text().splitlines()) == 1 + 4
    assert r"\begin{tabular}{lrr}" in (pages / "table1.tex").read_text()
    results = read_results(pages / "table1.json")
    logged, stitched = ([one for one in results if one["method"] == method] for method in ("bc", "ts-bc"))
    assert [one["config"]["seed"] for one in logged] == [one["config"]["seed"] for one in stitched] == [0, 1]
    assert [one["config"]["stitching"]["seed"] for one in stitched] == [0, 1]
    assert all([each["steps"] for each in one["checkpoints"]] == [180, 200] for one in logged)

    monkeypatch.setattr(grid, "train_together", None)
    assert cli.run(command) == 0
    assert (pages / "table1.md").read_text() == page


def test_learners_of_q_learn_from_the_union_and_clones_from_the_stitched(folder):
    _, results = measure(folder, "table1", "ts-bc", "ts-iql", stitchings=1, q_stitchings=1)
    assert [one["config"]["stitching"]["gives"] for one in results] == ["replaced", "union"]
    assert len([*(folder / "stitched").glob("*/run.json")]) == 1
    (run,) = (folder / "stitched").glob("*/result.npz")
    logged, after = Point().collect(), formats.load(f"npz:{run}")
    assert after.provenance is not None
    # Walks that go on where a log breaks off are read back as well.
    assert (after.provenance.source_step == logged.lengths[after.provenance.source_episode]).any()
    union = learned_from("union", logged, after, {})
    expected = stitch(logged, limited(preset("default"), 32, 200), keep_original=True)
    assert union.equals(expected)
    assert len(union) > len(logged)
    iql = next(method.algorithm for name, method in EXPERIMENTS["table1"].methods.items() if name == "iql")
    (policy,) = train(union, limited(iql, 32, 200), seeds=1)
    (file,) = (path for path in (folder / "policies").glob("iql-*") if "0000" not in path.name)
    for one, other in zip(policy.tensors().values(), load_policies(file)[0].tensors().values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_control_clones_logged_episodes_that_cover_as_many_states(folder):
    _, results = measure(folder, "ablation", "ts-bc", "filtered", stitchings=1)
    share = results[0]["stitched"]["states_kept"]
    assert 0 < share < 1
    data = Point().collect()
    filtered = best_covering(data, share)
    assert filtered.provenance is None
    assert filtered.returns.min() >= np.sort(data.returns)[-len(filtered)]
    assert abs(filtered.steps / data.steps - share) <= data.lengths.max() / data.steps
    assert best_covering(data, 1.0).equals(data)
    assert len(best_covering(data, 0.0)) == 1


def test_variants_that_differ_after_the_models_share_them(folder, caplog):
    measure(folder, "ablation", "ts-bc", stitchings=1)
    with caplog.at_level("INFO", "trajstitch"):
        _, results = measure(folder, "ablation", "no-price", "no-precedent", "no-consistency", stitchings=1)
    assert "forward dynamics: " not in caplog.text
    assert len({one["config"]["stitching"]["config"] for one in results}) == 3
    assert all("true" in one["stitched"] for one in results)
    change = EXPERIMENTS["ablation"].methods["no-price"].stitched
    assert change is not None
    expected = stitch(Point().collect(), limited(change(preset("default")), 32, 200))
    run = next((folder / "stitched").glob("*no-price*/result.npz"))
    assert formats.load(f"npz:{run}").observations.tobytes() == expected.observations.tobytes()


def test_more_passes_continue_from_fewer_to_the_same_bits(folder, caplog):
    with caplog.at_level("INFO", "trajstitch"):
        page, results = measure(folder, "iterations", "0", "1", "2", stitchings=1)
    returns = data_returns(Table(results, tuple(EXPERIMENTS["iterations"].methods)))
    assert [*returns] == [("point", "1"), ("point", "0"), ("point", "2")]
    assert returns["point", "0"] == pytest.approx(Point().collect().returns.mean(), rel=1e-4)
    assert f"| point | {returns['point', '0'][0]:.1f} | {returns['point', '1'][0]:.1f} |" in page.read_text()
    assert (page.parent / "iterations-data.svg").read_text().startswith("<?xml")
    assert "resuming after pass 1" in caplog.text
    assert "| set | 0 passes (BC) | 1 pass | 2 passes |" in page.read_text()
    two = EXPERIMENTS["iterations"].methods["2"].stitched
    assert two is not None
    expected = stitch(Point().collect(), limited(two(preset("default")), 32, 200))
    (run,) = (folder / "stitched").glob("*default-2-*/result.npz")
    assert formats.load(f"npz:{run}").observations.tobytes() == expected.observations.tobytes()


def test_an_experiment_is_made_stage_by_stage_to_the_same_results(folder, tmp_path, monkeypatch):
    at_once = measure(folder, "table1", "bc", "ts-bc")[1]
    asked = Reproduce(size="small", sets=("point",), methods=("bc", "ts-bc"), folder=tmp_path)
    made = {"data": set(), "models": {"models"}, "stitchings": {"models", "passes", "stitched"}}
    for stage, names in made.items():
        assert reproduce(EXPERIMENTS["table1"], replace(asked, until=stage), WORLDS) == (None, [])
        runs = [*(tmp_path / "stitched").glob("*")]
        assert len(runs) == (0 if stage == "data" else 2)
        assert all({name for name in names | {"passes"} if [*run.glob(f"{name}.*")]} == names for run in runs)
    assert not (tmp_path / "policies").exists()
    monkeypatch.setattr(pipeline, "fit_model", None)
    monkeypatch.setattr(pipeline, "improve_together", None)
    step_by_step = measure(tmp_path, "table1", "bc", "ts-bc")[1]
    assert [one["returns"] for one in step_by_step] == [one["returns"] for one in at_once]


def test_processes_divide_the_stitchings_that_are_not_learned_from_yet(tmp_path):
    asked = Reproduce(size="small", sets=("point",), methods=("ts-bc",), folder=tmp_path, until="models")
    reproduce(EXPERIMENTS["table1"], asked, WORLDS)
    one, other = sorted((tmp_path / "stitched").iterdir())
    with FileLock(tmp_path / "locks" / f"{one.name}.lock"):
        reproduce(EXPERIMENTS["table1"], replace(asked, until="stitchings"), WORLDS)
    assert not (one / "stitched.json").exists()
    assert (other / "stitched.json").exists()


def test_results_that_are_known_are_not_measured_again(folder, tmp_path, monkeypatch):
    page, results = measure(folder, "table1", "bc", "ts-bc")
    monkeypatch.setattr(grid, "train_together", None)
    again, same = measure(tmp_path, "table1", "bc", "ts-bc", known=(page.with_suffix(".json"),))
    assert same == results
    assert again.read_text() == page.read_text()


def test_expert_fraction_measures_the_distance_to_the_expert_and_draws_three_figures(tmp_path, capsys):
    names = ["hopper/noisy-expert-40"]
    command = ["reproduce", "expert-fraction", "--size", "small", "--sets", *names, "--stitchings", "1"]
    command += ["--methods", "bc", "gaussian-bc", "gaussian-ts-bc", "--checkpoints", "1", "--folder", str(tmp_path)]
    assert cli.run(command) == 0, capsys.readouterr().err
    pages = tmp_path / "pages"
    page = (pages / "expert-fraction.md").read_text()
    assert all(f"| {name} |" in page for name in names)
    for figure in ("expert-fraction", "expert-fraction-error", "expert-fraction-kl"):
        assert (pages / f"{figure}.png").stat().st_size > 1000
        assert (pages / f"{figure}.svg").read_text().startswith("<?xml")
        assert f"({figure}.svg)" in page
    results = read_results(pages / "expert-fraction.json")
    assert [name for name in ("action_error", "kl") if name in results[0]] == ["action_error"]
    table = Table(results, tuple(EXPERIMENTS["expert-fraction"].methods))
    scaled = scaled_divergences(table)
    assert (min(scaled.values()), max(scaled.values())) == (0, 1)
    gains = nearer(table)
    assert set(gains) == {(name, "gaussian-ts-bc") for name in names}
    assert all(gains[name, m] == scaled[name, "gaussian-bc"] - scaled[name, m] for name, m in gains)
    assert (pages / "expert-fraction.csv").read_text().splitlines()[0].endswith(",steps,action_error,kl")


def test_only_the_papers_walker_trajectories_are_limited_to_nine_jumps():
    methods = EXPERIMENTS["expert-fraction"].methods
    grid_cells = cells_of(Asked(seeds=1, stitchings=1), methods, EXPERIMENTS["expert-fraction"].sets)
    limits = {}
    for (name, method), (cell, *_) in grid_cells.items():
        if cell.stitching:
            config = cell.stitching.config_for(Point().collect())
            limits.setdefault((name.split("/")[0], method), set()).add(config.rules.max_jumps)
    assert limits["walker2d", "paper-ts-bc"] == limits["walker2d", "gaussian-paper-ts-bc"] == {9}
    assert limits["hopper", "paper-ts-bc"] == limits["walker2d", "ts-bc"] == {None}


def test_every_variant_of_the_ablation_is_a_config_of_its_own():
    methods = EXPERIMENTS["ablation"].methods
    asked = Asked(sets=("hopper/medium",), stitchings=2, seeds=1)
    made = {
        name: {cell.stitching.config_for(Point().collect()) for cell in some if cell.stitching}
        for (_, name), some in cells_of(asked, methods, ()).items()
    }
    changed = [one for name, some in made.items() if methods[name].gives == "replaced" for one in some]
    assert len(changed) == len(set(changed)) == len(methods) - 4  # two controls without stitching, filtered, union
    joined = [cell.stitching.seed for cell in cells_of(asked, methods, ())["hopper/medium", "joined"] if cell.stitching]
    assert joined == [0, 3]  # no two share one of the stitchings that they join


def test_data_that_stitching_leaves_unchanged_ties_with_the_logged_data(tmp_path):
    class Single(Point):
        def collect(self, seed: int = 0) -> Trajectories:
            return collect(episodes=1, length=200, seed=seed)

    asked = Reproduce(size="small", sets=("single",), methods=("bc", "ts-bc"), folder=tmp_path, seeds=2)
    page, failures = reproduce(EXPERIMENTS["table1"], asked, {"single": Single()})
    assert failures == []
    assert page is not None
    results = read_results(page.with_suffix(".json"))
    logged, stitched = ([one["returns"] for one in results if one["method"] == name] for name in ("bc", "ts-bc"))
    assert logged == stitched
    assert len({tuple(one) for one in logged}) == 4


def test_a_training_that_is_stopped_between_checkpoints_keeps_the_earlier_ones(tmp_path, monkeypatch):
    asked = Asked(size="small", sets=("point",), methods=("bc",), stitchings=1, checkpoints=3)
    (cell,) = cells_of(asked, EXPERIMENTS["table1"].methods, (), WORLDS)["point", "bc"]
    grid.run([cell], tmp_path / "whole", worlds=WORLDS)
    save, saved = grid.save_policies, []

    def stop(policies, path, facts):
        save(policies, path, facts)
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(grid, "save_policies", stop)
    monkeypatch.setattr(grid, "SAVE_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        grid.run([cell], tmp_path / "stopped", worlds=WORLDS)
    grid.run([cell], tmp_path / "stopped", worlds=WORLDS)
    (whole,), (resumed,) = (read_results(tmp_path / name) for name in ("whole", "stopped"))
    assert resumed["checkpoints"] == whole["checkpoints"]
    assert [one["steps"] for one in whole["checkpoints"]] == [160, 180, 200]


def test_real_files_are_found_by_a_pattern_or_in_a_folder(tmp_path):
    formats.save(Point().collect(), f"npz:{tmp_path / 'hopper-medium.npz'}")
    methods = EXPERIMENTS["table1"].methods
    asked = Asked(sets=("hopper/medium",), methods=("bc",), data=f"npz:{tmp_path}/{{task}}-{{kind}}.npz")
    (cell, *_) = cells_of(asked, methods, ())["hopper/medium", "bc"]
    assert grid.Bench(tmp_path / "work", float("inf"), {}).load(cell.data).steps == Point().collect().steps
    (cell, *_) = cells_of(replace(asked, data="files"), methods, ())["hopper/medium", "bc"]
    assert cell.data.source == "d4rl:files/hopper-medium-v2.hdf5"
    for wrong, said in (
        ({"data": "npz:one.npz"}, "{task} and {kind}"),
        ({"data": "files", "transitions": 5}, "are for built-in sets"),
        ({"data": "files", "data_seed": 1}, "are for built-in sets"),
    ):
        with pytest.raises(InputError, match=said):
            cells_of(replace(asked, **wrong), methods, ())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tabel1",), "did you mean 'table1'"),
        (("table1", "--methods", "cql"), "unknown method 'cql'"),
        (("table1", "--sets", "hoper/medium"), "did you mean"),
        (("table1", "--seeds", "0"), "--seeds must be at least 1"),
        (("table1", "--checkpoints", "8"), "--checkpoints must be"),
        (("ablation", "--preset", "paper"), "--preset quick"),
    ],
)
def test_what_can_not_be_measured_is_refused_at_once(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["reproduce", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not [*tmp_path.iterdir()]


def test_nothing_complete_writes_no_page(tmp_path, capsys):
    command = ["reproduce", "iterations", "--size", "small", "--folder", str(tmp_path), "--time-limit", "0"]
    assert cli.run(command) == 0
    assert "nothing is complete yet" in capsys.readouterr().out
    assert cli.run([*command, "--until", "models"]) == 0
    assert "ended at --until models" in capsys.readouterr().out
    assert not (tmp_path / "pages").exists()


def test_states_kept_is_the_share_of_states_that_are_still_visited():
    data = Point().collect()
    whole = stitch(data[np.arange(1)], "quick")
    assert states_kept(data[np.arange(1)], whole) == 1.0
    assert experiment_named("table1").sets[0] == "hopper/medium"
