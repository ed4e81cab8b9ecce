"""`learn` takes a log to a chosen policy: within its budget, resumed to the same table, with or without environment."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

import plant
import trajstitch
from point import collect
from test_stitching import SMALL
from trajstitch import cli
from trajstitch.errors import InputError
from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.scores import Interval
from trajstitch.formats import save
from trajstitch.policies.bc import BC
from trajstitch.policies.iql import IQL
from trajstitch.stitching.config import PRESETS, preset
from trajstitch.workflow import stages, timing
from trajstitch.workflow.budget import (
    FEWEST_STEPS,
    SEEDS,
    Speed,
    StitchSpeed,
    Timings,
    model_configs,
    parse_budget,
    plan_policies,
    plan_stitching,
    with_models,
    with_share,
)
from trajstitch.workflow.choice import choose_by_estimates, choose_by_rollouts
from trajstitch.workflow.learn import learn

LOG = collect(episodes=20, length=10)
SHORT = with_models(
    replace(SMALL, tests={"consistency": SMALL.tests["consistency"]}),
    {name: replace(model, steps=timing.STEPS) for name, model in model_configs(SMALL).items()},
)
"""As many steps as are timed, so that nothing is compiled twice."""
TINY = {"config": SHORT, "steps": 30, "seeds": 1}


def timings(slower: float = 1.0, episode: float | None = 0.5) -> Timings:
    """What a machine might measure, or one that is slower by a factor."""
    steps = {"inverse": 1e-3, "reward": 1e-3, "consistency": 2e-3}
    quick, default = (
        StitchSpeed(5.0, {name: slower * size * step for name, step in steps.items()}, slower * 5e-4) for size in (1, 3)
    )
    policies = {"bc": Speed(3.0, slower * 2e-3), "iql": Speed(6.0, slower * 8e-3)}
    return Timings({"quick": quick, "default": default}, policies, episode and slower * episode, slower * 2.0)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400), ("1h30m", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "m", "0m", "-5m", "1d"])
def test_what_is_no_time_is_no_budget(text: str) -> None:
    with pytest.raises(InputError, match="`budget`"):
        parse_budget(text)


@pytest.mark.parametrize("episode", [0.5, None])
@pytest.mark.parametrize("slower", [0.2, 1, 5])
@pytest.mark.parametrize("minutes", [5, 30, 120, 600])
@pytest.mark.parametrize("transitions", [1_000, 50_000])
def test_a_plan_keeps_to_its_budget_or_is_the_least(
    minutes: float, slower: float, transitions: int, episode: float | None
) -> None:
    budget, known = 60 * minutes, timings(slower, episode)
    stitching = plan_stitching(budget, known, transitions)
    assert stitching is not None
    least = stitching.preset == "quick" and stitching.share == 0.25
    assert least or stitching.seconds <= 0.45 * budget
    plan = plan_policies(budget - stitching.seconds, known, True)
    assert plan.steps["bc"] >= FEWEST_STEPS["bc"]
    assert least or plan.steps["bc"] == FEWEST_STEPS["bc"] or stitching.seconds + plan.seconds <= budget


@pytest.mark.parametrize("episode", [0.5, 1e-3, None])
def test_a_plan_uses_its_budget_unless_more_steps_make_no_sense(episode: float | None) -> None:
    for left in (60.0, 200.0, 1000.0, 5000.0):
        plan = plan_policies(left, timings(episode=episode), True)
        least, most = plan.steps == {"bc": FEWEST_STEPS["bc"]}, plan.steps["bc"] == BC().steps
        assert least or most or plan.seconds >= 0.75 * left


def test_more_time_never_plans_less() -> None:
    times = np.geomspace(30, 1e6, 40)
    plans = [plan_policies(left, timings(), True) for left in times]
    assert plans[0].steps == {"bc": FEWEST_STEPS["bc"]}
    assert plans[0].seeds == SEEDS
    assert plans[-1].steps == {"bc": BC().steps, "iql": IQL().steps}
    for name in ("iql", "bc"):  # cloning makes room for Q-learning when that fits at all
        steps = [plan.steps.get(name, 0) for plan in plans if name == "iql" or "iql" not in plan.steps]
        assert steps == sorted(steps)
    shares = [plan_stitching(budget, timings(), 50_000) for budget in times if budget > 60]
    sizes = [sum(m.steps for m in model_configs(plan.config).values()) for plan in shares if plan is not None]
    assert sizes == sorted(sizes)
    assert shares[-1] is not None
    assert shares[-1].config == preset("default")


def test_data_whose_graph_alone_takes_longer_than_the_budget_is_not_stitched() -> None:
    assert plan_stitching(300, timings(), 2_000_000) is None
    assert plan_stitching(7200, timings(), 2_000_000) is not None


def test_a_share_of_a_preset_shortens_every_model() -> None:
    whole, half = (model_configs(config) for config in (preset("quick"), with_share(preset("quick"), 0.5)))
    assert set(whole) == {"inverse", "reward", "consistency"}
    assert {name: 2 * model.steps for name, model in half.items()} == {name: one.steps for name, one in whole.items()}


def test_what_chooses_is_not_what_is_reported() -> None:
    """Ten methods that are alike: the luckiest is chosen, and its luck is not reported."""
    random = np.random.default_rng(0)
    choosing, reported = ({f"m{i}": random.normal(size=(3, 10)) for i in range(10)} for _ in range(2))
    errors = {name: [1.0 + number, 1.0, 1.0] for number, name in enumerate(choosing)}
    found = choose_by_rollouts(choosing, reported, errors, first=7)
    assert choosing[found.name].mean() == max(one.mean() for one in choosing.values())
    assert choosing[found.name][found.seed].mean() == max(choosing[found.name].mean(1))
    assert f"seed {7 + found.seed} did best, with {reported[found.name][found.seed].mean():.1f} [" in found.sentence
    assert "can't tell it from" in found.sentence
    assert "m0 is the safest of these, the nearest to the data" in found.sentence
    sure = choose_by_rollouts(choosing | {"m3": choosing["m3"] + 10}, reported | {"m3": reported["m3"] + 10}, errors)
    assert sure.name == "m3"
    assert "can't tell" not in sure.sentence


def comparison(better: dict[tuple[str, str], str], deploy: str | None = None) -> dict[str, object]:
    names = ("a", "b", "c")
    pairs = [(one, than) for one in (*names, LOGGED) for than in (*names, LOGGED) if one != than]
    verdicts = [{"name": one, "than": than, "verdict": better.get((one, than), "can't tell")} for one, than in pairs]
    return {"estimates": [{"name": name} for name in names], "verdicts": verdicts, "deploy": deploy}


@pytest.mark.parametrize(
    ("better", "deploy", "chosen", "says"),
    [
        ([], None, "a", "can't tell whether any policy is better than the logged behaviour, and it is the safest"),
        ([("c", LOGGED)], None, "c", "whether another is better still, the data can't tell"),
        ([("b", LOGGED), ("c", LOGGED)], None, "b", "b and c are both better"),
        ([("c", "a"), ("c", "b"), ("c", LOGGED)], "c", "c", "surely better"),
        ([(LOGGED, "a"), (LOGGED, "b"), (LOGGED, "c")], None, "a", "deploy none"),
        ([(LOGGED, "a")], None, "b", "it is the safest"),
    ],
)
def test_without_an_environment_doubt_chooses_what_is_nearest_to_the_data(better, deploy, chosen, says) -> None:
    verdicts = dict.fromkeys(better, "better") | {(than, one): "worse" for one, than in better}
    found = choose_by_estimates(comparison(verdicts, deploy), {"a": [0.3, 0.1], "b": [0.3, 0.3], "c": [0.5, 0.4]})
    assert found.name == chosen
    assert says in found.sentence
    assert (found.name, found.seed) != ("a", 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, trajstitch.Learned]:
    """A finished run of the point's log, which names no environment."""
    folder = tmp_path_factory.mktemp("learn")
    save(LOG, f"npz:{folder}/log.npz")
    return folder, learn(f"npz:{folder}/log.npz", "5m", run=folder / "run", **TINY)


def test_without_an_environment_every_method_is_estimated_and_one_chosen(finished) -> None:
    folder, found = finished
    names = [row.name for row in found.table]
    # The best tenth of so few episodes is the same before and after, and nothing is trained twice.
    assert names == [LOGGED, "bc", "best-tenth", "ts-bc", "iql", "ts-iql"]
    assert found.unit == "estimated return"
    assert found.horizon == 10
    assert [row.name for row in found.table if row.chosen] == [found.chosen]
    for row in found.table[1:]:
        assert row.result is not None
        assert row.result.low <= row.result.value <= row.result.high
        assert row.than_logged in ("better", "worse", "can't tell")
    assert found.data.has_jumps
    assert len(found.data) == 18, "a tenth of the episodes is held out"
    errors = {name: json.loads((folder / "run" / name / "action-error.json").read_text()) for name in names[1:]}
    held_out = [name for name in errors if errors[name]["held_out"]]
    assert held_out == ["bc"], "held-out logged steps say nothing about policies that are to act otherwise"
    assert found.report == folder / "run" / "report.html"
    page = unescape(found.report.read_text())
    assert f"<h1>{found.verdict}</h1>" in page
    assert f'<p class="more">{found.why}</p>' in page
    assert all(name in page for name in names[1:])
    assert "estimated return [95 %]" in page


def test_report_makes_the_page_of_a_finished_run_again(finished, tmp_path, capsys) -> None:
    folder, found = finished
    assert cli.run(["report", str(folder / "run"), "-o", str(tmp_path / "page.html")]) == 0
    page = unescape((tmp_path / "page.html").read_text())
    assert found.report is not None
    made = r"Made by trajstitch \S+ on [^<]+"
    assert re.sub(made, "", page) == re.sub(made, "", unescape(found.report.read_text()))
    shutil.copytree(folder / "run", tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    assert cli.run(["report", str(tmp_path / "half")]) == 2
    assert "is not finished: continue it with `trajstitch learn ... --resume`" in capsys.readouterr().err


def test_the_printed_lines_load_the_policy_and_run_it(finished, capsys) -> None:
    _, found = finished
    exec(found.code, {})
    shown = [float(word) for word in capsys.readouterr().out.strip(" []\n").split()]
    np.testing.assert_allclose(shown, found.policy.act(np.zeros(2)), 1e-5)
    assert len(found.code.splitlines()) == 5


def test_what_was_chosen_is_exported(finished, capsys, tmp_path, monkeypatch) -> None:
    folder, found = finished
    monkeypatch.chdir(folder)
    assert cli.run(["export", "run", str(tmp_path / "policy.onnx")]) == 0
    assert f"({found.chosen}, which `learn` chose)" in capsys.readouterr().out
    exported = trajstitch.export("run", tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(exported.policy.act(np.ones(2)), found.policy.act(np.ones(2)))
    assert cli.run(["export", "run", str(tmp_path / "other.onnx"), "--seed", "1"]) == 2
    assert "for another --seed or --checkpoint name the folder of a method: run/bc" in capsys.readouterr().err


def test_a_finished_run_gives_its_result_at_once(finished, monkeypatch) -> None:
    folder, found = finished
    monkeypatch.setattr(stages.Job, "work", lambda _: pytest.fail("it works again"))
    again = learn(f"npz:{folder}/log.npz", "5m", run=folder / "run", resume=True, **TINY)
    assert again.table == found.table
    assert again.why == found.why
    np.testing.assert_array_equal(again.policy.act(np.ones(2)), found.policy.act(np.ones(2)))
    with pytest.raises(InputError, match="exists already: continue it with `resume=True`, or choose another `run`"):
        learn(f"npz:{folder}/log.npz", "5m", run=folder / "run", **TINY)
    with pytest.raises(InputError, match="budget = 5m, not 2h"):
        learn(f"npz:{folder}/log.npz", "2h", run=folder / "run", resume=True, **TINY)


POINT_WITH_HOOK = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Point(gymnasium.Env):
    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.5, 1.5, 2)
        return self.state.astype(np.float32), {}

    def set_state(self, state):
        self.state = np.array(state, float)

    def step(self, action):
        self.state = self.state + 0.1 * action
        ended = bool(abs(self.state[0]) > 2)
        return self.state.astype(np.float32), float(self.state[0] - 0.1 * action @ action), ended, False, {}
"""


def test_a_run_of_learn_stands_for_the_runs_in_it(finished, tmp_path, capsys, monkeypatch) -> None:
    folder, found = finished
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    assert cli.run(["evaluate", "run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in told["estimates"]] == [row.name for row in found.table[1:]]
    for one, row in zip(told["estimates"], found.table[1:], strict=True):
        assert Interval(**one["estimated"]) == row.result, "the same data, and so the same estimates"
        assert one["action_error"] == pytest.approx(row.action_error)
    assert told["held_out"]
    assert cli.run(["evaluate", "run/bc", "--against", "run"]) == 0
    assert cli.run(["report", "run", "-o", "page.html"]) == 0
    page = unescape(Path("page.html").read_text())
    assert f"<h1>{found.verdict}</h1>" in page
    assert found.why in page
    assert cli.run(["simulate", "run"]) == 2
    assert "names no environment, so there is no simulator to replay in: name one with --env" in capsys.readouterr().err
    Path("point_of_mine.py").write_text(POINT_WITH_HOOK)
    assert cli.run(["simulate", "run", "--environment", "point_of_mine:Point", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["logged"]["median_ratio"] < 0.2, "the log's own steps are the environment's, but for noise"
    assert checked["jumps"]["steps"] > 0
    assert cli.run(["evaluate", "run", "--environment", "point_of_mine:Point", "--episodes", "1", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)["runs"]
    assert len(scored) == len(found.table) - 1
    assert all(one["environment_spec"]["max_episode_steps"] == 10 for one in scored), "as long as logged episodes"
    assert cli.run(["train", "bc", "npz:log.npz", "--against", "run", "--run", "bc", "--steps", "1"]) == 2
    assert "is a 'learn' run, but a 'train' run is needed: name one in it, such as run/bc" in capsys.readouterr().err
    for path in ("run/stitch", *(f"run/{row.name}" for row in found.table[1:])):
        shutil.rmtree(path)
    assert cli.run(["evaluate", "run"]) == 2
    assert "has trained nothing yet" in capsys.readouterr().err
    assert cli.run(["simulate", "run"]) == 2
    assert "has stitched nothing" in capsys.readouterr().err


def test_a_log_is_mended_by_learn_itself(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = plant.rows(lots=9)
    rows[3][2] = ""
    plant.write(tmp_path / "log.csv", rows)
    with pytest.raises(InputError, match="`missing=interpolate`"):
        learn("log.csv", "5m", run="run", columns=plant.COLUMNS, **TINY)
    found = learn("log.csv", "5m", run="run", columns=plant.COLUMNS, missing="interpolate", **TINY)
    assert found.data.steps == len(rows)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert cli.run(["evaluate", "../run", "--json"]) == 0, "the log is found and mended again, from any folder"
    again = learn("../log.csv", "5m", run="../run", resume=True, columns=plant.COLUMNS, missing="interpolate", **TINY)
    assert again.table == found.table
    with pytest.raises(InputError, match=r"missing = interpolate, not split"):
        learn("../log.csv", "5m", run="../run", resume=True, columns=plant.COLUMNS, missing="split", **TINY)
    with pytest.raises(InputError, match="`missing` goes with data that is named"):
        learn(LOG, "5m", missing="split")


def test_interrupted_between_stages_it_resumes_to_the_same_table(finished, tmp_path, monkeypatch) -> None:
    folder, found = finished

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for stage in ("_training_plan", "_evaluate"):
        with monkeypatch.context() as patch:
            patch.setattr(stages.Job, stage, interrupt)
            with pytest.raises(KeyboardInterrupt):
                learn(f"npz:{folder}/log.npz", "5m", run=tmp_path / "run", resume=True, **TINY)
    assert (tmp_path / "run" / "ts-iql").exists()
    (tmp_path / "run").rename(tmp_path / "moved")
    again = learn(f"npz:{folder}/log.npz", "5m", run=tmp_path / "moved", resume=True, **TINY)
    assert again.table == found.table
    assert again.why == found.why


class Point(gymnasium.Env):
    """The point's world, as a user's own environment."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.5, 1.5, 2)
        return self.state.astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.state = self.state + 0.1 * action
        ended = bool(abs(self.state[0]) > 2)
        return self.state.astype(np.float32), float(self.state[0] - 0.1 * action @ action), ended, False, {}


@pytest.fixture
def registered() -> Iterator[None]:
    gymnasium.register("Point-v0", Point, max_episode_steps=10)  # pyright: ignore[reportArgumentType]
    yield
    del gymnasium.registry["Point-v0"]


def test_in_an_environment_of_ones_own_policies_are_rolled_out(registered, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = LOG[np.arange(18)]
    found = trajstitch.learn(data, "5m", environment="Point-v0", episodes=3, **{**TINY, "seeds": 3})
    assert found.unit == "return"
    for row in found.table[1:]:
        assert row.result is not None
        assert row.result.low is not None
        assert row.result.high is not None
        assert row.result.low < row.result.value < row.result.high
    assert "3 episodes of each policy, and the table shows 3 others" in found.why
    assert found.policy.act(data.observations[0]).shape == (2,)
    assert len(found.data) == len(data), "scores need no episodes held out"
    assert found.report is None, "without a run nothing is kept"
    assert found.policy_file is None
    assert not any(path.name != "minari" for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"), [("Pendulum-v1", "Pendulum-v1 has 3 observations"), ("Pendulum-v99", "unknown environment")]
)
def test_an_environment_that_is_named_must_fit(tmp_path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        learn(LOG, "5m", run=tmp_path / "run", environment=name, **TINY)
    assert not (tmp_path / "run").exists()


def test_the_command_starts_a_class_of_a_module_in_this_folder(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plant_of_three.py").write_text(
        "import gymnasium\nfrom gymnasium.spaces import Box\n\n\nclass Plant(gymnasium.Env):\n"
        "    observation_space = Box(-1, 1, (3,))\n    action_space = Box(-1, 1, (2,))\n"
    )
    save(LOG[np.arange(3)], "npz:log.npz")
    assert cli.run(["learn", "npz:log.npz", "--run", "run", "--environment", "plant_of_three:Plant"]) == 2
    assert "plant_of_three:Plant has 3 observations and 2 actions, but the data 2 and 2" in capsys.readouterr().err
    assert cli.run(["learn", "npz:log.npz", "--run", "run", "--environment", "plant_of_three:Plnt"]) == 2
    assert "plant_of_three has no Plnt" in capsys.readouterr().err


def test_an_environment_that_nobody_has_and_equal_returns_stop_nothing(caplog) -> None:
    spec = gymnasium.spec("Pendulum-v1").to_json().replace("Pendulum-v1", "Nowhere-v7")
    few = LOG[np.arange(9)]
    data = replace(few, rewards=np.zeros_like(few.rewards), metadata=replace(few.metadata, environment=spec))
    found = learn(data, "5m", **TINY)
    assert "nothing can be rolled out" in caplog.text
    assert found.unit == "estimated return"
    assert "iql is left out" in caplog.text
    assert [row.name for row in found.table] == [LOGGED, "bc", "best-tenth"]


def test_stitched_data_is_refused(finished) -> None:
    _, found = finished
    with pytest.raises(InputError, match="is stitched already"):
        learn(found.data, "5m", **TINY)


def test_the_command_tells_its_plan_and_learns_from_a_csv(tmp_path, capsys, monkeypatch) -> None:
    """The smallest budget: it says that it is too small and does the least."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "quick", with_share(TINY["config"], 4.0))
    monkeypatch.setitem(FEWEST_STEPS, "bc", 30)
    save(LOG[np.arange(9)], "table:log.csv")
    command = ["learn", "table:log.csv", "--run", "run", "--budget", "1s"]
    assert cli.run(command) == 0
    out, err = capsys.readouterr()
    assert "9 episodes, 90 steps" in err
    assert re.findall("^timing (.+)$", err, re.MULTILINE)[1:] == [
        "bc",
        "estimates of returns",
        "stitching by the preset quick",
    ]
    assert "plan for 1 s: stitch by the preset quick with 25% of its steps" in err
    assert "train 3 policies each of bc, best-tenth, ts-bc, ts-best-tenth with 30 steps" in err
    assert "the budget is too small: this is the least that makes sense" in err
    stages = re.findall(r"^stage (\d) of 5, (\w+): .+ (?:left in all, as planned|over the plan)$", err, re.MULTILINE)
    assert stages == [("2", "stitch"), ("3", "train"), ("4", "evaluate"), ("5", "page")]
    assert "is chosen: the data can't tell" in out
    assert "estimated return: over 10 steps, the usual length of an episode" in out
    assert "policy  run/policy.safetensors" in out
    assert "page    run/report.html" in out
    assert "deploy  trajstitch export run policy.onnx" in out
    plan = json.loads(Path("run/plan.json").read_text())
    measured = Timings.from_json(plan["timings"])
    assert set(measured.stitching) == {"quick"}
    assert set(measured.stitching["quick"].step) == set(model_configs(preset("quick")))
    assert set(measured.policies) == {"bc"}, "nothing more could fit into a second"
    assert cli.run([*command, "--resume"]) == 0
    assert capsys.readouterr() == (out, "")
    assert cli.run([*command, "--resume", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["policy"] == "run/policy.safetensors"
    assert {row["name"] for row in facts["table"] if row["chosen"]} == {facts["chosen"]}
