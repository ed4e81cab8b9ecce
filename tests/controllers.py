"""Controllers written by hand, as policies: to compare with trained ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from trajstitch.data.trajectories import Trajectories
from trajstitch.policies.policy import Policy


@dataclass(frozen=True)
class Controller:
    """A policy that is a function."""

    function: Callable[[np.ndarray], np.ndarray]
    observation_size: int
    action_size: int
    seed: int = 0
    steps: int = 0
    config: dict[str, Any] = field(default_factory=dict)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return np.asarray(self.function(np.asarray(observation)), np.float32)

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_tensors(cls, tensors: dict[str, np.ndarray], seed: int, steps: int, config: dict[str, Any]) -> Self:
        raise NotImplementedError


def controller(data: Trajectories, function: Callable[[np.ndarray], np.ndarray]) -> Controller:
    return Controller(function, data.observation_size, data.action_size)


def mean_action(data: Trajectories) -> Controller:
    """Return a controller that always takes the mean logged action."""
    return controller(data, lambda rows: np.broadcast_to(data.actions.mean(0), (len(rows), data.action_size)))


def scaled(policy: Policy, factor: float) -> Controller:
    """Return a controller whose actions are a policy's times a factor; −1 reverses them."""
    return Controller(lambda rows: factor * policy.act(rows), policy.observation_size, policy.action_size)
