"""Training and evaluation as a person runs them: real commands at a tiny size, killed and resumed, read back."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import trajstitch
from test_policies import one_step
from trajstitch import cli, training
from trajstitch.environments import spec_json
from trajstitch.errors import InputError
from trajstitch.formats import save
from trajstitch.off_policy import FittedQ, action_errors, estimated_returns
from trajstitch.policies.bc import BC
from trajstitch.tensors import read_tensors
from trajstitch.training import divided, exported, schedule, start, train
from trajstitch.trajectories import Metadata, Trajectories

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


@pytest.mark.parametrize("policy", training.POLICIES)
def test_every_policy_trains_and_is_evaluated(policy, source, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    extra = ("--value-steps", "20") if policy == "weighted-bc" else ()
    assert command("train", policy, source, *TINY, *extra, "--run", str(run)) == 0
    assert f"trajstitch evaluate {run}" in capsys.readouterr().out
    assert command("evaluate", str(run), "--episodes", "2", "--last", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((run / "scores.json").read_text())
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


def test_killed_run_resumes_to_the_same_bits(source, tmp_path, monkeypatch) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    assert command("train", "td3-bc", source, *TINY, "--run", str(whole)) == 0
    real = training.save_policies

    def killed(policies, path):
        if policies[0].steps == 28:
            raise KeyboardInterrupt
        real(policies, path)

    monkeypatch.setattr(training, "save_policies", killed)
    assert command("train", "td3-bc", source, *TINY, "--run", str(halved)) == 130
    monkeypatch.setattr(training, "save_policies", real)
    assert command("train", "td3-bc", source, *TINY, "--run", str(halved), "--resume") == 0
    for path in (whole / "checkpoints").iterdir():
        ours, theirs = read_tensors(path)[0], read_tensors(halved / "checkpoints" / path.name)[0]
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert (whole / "metrics.jsonl").read_text() == (halved / "metrics.jsonl").read_text()
    assert command("train", "td3-bc", source, *TINY, "--run", str(halved), "--resume") == 0


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
    assert "above 0" in refused(capsys, "train", "bc", source, "--top", "0")
    assert "not the folder of a run" in refused(capsys, "evaluate", str(tmp_path))
    assert command("train", "sarsa", source) == 2


def test_data_without_an_environment_gives_what_can_be_known(tmp_path, capsys) -> None:
    log = f"npz:{tmp_path}/log.npz"
    data = swings()
    save(replace(data, metadata=replace(data.metadata, environment=None)), log)
    assert command("train", "bc", log, *TINY, "--run", str(tmp_path / "run")) == 0
    capsys.readouterr()
    assert command("evaluate", str(tmp_path / "run"), "--estimate-steps", "30") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no rollouts" in shown
    assert "action error on held-out episodes" in shown
    assert "an ESTIMATE by fitted-Q evaluation" in shown


def test_estimate_is_the_policy_s_own_return_where_the_data_covers_it() -> None:
    """One step with reward −(u − s)²: a clone that does u(s) earns E[−(u(s) − s)²], less than noise loses."""
    data = one_step()
    algorithm = BC(steps=900, hidden=(32, 32), learning_rate=3e-3, batch_size=128)
    policies = train(data, algorithm, seeds=2)
    state = data.observations[data.first_rows]
    true = [float(-np.square((policy.act(state) - 1) / 3 - state).mean()) for policy in policies]
    found, logged = estimated_returns(policies, data, FittedQ(steps=1500, hidden=(32, 32), learning_rate=3e-3))
    np.testing.assert_allclose(found, true, atol=0.03)
    assert logged == pytest.approx(data.returns.mean())
    errors = action_errors(policies, data)
    np.testing.assert_allclose(errors["action_error"], 1 / np.sqrt(12), rtol=0.05)


def test_checkpoints_are_the_paper_s_and_the_same_tenths_of_other_lengths() -> None:
    assert schedule(100_000) == (1000, {40_000, 50_000, 60_000, 70_000, 80_000, 90_000, 100_000})
    assert schedule(1_000_000)[1] == {*range(400_000, 1_000_001, 100_000)}
    for steps in (1, 7, 40, 1234, 7777):
        every, marks = schedule(steps)
        assert max(marks) == steps
        assert all(mark % every == 0 for mark in marks - {steps})


def test_best_episodes_and_held_out_ones() -> None:
    data = swings()
    best, nothing = divided(data, 0.5, 0.0)
    assert nothing is None
    assert sorted(best.returns) == sorted(data.returns)[3:]
    learned, held = divided(data, 1.0, 0.34)
    assert held is not None
    assert (len(learned), len(held)) == (4, 2)
    assert {*learned.returns} | {*held.returns} == {*data.returns}
    with pytest.raises(InputError, match="--hold-out 0"):
        divided(data[0], 1.0, 0.1)


def test_training_in_three_lines() -> None:
    data = swings()
    policies = trajstitch.train(data, BC(steps=20, hidden=(8,), batch_size=16), seeds=2, seed=5)
    assert [policy.seed for policy in policies] == [5, 6]
    assert trajstitch.evaluate(policies, data.metadata, episodes=1).shape == (2, 1)
    again = exported(start(BC(hidden=(8,)), data, [5]), policies[0].units, [5], {})
    assert again[0].layers[0][0].shape == policies[0].layers[0][0].shape
