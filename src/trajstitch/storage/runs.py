"""A run: a folder with a job's config, versions, metrics, models and results, from which the job can resume.

    run.json        the job's kind, config and command; versions and machine; the run folder's format
    metrics.jsonl   one JSON object per line, appended while the job runs
    *.json          results and finished stages
    *.safetensors   models, training states and graphs

Everything but the metrics is written whole or not at all: if a stage's file exists, the stage is done.
"""

import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trajstitch.errors import InputError
from trajstitch.storage.atomic import PREFIX, replacing
from trajstitch.storage.tensors import read_tensors, save_tensors

RUN_FORMAT = 2
"""Version of the layout of run folders. Raise it when runs written before can no longer be read."""

PACKAGES = ("trajstitch", "jax", "numpy", "gymnasium", "mujoco", "minari")

AnyRun = TypeVar("AnyRun", bound="Run")


class Run:
    """A job's folder: `start` makes one or resumes it, `open` reads an existing one."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts

    @classmethod
    def start(
        cls: type[AnyRun],
        folder: Path,
        kind: str,
        config: dict[str, Any],
        *,
        resume: bool = False,
        command: str | None = None,
    ) -> AnyRun:
        """Make a new run, or with `resume` continue an existing one of the same kind and config.

        `command` is what a user types to run the job again: this process's command line if not given.
        """
        config = json.loads(json.dumps(config))
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file: `run` must be a folder")
        if folder.exists() and any(not path.name.startswith(PREFIX) for path in folder.iterdir()):
            if not resume:
                raise InputError(f"{folder} exists already: continue it with `resume=True`, or choose another `run`")
            run = cls.open(folder, kind)
            for name in {**run.facts["config"], **config}:
                before, now = run.facts["config"].get(name), config.get(name)
                if before != now:
                    raise InputError(
                        f"{folder} was started with {name} = {before}, not {now}: it can't resume with another config"
                    )
            return run
        facts = {
            "format": RUN_FORMAT,
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
    def open(cls: type[AnyRun], folder: Path, kind: str | None = None) -> AnyRun:
        """Open an existing run; raise if it isn't of this `kind` (if given) or was made by an incompatible version."""
        if not (folder / "run.json").is_file():
            raise InputError(f"{folder}: not the folder of a run (it holds no run.json)")
        run = cls(folder, {})
        run.facts = run.read_json("run")
        _require_format(run.facts, folder)
        if kind is not None and run.facts.get("kind") != kind:
            raise InputError(f"{folder}: is a {run.facts.get('kind')!r} run, but a {kind!r} run is needed")
        return run

    def path(self, name: str) -> Path:
        return self.folder / name

    def log(self, **metrics: Any) -> None:
        """Append a line to the metrics."""
        with self.path("metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics so far, without a line that a killed job left half-written."""
        if not self.path("metrics.jsonl").exists():
            return []
        lines = self.path("metrics.jsonl").read_text().split("\n")
        return [json.loads(line) for line in lines[:-1] if line.endswith("}")]

    def has(self, name: str) -> bool:
        """Return whether a stage's JSON or tensors exist."""
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
        """Save the arrays of a pytree (a model, a training state), each named by its path in the tree."""
        self.write_tensors(name, tensors_of(tree), **facts)

    def read_tree(self, name: str, like: Any) -> Any:
        """Return the pytree saved as `name`; `like` has its structure and shapes."""
        return tree_from(self.read_tensors(name), like, str(self.path(f"{name}.safetensors")))


def _require_format(facts: dict[str, Any], folder: Path) -> None:
    found = facts.get("format", 1)
    if found == RUN_FORMAT:
        return
    older = isinstance(found, int) and found < RUN_FORMAT
    advice = "use that version, or start a new run" if older else "update trajstitch"
    raise InputError(
        f"{folder}: was made by {'an older' if older else 'a newer'} version of trajstitch (run format {found}, this "
        f"version reads {RUN_FORMAT}): {advice}"
    )


def tensors_of(tree: Any) -> dict[str, np.ndarray]:
    """Return a pytree's arrays by their paths; random keys as the integers they consist of."""
    import equinox as eqx
    import jax

    return {
        jax.tree_util.keystr(path): np.asarray(_raw(leaf))
        for path, leaf in jax.tree.leaves_with_path(tree)
        if eqx.is_array(leaf)
    }


def tree_from(tensors: dict[str, np.ndarray], like: Any, where: str) -> Any:
    """Return `like` with its arrays replaced by those of `tensors`: the inverse of `tensors_of`.

    `where` names the file in errors.
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    def leaf(path: Any, old: Any) -> Any:
        if not eqx.is_array(old):
            return old
        name = jax.tree_util.keystr(path)
        if name not in tensors or tensors[name].shape != np.shape(_raw(old)):
            raise InputError(f"{where}: {name} doesn't fit this config")
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
    """Return the versions of Python and of the installed packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Return this machine's accelerator (if any), number of cores and processor, as text."""
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
    """Return this process's command line as a user would type it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if spec is None else f"python -m {spec.name}"
    ours = program in ("trajstitch", "python -m trajstitch.__main__")
    return " ".join(["trajstitch" if ours else program, *map(shlex.quote, sys.argv[1:])])
