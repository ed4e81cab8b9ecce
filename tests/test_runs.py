"""Run folders: what is written comes back, and only the same job goes on."""

import shutil
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.errors import InputError
from trajstitch.policies.policy import load_policy
from trajstitch.storage import runs
from trajstitch.storage.runs import LOCK, RUN_FORMAT, Run


class Model(eqx.Module):
    weight: jax.Array
    key: jax.Array
    name: str = eqx.field(static=True)


def model(seed: int) -> Model:
    return Model(jax.random.normal(jax.random.key(seed), (3, 2)), jax.random.key(seed), "m")


def test_tree_comes_back_bit_for_bit(tmp_path):
    run = Run.start(tmp_path / "run", "test", {})
    run.write_tree("model", model(1))
    back = run.read_tree("model", like=model(2))
    np.testing.assert_array_equal(back.weight, model(1).weight)
    assert jax.random.uniform(back.key) == jax.random.uniform(model(1).key)


def test_tree_of_another_shape_is_refused_with_the_leaf(tmp_path):
    run = Run.start(tmp_path / "run", "test", {})
    run.write_tree("model", model(1))
    wider = eqx.tree_at(lambda tree: tree.weight, model(2), jnp.zeros((3, 4)))
    with pytest.raises(InputError, match=r"\.weight"):
        run.read_tree("model", like=wider)


def test_folder_in_use_is_refused_unless_resumed(tmp_path):
    Run.start(tmp_path / "run", "stitch", {"seed": 1})
    with pytest.raises(InputError, match="`resume=True`"):
        Run.start(tmp_path / "run", "stitch", {"seed": 1})
    assert Run.start(tmp_path / "run", "stitch", {"seed": 1}, resume=True).facts["config"] == {"seed": 1}


def test_folder_of_a_run_killed_before_it_began_is_free(tmp_path):
    (tmp_path / "run" / ".trajstitch-host-1-abc").mkdir(parents=True)
    assert Run.start(tmp_path / "run", "stitch", {"seed": 1}).facts["config"] == {"seed": 1}


def test_run_goes_on_only_with_the_same_configuration_and_kind(tmp_path):
    Run.start(tmp_path / "run", "stitch", {"seed": 1})
    with pytest.raises(InputError, match="seed = 1, not 2"):
        Run.start(tmp_path / "run", "stitch", {"seed": 2}, resume=True)
    with pytest.raises(InputError, match="is a 'stitch' run, but a 'train' run is needed"):
        Run.start(tmp_path / "run", "train", {"seed": 1}, resume=True)


def test_starting_again_removes_only_what_a_run_of_that_kind_makes(tmp_path):
    folder, makes = tmp_path / "run", ("state.safetensors", "checkpoints/*.safetensors")
    run = Run.start(folder, "train", {"seed": 1})
    run.write_tree("state", model(1))
    run.write_tree("checkpoints/1", model(1))
    run.log(step=1)
    run.write_json("mine/result", {})
    (folder / "log.csv").write_text("mine")
    with pytest.raises(InputError, match="is a 'train' run, but a 'stitch' run is needed"):
        Run.start(folder, "stitch", {}, force=True, makes=makes)
    with pytest.raises(InputError, match=r"log.csv: lies in .*run, whose run would be removed"):
        Run.start(folder, "train", {"source": f"table:{folder / 'log.csv'}"}, force=True, makes=makes)
    assert run.has("state")
    assert Run.start(folder, "train", {"seed": 2}, force=True, makes=makes).config == {"seed": 2}
    assert sorted(path.name for path in folder.rglob("*")) == [LOCK, "log.csv", "mine", "result.json", "run.json"]


def test_a_run_that_is_killed_while_it_starts_again_can_be_started_again(tmp_path, monkeypatch):
    folder, remove = tmp_path / "run", runs._remove_made
    Run.start(folder, "train", {"seed": 1}).log(step=1)

    def killed(*arguments: Any) -> None:
        remove(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "_remove_made", killed)
        with pytest.raises(KeyboardInterrupt):
            Run.start(folder, "train", {"seed": 2}, force=True)
    assert Run.start(folder, "train", {"seed": 2}, force=True).config == {"seed": 2}


def test_half_written_line_of_metrics_is_left_out(tmp_path):
    run = Run.start(tmp_path / "run", "test", {})
    run.log(step=1)
    with run.path("metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert run.metrics() == [{"step": 1}]


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="not the folder of a run"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("stored", "said"), [(None, "an older version .*start a new run"), (99, "a newer version .*update trajstitch")]
)
def test_run_of_another_version_is_refused_with_what_to_do(tmp_path, stored, said):
    run = Run.start(tmp_path / "run", "stitch", {})
    run.write_json("run", {name: value for name, value in {**run.facts, "format": stored}.items() if value is not None})
    for attempt in (lambda: Run.open(run.folder), lambda: Run.start(run.folder, "stitch", {}, resume=True)):
        with pytest.raises(InputError, match=said):
            attempt()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_runs_of_every_format_are_read_or_refused_in_one_line_and_their_policies_act(number, tmp_path):
    """The samples were written by the versions of trajstitch that had these formats."""
    folder = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "samples" / f"run-format-{number}", folder)
    if number == RUN_FORMAT:
        run = Run.open(folder, "train")
        assert run.metrics()[-1]["step"] == 20
        assert run.fact("fingerprint", str) == "c21a694583d79c61"
        assert set(run.read_tensors("state"))
    else:
        with pytest.raises(InputError, match=rf"an older version .*\(run format {number}, this version reads"):
            Run.open(folder, "train")
    policy = load_policy(folder, seed=1)
    assert policy.act(np.zeros((5, 3), np.float32)).shape == (5, 1)


def test_metrics_that_are_a_folder_are_one_line(tmp_path):
    run = Run.start(tmp_path / "run", "test", {})
    run.path("metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl: can't be read"):
        run.metrics()
