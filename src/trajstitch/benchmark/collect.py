"""Collect a built-in set: roll out the task's ladder in its environment.

Each part of a set is divided in advance into shards, and a shard's bits depend only on (seed, part, shard): every
episode has a random stream of its own, and the policy always sees a batch of the same shape. So the data does not
depend on the number of processes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Annotated, NamedTuple

import gymnasium
import numpy as np

from trajstitch.benchmark import maze, sets
from trajstitch.benchmark.behaviour import behave
from trajstitch.benchmark.ladder import Checkpoint, Ladder, load_ladder, shipped
from trajstitch.benchmark.lanes import Lanes
from trajstitch.data import environments
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.engines.workers import cores
from trajstitch.errors import InputError
from trajstitch.evaluation import processes
from trajstitch.evaluation.processes import light_processes
from trajstitch.learning.bounds import SEED, Bounds, check_bounds
from trajstitch.policies.policy import Layers
from trajstitch.progress import progress
from trajstitch.storage.circumstances import versions

SHARD_STEPS = 8_000
"""Transitions of a shard: about a second of work, so that progress shows and processes finish together."""
LANES = 4
"""Episodes stepped together: enough to share the policy's cost, few enough to waste little at a shard's end."""

MEDIUM_NOISE = 0.1
EXPERT_NOISE = 0.01
EXPLORATION_NOISE = 0.2
NOISY_EXPERT_NOISE = 0.5
"""Standard deviations of the noise on a deterministic policy's actions, relative to the action bound."""
SAMPLED = 1.0
"""The same of a stochastic policy, relative to its own."""


@dataclass(frozen=True)
class Collect:
    """How a built-in set is collected: the same seed gives the same bits."""

    set: str
    """The built-in set, such as hopper/medium-replay; `trajstitch sets` lists them."""
    transitions: Annotated[int, Bounds(1)] | None = None
    """How many, rounded up to whole episodes (of noisy-expert: in its noisy part); D4RL's size if not given."""
    seed: Annotated[int, SEED] = 0
    """Seed of the environments and of the action noise."""
    ladder: Path | None = None
    """The file of the ladder whose policies act, by `trajstitch expert`; the shipped one if not given."""
    processes: Annotated[int, Bounds(1)] | None = None
    """Worker processes; one for each core if not given. The data does not depend on it."""


class Part(NamedTuple):
    """Episodes of one policy: as many as it takes to reach `steps`, or the number `episodes`."""

    layers: Layers
    """Without any, actions are random."""
    noise: float
    """Standard deviation of the noise, as above."""
    steps: float = 0
    episodes: int = 0


class Shard(NamedTuple):
    """A piece of a part that one process works through."""

    environment: str
    part: Part
    stream: tuple[int, ...]
    """The root of its random streams: seed, stage, part and shard."""


class Episode(NamedTuple):
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool
    truncated: bool


def collect(config: Collect) -> Trajectories:
    """Collect the built-in set that `config` names."""
    which = sets.built_in(config.set)
    transitions = which.transitions if config.transitions is None else config.transitions
    check_bounds(config)
    if which.name == sets.MAZE:
        if config.ladder is not None:
            raise InputError(f"`ladder`: {sets.MAZE} is made by drivers of its own, not by a ladder of policies")
        return maze.collect(which.minari_id, which.name, transitions, config.seed)
    if not all(map(find_spec, ("mujoco", "imageio"))):
        raise InputError('this built-in set needs MuJoCo: pip install "trajstitch[mujoco]"; maze/mixed does without')
    ladder = load_ladder(config.ladder or shipped(which.task, which.algorithm))
    if ladder.task != which.task:
        raise InputError(f"{config.ladder} is a ladder of {ladder.task}, not of {which.task}")
    episodes: list[Episode] = []
    with light_processes(), processes.pool(config.processes or cores()) as pool:
        with progress(f"Collecting {which.name}", transitions) as advance:
            for episode in _episodes(pool, ladder.environment, recipe(which, ladder, transitions), (config.seed, 0)):
                episodes.append(episode)
                advance(len(episode.rewards))
        clean = clean_episodes(which, len(episodes))
        parts = [Part(ladder.expert.layers, 0.0, episodes=clean)] if clean else []
        with progress("Collecting expert trajectories", clean, "episodes") as advance:
            for episode in _episodes(pool, ladder.environment, parts, (config.seed, 1)):
                episodes.append(episode)
                advance()
    return _assemble(episodes, which, ladder, config)


def recipe(which: sets.BuiltIn, ladder: Ladder, transitions: int) -> list[Part]:
    """Return the policies of a set, with the transitions that each collects."""
    expert, medium = ladder.expert.layers, ladder.medium.layers
    if which.expert_percent is not None:
        if ladder.algorithm != "td3":
            raise InputError(f"{which.name} is made with noise on a TD3 expert, not with {ladder.algorithm.upper()}'s")
        return [Part(expert, NOISY_EXPERT_NOISE, transitions)]
    if ladder.algorithm == "sac":
        return _sampled(which.kind, ladder, transitions)
    if which.kind == "medium-replay":
        policies = ladder.checkpoints[: ladder.medium_index + 1]
        return [Part(policy.layers, EXPLORATION_NOISE, transitions / len(policies)) for policy in policies]
    return {
        "medium": [Part(medium, MEDIUM_NOISE, transitions)],
        "expert": [Part(expert, EXPERT_NOISE, transitions)],
        "medium-expert": [Part(medium, MEDIUM_NOISE, transitions / 2), Part(expert, EXPERT_NOISE, transitions / 2)],
    }[which.kind]


def _sampled(kind: str, ladder: Ladder, transitions: int) -> list[Part]:
    """Return the policies of a set that is made with a SAC ladder."""
    medium, expert = (Part(one.layers, SAMPLED, transitions) for one in (ladder.medium, ladder.expert))
    if kind == "medium-replay":
        stages = replay(ladder)
        whole = sum(steps for _, steps in stages)
        return [Part([] if one is None else one.layers, SAMPLED, transitions * steps / whole) for one, steps in stages]
    halves = [part._replace(steps=transitions / 2) for part in (medium, expert)]
    return {"medium": [medium], "expert": [expert], "medium-expert": halves}[kind]


def replay(ladder: Ladder) -> list[tuple[Checkpoint | None, float]]:
    """Return who acted for how many steps in the run up to medium: nobody (actions were random), then each policy from
    halfway to the checkpoint before until halfway to the one after."""
    policies = ladder.checkpoints[: ladder.medium_index + 1]
    steps = [one.steps for one in policies]
    middles = [(one + two) / 2 for one, two in pairwise(steps)]
    start = min(ladder.random_steps, steps[-1])
    edges = [start, *(max(one, start) for one in middles), steps[-1]]
    return [(None, start), *((one, end - begin) for one, (begin, end) in zip(policies, pairwise(edges), strict=True))]


def clean_episodes(which: sets.BuiltIn, noisy: int) -> int:
    """Return how many clean expert trajectories make up the set's percentage beside `noisy` others."""
    if not which.expert_percent:
        return 0
    fraction = which.expert_percent / 100
    return max(1, round(noisy * fraction / (1 - fraction)))


def _episodes(pool: Pool, environment: str, parts: list[Part], stream: tuple[int, ...]) -> Iterator[Episode]:
    """Yield the parts' episodes in order, each part's until it and those before it have their steps."""
    shards = [
        Shard(environment, piece, (*stream, index, number))
        for index, part in enumerate(parts)
        for number, piece in enumerate(_pieces(part))
    ]
    goals = np.cumsum([part.steps for part in parts])
    steps = 0
    for shard, episodes in zip(shards, pool.imap(roll_out, shards), strict=True):
        for episode in episodes:
            if shard.part.episodes or steps < goals[shard.stream[-2]]:
                steps += len(episode.rewards)
                yield episode


def _pieces(part: Part) -> list[Part]:
    if part.episodes:
        counts = [LANES] * (part.episodes // LANES) + [part.episodes % LANES] * bool(part.episodes % LANES)
        return [part._replace(episodes=count) for count in counts]
    if not part.steps:
        return []
    count = max(1, round(part.steps / SHARD_STEPS))
    return [part._replace(steps=part.steps / count)] * count


def roll_out(shard: Shard) -> list[Episode]:
    """Play the shard's episodes, in blocks that are stepped together, until it has its steps or episodes."""
    part, lanes = shard.part, _lanes(shard.environment)
    _require_fitting(part.layers, lanes, shard.environment)
    episodes: list[Episode] = []
    steps = block = 0
    while steps < part.steps or len(episodes) < part.episodes:
        # As many as seem to be missing, so that few episodes are rolled out and thrown away.
        missing = part.episodes - len(episodes)
        if not part.episodes:
            missing = math.ceil((part.steps - steps) * len(episodes) / steps) if steps else LANES
        streams = [np.random.SeedSequence((*shard.stream, block, lane)) for lane in range(min(missing, LANES))]
        for episode in _lockstep(lanes, streams, part):
            if steps < part.steps or len(episodes) < part.episodes:
                episodes.append(episode)
                steps += len(episode.rewards)
        block += 1
    return episodes


def _require_fitting(layers: Layers, lanes: Lanes, environment: str) -> None:
    """Raise unless a policy takes the environment's observations and gives its actions."""
    if not layers:
        return
    takes, gives, actions = len(layers[0][0]), layers[-1][1].size, len(lanes.low)
    if takes != lanes.size or gives not in (actions, 2 * actions):
        raise InputError(
            f"`ladder`: its policies take {takes} numbers and give {gives}; {environment} has observations of "
            f"{lanes.size} and actions of {actions}"
        )


@cache
def _lanes(environment: str) -> Lanes:
    """Return a process's environments, made once: a reset leaves nothing of the episode before."""
    return Lanes(environment, LANES)


def _lockstep(lanes: Lanes, streams: list[np.random.SeedSequence], part: Part) -> list[Episode]:
    """Play one episode in each lane, all stepped together; finished lanes keep their place in the policy's batch."""
    limit, count, actions_size = lanes.limit, len(lanes), len(lanes.low)
    noise = np.zeros((limit, count, actions_size), np.float32)
    observations = np.zeros((limit + 1, count, lanes.size))
    actions = np.zeros((limit, count, actions_size), np.float32)
    rewards = np.zeros((limit, count))
    lengths = np.full(len(streams), limit)
    terminated = np.zeros(len(streams), bool)
    for lane, stream in enumerate(streams):
        random = np.random.default_rng(stream)
        shape = (limit, actions_size)
        noise[:, lane] = random.normal(0.0, part.noise, shape) if part.layers else random.uniform(-1, 1, shape)
        observations[0, lane] = lanes.reset(lane, seed=int(stream.generate_state(1)[0]))
    alive = list(range(len(streams)))
    for step in range(limit):
        actions[step] = behave(part.layers, observations[step], noise[step], lanes.high)
        outcome = lanes.step(alive, actions[step, alive])
        observations[step + 1, alive], rewards[step, alive] = outcome.observations, outcome.rewards
        if outcome.terminated.any():
            ended = np.array(alive)[outcome.terminated]
            lengths[ended], terminated[ended] = step + 1, True
            alive = [lane for lane in alive if not terminated[lane]]
            if not alive:
                break
    return [
        Episode(
            observations[: lengths[lane] + 1, lane].copy(),
            actions[: lengths[lane], lane].copy(),
            rewards[: lengths[lane], lane].copy(),
            bool(terminated[lane]),
            bool(lengths[lane] == limit),
        )
        for lane in range(len(streams))
    ]


def _assemble(episodes: list[Episode], which: sets.BuiltIn, ladder: Ladder, config: Collect) -> Trajectories:
    offsets = np.cumsum([0, *(len(episode.rewards) for episode in episodes)])
    flags = np.zeros((2, offsets[-1]), bool)
    flags[:, offsets[1:] - 1] = np.array([(episode.terminated, episode.truncated) for episode in episodes]).T
    environment = gymnasium.make(ladder.environment)
    metadata = Metadata(
        name=which.minari_id,
        source=which.name,
        environment=environments.spec_json(ladder.environment),
        observation_space=environment.observation_space,
        action_space=environment.action_space,
        reference=environments.REFERENCE[which.task],
        extra={
            "description": f"{which.recipe[0].upper()}{which.recipe[1:]}. Made by trajstitch; not D4RL's data.",
            "algorithm_name": ladder.algorithm.upper(),
            "collected_with": {"seed": config.seed, "ladder_seed": ladder.seed, "versions": versions()},
        },
    )
    return Trajectories(
        observations=np.concatenate([episode.observations for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminated=flags[0],
        truncated=flags[1],
        offsets=offsets,
        metadata=metadata,
    )
