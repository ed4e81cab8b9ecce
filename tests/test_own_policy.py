"""A new policy is one file (`nearest.py`) and one line in the table: nothing else knows about it."""

import json

import numpy as np
import pytest

import trajstitch
from nearest import Nearest, NearestPolicy
from test_policies import one_step
from test_train import command, refused, swings
from trajstitch.cli import train as train_command
from trajstitch.errors import InputError
from trajstitch.evaluation.compare import compare
from trajstitch.formats import save
from trajstitch.policies import POLICIES
from trajstitch.policies.policy import load_policies, save_policies
from trajstitch.policies.train import train
from trajstitch.storage.tensors import read_tensors, save_tensors


@pytest.fixture
def in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "nearest", "nearest:Nearest")
    monkeypatch.setattr(train_command, "Command", train_command.subcommands())


def test_it_is_trained_saved_loaded_and_evaluated_by_the_command_line(in_the_table, tmp_path, capsys) -> None:
    data, run = swings(), str(tmp_path / "run")
    save(data, f"npz:{tmp_path}/log.npz")
    asked = ("train", "nearest", f"npz:{tmp_path}/log.npz", "--neighbours", "3", "--seeds", "2", "--run", run)
    assert command(*asked) == 0
    capsys.readouterr()
    assert command("evaluate", run, "--episodes", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert np.shape(result["checkpoints"][-1]["returns"]) == (2, 2)
    policy = trajstitch.load_policy(run, seed=1)
    assert isinstance(policy, NearestPolicy)
    assert (policy.neighbours, policy.seed, policy.config["policy"]) == (3, 1, "nearest")
    state = data.observations[data.state_rows[7]]
    np.testing.assert_array_equal(policy.act(state), train(data, Nearest(3))[0].act(state))
    assert command("evaluate", run, "--offline") == 0
    assert "ESTIMATES" in capsys.readouterr().out


def test_its_flags_help_and_bounds_are_those_of_its_fields(in_the_table, tmp_path, capsys) -> None:
    assert command("train", "--help") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "The action of the nearest logged states" in shown
    assert "More than its first line" not in shown
    assert command("train", "nearest", "--help") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--neighbours INT How many logged states vote. (default: 1)" in shown
    assert "at least 1, not 0" in refused(capsys, "train", "nearest", f"npz:{tmp_path}/log.npz", "--neighbours", "0")


def test_a_file_can_not_name_what_is_imported(tmp_path, monkeypatch) -> None:
    policies = train(swings(), Nearest(), seeds=1)
    with pytest.raises(InputError, match="POLICIES"):
        save_policies(policies, tmp_path / "policy.safetensors")
    monkeypatch.setitem(POLICIES, "nearest", "nearest:Nearest")
    save_policies(train(swings(), Nearest(), seeds=1), tmp_path / "policy.safetensors")
    assert isinstance(load_policies(tmp_path / "policy.safetensors")[0], NearestPolicy)
    monkeypatch.delitem(POLICIES, "nearest")
    with pytest.raises(InputError, match=r"policy.safetensors: unknown policy 'nearest'; the policies are bc,"):
        load_policies(tmp_path / "policy.safetensors")
    tensors, facts = read_tensors(tmp_path / "policy.safetensors")
    save_tensors(tensors, tmp_path / "policy.safetensors", facts | {"kind": "nearest:Nearest"})
    with pytest.raises(InputError, match="unknown policy 'nearest:Nearest'"):
        load_policies(tmp_path / "policy.safetensors")


def test_tensors_that_differ_between_seeds_need_a_name_of_their_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(POLICIES, "nearest", "nearest:Nearest")
    first, second = (train(swings(episodes), Nearest(), seeds=1)[0] for episodes in (2, 3))
    with pytest.raises(ValueError, match="'states' differs between seeds"):
        save_policies([first, second], tmp_path / "policy.safetensors")


def test_its_return_is_estimated_from_the_actions_it_takes() -> None:
    """One step with reward −(u − s)², as in `test_policies`, where what a policy earns is known."""
    data = one_step(2000)
    policies = train(data, Nearest(neighbours=50), seeds=2)
    state = data.observations[data.first_rows]
    true = float(-np.square((policies[0].act(state) - 1) / 3 - state).mean())
    found = compare({"nearest": policies}, data)
    (one,) = found.estimates
    assert one.estimated is not None
    assert one.estimated.value == pytest.approx(true, abs=0.03)
    assert found.logged.value == pytest.approx(data.returns.mean())
    assert found.verdict("nearest") == "better"
    assert one.action_error == pytest.approx(1 / np.sqrt(12), rel=0.05)
