"""A jump test of your own: no jump may be longer than most logged steps (python examples/own_jump_test.py).
To add it to trajstitch, move the classes into a file of src/trajstitch/stitching/ and add one line to the `tests` of a
preset in src/trajstitch/stitching/config.py: "length": StepLength(). Its field is the flag --tests.length.quantile.
"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import trajstitch
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching.config import preset
from trajstitch.stitching.jump_tests import Candidates, Scores


class Longest(eqx.Module):
    std: Float[Array, " size"]
    limit: Float[Array, ""]


@dataclass(frozen=True)
class StepLength:
    quantile: float = 0.99
    """No jump may be longer than this share of the logged steps. Larger lets more jumps through."""

    def fit(self, data: trajstitch.Trajectories, key: PRNGKeyArray, roles: ColumnRoles) -> tuple[Longest, FitReport]:
        std, rows = np.maximum(data.observations.std(0), 1e-6), data.state_rows
        steps = data.observations[rows + 1] - data.observations[rows]
        limit = np.quantile(np.linalg.norm(steps / std, axis=1), self.quantile)
        return Longest(*map(jnp.asarray, (std, limit))), FitReport("length", True, {"limit": float(limit)})

    def untrained(self, data: trajstitch.Trajectories, key: PRNGKeyArray) -> Longest:
        return Longest(jnp.ones(data.observation_size), jnp.ones(()))

    def score(self, model: Longest, candidates: Candidates) -> Candidates:
        change = candidates.states[candidates.target] - candidates.states[candidates.source]
        length = jnp.linalg.norm(change / model.std, axis=1) / model.limit
        return replace(candidates, scores=candidates.scores | {"length": np.asarray(length)})

    def score_logged(self, model: Longest, steps: Candidates) -> Scores:
        return {}  # jumps are not compared with the steps they replace

    def passes(self, scores: Scores, replaced: Scores) -> np.ndarray:
        return scores["length"] <= 1


def main() -> None:
    data, quick = trajstitch.collect(trajstitch.Collect("hopper/medium-expert", 10_000)), preset("quick")
    for tests in (quick.tests, quick.tests | {"length": StepLength(0.5)}):
        better = trajstitch.stitch(data, replace(quick, tests=tests))
        print(f"{', '.join(tests)}: mean return {data.returns.mean():.0f} -> {better.returns.mean():.0f}")


if __name__ == "__main__":
    main()
