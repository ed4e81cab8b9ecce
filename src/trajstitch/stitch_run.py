"""A stitching job in a run folder, stage by stage: what is done is kept, and `--resume` goes on from there.

models.safetensors, models.json   the models, and what each is worth on held-out steps
graph.safetensors                 the graph
passes.json                       what each pass did
result.npz                        the stitched data, as it was saved to the target
"""

import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from tyro.conf import Positional, arg

from trajstitch import console, formats
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.graph import Models, StitchGraph, build
from trajstitch.models.worth import Worth
from trajstitch.paths import Paths
from trajstitch.runs import Run
from trajstitch.stitching import Preset, Stitching, fit_models, improve, preset_for
from trajstitch.trajectories import Trajectories
from trajstitch.transitions import Scale


@dataclass(frozen=True, kw_only=True)
class Stitch:
    """A stitching job: which data, where to, and what may differ from the preset."""

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """The data set, as a URI; it is never touched."""
    target: Annotated[Positional[str], arg(metavar="DST")]
    """Where the better data set goes, as a URI."""
    preset: Preset = "default"
    """default: the best we know. quick: minutes on a laptop. paper: its hyper-parameters exactly."""
    seed: int = 0
    """Of the models, the value function and the latents."""
    passes: int | None = None
    """Greedy passes (K), where the preset makes any."""
    margin: float | None = None
    """By how much a jump's log-likelihood may fall short of the logged step's; the paper's is 0."""
    consistency: float | None = None
    """How far a jump's action may miss its target by the forward ensemble's word, over the jump's length."""
    most_changes: int | None = None
    """Accept only trajectories with at most this many jumps."""
    value_test: bool = True
    """Jump only to states of higher value; without this, stitching diversifies the data instead."""
    run: Path | None = None
    """The run's folder; by default runs/stitch-SRC-seed-SEED."""
    resume: bool = False
    """Go on with the run in that folder."""
    force: bool = False
    """Overwrite the target if it is there."""

    @property
    def folder(self) -> Path:
        name = re.sub(r"[^\w.]+", "-", f"stitch-{self.source}-{self.preset}-seed-{self.seed}").strip("-")
        return self.run or Path("runs") / name

    def config(self, data: Trajectories) -> Stitching:
        """The preset with what was asked otherwise."""
        config = preset_for(self.preset, data)
        if self.passes is not None:
            if config.plan is not None:
                raise InputError(f"--passes goes with greedy passes; the preset {self.preset!r} plans instead")
            config = replace(config, passes=self.passes)
        if self.margin is not None:
            config = replace(config, reach=replace(config.reach, margin=self.margin))
        if self.consistency is not None:
            if config.forward is None:
                raise InputError(f"--consistency needs the forward model, which the preset {self.preset!r} has none of")
            config = replace(config, reach=replace(config.reach, consistency=self.consistency))
        rules = replace(config.rules, most_changes=self.most_changes, value_test=self.value_test)
        return replace(config, rules=rules)


@dataclass(frozen=True)
class Stitched:
    """What came of a job."""

    run: Run
    before: Trajectories
    after: Trajectories
    passes: list[dict[str, Any]]
    """What each pass did; empty where a model learned nothing and so nothing was stitched."""
    failed: list[str]
    """Models that learned nothing."""
    seconds: dict[str, float]


def stitch_run(job: Stitch, columns: Columns | None = None) -> Stitched:
    """Do the job, or go on with it."""
    formats.require_free(job.target, force=job.force)
    data = formats.load(job.source, columns=columns)
    config = job.config(data)
    facts = {"source": job.source, "target": job.target, "seed": job.seed, "preset": job.preset}
    size = {"transitions": data.steps, "mean_return": float(data.returns.mean())}
    run = Run.start(job.folder, "stitch", {**facts, **size, "stitching": asdict(config)}, resume=job.resume)
    stages = Stages(run, config, data, job.seed)
    models, worths = stages.models()
    failed = [worth.model for worth in worths if not worth.learned]
    if failed:
        console.log(f"nothing is stitched: a model that learned nothing can't judge a jump ({', '.join(failed)})")
        after, passes = Paths.of(data).trajectories(), []
    else:
        after, passes = stages.result(models, stages.graph(models))
    formats.save(after, job.target, force=job.force)
    return Stitched(run, data, after, passes, failed, run.read_json("seconds") if run.has("seconds") else {})


class Stages:
    """A run's stages: each is read if it is there, else made and kept."""

    def __init__(self, run: Run, config: Stitching, data: Trajectories, seed: int) -> None:
        self.run, self.config, self.data = run, config, data
        self.models_key, self.improve_key = jax.random.split(jax.random.key(seed))

    def models(self) -> tuple[Models, list[Worth]]:
        if self.run.has("models"):
            models = self.run.read_tree("models", like=untrained(self.config, self.data, self.models_key))
            return models, [Worth(**worth) for worth in self.run.read_json("models")]
        start = time.monotonic()
        models, worths = fit_models(self.config, self.data, self.models_key)
        self.run.write_json("models", [asdict(worth) for worth in worths])
        self.run.write_tree("models", models)
        self._took("models", start)
        return models, worths

    def graph(self, models: Models) -> StitchGraph:
        path = self.run.path("graph.safetensors")
        if path.exists():
            return StitchGraph.load(path)
        start = time.monotonic()
        graph = build(self.data, models, self.config.near, self.config.reach)
        graph.save(path)
        self._took("graph", start)
        return graph

    def result(self, models: Models, graph: StitchGraph) -> tuple[Trajectories, list[dict[str, Any]]]:
        location = f"npz:{self.run.path('result.npz')}"
        if self.run.has("passes"):
            return formats.load(location), self.run.read_json("passes")
        start = time.monotonic()
        paths, summaries = improve(self.config, self.data, models, graph, self.improve_key)
        after, passes = paths.trajectories(), [asdict(summary) for summary in summaries]
        formats.save(after, location, force=True)
        self.run.write_json("passes", passes)
        self._took("passes", start)
        return after, passes

    def _took(self, stage: str, start: float) -> None:
        before = self.run.read_json("seconds") if self.run.has("seconds") else {}
        self.run.write_json("seconds", before | {stage: time.monotonic() - start})


def untrained(config: Stitching, data: Trajectories, key: PRNGKeyArray) -> Models:
    """Models of the shapes that `fit_models` gives, to read trained ones into."""

    def scale(size: int) -> Scale:
        return Scale(np.zeros((1, size)))

    size, actions = data.observation_size, data.action_size
    dynamics = eqx.filter_vmap(lambda key: config.dynamics.init(key, scale(size), scale(size)))(
        jax.random.split(key, config.dynamics.keep)
    )
    forward = None
    if config.forward is not None:
        scales = (scale(size), scale(actions), scale(size), scale(1))
        judge = config.forward
        forward = eqx.filter_vmap(lambda key: judge.init(key, scales))(jax.random.split(key, judge.members))
    return Models(dynamics, config.inverse.init(key, data), config.reward.init(key, data), forward)
