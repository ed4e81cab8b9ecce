"""A run: the folder that holds a job's configuration, versions, metrics, models and results, and resumes it.

    run.json        what was asked, with which versions, on which machine
    metrics.jsonl   one JSON object a line, as the job goes
    *.json          results and finished stages
    *.safetensors   models, states and graphs

Everything but the metrics is written whole or not at all, so a file that is there is a stage that is done.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from trajstitch.errors import InputError
from trajstitch.storage.atomic import PREFIX, replacing
from trajstitch.storage.tensors import read_tensors, save_tensors

PACKAGES = ("trajstitch", "jax", "numpy", "gymnasium", "mujoco", "minari")


class Run:
    """A job's folder. Make a new one (or go on with an old one) by `start`, look into a finished one by `open`."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts

    @classmethod
    def start(
        cls, folder: Path, kind: str, config: dict[str, Any], *, resume: bool = False, command: str | None = None
    ) -> Self:
        """A new run; with `resume`, the old one of the same kind and configuration.

        `command` is how to ask for the same again; the command line, unless told.
        """
        config = json.loads(json.dumps(config))
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file: name a folder by --run")
        if folder.exists() and any(not path.name.startswith(PREFIX) for path in folder.iterdir()):
            if not resume:
                raise InputError(f"{folder} exists already: go on with it by --resume, or name another by --run")
            run = cls.open(folder, kind)
            for name in {**run.facts["config"], **config}:
                before, now = run.facts["config"].get(name), config.get(name)
                if before != now:
                    raise InputError(
                        f"{folder} was started with {name} = {before}, not {now}: it can't go on with that"
                    )
            return run
        facts = {
            "kind": kind,
            "config": config,
            "versions": versions(),
            "machine": machine(),
            "command": command or command_line(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        run = cls(folder, facts)
        run.write_json("run", facts)
        return run

    @classmethod
    def open(cls, folder: Path, kind: str | None = None) -> Self:
        """A run that is there; `kind` is what it must be a run of."""
        if not (folder / "run.json").is_file():
            raise InputError(f"{folder}: not the folder of a run (there is no run.json in it)")
        run = cls(folder, {})
        run.facts = run.read_json("run")
        if kind is not None and run.facts.get("kind") != kind:
            raise InputError(f"{folder}: a run of `{run.facts.get('kind')}`, where one of `{kind}` is needed")
        return run

    def path(self, name: str) -> Path:
        return self.folder / name

    def log(self, **metrics: Any) -> None:
        """Add a line to the metrics."""
        with self.path("metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics so far; a line that a killed job left half-written is left out."""
        if not self.path("metrics.jsonl").exists():
            return []
        lines = self.path("metrics.jsonl").read_text().split("\n")
        return [json.loads(line) for line in lines[:-1] if line.endswith("}")]

    def has(self, name: str) -> bool:
        """Whether a stage's JSON or tensors are there."""
        return any(self.path(f"{name}.{ending}").exists() for ending in ("json", "safetensors"))

    def write_json(self, name: str, value: Any) -> None:
        with replacing(self.path(f"{name}.json"), force=True) as fresh:
            fresh.write_text(json.dumps(value, indent=1) + "\n")

    def read_json(self, name: str) -> Any:
        try:
            return json.loads(self.path(f"{name}.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path(f'{name}.json')}: can't be read ({error})") from error

    def write_tensors(self, name: str, tensors: dict[str, np.ndarray], **facts: str) -> None:
        save_tensors(tensors, self.path(f"{name}.safetensors"), facts)

    def read_tensors(self, name: str) -> dict[str, np.ndarray]:
        return read_tensors(self.path(f"{name}.safetensors"))[0]

    def write_tree(self, name: str, tree: Any, **facts: str) -> None:
        """Save a pytree of arrays (a model, a training state) under the paths of its leaves."""
        self.write_tensors(name, tensors_of(tree), **facts)

    def read_tree(self, name: str, like: Any) -> Any:
        """The pytree saved under `name`, in the shape of `like`."""
        return tree_from(self.read_tensors(name), like, str(self.path(f"{name}.safetensors")))


def tensors_of(tree: Any) -> dict[str, np.ndarray]:
    """A pytree's arrays by their paths; random keys as the numbers they are made of."""
    import equinox as eqx
    import jax

    return {
        jax.tree_util.keystr(path): np.asarray(_raw(leaf))
        for path, leaf in jax.tree.leaves_with_path(tree)
        if eqx.is_array(leaf)
    }


def tree_from(tensors: dict[str, np.ndarray], like: Any, where: str) -> Any:
    """The inverse of `tensors_of`: `like` with its arrays taken from `tensors`."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    def leaf(path: Any, old: Any) -> Any:
        if not eqx.is_array(old):
            return old
        name = jax.tree_util.keystr(path)
        if name not in tensors or tensors[name].shape != np.shape(_raw(old)):
            raise InputError(f"{where}: doesn't fit this configuration at {name}")
        fresh = jnp.asarray(tensors[name])
        return jax.random.wrap_key_data(fresh) if _is_key(old) else fresh

    return jax.tree_util.tree_map_with_path(leaf, like)


def _is_key(leaf: Any) -> bool:
    import jax

    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    import jax

    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def versions() -> dict[str, str]:
    """Of Python and of the packages that results depend on, those that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """The accelerator, if any, the processor, and how many of its cores this machine has."""
    import jax

    device = jax.devices()[0]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.machine()
    cores = f"{os.cpu_count()} × {processor}"
    return cores if device.platform == "cpu" else f"{device.device_kind}, {cores}"


def command_line() -> str:
    """The command line as the user would type it again."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if spec is None else f"python -m {spec.name}"
    ours = program in ("trajstitch", "python -m trajstitch.__main__")
    return " ".join(["trajstitch" if ours else program, *map(shlex.quote, sys.argv[1:])])
