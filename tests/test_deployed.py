"""The deployed policy: it is loaded with NumPy and safetensors alone, and says what it can't act on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from trajstitch.errors import InputError
from trajstitch.policies.bc import BC
from trajstitch.policies.policy import NetworkPolicy, PolicyNormaliser, save_policies
from trajstitch.policies.train import check_training

PROGRAM = """
import sys

class Alone:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {"numpy", "safetensors", "trajstitch"} and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Alone())
import trajstitch
print(trajstitch.load_policy(sys.argv[1]).act([0.5, 1.0]).tolist())
"""


def policy() -> NetworkPolicy:
    random = np.random.default_rng(0)
    layers = [(random.normal(size=(2, 8)), np.zeros(8)), (random.normal(size=(8, 1)), np.zeros(1))]
    layers = [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers]
    bounds = np.zeros(2, np.float32), np.ones(2, np.float32), -np.ones(1, np.float32), np.ones(1, np.float32)
    return NetworkPolicy(layers, PolicyNormaliser(*bounds), 0, 10, {"policy": "bc"})


def test_a_policy_is_loaded_with_numpy_and_safetensors_alone(tmp_path: Path) -> None:
    save_policies([policy()], tmp_path / "policy.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "policy.safetensors")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1] / "src"), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(policy().act(np.array([0.5, 1.0])).tolist())


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_gets_no_action(wrong: float) -> None:
    with pytest.raises(InputError, match=r"the observation holds (nan|inf) \(number 1; 1 such values\)"):
        policy().act(np.array([0.0, wrong]))
    with pytest.raises(InputError, match=r"\(row 2, number 0; 1 such values\)"):
        policy().act(np.array([[0.0, 0.0], [1.0, 1.0], [wrong, 0.0]]))


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"steps": "10"}, "`steps` must be a number, not '10'"),
        ({"steps": None}, "`steps` must be a number, not None"),
        ({"steps": True}, "`steps` must be a number, not True"),
        ({"hidden": 256}, "`hidden` must be numbers"),
        ({"hidden": (256, "x")}, "`hidden` must be numbers"),
        ({"standardise": "no"}, "`standardise` must be True or False, not 'no'"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be"),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_bad_settings_are_refused_before_anything_trains(setting: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_training(BC(**setting), 1, 0)
