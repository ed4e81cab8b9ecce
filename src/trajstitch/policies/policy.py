"""A trained policy as plain arrays: it acts with NumPy alone, wherever it is deployed.

A checkpoint is one safetensors file that holds the policies of every seed, the units they work in and, as its
metadata, the configuration they were trained with:

    SEED/LAYER/weight, SEED/LAYER/bias   the network, weights (in, out)
    mean, std                            of observations: the network sees (observation − mean) / std
    low, high                            of actions: the network's tanh spans them
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from trajstitch.errors import InputError
from trajstitch.storage.tensors import read_tensors, save_tensors

Layers = list[tuple[np.ndarray, np.ndarray]]
"""The policy network: weights (in, out) and biases (out,), float32, first layer first."""

LOG_STD = (-5.0, 1.0)
"""Bounds of a Gaussian policy's log standard deviation, for actions within ±1."""


class Units(NamedTuple):
    """What the data's numbers are to a policy: observations it may standardise, actions within ±1."""

    mean: Float[np.ndarray, " observation"]
    std: Float[np.ndarray, " observation"]
    low: Float[np.ndarray, " action"]
    high: Float[np.ndarray, " action"]

    def observe(self, observation: np.ndarray) -> Float[np.ndarray, "*rows observation"]:
        return ((observation - self.mean) / self.std).astype(np.float32)

    def to_unit(self, action: np.ndarray) -> Float[np.ndarray, "*rows action"]:
        return ((action - self._centre) / self._reach).astype(np.float32)

    def from_unit(self, action: np.ndarray) -> Float[np.ndarray, "*rows action"]:
        # Rounding may go beyond an asymmetric bound by a bit, which strict environments refuse.
        return np.clip((self._centre + self._reach * action).astype(np.float32), self.low, self.high)

    @property
    def _centre(self) -> np.ndarray:
        return (self.high + self.low) / 2

    @property
    def _reach(self) -> np.ndarray:
        return (self.high - self.low) / 2


@dataclass(frozen=True, eq=False)
class Policy:
    """One seed's policy."""

    layers: Layers = field(repr=False)
    units: Units = field(repr=False)
    seed: int = 0
    steps: int = 0
    """Gradient steps it was trained for."""
    config: dict[str, Any] = field(default_factory=dict)
    """What it was trained with."""

    def act(self, observation: Float[np.ndarray, "*rows observation"]) -> Float[np.ndarray, "*rows action"]:
        """The action for an observation, or for each of a batch."""
        return self.units.from_unit(self._outputs(observation)[..., : len(self.units.low)])

    def log_density(
        self, observation: Float[np.ndarray, "*rows observation"], action: Float[np.ndarray, "*rows action"]
    ) -> Float[np.ndarray, "*rows"]:
        """log π(a|s) of a Gaussian policy."""
        outputs, actions = self._outputs(observation), len(self.units.low)
        if outputs.shape[-1] == actions:
            raise InputError("the policy is deterministic and has no density: train with --gaussian")
        low, high = LOG_STD
        log_std = low + (high - low) / 2 * (outputs[..., actions:] + 1)
        away = (self.units.to_unit(action) - outputs[..., :actions]) / np.exp(log_std)
        widths = np.log((self.units.high - self.units.low) / 2).sum()
        return -(0.5 * away**2 + log_std).sum(-1) - actions * 0.5 * math.log(2 * math.pi) - widths

    def _outputs(self, observation: np.ndarray) -> np.ndarray:
        size = np.shape(observation)[-1] if np.ndim(observation) else 0
        if size != len(self.units.mean):
            raise InputError(f"the policy takes observations of {len(self.units.mean)} numbers, not {size}")
        return act(self.layers, self.units.observe(np.asarray(observation)))


def save_policies(policies: Sequence[Policy], path: Path) -> None:
    """Write the policies of one training (its seeds, after the same steps) as one file."""
    first = policies[0]
    tensors = first.units._asdict()
    for policy in policies:
        tensors |= named(policy.layers, f"{policy.seed}/")
    facts = {
        "seeds": json.dumps([policy.seed for policy in policies]),
        "steps": str(first.steps),
        "config": json.dumps(first.config),
    }
    save_tensors(tensors, path, facts)


def load_policies(path: str | Path) -> list[Policy]:
    """Every seed's policy from a checkpoint, or from the last checkpoint of a run's folder."""
    path = Path(path)
    if path.is_dir():
        found = checkpoints(path)
        if not found:
            raise InputError(f"{path}: holds no checkpoints; `trajstitch train` writes them into a run's folder")
        path = found[-1]
    tensors, facts = read_tensors(path)
    try:
        units = Units(*(tensors[name] for name in Units._fields))
        steps, config = int(facts["steps"]), json.loads(facts["config"])
        return [
            Policy(layers_from(tensors, f"{seed}/"), units, seed, steps, config) for seed in json.loads(facts["seeds"])
        ]
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: not a policy's checkpoint ({error}); `trajstitch train` writes one") from error


def load_policy(path: str | Path, seed: int | None = None) -> Policy:
    """A trained policy, from a checkpoint or a run's folder: the first seed's, unless told which."""
    policies = load_policies(path)
    for policy in policies:
        if seed is None or policy.seed == seed:
            return policy
    seeds = ", ".join(str(policy.seed) for policy in policies)
    raise InputError(f"{path}: holds no policy of seed {seed}; the seeds are {seeds}")


def checkpoints(folder: Path) -> list[Path]:
    """A run's checkpoints, in the order of their steps."""
    return sorted((folder / "checkpoints").glob("*.safetensors"))


def act(layers: Layers, observation: np.ndarray, bound: np.ndarray | float = 1.0) -> np.ndarray:
    """The policy's actions for observations of shape (..., dimensions): a ReLU network, then tanh × bound."""
    hidden = np.asarray(observation, np.float32)
    for weight, bias in layers[:-1]:
        hidden = np.maximum(hidden @ weight + bias, 0)
    weight, bias = layers[-1]
    return np.float32(bound) * np.tanh(hidden @ weight + bias)


def named(layers: Layers, prefix: str = "") -> dict[str, np.ndarray]:
    """The layers as the tensors of a safetensors file."""
    return {
        f"{prefix}{index}/{kind}": array
        for index, layer in enumerate(layers)
        for kind, array in zip(("weight", "bias"), layer, strict=True)
    }


def layers_from(tensors: dict[str, np.ndarray], prefix: str = "") -> Layers:
    """The inverse of `named`."""
    count = sum(name.startswith(prefix) and name.endswith("weight") for name in tensors)
    if not count:
        raise KeyError(f"{prefix}0/weight")
    return [(tensors[f"{prefix}{index}/weight"], tensors[f"{prefix}{index}/bias"]) for index in range(count)]
