"""A jump test of your own: no jump may be longer than most logged steps (python examples/own_jump_test.py).
To add it to trajstitch, move all but `main` into src/trajstitch/stitching/step_length.py, and in config.py beside it
import StepLength and add "length": StepLength() to a preset's `tests`. Its field is the flag --tests.length.quantile.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching.jump_tests import Candidates, Scores

Scale = Float[Array, " size"]
"""What the test learns: states times this are in units of the longest jump."""


@dataclass(frozen=True)
class StepLength:
    quantile: float = 0.99
    """No jump may be longer than this share of the logged steps. Larger lets more jumps through."""

    def fit(self, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles) -> tuple[Scale, FitReport]:
        std, rows = np.maximum(data.observations.std(0), 1e-6), data.state_rows
        steps = (data.observations[rows + 1] - data.observations[rows]) / std
        limit = np.quantile(np.linalg.norm(steps, axis=1), self.quantile)
        return jnp.asarray(1 / (limit * std)), FitReport("length", True, {"limit": float(limit)})

    def untrained(self, data: Trajectories, key: PRNGKeyArray) -> Scale:
        return jnp.ones(data.observation_size)

    def score(self, model: Scale, candidates: Candidates) -> Candidates:
        change = candidates.states[candidates.target] - candidates.states[candidates.source]
        length = np.asarray(jnp.linalg.norm(change * model, axis=1))
        return replace(candidates, scores={**candidates.scores, "length": length})

    def score_logged(self, model: Scale, steps: Candidates) -> Scores:
        return {}  # jumps are not compared with the steps they replace

    def passes(self, scores: Scores, replaced: Scores) -> np.ndarray:
        return scores["length"] <= 1


def main() -> None:
    import trajstitch.stitching.config

    quick = trajstitch.stitching.config.preset("quick")
    data = trajstitch.collect(trajstitch.Collect("hopper/medium-expert", 10_000))
    for tests in (quick.tests, quick.tests | {"length": StepLength(0.5)}):
        better = trajstitch.stitch(data, replace(quick, tests=tests))
        print(f"{', '.join(tests)}: mean return {data.returns.mean():.0f} -> {better.returns.mean():.0f}")


if __name__ == "__main__":
    main()
