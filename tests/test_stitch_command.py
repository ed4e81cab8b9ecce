"""`trajstitch stitch` and its run folder: what is done is kept, and what is made is on record."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trajstitch
from point import collect
from test_stitching import GREEDY, SMALL
from trajstitch import cli, formats
from trajstitch.formats import save
from trajstitch.stitching import config, improve, jump_tests, pipeline
from trajstitch.storage.runs import LOCK

COLD = replace(GREEDY, value=replace(GREEDY.value, warm_steps=None), sample_latents=True)
TARGETS = ["npz:{}/better.npz", "d4rl:{}/better.hdf5", "table:{}/better.parquet", "minari:test/better-v0"]


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(config.PRESETS, "quick", SMALL)
    monkeypatch.setitem(config.PRESETS, "paper", GREEDY)


@pytest.fixture
def source(tmp_path: Path) -> str:
    save(collect(episodes=40, length=30), f"npz:{tmp_path}/data.npz")
    return f"npz:{tmp_path}/data.npz"


def stitch(source: str, target: str, run: Path, *flags: str) -> int:
    return cli.run(["stitch", source, target, "--preset", "quick", "--run", str(run), *flags])


def test_every_stage_is_kept_and_nothing_is_done_twice(source, tmp_path, capsys, monkeypatch):
    run, target = tmp_path / "run", f"npz:{tmp_path}/better.npz"
    before = (tmp_path / "data.npz").read_bytes()
    assert stitch(source, target, run, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["after"]["mean_return"] > facts["before"]["mean_return"]
    assert facts["stitched_steps"] > 0
    assert {path.name for path in run.iterdir()} == {
        LOCK,
        *("run.json", "models.safetensors", "graph.safetensors", "passes.json", "result.npz"),
        *("seconds.json", "summary.json", "saved.json"),
    }
    assert (tmp_path / "data.npz").read_bytes() == before
    first = trajstitch.load(target)

    def again(*_: object, **__: object) -> None:
        raise AssertionError("this stage was done already")

    for stage in ("fit_model", "build_graph", "improve_together"):
        monkeypatch.setattr(pipeline, stage, again)
    assert stitch(source, target, run, "--resume", "--force") == 0
    assert trajstitch.load(target).equals(first)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The point's log as a table with names, with a goal of its own in every episode and the wind beside it."""
    data = collect(episodes=40, length=30)
    episode = np.repeat(np.arange(len(data)), data.lengths)
    states = data.observations[data.state_rows]
    wind = np.random.default_rng(0).normal(size=data.steps)
    last = data.last_of_episode
    columns = (episode, *states.T, episode / 7, wind, *data.actions.T, data.rewards, data.terminated, last)
    rows = [",".join(f"{float(value):.9g}" for value in row) for row in zip(*columns, strict=True)]
    header = "episode,obs_x,obs_y,obs_goal,obs_wind,action_x,action_y,reward,terminated,truncated"
    (tmp_path / "log.csv").write_text("\n".join((header, *rows)) + "\n")
    return f"table:{tmp_path}/log.csv"


def test_data_that_is_left_unchanged_is_saved_as_it_was(table, tmp_path, capsys):
    run, target = tmp_path / "run", f"npz:{tmp_path}/better.npz"
    assert stitch(table, target, run, "--json") == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert "every trajectory has a context of its own: column obs_goal" in facts["unchanged_because"]
    assert facts["columns"] == {"fixed": ["obs_goal"], "exogenous": [], "irrelevant": ["obs_wind"]}
    assert facts["passes"] == []
    assert facts["stitched_steps"] == 0
    assert facts["before"] == facts["after"]
    assert "the data is left unchanged: every trajectory has a context of its own" in printed.err
    assert "say which ones are with --columns.fixed" in printed.err
    assert trajstitch.load(target).equals(trajstitch.load(table))
    assert {path.name for path in run.iterdir()} == {LOCK, "run.json", "summary.json", "saved.json"}
    assert stitch(table, target, run, "--resume", "--force") == 0
    printed = capsys.readouterr()
    assert "THE DATA IS UNCHANGED: every trajectory" in printed.out
    assert "--columns.fixed" in printed.out
    assert cli.run(["simulate", str(run)]) == 2
    said = capsys.readouterr().err
    assert "the data was left unchanged: every trajectory has a context of its own" in said
    assert "--columns.fixed" in said


@pytest.mark.parametrize("name", ["obs_wind", "3"])
def test_columns_are_given_by_name_or_number(table, tmp_path, capsys, name):
    run, target = tmp_path / "run", f"npz:{tmp_path}/better.npz"
    flags = ("--columns.fixed", "none", "--columns.exogenous", name, "--json")
    assert stitch(table, target, run, *flags) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["columns"] == {"fixed": [], "exogenous": ["obs_wind"], "irrelevant": []}
    assert "column obs_wind moves by chance" in facts["unchanged_because"]
    config = json.loads((run / "run.json").read_text())["config"]["stitching"]["columns"]
    assert (config["fixed"], config["exogenous"]) == (["none"], [name])


def test_several_columns_are_given_after_one_flag(table, tmp_path, capsys):
    flags = ("--columns.fixed", "obs_goal", "obs_wind", "--json")
    assert stitch(table, f"npz:{tmp_path}/better.npz", tmp_path / "run", *flags) == 0
    assert json.loads(capsys.readouterr().out)["columns"]["fixed"] == ["obs_goal", "obs_wind"]


def test_column_flags_of_tables_and_of_stitching_go_together(table, tmp_path, capsys):
    flags = ("--columns.observations", "obs_x", "obs_y", "obs_goal", "--columns.fixed", "obs_goal", "--json")
    assert stitch(table, f"npz:{tmp_path}/better.npz", tmp_path / "run", *flags) == 0
    assert json.loads(capsys.readouterr().out)["columns"]["fixed"] == ["obs_goal"]


@pytest.mark.parametrize("kind", ["fixed", "exogenous"])
def test_an_unknown_column_is_refused_before_anything_is_fitted(table, tmp_path, capsys, kind):
    assert stitch(table, f"npz:{tmp_path}/better.npz", tmp_path / "run", f"--columns.{kind}", "obs_gaol") == 2
    said = capsys.readouterr().err
    assert f"--columns.{kind}: there is no observation column 'obs_gaol'" in said
    assert "obs_goal" in said
    assert not (tmp_path / "better.npz").exists()


def test_one_trajectory_comes_back_as_it_was_without_training_a_model(tmp_path, capsys):
    target = f"npz:{tmp_path}/better.npz"
    save(collect(episodes=1, length=30), f"npz:{tmp_path}/one.npz")
    assert stitch(f"npz:{tmp_path}/one.npz", target, tmp_path / "run") == 0
    assert "THE DATA IS UNCHANGED: there is one trajectory" in capsys.readouterr().out
    assert not (tmp_path / "run" / "models.safetensors").exists()
    assert trajstitch.stitch(collect(episodes=1, length=30), SMALL).equals(trajstitch.load(target))


@pytest.mark.parametrize("target", ["npz:{}/data.npz", "npz:{}/../{name}/data.npz", "d4rl:{}/data.npz"])
def test_source_is_never_the_target_even_by_force(source, tmp_path, capsys, target):
    before = (tmp_path / "data.npz").read_bytes()
    target = target.format(tmp_path, name=tmp_path.name)
    assert stitch(source, target, tmp_path / "run", "--force") == 2
    assert "is the source itself" in capsys.readouterr().err
    assert cli.run(["convert", source, target, "--force"]) == 2
    assert "is the source itself" in capsys.readouterr().err
    assert (tmp_path / "data.npz").read_bytes() == before


def test_source_that_changed_since_is_neither_checked_nor_resumed(source, tmp_path, capsys):
    run, target = tmp_path / "run", f"npz:{tmp_path}/better.npz"
    assert stitch(source, target, run) == 0
    data = trajstitch.load(source)
    save(replace(data, observations=data.observations + np.float32(1e-3)), source, force=True)
    capsys.readouterr()
    assert cli.run(["simulate", str(run)]) == 2
    assert "has changed since" in capsys.readouterr().err
    assert stitch(source, target, run, "--resume", "--force") == 2
    assert "was started with fingerprint" in capsys.readouterr().err


def test_interrupted_job_says_how_to_go_on(source, tmp_path, capsys, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "build_graph", interrupt)
    assert stitch(source, f"npz:{tmp_path}/better.npz", tmp_path / "run") == 130
    assert "the same command with --resume continues" in capsys.readouterr().err


def test_each_model_is_kept_as_soon_as_it_is_fitted(source, tmp_path, monkeypatch):
    whole, halved = f"npz:{tmp_path}/whole.npz", f"npz:{tmp_path}/halved.npz"
    assert stitch(source, whole, tmp_path / "whole") == 0

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "fit_reward", killed)
        assert stitch(source, halved, tmp_path / "halved") == 130
    assert {path.name for path in (tmp_path / "halved").glob("model*")} == {
        "model-likelihood.safetensors",
        "model-consistency.safetensors",
        "model-inverse.safetensors",
    }
    for module, name in ((jump_tests, "fit_dynamics"), (pipeline, "fit_inverse")):
        monkeypatch.setattr(module, name, killed)
    assert stitch(source, halved, tmp_path / "halved", "--resume") == 0
    assert trajstitch.load(halved).equals(trajstitch.load(whole))
    assert not [*(tmp_path / "halved").glob("model-*")]


@pytest.mark.parametrize("stage", ["build_graph", "improve_together"])
def test_job_that_stopped_midway_resumes_to_the_same_bits(source, tmp_path, monkeypatch, stage):
    whole, target = f"npz:{tmp_path}/whole.npz", f"npz:{tmp_path}/better.npz"
    assert stitch(source, whole, tmp_path / "whole") == 0

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, stage, stopped)
        assert stitch(source, target, tmp_path / "run") == 130
    assert not (tmp_path / "better.npz").exists()
    assert stitch(source, target, tmp_path / "run", "--resume") == 0
    assert trajstitch.load(target).equals(trajstitch.load(whole))


@pytest.mark.parametrize("seeds", ["1", "2"])
@pytest.mark.parametrize("greedy", [GREEDY, COLD], ids=["warm", "cold, sampled"])
def test_job_that_stopped_between_passes_goes_on_with_the_next_to_the_same_bits(
    source, tmp_path, monkeypatch, capsys, greedy, seeds
):
    monkeypatch.setitem(config.PRESETS, "paper", greedy)
    flags = ("--preset", "paper", "--passes", "3", "--seeds", seeds)
    whole, target = f"npz:{tmp_path}/whole-{{seed}}.npz", f"npz:{tmp_path}/better-{{seed}}.npz"
    assert stitch(source, whole, tmp_path / "whole", *flags) == 0
    fit_values, fitted = improve.fit_values, []

    def stopped(*given, **named):
        if len(fitted) == 2:
            raise KeyboardInterrupt
        fitted.append(1)
        return fit_values(*given, **named)

    monkeypatch.setattr(improve, "fit_values", stopped)
    assert stitch(source, target, tmp_path / "run", *flags) == 130
    assert not list(tmp_path.glob("better*"))
    fitted[:] = [0]
    assert stitch(source, target, tmp_path / "run", *flags, "--resume") == 0
    assert fitted == [0, 1], "passes were done twice"
    assert "resuming after pass 2" in capsys.readouterr().err
    for seed in range(int(seeds)):
        assert trajstitch.load(target.format(seed=seed)).equals(trajstitch.load(whole.format(seed=seed)))
        place = f"seed-{seed}/passes.json" if seeds == "2" else "passes.json"
        assert (tmp_path / "run" / place).read_text() == (tmp_path / "whole" / place).read_text()


def test_several_seeds_make_a_data_set_each(source, tmp_path, capsys):
    run, target = tmp_path / "run", f"npz:{tmp_path}/better-{{seed}}.npz"
    flags = ("--preset", "paper", "--seed", "3", "--seeds", "2")
    assert stitch(source, target, run, *flags, "--json") == 0
    facts = json.loads(capsys.readouterr().out)["seeds"]
    assert [one["seed"] for one in facts] == [3, 4]
    assert [one["saved"] for one in facts] == [f"npz:{tmp_path}/better-{seed}.npz" for seed in (3, 4)]
    expected = trajstitch.stitch(trajstitch.load(source), GREEDY, seed=3, seeds=2)
    for seed, one in zip((3, 4), expected, strict=True):
        assert trajstitch.load(f"npz:{tmp_path}/better-{seed}.npz").equals(one)
        assert {path.name for path in (run / f"seed-{seed}").iterdir()} == {"passes.json", "result.npz", "summary.json"}
    assert stitch(source, target, run, *flags, "--resume", "--force") == 0
    shown = capsys.readouterr().out
    assert shown.index("Seed 3") < shown.index("Seed 4") < shown.index("Returns after, seed 4")
    assert cli.run(["simulate", str(run), "--seed", "5"]) == 2
    assert "the seeds are 3 to 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "flags", "said"),
    [
        ("npz:{}/better.npz", ("--preset", "paper", "--seeds", "2"), "as in npz:better-{seed}.npz"),
        ("npz:{}/taken-{{seed}}.npz", ("--preset", "paper", "--seeds", "2"), "taken-1.npz exists already"),
        ("npz:{}/better-{{seed}}.npz", ("--preset", "quick", "--seeds", "2"), "every seed would give the same data"),
        ("npz:{}/better-{{seed}}.npz", ("--preset", "paper", "--seeds", "0"), "--seeds must be at least 1"),
    ],
)
def test_seeds_that_can_not_each_have_a_data_set_are_refused(source, tmp_path, capsys, target, flags, said):
    save(collect(episodes=2), f"npz:{tmp_path}/taken-1.npz")
    assert stitch(source, target.format(tmp_path), tmp_path / "run", *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("target", ["npz:{}/better-{{seed}}.npz", "minari:test/better{{seed}}-v0"])
def test_job_killed_between_two_targets_goes_on_with_the_second(source, tmp_path, capsys, monkeypatch, target):
    flags = ("--preset", "paper", "--passes", "1", "--seeds", "2")
    target, write, written = target.format(tmp_path), formats.save, []
    first, second = (target.replace("{seed}", seed) for seed in "01")

    def noting(data, uri, **options) -> None:
        written.extend({uri} & {first, second})
        write(data, uri, **options)

    def dying(data, uri, **options) -> None:
        if uri == second:
            raise KeyboardInterrupt
        noting(data, uri, **options)

    monkeypatch.setattr(formats, "save", dying)
    assert stitch(source, target, tmp_path / "run", *flags) != 0
    monkeypatch.setattr(formats, "save", noting)
    assert stitch(source, target, tmp_path / "run", *flags, "--resume") == 0
    assert written == [first, second]
    assert "was written before and is left as it is" in capsys.readouterr().err
    assert stitch(source, target, tmp_path / "run", *flags, "--resume", "--force") == 0
    assert written == [first, second] * 2


@pytest.mark.parametrize("target", TARGETS)
def test_origin_of_every_step_survives_saving(source, tmp_path, target, capsys):
    target = target.format(tmp_path)
    assert stitch(source, target, tmp_path / "run") == 0
    data, better = trajstitch.load(source), trajstitch.load(target)
    origin = better.provenance
    assert origin is not None
    assert origin.stitched.any()
    rows = data.first_rows[origin.source_episode] + origin.source_step
    np.testing.assert_array_equal(better.observations[better.state_rows], data.observations[rows])
    np.testing.assert_array_equal(origin.predicted_reward[origin.stitched], better.rewards[origin.stitched])
    assert np.isfinite(origin.margin[origin.stitched]).all()
    assert np.isnan(origin.margin[~origin.stitched]).all()
    capsys.readouterr()
    assert cli.run(["inspect", target]) == 0
    assert "titched" in capsys.readouterr().out


@pytest.mark.parametrize(("preset", "same"), [("quick", SMALL), ("paper", GREEDY)])
def test_states_far_from_zero_come_back_as_they_were(tmp_path, preset, same):
    data = collect(episodes=40, length=30)
    moved = replace(data, observations=data.observations.astype(np.float64) + 5e6)
    source, target = f"npz:{tmp_path}/moved.npz", f"npz:{tmp_path}/better.npz"
    save(moved, source)
    assert stitch(source, target, tmp_path / "run", "--preset", preset) == 0
    better = trajstitch.load(target)
    assert better.returns.mean() > data.returns.mean()
    assert better.equals(trajstitch.stitch(moved, same))
    assert better.observations.min() > 4e6


def test_greedy_passes_are_told_one_by_one(source, tmp_path, capsys):
    flags = ("--preset", "paper", "--passes", "2", "--run", str(tmp_path / "run"))
    assert cli.run(["stitch", source, f"npz:{tmp_path}/better.npz", *flags]) == 0
    shown = capsys.readouterr().out
    assert "pass 1" in shown
    assert "pass 2" in shown
    assert "Returns after" in shown


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--preset", "quick", "--passes", "2"), "plans instead"),
        (("--preset", "quick", "--rules.no-value-test"), "goes with greedy passes"),
        (("--preset", "quick", "--tests.likelihood.margin", "nonsense"), None),
    ],
)
def test_flags_that_do_not_fit_are_refused(source, tmp_path, capsys, flags, said):
    try:
        code = cli.run(["stitch", source, f"npz:{tmp_path}/better.npz", "--run", str(tmp_path / "run"), *flags])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert said is None or said in capsys.readouterr().err
    assert not (tmp_path / "better.npz").exists()


def test_target_in_the_way_is_said_before_the_work(source, tmp_path, capsys):
    save(collect(episodes=2), f"npz:{tmp_path}/better.npz")
    assert stitch(source, f"npz:{tmp_path}/better.npz", tmp_path / "run") == 2
    assert "--force" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_simulator_check_needs_a_simulator_and_says_so(source, tmp_path, capsys):
    assert stitch(source, f"npz:{tmp_path}/better.npz", tmp_path / "run") == 0
    capsys.readouterr()
    assert cli.run(["simulate", str(tmp_path / "run")]) == 2
    assert "names no environment" in capsys.readouterr().err
