"""A policy of your own: cloning with a Huber loss, which outliers among the logged actions pull less.

    python examples/own_policy.py

To add it to trajstitch, move the class into src/trajstitch/policies/huber.py and add one line to POLICIES in
src/trajstitch/policies/__init__.py: "huber-bc": "trajstitch.policies.huber:HuberBC". It is then trained by
`trajstitch train huber-bc SRC --delta 0.5`, saved, loaded and evaluated like the others.
"""

from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray

from trajstitch.learning.bounds import Bounds
from trajstitch.learning.fit import Metrics
from trajstitch.policies.bc import BC, Clone, Sample


@dataclass(frozen=True)
class HuberBC(BC):
    """Behavioural cloning with a Huber loss."""

    delta: Annotated[float, Bounds(0)] = 0.1
    """Action error, relative to the action bounds, from which on the loss grows linearly."""

    def loss(self, model: Clone, batch: Sample, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        error = model.actor(batch.observation) - batch.action
        return optax.huber_loss(error, delta=self.delta).mean(), {"action_error": jnp.square(error).mean()}


def main() -> None:
    import trajstitch

    data = trajstitch.collect(trajstitch.Collect("hopper/medium-expert", 3_000))
    for algorithm in (BC(steps=1_000), HuberBC(steps=1_000, delta=0.05)):
        policies = trajstitch.train(data, algorithm, seeds=2)
        returns = trajstitch.evaluate(policies, data.metadata, episodes=2)
        print(f"{type(algorithm).__name__}: mean return {returns.mean():.0f}")


if __name__ == "__main__":
    main()
