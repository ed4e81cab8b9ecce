"""The folder of a ladder's training: its checkpoints, their evaluations, and what is needed to resume.

evaluations.csv               a line for each evaluated checkpoint and seed
checkpoints/STEPS.safetensors the actors of all seeds after STEPS steps
snapshot.safetensors          the learner's state to resume from
replay/STEPS.safetensors      the transitions between the snapshot at STEPS and the one before
ladder.safetensors            the result
"""

import csv
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trajstitch.policies.policy import Layers, layers_from, named
from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing
from trajstitch.storage.runs import Run

if TYPE_CHECKING:
    from trajstitch.benchmark.learner import Learner


class TrainingRun(Run):
    """The run of a ladder's training."""

    COLUMNS = ("seed", "steps", "mean_return", "std_return", "episodes")

    @cached_property
    def evaluations(self) -> dict[tuple[int, int], tuple[int, int, float, float, int]]:
        """The rows of `evaluations.csv` by seed and steps."""
        return {(row[0], row[1]): row for row in self._read()}

    def _read(self) -> Iterator[tuple[int, int, float, float, int]]:
        path = self.folder / "evaluations.csv"
        lines = path.read_text().split("\n")[1:-1] if path.exists() else []  # a killed run may leave part of a line
        for line in csv.reader(lines):
            if len(line) == len(self.COLUMNS):
                yield int(line[0]), int(line[1]), float(line[2]), float(line[3]), int(line[4])

    def record(self, seed: int, steps: int, returns: Sequence[float]) -> None:
        """Add an evaluation to the file."""
        self.evaluations[seed, steps] = (seed, steps, float(np.mean(returns)), float(np.std(returns)), len(returns))
        with (self.folder / "evaluations.csv").open("a", newline="") as file:
            csv.writer(file).writerow(self.evaluations[seed, steps])

    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """Return (steps, mean return) in training order, by seed."""
        curves: dict[int, list[tuple[int, float]]] = {}
        for seed, steps, mean, *_ in sorted(self.evaluations.values()):
            curves.setdefault(seed, []).append((steps, mean))
        return curves

    def checkpoints(self) -> list[int]:
        """Return the steps at which there are checkpoints."""
        return sorted(int(path.stem) for path in (self.folder / "checkpoints").glob("*.safetensors"))

    def unevaluated(self, seeds: Sequence[int]) -> list[tuple[int, int]]:
        """Return (seed, steps) of the checkpoints that have no evaluation yet."""
        return [
            (seed, steps) for steps in self.checkpoints() for seed in seeds if (seed, steps) not in self.evaluations
        ]

    def save_checkpoint(self, steps: int, actors: dict[int, Layers], metrics: dict[str, Any]) -> None:
        """Write the actors of all seeds, with the metrics."""
        tensors = {}
        for seed, layers in actors.items():
            tensors |= named(layers, f"{seed}/")
        shown = {name: json.dumps(np.asarray(values).tolist()) for name, values in metrics.items()}
        self.write_tensors(f"checkpoints/{steps:09}", tensors, steps=str(steps), **shown)

    def layers(self, seed: int, steps: int) -> Layers:
        """Load the actor of a seed after this many steps."""
        return layers_from(self.read_tensors(f"checkpoints/{steps:09}"), f"{seed}/")

    def save_snapshot(self, steps: int, learner: "Learner", rows: np.ndarray) -> None:
        """Save everything needed to resume; `rows` are the transitions since the last snapshot."""
        self.write_tensors(f"replay/{steps:09}", {"rows": rows}, steps=str(steps))
        self.write_tensors("snapshot", learner.tensors(), steps=str(steps))
        for path in (self.folder / "replay").glob("*.safetensors"):
            if int(path.stem) <= steps - self.facts["config"]["replay"] - rows.shape[1]:
                path.unlink()

    def restore(self, learner: "Learner", steps: int, round_steps: int) -> tuple[int, np.ndarray | None]:
        """Restore the learner from the last snapshot; return its steps and the last round's transitions.

        What the run wrote after the snapshot is removed, and made again.
        """
        if steps in self.checkpoints():
            self._rewrite_evaluations()
            return steps, None
        begin, recent = 0, None
        if self.has("snapshot"):
            tensors, facts = self.read("snapshot")
            begin = int(facts["steps"])
            paths = sorted((self.folder / "replay").glob("*.safetensors"))
            rows = [self.read_tensors(f"replay/{path.stem}")["rows"] for path in paths if int(path.stem) <= begin]
            replay = np.concatenate(rows, axis=1)
            recent = replay[:, -round_steps:]
            learner.restore(tensors, replay[:, :-round_steps], begin - round_steps)
            logger.info(f"{self.folder}: continuing from step {begin:,}")
        for later in (steps for steps in self.checkpoints() if steps > begin):
            (self.folder / "checkpoints" / f"{later:09}.safetensors").unlink()
        self.evaluations = {key: row for key, row in self.evaluations.items() if key[1] <= begin}
        self._rewrite_evaluations()
        return begin, recent

    def _rewrite_evaluations(self) -> None:
        """Write the file again without part of a line at its end, to which the next line would be added."""
        with (
            replacing(self.folder / "evaluations.csv", force=True) as fresh,
            fresh.open("w", newline="") as file,
        ):
            csv.writer(file).writerows([self.COLUMNS, *self.evaluations.values()])
