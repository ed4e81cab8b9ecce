"""What an algorithm that learns a policy from data has to have, and how a trained actor is deployed.

`train` calls its parts in this order: `training_data(data)` once, `init` for each seed, then `fit` lowers its
`objectives()`, and at each checkpoint `deploy` makes a policy of each seed's model.
"""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, PRNGKeyArray

from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit import Objective
from trajstitch.policies.policy import NetworkPolicy, Policy
from trajstitch.policies.training_data import Sizes, TrainingData


@runtime_checkable
class Algorithm(Protocol):
    """A frozen dataclass whose fields are the method's settings.

    The first line of its docstring is the help of `trajstitch train NAME`, its fields with their docstrings the flags,
    and `Bounds` on a field's type are checked before training.
    """

    @property
    def policy_class(self) -> type[Policy]:
        """The class of the policies that `deploy` returns, so that checkpoints can be loaded: a class attribute."""
        ...

    @property
    def steps(self) -> int:
        """Gradient steps."""
        ...

    @property
    def batch_size(self) -> int:
        """Logged steps in a gradient step."""
        ...

    def training_data(self, data: Trajectories) -> TrainingData:
        """Return what is learned from; raise InputError for data that can't be learned from."""
        ...

    def init(self, key: PRNGKeyArray, sizes: Sizes) -> Any:
        """Return one seed's model before the first step: a pytree, such as an `equinox.Module` of networks."""
        ...

    def objectives(self) -> tuple[Objective, ...]:
        """Return the losses that `fit` lowers."""
        ...

    def deploy(self, model: Any, data: TrainingData, seed: int, steps: int, config: dict[str, Any]) -> Policy:
        """Return one seed's policy from its model as NumPy arrays, after this many gradient steps.

        `data.samples` are not there any more: put what the policy keeps of the data into `TrainingData.deployed`.
        """
        ...


@runtime_checkable
class SampleWeighted(Protocol):
    """An algorithm whose samples have weights that take long to compute: a run keeps them."""

    def weights(self, data: Trajectories) -> Float[np.ndarray, " steps"]: ...

    def training_data(self, data: Trajectories, weights: Float[np.ndarray, " steps"] | None = None) -> TrainingData: ...


def deploy_actor(model: Any, data: TrainingData, seed: int, steps: int, config: dict[str, Any]) -> NetworkPolicy:
    """Return the policy of a model that has an `actor`: the default for actor-critics and cloning."""
    layers = [(np.asarray(weight), np.asarray(bias)) for weight, bias in model.actor.network.layers]
    return NetworkPolicy(layers, data.normaliser, seed, steps, config)
