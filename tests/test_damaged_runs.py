"""Run folders that are damaged, copied together or of another job: one line that says what to do, never a traceback."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trajstitch
from point import collect
from test_stitching import SMALL
from trajstitch import BC, Trajectories, cli
from trajstitch.data.environments import spec_json
from trajstitch.errors import InputError
from trajstitch.stitching import config
from trajstitch.storage.runs import Run
from trajstitch.storage.tensors import read_tensors, save_tensors

Damage = Callable[[Path], object]


def swings(count: int = 40) -> Trajectories:
    random = np.random.default_rng(0)
    return Trajectories(
        observations=random.normal(size=(count + 2, 3)).astype(np.float32),
        actions=random.uniform(-2, 2, (count, 1)).astype(np.float32),
        rewards=random.normal(size=count).astype(np.float32),
        terminated=np.zeros(count, bool),
        truncated=np.isin(np.arange(count), (count // 2 - 1, count - 1)),
        offsets=np.array([0, count // 2, count]),
        metadata=trajstitch.Metadata("swings", environment=spec_json("Pendulum-v1")),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished stitching and a finished training, and their data."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(config.PRESETS, "quick", SMALL)
        trajstitch.save(collect(episodes=30, length=20), "npz:log.npz")
        trajstitch.save(swings(), "npz:swings.npz")
        assert cli.run(["stitch", "npz:log.npz", "npz:better.npz", "--preset", "quick", "--run", "stitched"]) == 0
        assert cli.run(["train", "bc", "npz:swings.npz", "--steps", "20", "--seeds", "2", "--run", "trained"]) == 0
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setitem(config.PRESETS, "quick", SMALL)
    return tmp_path / "copy"


def text(name: str, value: str) -> Damage:
    return lambda folder: (folder / name).write_text(value)


def in_json(name: str, **changes: object) -> Damage:
    """Change parts of a JSON object; None removes them."""

    def do(folder: Path) -> None:
        stored = json.loads((folder / name).read_text()) | changes | {"trajstitch_checksum": None}
        (folder / name).write_text(json.dumps({key: value for key, value in stored.items() if value is not None}))

    return do


def in_config(*names: str) -> Damage:
    """Remove parts of the config, wherever the run has them."""

    def do(folder: Path) -> None:
        stored = json.loads((folder / "run.json").read_text())
        del stored["trajstitch_checksum"]
        for part in ("config", "job"):
            stored[part] = {key: value for key, value in stored.get(part, {}).items() if key not in names}
        (folder / "run.json").write_text(json.dumps(stored))

    return do


def in_tensors(name: str, change: Callable[[dict], dict] = dict, **facts: str | None) -> Damage:
    def do(folder: Path) -> None:
        path = sorted(folder.glob(name))[-1]
        tensors, before = read_tensors(path)
        kept = {key: value for key, value in {**before, **facts}.items() if value is not None}
        save_tensors(change(tensors), path, kept or None)

    return do


def shorter(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[: len(array) // 2] if array.ndim else array for name, array in tensors.items()}


def wider(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return tensors | {"0/0/weight": np.zeros((7, 5), np.float32)}


def of_other_data(folder: Path) -> None:
    stitched = trajstitch.load(f"npz:{folder}/result.npz")
    assert stitched.provenance is not None
    origin = replace(stitched.provenance, source_episode=stitched.provenance.source_episode + 1000)
    trajstitch.save(replace(stitched, provenance=origin), f"npz:{folder}/result.npz", force=True)


EVERYWHERE: list[Damage] = [
    text("run.json", "[]"),
    text("run.json", "{"),
    text("run.json", '{"format": 3, "kind": "stitch"}'),
    text("run.json", '{"format": 3, "kind": "stitch", "config": 5}'),
]
STITCHED: list[Damage] = [
    *EVERYWHERE,
    text("saved.json", '["npz:bet'),
    text("saved.json", "5"),
    text("saved.json", "[5]"),
    text("passes.json", "[{}]"),
    text("passes.json", "[5]"),
    text("passes.json", "{}"),
    text("seconds.json", '{"models": "long"}'),
    in_tensors("models.safetensors", reports=None),
    in_tensors("models.safetensors", reports="[5]"),
    in_tensors("models.safetensors", shorter),
    text("result.npz", "5"),
    of_other_data,
]
SIMULATED: list[Damage] = [
    *EVERYWHERE,
    in_config("seed"),
    in_config("stitching"),
    in_config("source"),
    in_config("fingerprint"),
    in_json("run.json", config={"seed": "a", "seeds": []}, job=None),
    in_tensors("graph.safetensors", shorter),
    in_tensors("graph.safetensors", format=None),
    text("passes.json", "[{}]"),
    of_other_data,
]
SHOWN: list[Damage] = [
    *SIMULATED,
    text("seconds.json", '{"models": "long"}'),
    in_tensors("models.safetensors", reports="[5]"),
    text("result.npz", "5"),
    text("simulator-check.json", "[]"),
    text("simulator-check.safetensors", "[]"),
]
EVALUATED: list[Damage] = [
    *EVERYWHERE,
    in_config("steps"),
    in_config("source"),
    in_config("mean_return"),
    text("data.json", "[]"),
    text("data.json", "{}"),
    lambda folder: (folder / "data.json").unlink(),
    *(in_json("data.json", environment=value) for value in ("not json", "{}", [], 5)),
    in_json("data.json", reference=[1]),
    in_json("data.json", observation_space="{}"),
    *(in_tensors("checkpoints/*", seeds=value) for value in ("5", "[]", '["a"]', None)),
    in_tensors("checkpoints/*", steps="many"),
    in_tensors("checkpoints/*", config="5"),
    in_tensors("checkpoints/*", kind="evil"),
    in_tensors("checkpoints/*", wider),
    in_tensors("checkpoints/*", shorter),
]


def one_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.run(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("damage", STITCHED)
def test_damaged_stitching_is_one_line(damage, runs, capsys):
    damage(runs / "stitched")
    Path("better.npz").unlink()
    flags = ("--preset", "quick", "--run", "stitched", "--resume")
    assert "stitched/" in one_line(capsys, "stitch", "npz:log.npz", "npz:better.npz", *flags)


@pytest.mark.parametrize("damage", SHOWN)
def test_page_of_a_damaged_stitching_is_one_line(damage, runs, capsys):
    damage(runs / "stitched")
    assert "stitched/" in one_line(capsys, "report", "stitched", "-o", "page.html")
    assert not Path("page.html").exists()


@pytest.mark.parametrize("damage", SIMULATED)
def test_damaged_stitching_is_not_simulated(damage, runs, capsys):
    damage(runs / "stitched")
    assert "stitched/" in one_line(capsys, "simulate", "stitched")


def test_unfinished_stitching_without_a_summary_is_one_line(runs, capsys):
    Path("stitched/passes.json").unlink()
    Path("stitched/summary.json").write_text("{}")
    assert "--resume" in one_line(capsys, "simulate", "stitched")


@pytest.mark.parametrize("damage", EVALUATED)
def test_damaged_training_is_one_line(damage, runs, capsys):
    damage(runs / "trained")
    assert one_line(capsys, "evaluate", "trained", "--episodes", "1")


@pytest.mark.parametrize("scores", ["5", "{}", "[]", '{"last": 5}', "{"])
def test_damaged_scores_of_another_run_are_one_line(scores, runs, capsys):
    shutil.copytree("trained", "other")
    Path("other/scores.json").write_text(scores)
    assert "other" in one_line(capsys, "evaluate", "trained", "--against", "other", "--episodes", "1")


@pytest.mark.parametrize("metrics", ["bad\n", '{"loss": 1.0}\n', "5\n[]\n", '{"step": "a"}\n', None])
def test_damaged_metrics_are_no_hindrance(metrics, runs):
    path = Path("trained/metrics.jsonl")
    path.unlink() if metrics is None else path.write_text(metrics)
    resume = ["train", "bc", "npz:swings.npz", "--steps", "20", "--seeds", "2", "--run", "trained", "--resume"]
    assert cli.run(resume) == 0
    for checkpoint in Path("trained/checkpoints").iterdir():
        checkpoint.unlink()
    assert cli.run(resume) == 0


def test_last_checkpoint_that_was_removed_is_written_again(runs):
    path = sorted(Path("trained/checkpoints").iterdir())[-1]
    before, facts = read_tensors(path)
    path.unlink()
    resume = ["train", "bc", "npz:swings.npz", "--steps", "20", "--seeds", "2", "--run", "trained", "--resume"]
    assert cli.run(resume) == 0
    again = read_tensors(path)
    assert again[1] == facts
    assert all(np.array_equal(again[0][name], array) for name, array in before.items())


def test_run_returns_no_other_jobs_stitching(tmp_path):
    data = collect(episodes=30, length=20)
    run = Run.start(tmp_path / "run", "stitch", {})
    first = trajstitch.stitch(data, SMALL, run=run)
    assert trajstitch.stitch(data, SMALL, run=Run.open(tmp_path / "run")).equals(first)
    with pytest.raises(InputError, match="holds another job, with seed = 0, not 1: choose another `run`"):
        trajstitch.stitch(data, SMALL, 1, run=run)
    with pytest.raises(InputError, match="with fingerprint"):
        trajstitch.stitch(data[:20], SMALL, run=run)
    with pytest.raises(InputError, match=r"stitching\.neighbours\.k = 8, not 9"):
        trajstitch.stitch(data, replace(SMALL, neighbours=replace(SMALL.neighbours, k=9)), run=run)


def test_stitching_made_in_python_can_be_looked_into(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trajstitch.save(collect(episodes=30, length=20), "npz:log.npz")
    trajstitch.stitch(trajstitch.load("npz:log.npz"), SMALL, run=Run.start(Path("run"), "stitch", {}))
    assert "names no environment" in one_line(capsys, "simulate", "run")


def test_run_returns_no_other_jobs_policies(tmp_path):
    run, bc = Run.start(tmp_path / "run", "train", {}), BC(steps=20)
    first = trajstitch.train(swings(), bc, 2, run=run)
    again = trajstitch.train(swings(), bc, 2, run=Run.open(tmp_path / "run"))
    state = swings().observations[0]
    np.testing.assert_array_equal(first[0].act(state), again[0].act(state))
    for data, algorithm, seeds, seed in (
        (swings(60), bc, 2, 0),
        (swings(), BC(steps=30), 2, 0),
        (swings(), bc, 1, 0),
        (swings(), bc, 2, 1),
    ):
        with pytest.raises(InputError, match="holds another job"):
            trajstitch.train(data, algorithm, seeds, seed, run=run)


@pytest.mark.parametrize("flags", [(), ("--offline",)])
def test_training_made_in_python_can_be_evaluated(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trajstitch.save(swings(), "npz:log.npz")
    trajstitch.train(trajstitch.load("npz:log.npz"), BC(steps=20), 1, run=Run.start(Path("run"), "train", {}))
    assert cli.run(["evaluate", "run", "--episodes", "1", *flags]) == 0
