"""Ladders: the files, the choice of checkpoints, and the training that makes them."""

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from safetensors.numpy import load_file

from trajstitch.benchmark.expert import Expert, build_ladder, expert
from trajstitch.benchmark.exploration import Environment, Exploration, environment, evaluate, explorer
from trajstitch.benchmark.ladder import (
    SHIPPED,
    TASKS,
    Checkpoint,
    Ladder,
    first_medium,
    load_ladder,
    rounded,
    save_ladder,
    shipped,
)
from trajstitch.benchmark.ladder_report import AIMS, ladder_report, write_report
from trajstitch.benchmark.selection import choose
from trajstitch.benchmark.training_run import TrainingRun
from trajstitch.errors import InputError
from trajstitch.policies.policy import Layers, act
from trajstitch.policies.td3 import TD3
from trajstitch.storage.runs import LOCK

TINY = TD3(hidden=(8, 8), batch_size=8, start_steps=40)


def tiny(run: Path, **changes) -> Expert:
    config = Expert(
        "Pendulum-v1",
        steps=400,
        seeds=2,
        environments=2,
        round_steps=10,
        checkpoint_every=100,
        episodes=1,
        evaluators=1,
        snapshot_every=100,
        run=run,
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny training that was never interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert expert(tiny(folder), TINY) == folder / "ladder.safetensors"
    return folder


@pytest.fixture
def ladder() -> Ladder:
    random = np.random.default_rng(0)
    shapes = [(3, 4), (4, 4), (4, 2)]
    policies = [
        [(random.normal(size=s).astype("f4"), random.normal(size=s[1]).astype("f4")) for s in shapes] for _ in "abc"
    ]
    checkpoints = tuple(Checkpoint(i * 10, i * 50.0, 1.5, 20, layers) for i, layers in enumerate(policies))
    return Ladder("hopper", "Hopper-v5", checkpoints, 3, {3: [(0, 0.0), (10, 50.0)]}, {"jax": "1"}, "here", "command")


def test_ladder_round_trips_in_half_precision(ladder: Ladder, tmp_path: Path) -> None:
    save_ladder(ladder, tmp_path / "a.safetensors")
    loaded = load_ladder(tmp_path / "a.safetensors")
    assert replace(loaded, checkpoints=()) == replace(ladder, checkpoints=())
    for was, now in zip(ladder.checkpoints, loaded.checkpoints, strict=True):
        assert replace(now, layers=[]) == replace(was, layers=[])
        for expected, got in zip(rounded(was.layers), now.layers, strict=True):
            assert all((a == b).all() and b.dtype == np.float32 for a, b in zip(expected, got, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_policy_acts_alike_on_one_observation_and_on_many(ladder: Ladder) -> None:
    observations = np.random.default_rng(1).normal(size=(7, 3))
    actions = act(ladder.expert.layers, observations, np.array([1.0, 2.0]))
    assert actions.shape == (7, 2)
    assert actions.dtype == np.float32
    assert (np.abs(actions) <= [1, 2]).all()
    np.testing.assert_allclose(act(ladder.expert.layers, observations[2], np.array([1.0, 2.0])), actions[2], rtol=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_shipped_ladder_loads_and_improves(task: str) -> None:
    ladder = load_ladder(shipped(task, "sac"))
    assert (ladder.task, ladder.environment) == (task, TASKS[task])
    assert ladder.expert.mean_return > 3 * ladder.checkpoints[0].mean_return
    assert ladder.expert.mean_return / 4 <= ladder.medium.mean_return <= ladder.expert.mean_return / 1.5
    assert 0 < ladder.medium_index < len(ladder.checkpoints) - 1


@pytest.mark.parametrize("task", TASKS)
def test_shipped_expert_of_the_noisy_sets_is_as_good_as_its_task_asks(task: str) -> None:
    (expert,) = load_ladder(task).checkpoints
    assert expert.mean_return >= AIMS[task]


def test_shipped_ladders_stay_under_sixteen_megabytes() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 16_000_000


@pytest.mark.parametrize(
    ("name", "message"),
    [("hoper", "did you mean 'hopper'"), ("chess", "hopper, walker2d"), ("no/such.safetensors", "no such ladder")],
)
def test_unknown_ladder_names_the_nearest(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_ladder(name)


def test_damaged_ladder_is_refused(ladder: Ladder, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_ladder(ladder, path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match="not a ladder"):
        load_ladder(path)


DAMAGE = {
    "a module in its environment": (lambda one: replace(one, environment="os:Hopper-v5"), "is not the environment"),
    "another environment": (lambda one: replace(one, environment="Ant-v5"), "is not the environment of the task"),
    "no policies": (lambda one: replace(one, checkpoints=()), "holds no policies"),
    "a return that is text": (lambda one: changed(one, mean_return="1"), "'1' where a number should be"),
    "a return without an end": (lambda one: changed(one, mean_return=float("inf")), "'inf' where a number should be"),
    "a curve that is text": (lambda one: replace(one, curves={3: [(0, "a")]}), "'a' where a number should be"),
    "versions that are a list": (lambda one: replace(one, versions=["1"]), "has no attribute"),
    "no order of training": (lambda one: changed(one, steps=1000), "no order of training"),
    "weights that are not finite": (lambda one: changed(one, layers=layers_of((3, 2), np.nan)), "are not finite"),
    "layers that don't fit": (lambda one: changed(one, layers=layers_of((3, 4), 1.0) * 2), "and takes 4 numbers"),
    "policies of other sizes": (lambda one: changed(one, layers=layers_of((5, 2), 1.0)), "take or give different"),
}


def layers_of(shape: tuple[int, int], value: float) -> Layers:
    return [(np.full(shape, value, np.float32), np.zeros(shape[1], np.float32))]


def changed(ladder: Ladder, **facts: Any) -> Ladder:
    first, *others = ladder.checkpoints
    return replace(ladder, checkpoints=(replace(first, **facts), *others))


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("damage", DAMAGE)
def test_ladder_of_a_stranger_is_refused_unless_it_is_one(damage: str, ladder: Ladder, tmp_path: Path) -> None:
    change, complaint = DAMAGE[damage]
    save_ladder(change(ladder), tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=complaint):
        load_ladder(tmp_path / "a.safetensors")


def test_medium_is_the_first_at_a_third_of_the_expert() -> None:
    assert first_medium([1, 30, 34, 20, 99, 100]) == 2
    assert first_medium([-300, -200, -100]) == 2


def test_ladder_takes_ten_checkpoints_to_medium_and_spreads_the_rest_over_returns() -> None:
    curve = [(step, 40.0 * step) for step in range(1, 101)]
    chosen = choose(curve)
    assert len(chosen) == 18
    assert (chosen[0], chosen[9], chosen[-1]) == (0, 33, 99)
    assert chosen == sorted(set(chosen))
    gaps = np.diff([curve[i][1] for i in chosen[9:]])
    assert gaps.max() < 2 * gaps.min()


@pytest.mark.parametrize("returns", [[5.0], [1.0, 2.0], [-5.0, -4.0, -3.0], [100.0, 1.0, 50.0, 90.0] * 10])
def test_any_curve_makes_a_ladder_in_training_order(returns: list[float]) -> None:
    chosen = choose(list(enumerate(returns)))
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == len(returns) - 1


class Counting(gymnasium.Env):
    """Observes how many steps the episode has had; `ends` says whether the third one terminates it."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 10.0 * self.count, self.ends and self.count == 3, False, {}


gymnasium.register("TrajstitchEnds-v0", lambda **_: Counting(True))
gymnasium.register("TrajstitchTimesOut-v0", lambda **_: Counting(False), max_episode_steps=3)


@pytest.mark.parametrize(("name", "last"), [("TrajstitchEnds-v0", 1.0), ("TrajstitchTimesOut-v0", 0.0)])
def test_last_observation_is_kept_and_time_limits_are_not_terminations(name: str, last: float) -> None:
    plan = Exploration(Environment(name, 1, (1.0,)), 0, 2, 4, (1, 4, 1), noise=0.1, start_steps=0)
    rows = np.zeros((8, 5), np.float32)
    explore = explorer(plan, np.zeros(13, np.float32), rows)
    explore(0, True)
    first = rows.reshape(4, 2, 5)[:, 1].copy()
    explore(1, False)
    second = rows.reshape(4, 2, 5)[:, 1]
    observation, action, following, reward, terminated = np.concatenate([first, second]).T
    assert observation.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert following.tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert (reward == 10 * following).all()
    assert terminated.tolist() == [0, 0, last, 0, 0, last, 0, 0]
    assert (np.abs(action) < 0.6).all()
    assert len(set(action)) == 8


def test_training_keeps_every_checkpoint_and_leaves_nothing_else(finished: Path) -> None:
    assert sorted(path.name for path in finished.iterdir()) == [
        LOCK,
        "checkpoints",
        "evaluations.csv",
        "ladder.safetensors",
        "run.json",
        "snapshot.safetensors",
    ]
    run = TrainingRun.open(finished)
    assert run.checkpoints() == [100, 200, 300, 400]
    assert sorted(run.evaluations) == [(seed, steps) for seed in (0, 1) for steps in run.checkpoints()]
    ladder = load_ladder(finished / "ladder.safetensors")
    assert ladder.expert.episodes == 20
    assert {"python", "jax", "gymnasium", "numpy"} <= set(ladder.versions)
    assert ladder.command.startswith("trajstitch expert Pendulum-v1 --steps 400")


def test_torn_evaluation_is_made_again_and_what_follows_it_is_kept(tmp_path: Path) -> None:
    config: dict = {"replay": 100}
    run, learner = TrainingRun.start(tmp_path / "run", "expert", config), Mock()
    run.restore(learner, 20, 10)
    for steps in (10, 20):
        run.save_checkpoint(steps, {0: []}, {})
    run.record(0, 10, [1.0, 2.0])
    run.record(0, 20, [1.0] * 10)
    file = run.path("evaluations.csv")
    file.write_bytes(file.read_bytes()[:-3])  # of "10" a 1 is left
    run = TrainingRun.open(run.folder)
    assert run.restore(learner, 20, 10) == (20, None)
    assert run.unevaluated([0]) == [(0, 20)]
    run.record(0, 20, [1.0] * 10)
    assert TrainingRun.open(run.folder).evaluations[0, 20] == (0, 20, 1.0, 0.0, 10)


@pytest.mark.parametrize("name", ["snapshot", "replay/000000010"])
def test_training_does_not_go_on_from_what_another_has_left(name: str, tmp_path: Path) -> None:
    learner = Mock()
    learner.tensors.return_value = {"weight": np.zeros(2)}
    runs = [TrainingRun.start(tmp_path / f"{seed}", "expert", {"seed": seed, "replay": 100}) for seed in (0, 1)]
    for run in runs:
        run.save_snapshot(10, learner, np.zeros((1, 10, 3)))
    runs[0].restore(learner, 20, 10)
    shutil.copy(runs[1].path(f"{name}.safetensors"), runs[0].path(f"{name}.safetensors"))
    with pytest.raises(InputError, match="belongs to another run"):
        runs[0].restore(learner, 20, 10)


def test_killed_run_resumes_to_the_same_bits(finished: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]);"
        "from test_ladder import TINY, tiny; from trajstitch.benchmark.expert import expert;"
        "expert(tiny(Path(sys.argv[2])), TINY)"
    )
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", code, str(Path(__file__).parent), str(folder)])
    while not (folder / "snapshot.safetensors").exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "checkpoints" / "000000400.safetensors").exists(), "it was killed too late"
    with pytest.raises(InputError, match="`resume=True`"):
        expert(tiny(folder), TINY)
    with pytest.raises(InputError, match="was started with seed = 0"):
        expert(tiny(folder, seed=1, resume=True), TINY)

    expert(tiny(folder, resume=True), TINY)
    assert TrainingRun.open(folder).curves() == TrainingRun.open(finished).curves()
    for steps in TrainingRun.open(finished).checkpoints():
        name = f"checkpoints/{steps:09}.safetensors"
        expected, got = load_file(finished / name), load_file(folder / name)
        assert expected.keys() == got.keys()
        assert all((expected[key] == got[key]).all() for key in expected)


def test_hopper_trains_and_is_evaluated(tmp_path: Path) -> None:
    config = tiny(tmp_path / "hopper", task="hopper", seeds=1, steps=80, checkpoint_every=40, snapshot_every=80)
    ladder = load_ladder(expert(config, TINY))
    assert ladder.environment == "Hopper-v5"
    assert ladder.expert.layers[0][0].shape == (11, 8)
    assert ladder.expert.mean_return > 0


def test_evaluation_is_repeatable_and_counts_each_episode_once() -> None:
    task = Environment("TrajstitchEnds-v0", 1, (1.0,))
    layers = [(np.ones((1, 1), np.float32), np.ones(1, np.float32))]
    assert evaluate(task, layers, 3, 0) == [60.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "hoper"}, "did you mean 'hopper'"),
        ({"task": "CartPole-v1"}, "needs a Box"),
        ({"steps": 399}, "multiple of a round's 20 steps"),
        ({"seeds": 0}, "at least 1"),
        ({"environments": 1, "round_steps": 5}, "policy delay"),
    ],
)
def test_bad_configuration_is_one_clear_line(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        expert(tiny(tmp_path / "run", **changes), TINY)
    assert not (tmp_path / "run").exists()


def test_missing_mujoco_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("no mujoco")

    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(InputError, match=r"pip install \"trajstitch\[mujoco\]\""):
        environment("hopper")


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the folder of a run"):
        build_ladder(tmp_path)


def test_report_names_aims_machine_and_every_checkpoint(ladder: Ladder, tmp_path: Path) -> None:
    page = ladder_report([ladder])
    assert "| hopper | TD3 | Hopper-v5 | 100 ± 2 | ≥ 3,300 | no | 1 | 3 |" in page
    assert "| 10 | 50 ± 2 | 20 | medium |" in page
    assert "- Machine: here" in page
    save_ladder(ladder, tmp_path / "hopper.safetensors")
    write_report([tmp_path / "hopper.safetensors"], tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == page
    assert (tmp_path / "ladder-hopper.svg").stat().st_size > 1000


def test_processes_that_play_never_import_jax() -> None:
    code = "import sys, trajstitch.benchmark.exploration, trajstitch.benchmark.expert; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
