"""An exported policy does what the policy does: ONNX in onnxruntime, safetensors with NumPy alone."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import trajstitch
from nearest import NearestPolicy
from point import collect
from trajstitch import cli
from trajstitch.errors import InputError
from trajstitch.policies import POLICIES, algorithm_class
from trajstitch.policies.bc import BC
from trajstitch.policies.onnx_model import OPSET
from trajstitch.policies.policy import NetworkPolicy, load_policies, load_policy, save_policies
from trajstitch.policies.train import deploy, initial_state, settings, train_run
from trajstitch.storage.checksums import checksum_of_files
from trajstitch.storage.runs import Run
from trajstitch.workflow.export import export

LOG = collect(episodes=20, length=10)
NAMES = {"observation_names": ["temp [°C]", "p"], "action_names": ["valve", "flow"]}
NAMED = replace(LOG, metadata=replace(LOG.metadata, extra={**LOG.metadata.extra, **NAMES}))
FAR = replace(LOG, observations=LOG.observations.astype(np.float64) * (1e-7, 1e6) + (1e9, -3e12))
"""Columns that float32 would lose."""

ALGORITHMS: dict[str, tuple[Any, trajstitch.Trajectories]] = {
    **{
        name: (algorithm_class(name)(**({"value_steps": 10} if name == "weighted-bc" else {})), LOG)
        for name in POLICIES
    },
    "as it is": (BC(steps=40, standardise=False), LOG),
    "gaussian": (BC(steps=40, gaussian=True), LOG),
    "double precision": (BC(steps=40), FAR),
    "a column of rare outliers": (
        BC(steps=40),
        replace(
            LOG,
            observations=np.where(np.arange(len(LOG.observations))[:, None] % 97 == 5, 1e6, LOG.observations).astype(
                np.float32
            ),
        ),
    ),
}


class Session:
    """An ONNX file as onnxruntime runs it."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path)

    def act(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.session.run(None, {"observation": rows})[0])


ALONE = """
import sys

class Alone:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {allowed} and top not in sys.stdlib_module_names:
            raise ImportError(f"{{name}} is not installed here")

sys.meta_path.insert(0, Alone())
"""


@pytest.fixture(scope="module")
def policies() -> dict[str, NetworkPolicy]:
    """Policies of every kind before their first step, with a larger last layer, so that actions fill their bounds."""
    found = {}
    for name, (kind, data) in ALGORITHMS.items():
        policy: Any = deploy(kind, initial_state(kind, data, [3]), kind.training_data(data), [3], settings(kind))[0]
        weight, bias = policy.layers[-1]
        found[name] = replace(policy, layers=[*policy.layers[:-1], (4 * weight, bias)])
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    train_run(NAMED, BC(steps=40), folder, 3)
    return folder


def observations(data: trajstitch.Trajectories) -> dict[str, np.ndarray]:
    """Return batches of logged, random, distant and extreme observations."""
    random = np.random.default_rng(0)
    mean, std = data.observations.mean(0, np.float64), data.observations.std(0, dtype=np.float64)
    return {
        "logged": data.observations[:64],
        "one": data.observations[:1],
        "none": data.observations[:0],
        "random": mean + std * random.normal(size=(500, 2)),
        "distant": mean + std * random.normal(size=(200, 2)) * 10.0 ** random.uniform(0, 12, (200, 2)),
        "zero": np.zeros((3, 2)),
        "tiny": np.array([[5e-324, -1e-40], [-0.0, 1e-45]]),
        "edges": np.array([[3.4e38, -3.4e38], [3.4e38, 0], [-1e37, 1e30]]),
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_onnx_does_what_numpy_does(name: str, policies: dict[str, NetworkPolicy], tmp_path: Path) -> None:
    policy, data = policies[name], ALGORITHMS[name][1]
    session = Session(export(policy, tmp_path / "policy.onnx").path)
    (taken,), (given,) = session.session.get_inputs(), session.session.get_outputs()
    exact = name in ("double precision", "a column of rare outliers")
    assert (taken.name, taken.type) == ("observation", "tensor(double)" if exact else "tensor(float)")
    assert (given.name, given.type) == ("action", "tensor(float)")
    assert (taken.shape, given.shape) == (["batch", 2], ["batch", 2])
    for kind, rows in observations(data).items():
        rows = rows.astype(np.float64 if exact else np.float32)
        found = session.act(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = policy.act(rows)
        if name == "as it is" and kind in ("distant", "edges"):
            near = np.isfinite(wanted)  # nothing bounds what this network sees, so float32 overflows in it
            found, wanted = found[near], wanted[near]
        assert np.isfinite(found).all(), kind
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.ptp(data.actions), err_msg=kind)


def test_a_policy_in_double_precision_tells_apart_what_float32_would_not(
    policies: dict[str, NetworkPolicy], tmp_path: Path
) -> None:
    policy = policies["double precision"]
    session = Session(export(policy, tmp_path / "policy.onnx").path)
    rows = FAR.observations[:50]
    found = session.act(rows)
    np.testing.assert_allclose(found, policy.act(rows), atol=2e-6)
    lost = policy.act(rows.astype(np.float32).astype(np.float64))
    assert np.abs(lost - found).max() > 0.01, "where the graph is wrong by at most 2e-6"


def test_actions_stay_within_their_bounds(tmp_path: Path, policies: dict[str, NetworkPolicy]) -> None:
    policy = policies["bc"]
    low, high = np.array([[-0.3, 1.7], [0.1, 2.3]], np.float32)
    weight, bias = policy.layers[-1]
    layers = [*policy.layers[:-1], (1e3 * weight, bias)]
    bounded = replace(policy, layers=layers, normaliser=policy.normaliser._replace(low=low, high=high))
    session = Session(export(bounded, tmp_path / "policy.onnx").path)
    rows = 1e3 * np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    found = session.act(rows)
    assert (found >= low).all()
    assert (found <= high).all()
    assert ((found == low) | (found == high)).any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_get_nan_in_onnx_and_the_others_their_action(
    wrong: float, policies: dict[str, NetworkPolicy], tmp_path: Path
) -> None:
    for name in ("bc", "double precision"):
        data = ALGORITHMS[name][1]
        session = Session(export(policies[name], tmp_path / f"{name}.onnx").path)
        rows = data.observations[:3].copy()
        rows[1, 1] = wrong
        found = session.act(rows)
        assert np.isnan(found[1]).all()
        np.testing.assert_allclose(found[[0, 2]], policies[name].act(rows[[0, 2]]), atol=2e-6)


def test_the_file_says_what_it_is(trained: Path, tmp_path: Path) -> None:
    import onnx

    export(trained, tmp_path / "policy.onnx", seed=1)
    model = onnx.load(tmp_path / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", OPSET)]
    facts = {one.key: one.value for one in model.metadata_props}
    assert json.loads(facts["observation_names"]) == NAMES["observation_names"]
    assert json.loads(facts["action_names"]) == NAMES["action_names"]
    assert (facts["algorithm"], facts["seed"], facts["steps"]) == ("bc", "1", "40")
    assert facts["data_fingerprint"] == NAMED.fingerprint
    np.testing.assert_array_equal(np.float32(json.loads(facts["action_low"])), load_policy(trained).normaliser.low)  # pyright: ignore
    assert str(tmp_path) not in str(facts), "no path of the machine it was made on"


def run_alone(code: str, allowed: set[str], rows: np.ndarray, folder: Path) -> np.ndarray:
    """Run printed lines where only some packages are there, on these observations; return what they print."""
    (zeros,) = [line for line in code.splitlines() if line.startswith("observation = np.zeros(")]
    ours = f"observation = np.array({rows.tolist()}, np.{rows.dtype})"
    program = ALONE.format(allowed=allowed) + code.replace(zeros, ours).replace("print(", "print(*(").replace(
        "low, high))\n", "low, high).ravel().tolist()))\n"
    ).replace("[0])\n", "[0].ravel().tolist()))\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return np.array(done.stdout.split(), float).reshape(len(rows), 2)


@pytest.mark.parametrize("name", ["bc", "gaussian", "as it is", "double precision"])
def test_the_printed_lines_of_numpy_run_the_file_without_trajstitch(
    name: str, policies: dict[str, NetworkPolicy], tmp_path: Path
) -> None:
    policy, data = policies[name], ALGORITHMS[name][1]
    found = export(policy, tmp_path / "policy.safetensors")
    rows = np.concatenate((data.observations[:4].astype(np.float64), 50.0 * data.observations[:4]))
    acted = run_alone(found.code, {"numpy", "safetensors"}, rows, tmp_path)
    np.testing.assert_allclose(acted, policy.act(rows), atol=1e-6)
    assert len(found.code.splitlines()) <= 15
    np.testing.assert_array_equal(load_policy(found.path).act(rows), policy.act(rows))


@pytest.mark.parametrize("name", ["bc", "double precision"])
def test_the_printed_lines_of_onnxruntime_run_the_file_without_trajstitch(
    name: str, policies: dict[str, NetworkPolicy], tmp_path: Path
) -> None:
    policy, data = policies[name], ALGORITHMS[name][1]
    found = export(policy, tmp_path / "policy.onnx")
    allowed = {"numpy", "onnxruntime", "flatbuffers", "google", "packaging"}
    acted = run_alone(found.code, allowed, data.observations[:4], tmp_path)
    np.testing.assert_allclose(acted, policy.act(data.observations[:4]), atol=2e-6)


def test_of_a_run_the_best_is_taken_by_what_is_known(trained: Path, tmp_path: Path) -> None:
    errors = Run.open(trained).read_json("action-error")["action_error"]
    found = export(trained, tmp_path / "by-error.safetensors")
    assert found.policy.seed == int(np.argmin(errors))
    assert "nearest to the data's" in found.why
    policies = load_policies(trained)
    scores = [1.0, 3.0, 2.0]
    Run.open(trained).write_json("scores", {"checkpoints": [{"steps": policies[0].steps, "scores": scores}]})
    found = export(trained, tmp_path / "by-score.safetensors")
    (trained / "scores.json").unlink()
    assert found.policy.seed == 1
    assert "the best of 3 in `evaluate`'s episodes" in found.why
    earlier = export(trained, tmp_path / "earlier.safetensors", seed=2, checkpoint=20)
    assert (earlier.policy.seed, earlier.policy.steps) == (2, 20)
    one = export(trained / "checkpoints" / "000000040.safetensors", tmp_path / "file.safetensors", seed=2)
    np.testing.assert_array_equal(one.policy.act(LOG.observations), policies[2].act(LOG.observations))


def test_a_policy_that_learn_did_not_choose_is_not_exported(tmp_path: Path, policies) -> None:
    one, other = (replace(policies["bc"], seed=seed) for seed in (0, 1))
    run = Run.start(tmp_path / "run", "learn", {})
    chosen = run.path("policy.safetensors")
    save_policies([one], chosen)
    run.write_json("result", {"chosen": "bc", "table": [{"name": "bc"}], "policy": checksum_of_files(chosen)})
    assert export(run.folder, tmp_path / "policy.onnx").policy.seed == 0
    save_policies([other], chosen)
    with pytest.raises(InputError, match=r"is another policy than this run has chosen: remove .*result.json"):
        export(run.folder, tmp_path / "other.onnx")


@pytest.mark.usefixtures("wrong_types")
def test_wrong_wishes_are_refused_in_one_line(trained: Path, tmp_path: Path, policies, monkeypatch) -> None:
    wrong: list[tuple[Any, Path, dict[str, Any], str]] = [
        (trained, tmp_path / "policy.pt", {}, r"ends in \.onnx or \.safetensors"),
        (trained, tmp_path / "policy.onnx", {"seed": 7}, "no policy of seed 7; the seeds are 0, 1, 2"),
        (trained, tmp_path / "policy.onnx", {"checkpoint": 7}, "no checkpoint of 7 steps, but of 16, 20, "),
        (trained / "checkpoints" / "000000040.safetensors", tmp_path / "policy.onnx", {}, "choose one with `seed`"),
        (tmp_path, tmp_path / "policy.onnx", {}, "not the folder of a run"),
        (policies["bc"], tmp_path / "policy.onnx", {"seed": 3}, "given itself"),
        (None, tmp_path / "policy.onnx", {}, "`policy` must be a policy or the folder of a run, not NoneType"),
        (policies["bc"], Path("/proc/policy.onnx"), {}, "policy.onnx"),
        (NearestPolicy(np.zeros((1, 2)), np.zeros((1, 2)), 1, 0, 1, {}), tmp_path / "p.onnx", {}, "is no network"),
    ]
    for policy, path, options, message in wrong:
        with pytest.raises(InputError, match=message):
            export(policy, path, **options)
    broken = [(weight * np.nan, bias) for weight, bias in policies["bc"].layers]
    with pytest.raises(InputError, match="its training diverged"):
        export(replace(policies["bc"], layers=broken), tmp_path / "policy.onnx")
    Run.start(tmp_path / "stitching", "stitch", {})
    with pytest.raises(InputError, match="is a 'stitch' run, which holds no policies"):
        export(tmp_path / "stitching", tmp_path / "policy.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install 'trajstitch\[onnx\]'"):
        export(trained, tmp_path / "policy.onnx")
    assert not list(tmp_path.glob("*.onnx"))
    assert export(trained, tmp_path / "policy.safetensors").path.is_file(), "safetensors needs no onnx"


def test_the_command_prints_what_it_wrote_and_never_overwrites_by_chance(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(trained), str(tmp_path / "policy.onnx")]
    assert cli.run(command) == 0
    out, _ = capsys.readouterr()
    assert 'takes  float32 [batch, 2]: "temp [°C]", "p"' in out
    assert 'gives  float32 [batch, 2]: "valve", "flow"' in out
    assert "onnxruntime.InferenceSession(" in out
    before = (tmp_path / "policy.onnx").read_bytes()
    assert cli.run([*command, "--seed", "1"]) == 2
    assert "exists already: choose another name, or overwrite it with --force" in capsys.readouterr().err
    assert (tmp_path / "policy.onnx").read_bytes() == before
    other = (export(trained, tmp_path / "chosen.onnx").policy.seed + 1) % 3
    assert cli.run([*command, "--seed", str(other), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == other
    assert (tmp_path / "policy.onnx").read_bytes() != before


def test_an_error_about_an_observation_names_the_column(trained: Path, tmp_path: Path) -> None:
    policy = load_policy(export(trained, tmp_path / "policy.safetensors").path)
    with pytest.raises(InputError, match=r"holds nan \(number 0, temp \[°C\]; 1 such values\)"):
        policy.act(np.array([np.nan, 0.0]))
