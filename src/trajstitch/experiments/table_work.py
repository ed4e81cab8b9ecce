"""The folder that a measurement works in: what is in it is not made again, by whichever process.

    data/NAME.npz                   a collected set, and NAME.json: the seconds it took
    stitched/NAME/                  a stitching's run folder
    policies/NAME.safetensors       a cell's trained policies
    training/NAME.safetensors       how far a training is

A name says what the thing was made from. Whoever makes one holds its lock, and who wants it too waits.
"""

import fcntl
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from trajstitch import formats
from trajstitch.benchmark import sets
from trajstitch.benchmark.collect import Collect, collect
from trajstitch.data.trajectories import Trajectories
from trajstitch.experiments.table_results import digest
from trajstitch.learning.fit import State
from trajstitch.policies.policy import Policy, load_policies, save_policies
from trajstitch.policies.train import Algorithm, train_together
from trajstitch.progress import logger
from trajstitch.stitching.config import preset_for
from trajstitch.stitching.pipeline import Stages, Stitched, all_together
from trajstitch.storage.atomic import replacing
from trajstitch.storage.runs import Run, tensors_of, tree_from
from trajstitch.storage.tensors import read_tensors, save_tensors

SAVE_SECONDS = 60
"""A training's state is saved this often."""
COLLECTED_A_SECOND = 20_000
"""Transitions, until a collection has been seen in the folder."""
GUESSES = {"models": 90.0, "graph": 20.0, "passes": 5.0}
"""Seconds that a stage of stitching takes, until one has been seen in the folder."""


class OutOfTimeError(Exception):
    """What is next would not be ready in time."""


class Clock:
    """The seconds that a measurement may take."""

    def __init__(self, seconds: float | None) -> None:
        self.end = time.monotonic() + (float("inf") if seconds is None else seconds)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def require(self, seconds: float, what: str) -> None:
        """Raise unless more than so many are left."""
        if self.left <= seconds:
            raise OutOfTimeError(
                f"{what}: not begun, it takes about {seconds:.0f} s and {max(self.left, 0):.0f} s are left"
            )


class Work:
    """What is made, and where it lies."""

    def __init__(self, folder: Path, clock: Clock, commit: str) -> None:
        self.folder = folder
        self.clock = clock
        self.commit = commit
        """Noted with what is made, since what is found here may be the work of another."""

    def collected(self, asked: Collect) -> Path:
        """The file of a set, which is collected if it isn't there."""
        path = self.folder / "data" / f"{name_of(asked)}.npz"
        with self._alone(path):
            if not path.exists():
                found = [json.loads(other.read_text()) for other in path.parent.glob("*.json")]
                rate = min((one["transitions"] / one["seconds"] for one in found), default=COLLECTED_A_SECOND)
                self.clock.require(size_of(asked) / rate, f"collection of {asked.set}")
                began = time.monotonic()
                data = collect(asked)
                facts = {"transitions": data.steps, "seconds": time.monotonic() - began}
                with replacing(path.with_suffix(".json"), force=True) as fresh:
                    fresh.write_text(json.dumps(facts) + "\n")
                formats.save(data, f"npz:{path}")
        return path

    def logged(self, asked: Collect) -> Trajectories:
        return formats.load(f"npz:{self.collected(asked)}")

    def collection_seconds(self, asked: Collect) -> float:
        return json.loads((self.folder / "data" / f"{name_of(asked)}.json").read_text())["seconds"]

    def stitched(self, asked: Sequence[Collect], preset: str, seed: int) -> list[Stitched]:
        """Sets stitched with this seed, each from the stage on that is missing, and their passes made together.

        No stage begins that took longer before than is left now.
        """
        with ExitStack() as held:
            several = [held.enter_context(self._stages(one, preset, seed)) for one in asked]
            done = [one for (one,) in all_together(several)]
            for one in done:
                one.run.path("graph.safetensors").unlink(missing_ok=True)  # by far the largest file, of no more use
            return done

    def prepare(self, asked: Collect, preset: str, seed: int) -> None:
        """A set's models and graph, so that no more than the passes is missing."""
        with self._stages(asked, preset, seed) as stages:
            stages.prepare()

    @contextmanager
    def _stages(self, asked: Collect, preset: str, seed: int) -> Iterator[Stages]:
        """The stages of a set's stitching, for whoever holds its lock."""
        data = self.logged(asked)
        config = preset_for(preset, data)
        folder = self.folder / "stitched" / f"{name_of(asked)}-{preset}-{digest(asdict(config))}-run-{seed}"
        with self._alone(folder):
            facts = {"set": asked.set, "transitions": size_of(asked), "data_seed": asked.seed, "seed": seed}
            facts |= {"stitching": asdict(config)}
            run = Run.start(folder, "stitch", facts, resume=True)
            commits = run.read_json("commits") if run.has("commits") else []
            if not run.has("passes") and self.commit not in commits:
                run.write_json("commits", [*commits, self.commit])

            def before(stage: str) -> None:
                self.clock.require(self._expected(preset, stage), f"{stage} of {asked.set}")

            stages = Stages(run, config, data, seed, before=before)
            stages.return_predictability()  # the table tells it of presets too that don't ask
            yield stages

    def _expected(self, preset: str, stage: str) -> float:
        """The longest that a stage has taken here so far."""
        found = [json.loads(path.read_text()) for path in self.folder.glob(f"stitched/*-{preset}-*/seconds.json")]
        return max((seconds[stage] for seconds in found if stage in seconds), default=GUESSES[stage])

    def trained(
        self, algorithm: Algorithm, data: dict[str, Trajectories], seeds: range, reserve: float, title: str
    ) -> dict[str, list[Policy]]:
        """Policies of these seeds for every name's data: those that are here, and those of one training on all the
        others.

        When no more than `reserve` seconds are left, the training's state is saved and it stops.
        """
        missing = [name for name in data if not self._policies(name).exists()]
        if missing:
            self.clock.require(reserve, title)
            self._train(algorithm, {name: data[name] for name in missing}, seeds, reserve, title)
        return {name: load_policies(self._policies(name)) for name in data}

    def _policies(self, name: str) -> Path:
        return self.folder / "policies" / f"{name}.safetensors"

    def _train(
        self, algorithm: Algorithm, data: dict[str, Trajectories], seeds: range, reserve: float, title: str
    ) -> None:
        path = self.folder / "training" / f"{digest(list(data))}.safetensors"
        before, began, commits = 0.0, time.monotonic(), {self.commit}
        saved = began

        def resumed(state: State) -> State:
            nonlocal before
            if not path.exists():
                return state
            tensors, facts = read_tensors(path)
            before, state = float(facts["seconds"]), tree_from(tensors, state, str(path))
            commits.update(json.loads(facts["commits"]))
            logger.info(f"{title}: going on from step {int(state.step):,}")
            return state

        def each(state: State, metrics: dict[str, float]) -> None:
            nonlocal saved
            late = self.clock.left <= reserve and int(state.step) < algorithm.steps
            if late or time.monotonic() - saved > SAVE_SECONDS:
                saved = time.monotonic()
                facts = {"seconds": str(before + saved - began), "commits": json.dumps(sorted(commits))}
                save_tensors(tensors_of(state), path, facts)
            if late:
                raise OutOfTimeError(f"{title}: stopped at step {int(state.step):,} of {algorithm.steps:,}, to go on")

        found = train_together([*data.values()], algorithm, len(seeds), seeds.start, resumed=resumed, each=each)
        seconds = round(before + time.monotonic() - began, 1)
        facts = {"seconds": seconds, "together": len(seeds) * len(data), "commits": sorted(commits)}
        for name, policies in zip(data, found, strict=True):
            save_policies(policies, self._policies(name), policies[0].config | facts)
        path.unlink(missing_ok=True)

    @contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Wait until no other process or thread makes this."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def name_of(asked: Collect) -> str:
    return f"{asked.set.replace('/', '-')}-{size_of(asked)}-seed-{asked.seed}"


def size_of(asked: Collect) -> int:
    return sets.built_in(asked.set).transitions if asked.transitions is None else asked.transitions
