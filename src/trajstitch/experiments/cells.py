"""A cell of an experiment: one policy, trained on one data set by one learner with one seed, and its result.

A cell's key is a hash of its config. Its result is one small JSON object that holds the config, the return of every
episode at each checkpoint, what stitching did to the data, and how it was made: seconds, commits, command, machine and
versions.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from trajstitch.benchmark import sets
from trajstitch.data.environments import normalised
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.errors import InputError
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.policies import POLICIES
from trajstitch.policies.train import Algorithm
from trajstitch.stitching.config import StitchConfig, preset
from trajstitch.storage.atomic import replacing
from trajstitch.storage.runs import slug

Result = dict[str, Any]
"""A cell's result, as JSON values."""


@dataclass(frozen=True)
class Data:
    """A data set."""

    source: str
    """A built-in set such as hopper/medium-replay, or a URI."""
    transitions: Annotated[int, Bounds(1)] | None = None
    """Collect a built-in set of this size for the experiment alone. If not given: as `trajstitch.load` has it."""
    seed: Annotated[int, SEED] = 0
    """Seed of the collection; one other than 0 is collected for the experiment alone, too."""

    @property
    def name(self) -> str:
        """A file name that says what the data is."""
        return f"{slug(self.source)}-{digest(self.facts)}"

    @property
    def facts(self) -> dict[str, Any]:
        """What the data depends on, as JSON values. Sets of TD3's policies have the names they always had."""
        policies = sets.made_with(self.source)
        return asdict(self) | ({} if policies is None else {"policies": policies})


@dataclass(frozen=True)
class Stitching:
    """A way to stitch the data before a policy learns from it."""

    name: str = "default"
    """A preset, or the name of `config`."""
    config: StitchConfig | None = None
    """The config, if it isn't a preset's."""
    seed: Annotated[int, SEED] = 0
    """Seed of the stitching; cells that share it share one stitched data set."""
    gives: Literal["replaced", "union", "filtered"] = "replaced"
    """What is learned from. replaced: the stitched data. union: the logged episodes, then the changed ones, for
    learners of Q. filtered: a control, logged episodes only: the best, as many as cover the same share of states."""

    def config_for(self, data: Trajectories) -> StitchConfig:
        """Return how to stitch this data; the `paper` preset depends on the task."""
        return (self.config or preset(self.name)).for_data(data.metadata)

    @property
    def facts(self) -> dict[str, Any]:
        config = asdict(self.config or preset(self.name))
        return {"name": self.name, "config": digest(config), "seed": self.seed}


@dataclass(frozen=True)
class Learner:
    """An algorithm, and the part of the data that it learns from."""

    algorithm: Algorithm
    top: Annotated[float, Bounds(0, 1)] = 1.0
    """Learn from this fraction of the trajectories, those with the highest returns."""

    @property
    def facts(self) -> dict[str, Any]:
        settings = asdict(self.algorithm)  # pyright: ignore[reportArgumentType]
        kind = type(self.algorithm)
        place = f"{kind.__module__}:{kind.__qualname__}"
        # A class of the same name elsewhere is another learner. Those of the table have the keys they always had.
        known = next((one for one in POLICIES.values() if one.endswith(f":{kind.__name__}")), None)
        where = {} if place == known else {"class": place}
        return {"policy": kind.__name__, **where, "top": self.top, **settings}


EVALUATED = ("episodes", "checkpoints", "beside_expert")
"""What of a cell's config its policy doesn't depend on."""


@dataclass(frozen=True)
class Cell:
    """One policy to train and evaluate."""

    data: Data
    learner: Learner
    stitching: Stitching | None = None
    """None: the data as it was logged."""
    seed: Annotated[int, SEED] = 0
    """Seed of the policy."""
    episodes: Annotated[int, Bounds(1)] = field(default=20, kw_only=True)
    """Episodes that it is evaluated in."""
    checkpoints: Annotated[int, Bounds(1, 7)] = field(default=1, kw_only=True)
    """Checkpoints that are evaluated, the last of seven: after 40 %, 50 % and so on of the steps, as in the paper."""
    beside_expert: bool = field(default=False, kw_only=True)
    """Also measure how far the policy is from the expert that the data was made with."""

    @property
    def config(self) -> dict[str, Any]:
        """Everything that the result depends on, beside the code, as JSON values."""
        config = {
            "data": self.data.facts,
            "stitching": self.stitching and self.stitching.facts | {"gives": self.stitching.gives},
            "learner": self.learner.facts,
            "seed": self.seed,
            "episodes": self.episodes,
            "checkpoints": self.checkpoints,
        }
        # Other cells have the keys they always had.
        return as_json(config | ({"beside_expert": True} if self.beside_expert else {}))

    @property
    def key(self) -> str:
        return digest(self.config)

    @property
    def policy_name(self) -> str:
        """A file name that says what the policy was trained from."""
        config = {name: value for name, value in self.config.items() if name not in EVALUATED}
        return f"{config['learner']['policy'].lower()}-{slug(self.data.source)}-{digest(config)}"

    def __str__(self) -> str:
        how = self.stitching
        stitched = f", stitched ({how.name}, seed {how.seed}, {how.gives})" if how else ""
        top = f", best {self.learner.top:.0%}" if self.learner.top < 1 else ""
        return f"{type(self.learner.algorithm).__name__} on {self.data.source}{stitched}{top}, seed {self.seed}"


def is_stale(result: Result) -> bool:
    """Return whether a result is of a built-in set as it was made with other policies than now."""
    data = result["config"]["data"]
    return data.get("policies") != sets.made_with(data["source"])


def score(result: Result) -> float:
    """Return the mean of a result's episodes, at the last checkpoint, as a normalised score (0 random, 100 expert)."""
    return _score(result, result["returns"])


def best_score(result: Result) -> float:
    """Return the score of the best checkpoint, chosen by evaluating in the environment, as the paper does."""
    return max(_score(result, one["returns"]) for one in result["checkpoints"])


def _score(result: Result, returns: list[float]) -> float:
    reference = result["reference"] and tuple(result["reference"])
    return float(normalised(np.array(returns), Metadata(reference=reference)).mean())


def read_results(place: Path) -> list[Result]:
    """Return the results of an experiment's folder, or of a file by `save_results`, the oldest first."""
    try:
        if place.is_dir():
            found = [json.loads(path.read_text()) for path in sorted((place / "cells").glob("*.json"))]
            return sorted(found, key=lambda result: result["measured"])
        packed = json.loads(place.read_text())
        return [_unpacked(result, packed["shared"]) for result in packed["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{place}: not the results of an experiment ({error!r})") from error


def save_results(results: Iterable[Result], path: Path) -> None:
    """Write results into one file, a line each, so that a change shows as a line; what they share is written once."""
    shared: dict[str, str] = {}
    lines = ",\n".join(json.dumps(_packed(result, shared), ensure_ascii=False) for result in results)
    facts = ",\n".join(f'"{name}": {value}' for name, value in sorted(shared.items()))
    with replacing(path, force=True) as fresh:
        fresh.write_text(f'{{\n"shared": {{\n{facts}\n}},\n"results": [\n{lines}\n]\n}}\n')


def _packed(result: Result, shared: dict[str, str]) -> Result:
    """Replace every dictionary but the config's outermost by its hash."""

    def refer(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        name = f"#{digest(value)}"
        shared[name] = json.dumps(value, ensure_ascii=False)
        return name

    config = {name: refer(value) for name, value in result["config"].items()}
    return {name: refer(value) for name, value in result.items() if name != "config"} | {"config": config}


def _unpacked(value: Any, shared: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _unpacked(part, shared) for name, part in value.items()}
    return shared[value] if isinstance(value, str) and value.startswith("#") else value


def digest(value: Any) -> str:
    """Return a short hash of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def rounded(value: Any) -> Any:
    """Return JSON values with numbers to five digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float | np.floating) else value


def as_json(value: Any) -> Any:
    """Return the value as it will be read from JSON."""
    return json.loads(json.dumps(value))
