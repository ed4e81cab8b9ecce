"""What is compiled for a GPU is kept where the user would look for it; and on a GPU, that makes bits repeat.

The tests marked `gpu` need one: `make test-gpu`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trajstitch.learning import accelerator

SAY = "import os, trajstitch; print(os.environ.get('JAX_COMPILATION_CACHE_DIR'))"


def told(environment: dict[str, str], plugin: Path | None = None, before: str = "") -> str:
    """What a fresh process that imports trajstitch takes the folder to be."""
    kept = {name: value for name, value in os.environ.items() if name != accelerator.VARIABLE}
    paths = [*([str(plugin)] if plugin else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-c", before + SAY]
    asked = kept | environment | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, env=asked, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder that makes JAX look as if it were installed for a GPU."""
    (tmp_path / "site" / "jax_plugins" / "xla_cuda99").mkdir(parents=True)
    (tmp_path / "site" / "jax_plugins" / "xla_cuda99" / "__init__.py").touch()
    return tmp_path / "site"


def test_programs_for_a_gpu_are_kept_in_the_users_cache(tmp_path: Path, plugin: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert told(cache, plugin) == str(tmp_path / "cache" / "trajstitch" / "xla")


def test_who_has_told_jax_already_has_the_say(tmp_path: Path, plugin: Path) -> None:
    assert told({accelerator.VARIABLE: str(tmp_path)}, plugin) == str(tmp_path)


def test_jax_that_was_imported_before_is_told_too(tmp_path: Path, plugin: Path) -> None:
    after = "import jax, trajstitch; print(jax.config.jax_compilation_cache_dir); "
    shown = told({"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}, plugin, after).splitlines()
    assert shown == [str(tmp_path / "trajstitch" / "xla")] * 2


def test_what_was_set_in_python_is_left_alone(tmp_path: Path, plugin: Path) -> None:
    own = f"import jax; jax.config.update('jax_compilation_cache_dir', {str(tmp_path)!r}); import trajstitch; "
    shown = told({"JAX_PLATFORMS": "cpu"}, plugin, own + "print(jax.config.jax_compilation_cache_dir); ").splitlines()
    assert shown == [str(tmp_path), "None"]


def test_a_user_without_a_home_keeps_nothing_and_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(accelerator.VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(accelerator, "_has_plugin", lambda: True)
    monkeypatch.setattr(accelerator.Path, "home", homeless)
    accelerator.keep_programs()
    assert accelerator.VARIABLE not in os.environ


@pytest.mark.parametrize("error", [ImportError, ValueError])
def test_where_jax_can_not_be_looked_for_it_is_taken_for_none(error, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise error(f"{name} is not to be looked for")

    monkeypatch.setattr(accelerator, "find_spec", refuse)
    assert not accelerator._has_plugin()


STITCH = """
import hashlib
import numpy as np
import trajstitch
from trajstitch.policies.td3_bc import TD3BC

data = trajstitch.collect(trajstitch.Collect("hopper/medium-replay", transitions=20_000))
better = trajstitch.stitch(data, preset="quick")
policies = trajstitch.train(better, TD3BC(steps=2000), seeds=3)
parts = {"observations": better.observations, "actions": better.actions, "rewards": better.rewards}
parts |= {f"seed {p.seed}, layer {at}": weight for p in policies for at, (weight, _) in enumerate(p.layers)}
for name, part in parts.items():
    print(name, hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest())
print("stitched", int(better.provenance.stitched.sum()))
"""


@pytest.mark.gpu
def test_one_seed_gives_the_same_bits_in_every_process_on_a_gpu(tmp_path: Path) -> None:
    import jax

    assert jax.default_backend() == "gpu", "this test needs a GPU, and JAX for it"
    environment = os.environ | {accelerator.VARIABLE: str(tmp_path / "kept")}
    runs = [
        subprocess.run([sys.executable, "-c", STITCH], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (run.stdout.splitlines() for run in runs)
    assert int(first[-1].split()[-1]) > 0
    assert first == second
