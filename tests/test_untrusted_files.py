"""Data files and run folders may come from anywhere: no file says which code runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import trajstitch
from soak.samples import without_checksums
from trajstitch import Metadata, Trajectories, cli
from trajstitch.benchmark.ladder import load_ladder, save_ladder
from trajstitch.data import environments
from trajstitch.data.environments import spec_json
from trajstitch.errors import InputError
from trajstitch.formats import minari

TINY = ("--steps", "20", "--seeds", "1")
MARK = "ran-code"
PENDULUM = json.loads(spec_json("Pendulum-v1"))


def swings(environment: str | None) -> Trajectories:
    random = np.random.default_rng(0)
    return Trajectories(
        observations=random.normal(size=(42, 3)).astype(np.float32),
        actions=random.uniform(-1, 1, (40, 1)).astype(np.float32),
        rewards=random.normal(size=40).astype(np.float32),
        terminated=np.zeros(40, bool),
        truncated=np.isin(np.arange(40), (19, 39)),
        offsets=np.array([0, 20, 40]),
        metadata=Metadata("swings", environment=environment),
    )


@pytest.fixture(autouse=True)
def dangerous_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when it is imported or called, as code that a file names would."""
    mark = tmp_path / MARK
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Env: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return mark


SPECS = {
    "an environment that is not registered": {"id": "Evil-v0", "entry_point": "evil:Env", "kwargs": {}},
    "a registered name with other code": {**PENDULUM, "entry_point": "evil:Env"},
    "a name that imports a module": {"id": "evil:Env-v0"},
    "a wrapper of its own": {
        **PENDULUM,
        "additional_wrappers": [{"name": "Evil", "entry_point": "evil:Env", "kwargs": {}}],
    },
    "a callable in Gymnasium's modules": {
        **PENDULUM,
        "additional_wrappers": [
            {"name": "Evil", "entry_point": "gymnasium.wrappers.rendering:deepcopy", "kwargs": {}},
        ],
    },
    "a vectorised environment of its own": {"id": "Evil-v0", "vector_entry_point": "evil:Env"},
}


@pytest.mark.parametrize("name", SPECS)
def test_data_file_never_runs_code(name, tmp_path, dangerous_module, capsys):
    trajstitch.save(swings(json.dumps(SPECS[name])), "npz:log.npz")
    assert cli.run(["train", "bc", "npz:log.npz", *TINY, "--run", "run"]) == 0
    capsys.readouterr()
    assert cli.run(["evaluate", "run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "can't be started" in line
    assert not dangerous_module.exists()
    assert "evil" not in sys.modules


def test_run_folder_never_runs_code(dangerous_module, capsys):
    trajstitch.save(swings(spec_json("Pendulum-v1")), "npz:log.npz")
    assert cli.run(["train", "bc", "npz:log.npz", *TINY, "--run", "run"]) == 0
    stored = without_checksums(json.loads(Path("run/data.json").read_text()))
    evil = json.dumps(SPECS["a registered name with other code"])
    Path("run/data.json").write_text(json.dumps({**stored, "environment": evil}))
    capsys.readouterr()
    assert cli.run(["evaluate", "run"]) == 2
    assert "code that a data file names is never run" in capsys.readouterr().err
    assert not dangerous_module.exists()


def test_minari_set_without_spaces_never_runs_code(minari_store, dangerous_module):
    minari.save(swings(json.dumps(SPECS["an environment that is not registered"])), "my/evil-v0", force=False)
    facts = minari_store / "my" / "evil-v0" / "data" / "metadata.json"
    stored = without_checksums(json.loads(facts.read_text()))
    facts.write_text(json.dumps({name: value for name, value in stored.items() if not name.endswith("_space")}))
    with pytest.raises(InputError, match="its spaces can't be read"):
        minari.load("my/evil-v0")
    assert not dangerous_module.exists()


def test_ladder_never_runs_code(dangerous_module, capsys):
    save_ladder(replace(load_ladder("hopper"), environment="evil:Hopper-v5"), "ladder.safetensors")
    asked = ["collect", "hopper/medium", "--transitions", "10", "--ladder", "ladder.safetensors", "--to", "npz:a.npz"]
    assert cli.run(asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'evil:Hopper-v5', which is not the environment of the task 'hopper'" in line
    assert not dangerous_module.exists()


def test_arguments_and_time_limit_are_kept():
    made = gymnasium.make("Pendulum-v1", max_episode_steps=7, g=5.0)
    assert made.spec is not None
    again = environments.make(Metadata(environment=made.spec.to_json()))
    assert again.spec is not None
    assert again.spec.max_episode_steps == 7
    assert again.spec.kwargs["g"] == 5.0


def test_wrappers_are_never_started(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Pendulum-v1", gymnasium.registry["Pendulum-v1"])
    made = gymnasium.wrappers.ClipAction(gymnasium.make("Pendulum-v1"))
    assert made.spec is not None
    metadata = Metadata(environment=made.spec.to_json())
    environments.trust(metadata)
    with pytest.raises(InputError, match="can't be started with the wrappers that the data asks for"):
        environments.make(metadata)


def test_arguments_that_an_environment_does_not_take_are_one_line():
    spec = json.dumps({**PENDULUM, "kwargs": {"gravity": [1]}})
    with pytest.raises(InputError, match="Pendulum-v1 can't be started"):
        environments.make(Metadata(environment=spec))


@pytest.mark.parametrize("value", ["10", [1, 2], {"a": 1}, None, 10**400])
def test_arguments_that_fail_only_in_a_step_are_one_line(value, capsys):
    trajstitch.save(swings(json.dumps({**PENDULUM, "kwargs": {"g": value}})), "npz:log.npz")
    assert cli.run(["train", "bc", "npz:log.npz", *TINY, "--run", "run"]) == 0
    capsys.readouterr()
    assert cli.run(["evaluate", "run", "--episodes", "1", "--processes", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Pendulum-v1 fails in a step, with the arguments" in line


@pytest.mark.parametrize("mode", ["human", "rgb_array", "\x1b[31m", 5])
def test_data_file_opens_no_window(mode):
    spec = json.dumps({**PENDULUM, "kwargs": {"render_mode": mode}})
    assert environments.make(Metadata(environment=spec)).render_mode is None


def test_arguments_of_very_many_parts_are_refused_at_once():
    for grid in (["S" * 3000] * 3000, [[0] * 200] * 200, {"x" * 20_000: 1}):
        spec = json.dumps({"id": "FrozenLake-v1", "kwargs": {"desc": grid}})
        with pytest.raises(InputError, match="more than 10,000 parts"):
            environments.make(Metadata(environment=spec))


def test_guarded_environment_acts_as_the_one_inside():
    guarded, plain = environments.make(Metadata(environment=spec_json("Pendulum-v1"))), gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(guarded.reset(seed=3)[0], plain.reset(seed=3)[0])
    for force in (-1.0, 2.0):
        ours, theirs = guarded.step(np.array([force])), plain.step(np.array([force]))
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1:4] == theirs[1:4]


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "{}",
        "[]",
        "5",
        '{"id": 5}',
        '{"id": "A-v0", "kwargs": 3}',
        '{"id": "A-v0", "additional_wrappers": 1}',
    ],
)
def test_environment_that_is_no_spec_is_one_line(text):
    with pytest.raises(InputError, match="not an EnvSpec"):
        environments.environment_id(Metadata("log", environment=text))
    trajstitch.save(swings(None), "npz:log.npz")
    with np.load("log.npz") as file:
        arrays = dict(file)
    (name,) = [name for name, array in arrays.items() if array.dtype.kind == "U"]
    stored = {**json.loads(str(arrays[name])), "environment": text}
    np.savez("log.npz", **{**arrays, name: np.array(json.dumps(stored))})
    assert cli.run(["inspect", "npz:log.npz"]) == 2


SCRIPT = """
import numpy as np
import trajstitch
from trajstitch.data.environments import spec_json

class Zero:
    seed, steps, config, observation_size, action_size = 0, 0, {}, 3, 1
    def act(self, observation):
        return np.zeros((*observation.shape[:-1], 1), np.float32)
    def tensors(self):
        return {}
    @classmethod
    def from_tensors(cls, tensors, seed, steps, config):
        return cls()

metadata = trajstitch.Metadata(environment=spec_json("Pendulum-v1"))
print(trajstitch.evaluate([Zero(), Zero()], metadata, episodes=1).shape)
"""


def test_policy_of_the_users_script_is_evaluated(tmp_path):
    import subprocess

    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "(2, 1)\n", done.stderr
