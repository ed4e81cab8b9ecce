"""The methods of an experiment, and the cells that compare them: every method on every set.

A method that learns from stitched data has several stitchings of each set, with several policies each; one that learns
from the logged data has as many policies. Policy seeds are numbered through, so where stitching leaves the data
unchanged its policies are those of the logged data, and equal. All are evaluated in the same episodes.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from trajstitch.benchmark import sets
from trajstitch.errors import InputError, did_you_mean
from trajstitch.experiments.cells import Cell, Data, Learner, Stitching
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.policies.bc import BC
from trajstitch.policies.train import Algorithm
from trajstitch.stitching.config import Preset, StitchConfig, preset

Change = Callable[[StitchConfig], StitchConfig]
"""Changes a preset's config."""


CLONE = BC()
STEPS = ("steps", "warm_steps", "value_steps")
"""Fields that are numbers of gradient steps."""
SMALL_RATE = 5e-3
"""Adam's step size at least, for small networks that train for a few steps."""


@dataclass(frozen=True)
class Method:
    """A column of an experiment's table."""

    title: str
    algorithm: Algorithm = CLONE
    top: float = 1.0
    """Fraction of the episodes that is learned from, the best."""
    stitched: Change | None = None
    """How the preset asked for is changed before the data is stitched; None: the data as it was logged."""
    preset: str | None = None
    """The preset, if not the one asked for."""
    gives: Literal["replaced", "union", "filtered"] = "replaced"
    """What of the stitching is learned from."""
    on_task: Mapping[str, Change] = field(default_factory=dict)
    """Further changes for the sets of a task."""
    beside_expert: bool = False
    """Also measure how far its policies are from the expert."""


def unchanged(config: StitchConfig) -> StitchConfig:
    """Return the config as it is."""
    return config


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured, where flags don't say otherwise."""

    sets: tuple[str, ...] | None
    transitions: int | None
    seeds: int
    stitchings: int
    q_seeds: int
    q_stitchings: int
    episodes: int
    checkpoints: int
    network: int | None
    """Width of every network's one hidden layer, and its largest batch; None: as configured."""
    most_steps: int | None
    """Gradient steps of every model and policy at most."""


SIZES = {
    "full": Size(
        sets=None,
        transitions=None,
        seeds=5,
        stitchings=3,
        q_seeds=2,
        q_stitchings=3,
        episodes=20,
        checkpoints=7,
        network=None,
        most_steps=None,
    ),
    "small": Size(
        sets=("hopper/medium-replay", "hopper/medium"),
        transitions=800,
        seeds=1,
        stitchings=2,
        q_seeds=1,
        q_stitchings=2,
        episodes=1,
        checkpoints=2,
        network=32,
        most_steps=200,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What of an experiment is measured, and how."""

    sets: tuple[str, ...] | None = None
    """Built-in sets, in the order of work; if not given, the experiment's own."""
    methods: tuple[str, ...] | None = None
    """Methods, in the order of work; if not given, all of the experiment."""
    data: str | None = None
    """Measure on real files: a folder of D4RL's (hopper-medium-v2.hdf5, ...), or a URI in which {task} and {kind} stand
    for the parts of a set's name, such as minari:mujoco/{task}/{kind}-v0."""
    transitions: Annotated[int, Bounds(1)] | None = None
    """Transitions of each built-in set; if not given, its full size."""
    data_seed: Annotated[int, SEED] = 0
    """Seed with which built-in sets are collected."""
    preset: Preset = "default"
    """Preset to stitch with; methods of the paper have the paper's."""
    seeds: Annotated[int, Bounds(1)] | None = None
    """Policies cloned from each stitching; by default 5."""
    stitchings: Annotated[int, Bounds(1)] | None = None
    """Stitchings of each set to clone from; by default 3."""
    q_seeds: Annotated[int, Bounds(1)] | None = None
    """Policies of each stitching for learners of Q (TD3+BC, IQL); by default 2."""
    q_stitchings: Annotated[int, Bounds(1)] | None = None
    """Stitchings of each set for learners of Q; by default 3."""
    steps: Annotated[int, Bounds(1)] | None = None
    """Gradient steps of cloning at most; if not given, the algorithm's own number."""
    q_steps: Annotated[int, Bounds(1)] | None = None
    """Gradient steps of learners of Q at most; if not given, the algorithm's own number."""
    episodes: Annotated[int, Bounds(1)] | None = None
    """Episodes that each checkpoint is evaluated in; by default 20."""
    checkpoints: Annotated[int, Bounds(1, 7)] | None = None
    """Checkpoints of each policy that are evaluated, the last of seven; the last one is ranked. By default all 7."""
    size: Literal["small", "full"] = "full"
    """small: tiny sets, networks and few steps, to try the experiment in seconds. Its numbers mean nothing."""

    @property
    def amounts(self) -> Size:
        """How much is measured."""
        given = {item.name: getattr(self, item.name, None) for item in fields(Size)}
        return replace(SIZES[self.size], **{name: value for name, value in given.items() if value is not None})


Grid = dict[tuple[str, str], list[Cell]]
"""The cells of each set and method: those of one stitching after those of another."""


def cells_of(
    asked: Asked, methods: Mapping[str, Method], default_sets: Iterable[str], worlds: Container[str] = ()
) -> Grid:
    """Return the cells by set and method, in the order of work. Sets that are `worlds` are collected there."""
    amounts = asked.amounts
    names = asked.methods or tuple(methods)
    for name in names:
        if name not in methods:
            raise InputError(f"unknown method {name!r}{did_you_mean(name, methods)}: choose from {', '.join(methods)}")
    data = {
        name: Data(name, seed=asked.data_seed) if name in worlds else data_of(asked, name)
        for name in amounts.sets or tuple(default_sets)
    }
    return {
        (place, name): [
            Cell(
                data[place],
                _learner(asked, methods[name]),
                how,
                seed,
                episodes=amounts.episodes,
                checkpoints=amounts.checkpoints,
                beside_expert=methods[name].beside_expert,
            )
            for seed, how in enumerate(_stitchings(asked, place, name, methods[name]))
        ]
        for name in names
        for place in data
    }


def data_of(asked: Asked, name: str) -> Data:
    """Return where the data of a set is."""
    if asked.data is None:
        return Data(sets.built_in(name).name, asked.amounts.transitions, asked.data_seed)
    if asked.amounts.transitions is not None or asked.data_seed:
        raise InputError("`transitions` and `data_seed` are for built-in sets, which are collected, not for `data`")
    task, _, kind = name.partition("/")
    if ":" in asked.data:
        if "{task}" not in asked.data or "{kind}" not in asked.data:
            raise InputError(f"`data` is a folder, or a URI with {{task}} and {{kind}} in it, not {asked.data!r}")
        return Data(asked.data.replace("{task}", task).replace("{kind}", kind))
    return Data(f"d4rl:{Path(asked.data) / f'{task}-{kind}-v2.hdf5'}")


def learns_q(algorithm: Algorithm) -> bool:
    """Return whether an algorithm learns action values."""
    return hasattr(algorithm, "discount")


def _learner(asked: Asked, method: Method) -> Learner:
    steps = asked.q_steps if learns_q(method.algorithm) else asked.steps
    return Learner(limited(limited(method.algorithm, None, steps), *_limits(asked)), method.top)


def _stitchings(asked: Asked, place: str, name: str, method: Method) -> list[Stitching | None]:
    """Return the stitching of each policy on a set."""
    amounts = asked.amounts
    seeds, stitchings = amounts.seeds, amounts.stitchings
    if learns_q(method.algorithm):
        seeds, stitchings = amounts.q_seeds, amounts.q_stitchings
    if method.stitched is None:
        return [None] * (seeds * stitchings)
    base = method.preset or asked.preset
    own_change = method.on_task.get(place.partition("/")[0], unchanged)
    config = limited(own_change(method.stitched(preset(base))), *_limits(asked))
    title, own = base, None
    if config != preset(base):
        changed = (method.stitched, own_change) != (unchanged, unchanged)
        title, own = f"{base}-{name if changed else asked.size}", config
    # A stitching that joins several has the seeds after its own too.
    return [
        Stitching(title, own, number * config.stitchings, method.gives)
        for number in range(stitchings)
        for _ in range(seeds)
    ]


def _limits(asked: Asked) -> tuple[int | None, int | None]:
    return asked.amounts.network, asked.amounts.most_steps


def limited(config: Any, network: int | None, most_steps: int | None) -> Any:
    """Return a config, with those in it, whose networks and numbers of gradient steps are at most these."""
    if isinstance(config, dict):
        return {name: limited(part, network, most_steps) for name, part in config.items()}
    if not is_dataclass(config) or isinstance(config, type):
        return config
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    changes: dict[str, Any] = {name: limited(value, network, most_steps) for name, value in values.items()}
    if most_steps is not None:
        changes |= {name: min(changes[name], most_steps) for name in STEPS if changes.get(name) is not None}
    if network is not None:
        smaller = {"hidden": (network,), "batch_size": min(changes.get("batch_size", 0), network)}
        smaller["learning_rate"] = max(changes.get("learning_rate", 0.0), SMALL_RATE)
        changes |= {name: value for name, value in smaller.items() if name in changes}
    return replace(config, **changes)
