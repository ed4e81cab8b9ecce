"""Training and evaluation as a person runs them: real commands at a tiny size, killed and resumed, read back."""

import inspect
import json
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import trajstitch
from random_data import random_data
from trajstitch import cli
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import save
from trajstitch.policies import POLICIES
from trajstitch.policies import train as training
from trajstitch.policies.action_error import unseen
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.train import check_training, schedule, split_episodes
from trajstitch.storage.runs import Run
from trajstitch.storage.tensors import read_tensors

TINY = ("--steps", "40", "--hidden", "8", "8", "--batch-size", "16", "--seeds", "2")


def swings(episodes: int = 6, length: int = 20) -> Trajectories:
    """Random torques on a pendulum, cut after `length` steps."""
    environment = gymnasium.make("Pendulum-v1")
    random = np.random.default_rng(0)
    observations, actions, rewards = [], [], []
    for episode in range(episodes):
        observations.append(environment.reset(seed=episode)[0])
        for _ in range(length):
            actions.append(random.uniform(-2, 2, 1).astype(np.float32))
            observation, reward, *_ = environment.step(actions[-1])
            observations.append(observation)
            rewards.append(float(reward))
    ends = np.tile(np.arange(length) == length - 1, episodes)
    return Trajectories(
        observations=np.array(observations, np.float32),
        actions=np.array(actions),
        rewards=np.array(rewards),
        terminated=np.zeros_like(ends),
        truncated=ends,
        offsets=np.arange(episodes + 1) * length,
        metadata=Metadata(
            "pendulum",
            environment=spec_json("Pendulum-v1"),
            action_space=environment.action_space,
            reference=(-1600.0, -150.0),
        ),
    )


@pytest.fixture
def source(tmp_path: Path) -> str:
    save(swings(), f"npz:{tmp_path}/swings.npz")
    return f"npz:{tmp_path}/swings.npz"


def command(*arguments: str) -> int:
    try:
        return cli.run(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command(*arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.strip().splitlines()[-1]


def stop_at_checkpoint(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C, before that checkpoint is written."""
    real = training.save_policies

    def killed(policies, path):
        if policies[0].steps == steps:
            raise KeyboardInterrupt
        real(policies, path)

    monkeypatch.setattr(training, "save_policies", killed)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_trains_and_is_evaluated(policy, source, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    extra = ("--value-steps", "20") if policy == "weighted-bc" else ()
    assert command("train", policy, source, *TINY, *extra, "--run", str(run)) == 0
    assert f"trajstitch evaluate {run}" in capsys.readouterr().out
    assert command("evaluate", str(run), "--episodes", "2", "--last", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == Run.open(run).read_json("scores")
    assert result["environment"] == "Pendulum-v1"
    assert np.shape(result["checkpoints"][-1]["returns"]) == (2, 2)
    score = 100 * (np.mean(result["checkpoints"][-1]["returns"], axis=1) + 1600) / 1450
    np.testing.assert_allclose(result["last"]["scores"], score)
    assert trajstitch.load_policy(run).config["policy"] == policy


def test_table_shows_checkpoints_last_best_and_another_run(source, tmp_path, capsys) -> None:
    for name, seed in (("a", "0"), ("b", "7")):
        assert command("train", "bc", source, *TINY, "--seed", seed, "--run", str(tmp_path / name)) == 0
    evaluate = ("evaluate", str(tmp_path / "a"), "--episodes", "2")
    assert command("evaluate", str(tmp_path / "b"), "--episodes", "2", "--last") == 0
    capsys.readouterr()
    assert command(*evaluate, "--against", str(tmp_path / "b")) == 0
    shown = capsys.readouterr().out
    for words in ("16 steps", "40 steps", "last", "best of each seed", "2 seeds × 2 episodes", "with probability"):
        assert words in shown
    assert command("evaluate", str(tmp_path / "a"), "--episodes", "2", "--last") == 0
    assert "best" not in capsys.readouterr().out


def test_only_scores_under_the_same_conditions_are_compared(source, tmp_path, capsys) -> None:
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    data = swings()
    other = deepcopy(gymnasium.spec("Pendulum-v1"))  # it is the registry's own
    other.kwargs["g"] = 5.0
    save(replace(data, metadata=replace(data.metadata, environment=other.to_json())), f"npz:{tmp_path}/other.npz")
    for run, log in ((a, source), (b, f"npz:{tmp_path}/other.npz")):
        assert command("train", "bc", log, *TINY, "--run", run) == 0
    capsys.readouterr()
    against = ("evaluate", a, "--last", "--against", b, "--episodes")
    assert f"trajstitch evaluate {b}" in refused(capsys, *against, "1")
    assert command("evaluate", b, "--last", "--episodes", "1") == 0
    capsys.readouterr()
    assert "another environment spec: " in refused(capsys, *against, "1")
    assert command("evaluate", a, "--last", "--episodes", "1") == 0
    capsys.readouterr()
    assert "another episodes (1, not 2)" in refused(capsys, "evaluate", a, "--against", a, "--episodes", "2")


def test_unfinished_training_is_called_so_and_its_scores_are_not_compared_later(
    source, tmp_path, monkeypatch, capsys
) -> None:
    run = str(tmp_path / "run")
    stop_at_checkpoint(28, monkeypatch)
    assert command("train", "bc", source, *TINY, "--run", run) == 130
    assert command("evaluate", run, "--episodes", "1") == 0
    assert "UNFINISHED: trained for 24 of 40 steps" in capsys.readouterr().out
    monkeypatch.undo()
    assert command("train", "bc", source, *TINY, "--run", run, "--resume") == 0
    capsys.readouterr()
    assert "trained on since" in refused(capsys, "evaluate", run, "--episodes", "1", "--against", run)


def test_interrupted_training_keeps_its_last_chunk_and_says_how_to_go_on(source, tmp_path, monkeypatch, capsys) -> None:
    run = tmp_path / "run"
    real = training.Run.log

    def interrupt(self, **metrics):
        if metrics["step"] == 12:
            raise KeyboardInterrupt
        real(self, **metrics)

    monkeypatch.setattr(training.Run, "log", interrupt)
    assert command("train", "bc", source, *TINY, "--run", str(run)) == 130
    shown = capsys.readouterr().err
    assert "stopped at step 8" in shown
    assert "the same command with --resume continues" in shown
    monkeypatch.setattr(training.Run, "log", real)
    assert command("train", "bc", source, *TINY, "--run", str(run), "--resume") == 0
    assert "continuing from step 8" in capsys.readouterr().err
    assert command("train", "bc", source, *TINY, "--run", str(tmp_path / "whole")) == 0
    ours, theirs = (trajstitch.load_policy(folder).act(np.ones(3)) for folder in (run, tmp_path / "whole"))
    np.testing.assert_array_equal(ours, theirs)


def test_weighted_bc_fits_its_value_function_once(source, tmp_path, monkeypatch, capsys) -> None:
    run = str(tmp_path / "run")
    asked = ("train", "weighted-bc", source, *TINY, "--value-steps", "20", "--run", run)
    monkeypatch.setattr(training, "initial_state", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert command(*asked) == 130
    monkeypatch.undo()
    monkeypatch.setattr(WeightedBC, "weights", lambda *_: (_ for _ in ()).throw(AssertionError("fitted already")))
    assert command(*asked, "--resume") == 0


def test_state_is_saved_between_checkpoints_too(source, tmp_path, monkeypatch) -> None:
    run, calls = tmp_path / "run", []
    monkeypatch.setattr(training, "SAVE_SECONDS", -1)
    real = training.Run.log

    def killed(self, **metrics):
        calls.append(metrics)
        if metrics["step"] == 12:
            raise KeyboardInterrupt
        real(self, **metrics)

    monkeypatch.setattr(training.Run, "log", killed)
    assert command("train", "bc", source, *TINY, "--run", str(run)) == 130
    assert not (run / "checkpoints").exists()
    tensors = read_tensors(run / "state.safetensors")[0]
    assert int(tensors[".step"]) == 8


def test_top_and_hold_out_choose_what_is_learned_from(source, tmp_path) -> None:
    """A clone of the best half is, bit for bit, the clone of a file that holds the best half alone."""
    data = swings()
    learned, _ = split_episodes(data, 0.5, 0.34)
    save(learned, f"npz:{tmp_path}/half.npz")
    for name, log, options in (
        ("asked", source, ("--top", "0.5", "--hold-out", "0.34")),
        ("alone", f"npz:{tmp_path}/half.npz", ()),
        ("whole", source, ()),
    ):
        assert command("train", "bc", log, *TINY, *options, "--run", str(tmp_path / name)) == 0
    asked, alone, whole = (
        trajstitch.load_policy(tmp_path / name).act(np.ones(3)) for name in ("asked", "alone", "whole")
    )
    np.testing.assert_array_equal(asked, alone)
    assert not np.array_equal(asked, whole)


@pytest.mark.parametrize("top", [0.0, -0.5, 1.01, 2.0, float("nan")])
def test_a_share_of_the_episodes_is_above_0_and_at_most_1(top) -> None:
    with pytest.raises(InputError, match="`top` is a fraction, above 0 and at most 1"):
        check_training(BC(), 1, 0, top)
    check_training(BC(), 1, 0, 1.0)


def test_two_episodes_can_be_split_and_one_can_not() -> None:
    data = random_data(np.random.default_rng(0), coarse=False)
    learned, held = split_episodes(data[np.arange(2)], 1.0, 0.05)
    assert held is not None
    assert (len(learned), len(held)) == (1, 1)
    with pytest.raises(InputError, match="one episode can't be split"):
        split_episodes(data[np.arange(1)], 1.0, 0.05)


def test_diverged_training_stops_and_says_so(source, tmp_path, capsys) -> None:
    run = str(tmp_path / "run")
    assert "diverged before step" in refused(
        capsys, "train", "bc", source, *TINY, "--run", run, "--learning-rate", "1e38"
    )


def test_data_that_changed_since_is_refused(tmp_path, capsys) -> None:
    log = f"npz:{tmp_path}/log.npz"
    data = swings()
    data = replace(data, metadata=replace(data.metadata, environment=None))
    save(data, log)
    assert command("train", "bc", log, *TINY, "--run", str(tmp_path / "run")) == 0
    save(data[np.arange(4)], log, force=True)
    capsys.readouterr()
    assert "has changed since" in refused(capsys, "evaluate", str(tmp_path / "run"))


def test_held_out_steps_of_stitched_data_are_those_that_were_not_learned_from() -> None:
    """Two stitched episodes that go through the same logged states share them, whatever the episode."""
    data = swings(episodes=4, length=5)
    shared = Provenance.logged(data.offsets)
    episode = np.array([0, 1, 2, 2]).repeat(5)
    data = replace(data, provenance=replace(shared, source_episode=episode.astype(np.int32)))
    held, learned = data[[2, 1]], data[[0, 3]]
    np.testing.assert_array_equal(unseen(held, learned), np.arange(10) >= 5)
    logged = replace(data, provenance=None)
    assert unseen(logged[[2, 1]], logged[[0, 3]]).all()


def test_killed_run_resumes_to_the_same_bits(source, tmp_path, monkeypatch) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    assert command("train", "td3-bc", source, *TINY, "--run", str(whole)) == 0
    stop_at_checkpoint(28, monkeypatch)
    assert command("train", "td3-bc", source, *TINY, "--run", str(halved)) == 130
    monkeypatch.undo()
    assert command("train", "td3-bc", source, *TINY, "--run", str(halved), "--resume") == 0
    for path in (whole / "checkpoints").iterdir():
        ours, theirs = read_tensors(path)[0], read_tensors(halved / "checkpoints" / path.name)[0]
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert (whole / "metrics.jsonl").read_text() == (halved / "metrics.jsonl").read_text()
    assert command("train", "td3-bc", source, *TINY, "--run", str(halved), "--resume") == 0


@pytest.mark.parametrize("stopped", ["write_tree", "save_policies"])
def test_training_that_is_killed_at_its_last_step_ends_in_the_same_files(stopped, tmp_path, monkeypatch) -> None:
    def files(run: Path) -> dict[str, dict[str, np.ndarray]]:
        return {path.name: read_tensors(path)[0] for path in run.rglob("*.safetensors")}

    def killed(*arguments: Any) -> None:
        real(*arguments)
        if (run / "checkpoints" / "000000020.safetensors").exists() or stopped == "write_tree":
            raise RuntimeError("killed")

    run, bc = tmp_path / "run", BC(steps=20, hidden=(8,))
    where = training.Run if stopped == "write_tree" else training
    real = getattr(where, stopped)
    with monkeypatch.context() as patch:
        patch.setattr(where, stopped, killed)
        with pytest.raises(RuntimeError, match="killed"):
            training.train_run(swings(), bc, run, 2)
    training.train_run(swings(), bc, run, 2, resume=True)
    training.train_run(swings(), bc, tmp_path / "whole", 2)
    ours, theirs = files(run), files(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    for name, tensors in theirs.items():
        assert all(np.array_equal(ours[name][key], array) for key, array in tensors.items())


def test_a_training_is_not_continued_to_fewer_steps(tmp_path: Path) -> None:
    training.train_run(swings(), BC(steps=20, hidden=(8,)), tmp_path / "run", 1)
    with pytest.raises(InputError, match="was started with steps = 20, not 10"):
        training.train_run(swings(), BC(steps=10, hidden=(8,)), tmp_path / "run", 1, resume=True)


def test_policy_acts_without_jax(source, tmp_path) -> None:
    assert command("train", "bc", source, *TINY, "--run", str(tmp_path / "run")) == 0
    program = (
        "import sys, numpy, trajstitch\n"
        "policy = trajstitch.load_policy(sys.argv[1], seed=1)\n"
        "assert policy.act(numpy.zeros(3)).shape == (1,)\n"
        "assert not {'jax', 'equinox', 'optax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], check=True)


def test_mistakes_are_refused_with_what_to_do(source, tmp_path, capsys) -> None:
    run = str(tmp_path / "run")
    assert command("train", "bc", source, *TINY, "--run", run) == 0
    capsys.readouterr()
    assert "--resume" in refused(capsys, "train", "bc", source, *TINY, "--run", run)
    other = refused(capsys, "train", "bc", source, *TINY, "--run", run, "--resume", "--learning-rate", "0.1")
    assert "learning_rate = 0.001, not 0.1" in other
    assert "--seeds must be at least 1" in refused(capsys, "train", "bc", source, "--seeds", "0")
    for top in ("0", "10", "nan"):
        assert "above 0 and at most 1" in refused(capsys, "train", "bc", source, "--top", top)
    for policy, option, value, told in (
        ("td3-bc", "--policy-delay", "0", "at least 1, not 0"),
        ("iql", "--expectile", "1.5", "at most 1, not 1.5"),
        ("iql", "--discount", "-1", "at least 0, not -1"),
        ("bc", "--hidden", "0", "at least 1, not 0"),
        ("weighted-bc", "--value-steps", "0", "at least 1, not 0"),
    ):
        assert f"{option} must be {told}" in refused(capsys, "train", policy, source, option, value)
    (tmp_path / "file").touch()
    assert "is a file" in refused(capsys, "train", "bc", source, *TINY, "--run", str(tmp_path / "file"))
    assert "--seed must not" in refused(capsys, "evaluate", run, "--seed", "-5")
    assert "not the folder of a run" in refused(capsys, "evaluate", str(tmp_path))
    assert command("train", "sarsa", source) == 2


def test_checkpoints_are_the_paper_s_and_the_same_tenths_of_other_lengths() -> None:
    assert schedule(100_000) == (1000, {40_000, 50_000, 60_000, 70_000, 80_000, 90_000, 100_000})
    assert schedule(1_000_000)[1] == {*range(400_000, 1_000_001, 100_000)}
    for steps in (1, 7, 40, 1234, 7777, 14_000, 15_000, 25_000, 99_999):
        every, marks = schedule(steps)
        assert max(marks) == steps
        assert every <= 1000
        assert all(mark % every == 0 for mark in marks - {steps})
        if steps >= 40:
            assert len(marks) == 7
            np.testing.assert_allclose(sorted(marks), steps * np.arange(4, 11) / 10, rtol=0.01)


def test_best_episodes_and_held_out_ones() -> None:
    data = swings()
    best, nothing = split_episodes(data, 0.5, 0.0)
    assert nothing is None
    assert sorted(best.returns) == sorted(data.returns)[3:]
    learned, held = split_episodes(data, 1.0, 0.34)
    assert held is not None
    assert (len(learned), len(held)) == (4, 2)
    assert {*learned.returns} | {*held.returns} == {*data.returns}
    with pytest.raises(InputError, match="`hold_out=0`"):
        split_episodes(data[0], 1.0, 0.1)


def test_a_run_of_training_says_what_was_learned_from_and_how_long_it_took(tmp_path: Path) -> None:
    run, start = Run.start(tmp_path / "run", "train", {}), time.monotonic()
    trajstitch.train(swings(), BC(steps=20, hidden=(8,), batch_size=16), seeds=1, run=run)
    assert 0 < run.read_json("seconds")["training"] <= time.monotonic() - start
    assert (run.config["top"], run.config["hold_out"], run.config["longest"]) == (1, 0, 20)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(("given", "named"), [(BC, "the class BC"), ("bc", "'bc'")])
def test_an_algorithm_is_given_with_its_settings(given: Any, named: str) -> None:
    with pytest.raises(InputError, match=rf"such as BC\(\), not {named}"):
        check_training(given, 1, 0)


@pytest.mark.parametrize("train", [training.train, training.train_together, training.train_run])
def test_there_are_five_seeds_from_0_on_if_not_given(train: Any) -> None:
    given = inspect.signature(train).parameters
    assert (given["seeds"].default, given["seed"].default) == (5, 0)


def test_training_in_three_lines() -> None:
    data = swings()
    policies = trajstitch.train(data, BC(steps=20, hidden=(8,), batch_size=16), seeds=2, seed=5)
    assert [policy.seed for policy in policies] == [5, 6]
    assert trajstitch.evaluate(policies, data.metadata, episodes=1).shape == (2, 1)
    assert policies[0].tensors()["5/0/weight"].shape == (3, 8)
