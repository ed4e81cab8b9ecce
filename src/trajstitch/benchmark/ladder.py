"""A ladder: policies saved along one training run, weakest first, the expert last.

Each task has one safetensors file, in half precision, with the training curves and versions as metadata. Reading and
acting need NumPy alone, so that `collect` and its worker processes never import jax.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.errors import InputError, did_you_mean
from trajstitch.policies.policy import Layers, chained, layers_from, named
from trajstitch.storage.tensors import read_tensors, save_tensors

TASKS = {"hopper": "Hopper-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5"}
SHIPPED = Path(__file__).parent / "ladders"
ALGORITHMS = ("td3", "sac")
MEDIUM = 1 / 3
"""The medium policy is the first to reach this fraction of the expert's return."""


@dataclass(frozen=True)
class Checkpoint:
    """A policy as it was after `steps` environment steps, with the return of its (rounded) weights."""

    steps: int
    mean_return: float
    std_return: float
    episodes: int
    layers: Layers = field(repr=False)


@dataclass(frozen=True)
class Ladder:
    """The policies of one task, with how they were trained."""

    task: str
    environment: str
    """The Gymnasium id the policies were trained and evaluated in, such as Hopper-v5."""
    checkpoints: tuple[Checkpoint, ...]
    """In training order; the last one is the expert."""
    seed: int
    """The seed of the training run that the checkpoints come from."""
    curves: dict[int, list[tuple[int, float]]] = field(default_factory=dict, repr=False)
    """Seed to (environment steps, mean return) at each evaluation, for every seed that was trained."""
    versions: dict[str, str] = field(default_factory=dict, repr=False)
    machine: str = field(default="", repr=False)
    command: str = field(default="", repr=False)
    algorithm: str = "td3"
    """td3, whose policies are deterministic, or sac, whose policies are stochastic."""
    random_steps: int = 0
    """Environment steps with random actions at the start of the run."""
    chosen_medium: int | None = None
    """Index of the medium policy, where it was chosen when the ladder was made."""

    @property
    def expert(self) -> Checkpoint:
        return self.checkpoints[-1]

    @property
    def medium(self) -> Checkpoint:
        return self.checkpoints[self.medium_index]

    @property
    def medium_index(self) -> int:
        """Index of the medium policy: as chosen, or the first that reaches a third of the expert's return."""
        if self.chosen_medium is not None:
            return self.chosen_medium
        return first_medium([checkpoint.mean_return for checkpoint in self.checkpoints])


def first_medium(returns: Sequence[float]) -> int:
    """Return the index of the first of `returns` that reaches a third of the last one."""
    return next(i for i, value in enumerate(returns) if value >= returns[-1] * MEDIUM or i == len(returns) - 1)


def shipped(task: str, algorithm: str = "td3") -> Path:
    """Return where the ladder of a task that an algorithm trained is shipped, if it is."""
    return SHIPPED / f"{task}{'' if algorithm == 'td3' else f'-{algorithm}'}.safetensors"


def load_ladder(task_or_path: str | Path) -> Ladder:
    """Load a shipped TD3 ladder by its task's name, or any ladder by its file's path."""
    path = Path(task_or_path)
    if task_or_path in TASKS:
        path = shipped(str(task_or_path))
    elif not path.is_file():
        if path.suffix or len(path.parts) > 1:
            raise InputError(f"{path}: no such ladder file; `trajstitch expert TASK` trains one")
        raise InputError(unknown_task(str(task_or_path)))
    try:
        tensors, header = read_tensors(path)
        tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        checkpoints = tuple(
            Checkpoint(**facts, layers=layers_from(tensors, f"{index}/"))
            for index, facts in enumerate(json.loads(header["checkpoints"]))
        )
        _require_usable(checkpoints)
        medium = json.loads(header.get("medium", "null"))
        if medium is not None and medium not in range(len(checkpoints)):
            raise ValueError(f"its medium policy is number {medium!r} of {len(checkpoints)}")
        task, environment = header["task"], header["environment"]
        if environment != TASKS.get(task, task):  # Gymnasium imports the module that an id may name
            raise ValueError(f"its policies are of {environment!r}, which is not the environment of the task {task!r}")
        return Ladder(
            task=task,
            environment=environment,
            checkpoints=checkpoints,
            seed=int(header["seed"]),
            algorithm=header.get("algorithm", "td3"),
            random_steps=int(header.get("random_steps", 0)),
            chosen_medium=medium,
            curves={
                int(seed): [(_number(steps), _number(value)) for steps, value in curve]
                for seed, curve in json.loads(header["curves"]).items()
            },
            versions={name: str(version) for name, version in json.loads(header["versions"]).items()},
            machine=header["machine"],
            command=header["command"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a ladder file ({error}); `trajstitch expert TASK` writes one") from error


def _number(value: Any) -> Any:
    """Return a number of a file; raise ValueError if it is none."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:80]!r} where a number should be")
    return value


def _require_usable(checkpoints: Sequence[Checkpoint]) -> None:
    """Raise ValueError unless there are policies in training order, of the same sizes, whose numbers are finite."""
    if not checkpoints:
        raise ValueError("it holds no policies")
    for number, one in enumerate(checkpoints):
        for fact in (one.steps, one.mean_return, one.std_return, one.episodes):
            _number(fact)
        if not all(array.ndim and np.isfinite(array).all() for layer in one.layers for array in layer):
            raise ValueError(f"policy {number} has weights that are not finite")
    if len({(size := len(one.layers[0][0]), chained(one.layers, size)) for one in checkpoints}) > 1:
        raise ValueError("its policies take or give different numbers of values")
    steps = [one.steps for one in checkpoints]
    if steps != sorted(steps) or steps[0] < 0:
        raise ValueError(f"its policies are of {steps} steps, which is no order of training")


def save_ladder(ladder: Ladder, path: str | Path) -> None:
    """Write the ladder in half precision; `path` is replaced in one step or not touched at all."""
    tensors: dict[str, np.ndarray] = {}
    for index, checkpoint in enumerate(ladder.checkpoints):
        tensors |= {name: array.astype(np.float16) for name, array in named(checkpoint.layers, f"{index}/").items()}
    facts = [
        {
            "steps": checkpoint.steps,
            "mean_return": checkpoint.mean_return,
            "std_return": checkpoint.std_return,
            "episodes": checkpoint.episodes,
        }
        for checkpoint in ladder.checkpoints
    ]
    save_tensors(
        tensors,
        path,
        {
            "task": ladder.task,
            "environment": ladder.environment,
            "checkpoints": json.dumps(facts),
            "seed": str(ladder.seed),
            "algorithm": ladder.algorithm,
            "random_steps": str(ladder.random_steps),
            "medium": json.dumps(ladder.chosen_medium),
            "curves": json.dumps(ladder.curves),
            "versions": json.dumps(ladder.versions),
            "machine": ladder.machine,
            "command": ladder.command,
        },
    )


def rounded(layers: Layers) -> Layers:
    """Return the layers rounded to half precision, as they come back from a ladder file."""
    return [
        (weight.astype(np.float16).astype(np.float32), bias.astype(np.float16).astype(np.float32))
        for weight, bias in layers
    ]


def unknown_task(name: str) -> str:
    """Return the message for a task that isn't built in, with the most similar one that is."""
    return f"unknown task {name!r}{did_you_mean(name.lower(), TASKS)}: the tasks are {', '.join(TASKS)}"
