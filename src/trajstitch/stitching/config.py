"""Stitch a data set: fit the models, build the graph, improve the trajectories.

    better = trajstitch.stitch(data, preset="default", seed=0)

The three stages are functions of their own (`fit_models`, `graph.build`, `improve`), so that a run can save what
each one made and go on from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, overload

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from trajstitch.data import environments
from trajstitch.data.normalise import rescale_for_float32
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.learning.fit_report import FitReport
from trajstitch.models.dynamics import Dynamics, fit_dynamics
from trajstitch.models.forward import ForwardDynamics, fit_forward
from trajstitch.models.inverse import InverseDynamics, fit_inverse
from trajstitch.models.reward import GenerativeReward, RegressionReward, fit_reward
from trajstitch.models.value import TwinValue, Value, fit_values, values
from trajstitch.progress import logger
from trajstitch.stitching.capacity import spread
from trajstitch.stitching.graph import EdgeScorer, Models, Reach, StitchGraph, build
from trajstitch.stitching.greedy import Rules, Summary, one_pass
from trajstitch.stitching.neighbours import NeighbourSearch
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.planning import Plan
from trajstitch.stitching.predictability import return_predictability

Preset = Literal["paper", "default", "quick"]


@dataclass(frozen=True)
class StitchConfig:
    """Everything that a stitched data set depends on, beside the data and the seed."""

    dynamics: Dynamics = field(default_factory=Dynamics)
    inverse: InverseDynamics = field(default_factory=InverseDynamics)
    reward: RegressionReward | GenerativeReward = field(default_factory=RegressionReward)
    forward: ForwardDynamics | None = None
    """The judge of consistency; none: no such test."""
    near: NeighbourSearch = field(default_factory=NeighbourSearch)
    """Which states are candidates."""
    reach: Reach = field(default_factory=Reach)
    """Which candidates a jump may reach."""
    rules: Rules = field(default_factory=Rules)
    """How a pass decides and accepts."""
    plan: Plan | None = None
    """Plan on the graph; none: the paper's greedy passes with a learned V."""
    value: TwinValue = field(default_factory=TwinValue)
    passes: int = 5
    """Greedy passes, V refitted before each."""
    sample_latents: bool = False
    """Draw each action's latent, as the paper does; else take the most plausible action."""
    quality: float = 0.0
    """Leave the data alone unless states foretell this share of its returns' variance."""

    def __post_init__(self) -> None:
        if self.plan is not None and not self.rules.value_test:
            raise InputError(
                "to stitch without a value test goes with greedy passes, as the preset 'paper' makes: a plan follows "
                "values, and without the test it would be accepted whatever it brings"
            )


PRESETS: dict[str, StitchConfig] = {
    "paper": StitchConfig(reward=GenerativeReward(), sample_latents=True),
    "default": StitchConfig(
        dynamics=Dynamics(steps=50_000, patience=5_000),
        inverse=InverseDynamics(steps=100_000, learning_rate=3e-4, batch_size=256),
        reward=RegressionReward(steps=50_000),
        forward=ForwardDynamics(steps=50_000),
        reach=Reach(margin=256.0, consistency=0.2),
        plan=Plan(max_visits=0.025),
        quality=0.5,
    ),
    "quick": StitchConfig(
        dynamics=Dynamics(members=3, keep=3, hidden=(128, 128), learning_rate=1e-3, steps=4_000, patience=2_000),
        inverse=InverseDynamics(hidden=(128, 128), steps=8_000, learning_rate=1e-3, batch_size=256),
        reward=RegressionReward(hidden=(128, 128), steps=4_000, learning_rate=1e-3),
        forward=ForwardDynamics(members=2, steps=8_000),
        reach=Reach(margin=256.0, consistency=0.2),
        plan=Plan(max_visits=0.025),
        quality=0.5,
    ),
}

RADII = {"hopper": 0.1, "halfcheetah": 3.0, "walker2d": 1.0}
"""The paper's authors' radius per task, on raw states; for other tasks, `paper` too takes the 16 nearest."""
MAX_NEIGHBOURS = 32
"""Of those within the radius, the nearest: of 200,000 states of walker2d/expert, 1,600 lie within it on average."""


def preset_for(name: Preset | str, data: Trajectories) -> StitchConfig:
    """A preset's config for a data set."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}; the presets are {', '.join(PRESETS)}")
    config = PRESETS[name]
    if name == "paper":
        task = environments.task_of(environments.environment_id(data.metadata) or data.metadata.name)
        if task in RADII:
            config = replace(config, near=NeighbourSearch(k=MAX_NEIGHBOURS, radius=RADII[task], standardise=False))
    return config


@overload
def stitch(
    data: Trajectories, preset: Preset | StitchConfig = "default", seed: int = 0, *, passes: int | None = None
) -> Trajectories: ...
@overload
def stitch(
    data: Trajectories,
    preset: Preset | StitchConfig = "default",
    seed: int = 0,
    *,
    passes: int | None = None,
    seeds: int,
) -> list[Trajectories]: ...
def stitch(
    data: Trajectories,
    preset: Preset | StitchConfig = "default",
    seed: int = 0,
    *,
    passes: int | None = None,
    seeds: int | None = None,
) -> Trajectories | list[Trajectories]:
    """A better data set from the data alone: every trajectory is the old one or a better one stitched from others.

    Where all the data is of one quality, or a model learned nothing, it comes back as it was. Each step's origin
    stands in `provenance`.
    With `seeds`, as many data sets: for `seed` and those after it, each with its own V and latents, and all with the
    models and the graph of `seed`.
    """
    config = preset if isinstance(preset, StitchConfig) else preset_for(preset, data)
    config = config if passes is None else replace(config, passes=passes)
    numbers = range(seed, seed + (1 if seeds is None else seeds))
    check_seeds(config, numbers)
    models_key, _ = keys_of(seed)
    found, seen = [untouched(data)] * len(numbers), rescale_for_float32(data)
    reason = lonely(data)
    if reason is None and config.quality > 0:
        reason = one_quality(config, return_predictability(seen))
    if reason is None:
        models, worths = fit_models(config, seen, models_key)
        reason = ignorance(worths)
        if reason is None:
            graph = build(seen, models, config.near, config.reach)
            courses = improve_together(
                config, [StitchingTask(seen, models, graph, keys_of(number)[1]) for number in numbers]
            )
            found = [replace(course.paths, data=data).trajectories() for course in courses]
    if reason is not None:
        logger.info(f"nothing was stitched: {reason}")
    return found[0] if seeds is None else found


def untouched(data: Trajectories) -> Trajectories:
    """The data as it was, with its provenance."""
    return replace(data, provenance=data.provenance or Provenance.logged(data.offsets))


def lonely(data: Trajectories) -> str | None:
    """Why nothing can be stitched, where there is no other trajectory to jump to."""
    return None if len(data) > 1 else "there is one trajectory, and jumps lead to others"


def one_quality(config: StitchConfig, share: float | None) -> str | None:
    """Why nothing can be gained, where states foretell only this share of the returns' variance (none: not known)."""
    if share is None or share >= config.quality:
        return None
    return (
        f"the data is of one quality: states foretell {share:.0%} of the returns' variance, not {config.quality:.0%}, "
        "so its episodes differ by luck, which no clone can learn, or they are too few to tell; with --quality 0 it "
        "is stitched all the same"
    )


def ignorance(worths: Sequence[FitReport]) -> str | None:
    """Why nothing can be judged, where a model learned nothing."""
    failed = [worth.model for worth in worths if not worth.beats_baseline]
    return f"a model that learned nothing can't judge a jump ({', '.join(failed)})" if failed else None


def keys_of(seed: int) -> PRNGKeyArray:
    """A seed's two keys: of the models, and of what is its own when several share the models."""
    return jax.random.split(jax.random.key(seed))


def check_seeds(config: StitchConfig, seeds: Sequence[int]) -> None:
    if not seeds:
        raise InputError("stitching needs at least one seed")
    by_value = config.plan is None and config.rules.value_test
    if len(seeds) > 1 and not by_value and not config.sample_latents:
        raise InputError(
            "seeds that share their models differ by V and latents, and here neither plays a part: every seed would "
            "give the same data; stitch for one, or once for each of several"
        )


def fit_models(
    config: StitchConfig,
    data: Trajectories,
    key: PRNGKeyArray,
    kept: Callable[[str, Callable[[], tuple[Any, FitReport]]], tuple[Any, FitReport]] = lambda name, fitted: fitted(),
) -> tuple[Models, list[FitReport]]:
    """The models that no pass changes, and what each is worth.

    `kept` is asked for each by its name, with the function that fits it, and may know it already.
    """
    keys = jax.random.split(key, 4)
    fits: dict[str, Callable[[], tuple[Any, FitReport]]] = {
        "dynamics": lambda: fit_dynamics(config.dynamics, data, keys[0]),
        "inverse": lambda: fit_inverse(config.inverse, data, keys[1]),
        "reward": lambda: fit_reward(config.reward, data, keys[2]),
    }
    judge = config.forward
    if judge is not None:
        fits["forward"] = lambda: fit_forward(judge, data, keys[3])
    found = {name: kept(name, fitted) for name, fitted in fits.items()}
    worths = [worth for _, worth in found.values()]
    for worth in worths:
        logger.info(str(worth))
    models: dict[str, Any] = {name: model for name, (model, _) in found.items()}
    return Models(**{"forward": None, **models}), worths


def improve(
    config: StitchConfig, data: Trajectories, models: Models, graph: StitchGraph, key: PRNGKeyArray
) -> tuple[Paths, list[Summary]]:
    """Plan and rebuild, or K greedy passes."""
    course = improve_together(config, [StitchingTask(data, models, graph, key)])[0]
    return course.paths, list(course.summaries)


@dataclass(frozen=True)
class StitchingTask:
    """What a course leads over: several seeds of one data set share all but the key."""

    data: Trajectories
    models: Models
    graph: StitchGraph
    key: PRNGKeyArray
    """Of V and the latents."""


@dataclass(frozen=True)
class Progress:
    """The way over one ground from its data on, so many passes far."""

    paths: Paths
    value: Value | None = None
    """What the last pass went by, if it was a greedy one."""
    summaries: tuple[Summary, ...] = ()
    """What each pass did."""


def improve_together(
    config: StitchConfig,
    grounds: Sequence[StitchingTask],
    begun: Sequence[Progress] | None = None,
    each: Callable[[list[Progress]], None] | None = None,
) -> list[Progress]:
    """What `improve` makes of each of several seeds or data sets; the V's of a greedy pass train together.

    `each` is called after every pass of all, and from what it was given `begun` goes on, to the same bits.
    """
    judged = {id(ground.graph): ground for ground in grounds}
    judges = {graph: EdgeScorer(ground.models, ground.data.observations) for graph, ground in judged.items()}
    keys = [jax.random.split(ground.key) for ground in grounds]
    courses = [Progress(Paths.of(ground.data)) for ground in grounds] if begun is None else list(begun)

    def latents(at: int, number: int) -> PRNGKeyArray | None:
        return jax.random.fold_in(keys[at][1], number) if config.sample_latents else None

    def told(at: int, number: int, summary: Summary) -> Summary:
        which = f"{_title(grounds, at)}, " if len(grounds) > 1 else ""
        logger.info(
            f"{which}pass {number + 1}: {summary.accepted:,} of {summary.proposed:,} rebuilt trajectories accepted, "
            f"{summary.jumps:,} jumps, mean return {summary.mean_return:,.1f}, best tenth {summary.top_return:,.1f}"
        )
        return summary

    if config.plan is not None:
        for at, (ground, course) in enumerate(zip(grounds, courses, strict=True)):
            judge = judges[id(ground.graph)]
            paths, summary = spread(ground.data, ground.graph, judge, config.plan, config.rules, latents(at, 0))
            courses[at] = replace(course, paths=paths, summaries=(told(at, 0, summary),))
        return courses
    while (number := min(len(course.summaries) for course in courses)) < config.passes:
        due = [at for at, course in enumerate(courses) if len(course.summaries) == number]
        fitted = fit_values(
            config.value,
            [courses[at].paths.trajectories(provenance=False) for at in due],
            [jax.random.fold_in(keys[at][0], number) for at in due],
            [value for at in due if (value := courses[at].value) is not None] or None,
            room=sum(grounds[at].data.steps for at in due),  # D_k is mostly shorter than the data
        )
        for at, (value, worth) in zip(due, fitted, strict=True):
            logger.info(str(worth))
            ground, value_of = grounds[at], partial(_value_of, value, grounds[at].data)
            paths, summary = one_pass(
                courses[at].paths, ground.graph, judges[id(ground.graph)], value_of, config.rules, latents(at, number)
            )
            courses[at] = Progress(paths, value, (*courses[at].summaries, told(at, number, summary)))
        if each is not None:
            each(courses)
    return courses


def _title(grounds: Sequence[StitchingTask], at: int) -> str:
    """Of several grounds one, in a few words: by what they differ in."""
    data = grounds[at].data
    name = "" if all(ground.data is data for ground in grounds) else data.metadata.name
    alike = [number for number, ground in enumerate(grounds) if ground.data is data]
    seed = f"seed {alike.index(at) + 1} of {len(alike)}" if len(alike) > 1 else ""
    return ", ".join(filter(None, (name, seed)))


def _value_of(value: Value, data: Trajectories, nodes: np.ndarray) -> np.ndarray:
    return values(value, data.observations[nodes])
