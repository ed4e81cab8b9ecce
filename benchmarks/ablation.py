"""The ablation on worlds of the zoo (tests/worlds.py), where claims can be compared with the truth.

    python benchmarks/ablation.py --sets two-leg sparse-goal --seeds 2 --stitchings 2 --steps 3000

The built-in sets are `trajstitch reproduce ablation`, which has the same flags. Scores are 0 for the mean return of the
logged data and 100 for a good controller. What is measured is kept in `folder`; the same command resumes.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro

from trajstitch import Trajectories
from trajstitch.cli.output import show_log, stdout
from trajstitch.errors import InputError, as_flags
from trajstitch.experiments.ablation import EXPERIMENT
from trajstitch.experiments.reproduce import Reproduce, reproduce
from trajstitch.stitching.config import Preset

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from world import Act, World  # noqa: E402
from worlds import WORLDS  # noqa: E402

ABOUT = "Scores: 0 is the mean return of the logged data, 100 that of a good controller. Worlds: tests/worlds.py. "
SETS = ("two-leg", "sparse-goal", "noisy-reward-0.6", "slippery", "hidden-luck", "pendulum")


@dataclass(frozen=True)
class Scored:
    """A world whose data says how returns become scores."""

    world: World

    def collect(self, seed: int = 0) -> Trajectories:
        data = self.world.collect(seed)
        low, high = float(self.world.true_returns(data).mean()), self.world.optimum
        reference = (low, high) if high > low else None
        return replace(data, metadata=replace(data.metadata, reference=reference))

    def score(self, act: Act, episodes: int = 100, seed: int = 0) -> np.ndarray:
        return self.world.score(act, episodes, seed)

    def true_returns(self, data: Trajectories) -> np.ndarray:
        return self.world.true_returns(data)


@dataclass(frozen=True, kw_only=True)
class Benchmark(Reproduce):
    """Measure the ablation on worlds."""

    sets: tuple[str, ...] | None = SETS
    preset: Preset = "quick"
    episodes: int | None = 100
    checkpoints: int | None = 1
    json: Path | None = None
    """Copy all results here."""


def main(asked: Benchmark) -> None:
    show_log()
    worlds = {name: Scored(world) for name, world in WORLDS.items()}
    if unknown := set(asked.sets or ()) - set(worlds):
        sys.exit(f"error: unknown worlds {', '.join(sorted(unknown))}; there are {', '.join(worlds)}")
    experiment = replace(
        EXPERIMENT,
        name="ablation-worlds",
        title="Ablation on small worlds",
        about=ABOUT + EXPERIMENT.about,
        sets=SETS,
    )
    try:
        page, failures = reproduce(experiment, asked, worlds)
    except InputError as error:
        sys.exit(f"error: {as_flags(str(error))}")
    if page is not None and asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(page.with_suffix(".json").read_text())
    stdout().print(str(page), soft_wrap=True)
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main(tyro.cli(Benchmark, config=(tyro.conf.FlagCreatePairsOff,)))
