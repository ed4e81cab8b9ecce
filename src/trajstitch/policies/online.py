"""What an algorithm that learns while it acts in an environment has to have: TD3 and SAC, which train ladders."""

from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import PRNGKeyArray

from trajstitch.policies.td3 import Batch, Metrics


@runtime_checkable
class Online(Protocol):
    """A frozen dataclass whose fields are the method's settings."""

    name: ClassVar[str]
    actor_outputs: ClassVar[int]
    """Numbers that the actor's network gives for each dimension of the action: with two, the policy is stochastic."""

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers of actor and critics."""
        ...

    @property
    def batch_size(self) -> int:
        """Transitions in a gradient step."""
        ...

    @property
    def policy_delay(self) -> int:
        """Critic updates per policy update."""
        ...

    @property
    def exploration_noise(self) -> float:
        """Standard deviation of the noise on actions taken while training: of a deterministic policy relative to the
        action bound, of a stochastic one relative to its own."""
        ...

    @property
    def start_steps(self) -> int:
        """Environment steps with random actions before the first update."""
        ...

    def init(self, key: PRNGKeyArray, observations: int, bound: tuple[float, ...]) -> Any:
        """Return one seed's state before the first update; its `actor.network` is what acts."""
        ...

    def update(self, state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """Make one policy update. The arrays of `batch` start with axes (policy_delay, batch_size)."""
        ...
