"""Policies as they are deployed: loaded with NumPy and safetensors alone, they act wherever NumPy runs.

A checkpoint is one safetensors file that holds the policies of every seed of a training, with the seeds, the gradient
steps and the configuration as its metadata. Any kind of policy can be in it: each says which tensors it is made of.
A `NetworkPolicy` has these:

    SEED/LAYER/weight, SEED/LAYER/bias   the network, weights (in, out)
    mean, std                            of observations: the network sees (observation − mean) / std
    low, high                            of actions: the network's tanh spans them
    limit                                beyond ± this, what the network sees grows only with the logarithm
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from trajstitch.data.normaliser import Normaliser
from trajstitch.errors import InputError
from trajstitch.policies import POLICIES, algorithm_class
from trajstitch.storage.links import require_no_way_out
from trajstitch.storage.runs import Run, damaged
from trajstitch.storage.tensors import read_tensors, save_tensors

Tensors = dict[str, np.ndarray]

Layers = list[tuple[np.ndarray, np.ndarray]]
"""The policy network: weights (in, out) and biases (out,), float32, first layer first."""

SQUASHED_LOG_STD = (-20.0, 2.0)
"""Bounds of the log standard deviation of SAC's policies, before the tanh."""

LOG_STD = (-5.0, 1.0)
"""Bounds of a Gaussian policy's log standard deviation, for actions within ±1."""


MOST_SEEDS = 10_000
"""Policies in one file."""


@runtime_checkable
class Policy(Protocol):
    """One seed's trained policy: all that evaluation and checkpoints need of it."""

    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int:
        """Gradient steps it was trained for."""
        ...

    @property
    def config(self) -> dict[str, Any]:
        """What it was trained with; `policy` is the name of its algorithm."""
        ...

    @property
    def observation_size(self) -> int: ...
    @property
    def action_size(self) -> int: ...

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return the action for an observation, or for each of a batch; the same one every time."""
        ...

    def tensors(self) -> Tensors:
        """Return the arrays it is made of, by name.

        All seeds share one file: start the names of arrays that differ between seeds with `SEED/`.
        """
        ...

    @classmethod
    def from_tensors(cls, tensors: Tensors, seed: int, steps: int, config: dict[str, Any]) -> "Policy":
        """Rebuild the policy of this seed from the tensors of a file. Raise KeyError if any is missing."""
        ...


NO_LIMIT = np.array(np.finfo(np.float32).max)


class PolicyNormaliser(NamedTuple):
    """How a policy sees data: observations standardised (or as they are), actions scaled to ±1.

    Where the mean and standard deviation are in double precision, so is the arithmetic, until the network.
    """

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    limit: np.ndarray = NO_LIMIT
    """Observations beyond ± this many standard deviations are compressed: what lies far outside of the data, or is an
    outlier in it, must not drive the network."""

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Return observations as the policy sees them."""
        with np.errstate(over="ignore"):
            seen = Normaliser(self.mean, self.std).apply(observation)
        excess = np.abs(seen) - self.limit
        if (excess > 0).any():
            # What overflowed counts as the largest number, for infinity would make the action NaN.
            excess = np.clip(excess, 0, np.finfo(excess.dtype).max)
            seen = np.where(excess > 0, np.sign(seen) * (self.limit + np.log1p(excess)), seen)
        return seen.astype(np.float32)

    def to_unit(self, action: np.ndarray) -> np.ndarray:
        """Scale actions from their bounds to ±1."""
        return self._actions.apply(action).astype(np.float32)

    def from_unit(self, action: np.ndarray) -> np.ndarray:
        """Scale actions from ±1 to their bounds."""
        # Rounding may go beyond an asymmetric bound by a bit, which strict environments refuse.
        return np.clip(self._actions.undo(action).astype(np.float32), self.low, self.high)

    @property
    def _actions(self) -> Normaliser:
        return Normaliser((self.high + self.low) / 2, (self.high - self.low) / 2)


@dataclass(frozen=True, eq=False)
class NetworkPolicy:
    """A deterministic or Gaussian policy: a ReLU network with tanh outputs."""

    layers: Layers = field(repr=False)
    normaliser: PolicyNormaliser = field(repr=False)
    seed: int = 0
    steps: int = 0
    """Gradient steps it was trained for."""
    config: dict[str, Any] = field(default_factory=dict)
    """What it was trained with."""

    @property
    def observation_size(self) -> int:
        return len(self.normaliser.mean)

    @property
    def action_size(self) -> int:
        return len(self.normaliser.low)

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return the action for an observation, or for each of a batch; a Gaussian policy's is its mean."""
        return self.normaliser.from_unit(self._outputs(observation)[..., : self.action_size])

    def log_density(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Return log π(a|s) of a Gaussian policy."""
        outputs, actions = self._outputs(observation), self.action_size
        if outputs.shape[-1] == actions:
            raise InputError("the policy is deterministic and has no density: train with `gaussian=True`")
        low, high = LOG_STD
        log_std = low + (high - low) / 2 * (outputs[..., actions:] + 1)
        away = (self.normaliser.to_unit(action) - outputs[..., :actions]) / np.exp(log_std)
        widths = np.log((self.normaliser.high - self.normaliser.low) / 2).sum()
        return -(0.5 * away**2 + log_std).sum(-1) - actions * 0.5 * math.log(2 * math.pi) - widths

    def tensors(self) -> Tensors:
        """Return the normaliser, which all seeds share, and the layers."""
        return self.normaliser._asdict() | named(self.layers, f"{self.seed}/")

    @classmethod
    def from_tensors(cls, tensors: Tensors, seed: int, steps: int, config: dict[str, Any]) -> "NetworkPolicy":
        """Rebuild the policy of this seed."""
        parts = {name: tensors[name] for name in PolicyNormaliser._fields if name != "limit" or name in tensors}
        normaliser = PolicyNormaliser(**parts)
        layers = layers_from(tensors, f"{seed}/")
        _require_chained(layers, normaliser)
        _require_usable(layers, normaliser)
        return cls(layers, normaliser, seed, steps, config)

    def _outputs(self, observation: np.ndarray) -> np.ndarray:
        size = np.shape(observation)[-1] if np.ndim(observation) else 0
        if size != self.observation_size:
            raise InputError(f"the policy takes observations of {self.observation_size} numbers, not {size}")
        _require_finite(np.asarray(observation), self.config.get("observation_names"))
        return act(self.layers, self.normaliser.observe(np.asarray(observation)))


def _require_finite(observation: np.ndarray, names: Any = None) -> None:
    """Raise if an observation holds NaN or infinity: the action would be NaN, or anything. `names` are the columns'."""
    if observation.dtype.kind not in "fiub":
        raise InputError(f"the policy takes observations of numbers, not of {observation.dtype}")
    wrong = ~np.isfinite(observation)
    if wrong.any():
        *row, column = np.argwhere(wrong)[0].tolist()
        where = f"row {row[0] if len(row) == 1 else tuple(row)}, " if row else ""
        known = isinstance(names, list) and len(names) == observation.shape[-1]
        number = f"number {column}, {names[column]}" if known else f"number {column}"
        raise InputError(
            f"the observation holds {observation[(*row, column)]} ({where}{number}; {int(wrong.sum()):,} such "
            "values): give the policy finite numbers, such as the last good reading"
        )


def _require_chained(layers: Layers, normaliser: PolicyNormaliser) -> None:
    """Raise ValueError unless each layer takes what the one before gives, from observations to actions."""
    size, actions = np.size(normaliser.mean), np.size(normaliser.low)
    shapes = [array.shape for array in normaliser[:-1]]
    if shapes != [(size,), (size,), (actions,), (actions,)]:
        raise ValueError(f"mean, std, low and high have shapes {shapes}")
    size = chained(layers, size)
    if size not in (actions, 2 * actions):
        raise ValueError(f"the last layer gives {size} numbers for {actions} actions")


def chained(layers: Layers, size: int) -> int:
    """Return how many numbers the last layer gives; raise ValueError unless each takes what the one before gives."""
    for number, (weight, bias) in enumerate(layers):
        if weight.ndim != 2 or len(weight) != size or bias.shape != weight.shape[1:]:
            raise ValueError(f"layer {number} has shapes {weight.shape} and {bias.shape}, and takes {size} numbers")
        size = weight.shape[1]
    return size


def _require_usable(layers: Layers, normaliser: PolicyNormaliser) -> None:
    """Raise ValueError unless observations and actions can be scaled; weights may be NaN where training diverged."""
    arrays = {**normaliser._asdict(), **named(layers)}
    if wrong := [name for name, array in arrays.items() if array.dtype.kind != "f"]:
        raise ValueError(f"{wrong[0]} holds no floating-point numbers")
    if wrong := [name for name, array in normaliser._asdict().items() if not np.isfinite(array).all()]:
        raise ValueError(f"{wrong[0]} is not finite")
    if not (normaliser.std > 0).all() or normaliser.limit.shape or not normaliser.limit > 0:
        raise ValueError("std or limit is not above 0")
    if not (normaliser.low <= normaliser.high).all():
        raise ValueError("low is above high")


def save_policies(
    policies: Sequence[Policy], path: Path, config: dict[str, Any] | None = None, *, force: bool = True
) -> None:
    """Write the policies of one training (its seeds, after the same steps) as one file.

    `config` is what they were trained with; if not given, what the first one says.
    """
    first = policies[0]
    tensors: Tensors = {}
    for policy in policies:
        for name, array in policy.tensors().items():
            if not np.array_equal(tensors.setdefault(name, array), array, equal_nan=True):
                raise ValueError(f"the tensor {name!r} differs between seeds: start its name with `SEED/`")
    facts = {
        "seeds": json.dumps([policy.seed for policy in policies]),
        "steps": str(first.steps),
        "config": json.dumps(first.config if config is None else config),
    }
    if not isinstance(first, NetworkPolicy):
        facts["kind"] = first.config.get("policy", type(first).__name__)
        if facts["kind"] not in POLICIES:
            raise InputError(f"a policy of {facts['kind']!r} could not be loaded again: add it to `policies.POLICIES`")
    save_tensors(tensors, path, facts, force=force)


def load_policies(path: str | Path) -> list[Policy]:
    """Load every seed's policy from a checkpoint, or from the last checkpoint of a run's folder."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder: name a training's folder, or the file of a policy")
    if path.is_dir():
        require_no_way_out(path, "the run's folder")
        found = checkpoints(path)
        if not found:
            raise InputError(f"{path}: holds no checkpoints; `trajstitch train` writes them into a run's folder")
        path = found[-1]
    tensors, facts = read_tensors(path)
    with damaged(path, "`trajstitch train` writes a policy's checkpoint"):
        kind: type[Policy] = NetworkPolicy
        if "kind" in facts:  # only a name of our table decides what is imported: a file may come from anywhere
            if facts["kind"] not in POLICIES:
                raise InputError(f"{path}: unknown policy {facts['kind']!r}; the policies are {', '.join(POLICIES)}")
            kind = algorithm_class(facts["kind"]).policy_class
        steps, config = int(facts["steps"]), json.loads(facts["config"])
        seeds = json.loads(facts["seeds"])
        if not seeds or not isinstance(config, dict) or not all(isinstance(seed, int) for seed in seeds):
            raise TypeError("no seeds, or no config")
        if len(seeds) > MOST_SEEDS or len(set(seeds)) < len(seeds):
            raise ValueError(f"more than {MOST_SEEDS:,} seeds, or one of them twice")
        _require_own(path, steps, config)
        return [kind.from_tensors(tensors, seed, steps, config) for seed in seeds]


def _require_own(path: Path, steps: int, config: dict[str, Any]) -> None:
    """Raise ValueError for a checkpoint in a run's folder that another run, or another step of it, has made."""
    folder = path.absolute().parent.parent
    if path.parent.name != "checkpoints" or not (folder / "run.json").is_file():
        return
    if path.stem != f"{steps:09}":
        raise ValueError(f"it was made after {steps:,} steps")
    try:
        ours = Run.open(folder).config
    except InputError:  # policies outlive the folder that they were made in
        return
    free = ("steps", "source")  # may be others where the run is continued
    for name in ("policy", "fingerprint", *(name for name in ours if name not in free)):
        if name in ours and name in config and config[name] != ours[name]:
            raise ValueError(f"it was made by another run, with {name} = {config[name]}, not {ours[name]}")


def load_policy(path: str | Path, seed: int | None = None) -> Policy:
    """Load a trained policy from a checkpoint or a run's folder: that of `seed`, or the first."""
    policies = load_policies(path)
    for policy in policies:
        if seed is None or policy.seed == seed:
            return policy
    seeds = ", ".join(str(policy.seed) for policy in policies)
    raise InputError(f"{path}: holds no policy of seed {seed}; the seeds are {seeds}")


def checkpoints(folder: Path) -> list[Path]:
    """Return a run's checkpoints, in the order of their steps."""
    return sorted((folder / "checkpoints").glob("*.safetensors"))


def act(layers: Layers, observation: np.ndarray, bound: np.ndarray | float = 1.0) -> np.ndarray:
    """Return the network's actions for observations of shape (..., dimensions): ReLU layers, then tanh × bound."""
    return np.float32(bound) * np.tanh(outputs(layers, observation))


def sampled(layers: Layers, observation: np.ndarray, away: np.ndarray, bound: np.ndarray | float = 1.0) -> np.ndarray:
    """Return actions of a squashed Gaussian policy that lie `away` standard deviations from the mean, before the tanh.

    Standard normal `away` samples the policy; 0 gives its mode.
    """
    mean, log_std = np.split(outputs(layers, observation), 2, axis=-1)
    std = np.exp(np.clip(log_std, np.float32(SQUASHED_LOG_STD[0]), np.float32(SQUASHED_LOG_STD[1])))
    return np.float32(bound) * np.tanh(mean + std * np.asarray(away, np.float32))


def outputs(layers: Layers, observation: np.ndarray) -> np.ndarray:
    """Return what a network of ReLU layers gives, before any tanh."""
    hidden = np.asarray(observation, np.float32)
    for weight, bias in layers[:-1]:
        hidden = np.maximum(hidden @ weight + bias, 0)
    weight, bias = layers[-1]
    return hidden @ weight + bias


def named(layers: Layers, prefix: str = "") -> Tensors:
    """Return the layers as the tensors of a safetensors file."""
    return {
        f"{prefix}{index}/{kind}": array
        for index, layer in enumerate(layers)
        for kind, array in zip(("weight", "bias"), layer, strict=True)
    }


def layers_from(tensors: Tensors, prefix: str = "") -> Layers:
    """Return the layers that `named` made tensors of."""
    count = sum(name.startswith(prefix) and name.endswith("weight") for name in tensors)
    if not count:
        raise KeyError(f"{prefix}0/weight")
    return [(tensors[f"{prefix}{index}/weight"], tensors[f"{prefix}{index}/bias"]) for index in range(count)]
