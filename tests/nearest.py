"""A policy of another kind than ours: it does what was done in the nearest logged state. One file, as a user writes it.

Nothing is trained, so its model is empty; what it deploys is the data.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np

from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.bounds import Bounds
from trajstitch.policies.training_data import TrainingData, policy_normaliser


@dataclass(frozen=True)
class NearestPolicy:
    """The mean action of the nearest logged states."""

    states: np.ndarray
    actions: np.ndarray
    neighbours: int
    seed: int
    steps: int
    config: dict[str, Any]

    @property
    def observation_size(self) -> int:
        return self.states.shape[1]

    @property
    def action_size(self) -> int:
        return self.actions.shape[1]

    def act(self, observation: np.ndarray) -> np.ndarray:
        distance = np.square(np.asarray(observation)[..., None, :] - self.states).sum(-1)
        nearest = np.argsort(distance, axis=-1, kind="stable")[..., : self.neighbours]
        return self.actions[nearest].mean(-2)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"states": self.states, "actions": self.actions, "neighbours": np.array(self.neighbours)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, np.ndarray], seed: int, steps: int, config: dict[str, Any]) -> Self:
        return cls(tensors["states"], tensors["actions"], int(tensors["neighbours"]), seed, steps, config)


@dataclass(frozen=True)
class Nearest:
    """The action of the nearest logged states.

    More than its first line is not shown among the policies.
    """

    policy_class = NearestPolicy

    neighbours: Annotated[int, Bounds(1)] = 1
    """How many logged states vote."""
    steps: int = 1
    """Gradient steps, which change nothing."""
    batch_size: int = 1
    """Logged steps in a gradient step."""

    def training_data(self, data: Trajectories) -> TrainingData:
        states = data.observations[data.state_rows]
        return TrainingData(policy_normaliser(data, False), {"state": states}, (states, data.actions))

    def init(self, key: Any, sizes: Any) -> None:
        return None

    def objectives(self) -> tuple[()]:
        return ()

    def deploy(self, model: None, data: TrainingData, seed: int, steps: int, config: dict[str, Any]) -> NearestPolicy:
        states, actions = data.deployed
        return NearestPolicy(states, actions, self.neighbours, seed, steps, config)
