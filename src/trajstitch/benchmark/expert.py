"""Train a ladder: TD3 or SAC on a Gymnasium task, several seeds at once, with every checkpoint kept.

Training goes in rounds. While the accelerator makes one update for each step of the last round, each seed's process
plays the next round with the policy as it was when the round began. With this fixed delay, a run's result depends only
on its configuration, and not on how fast either side is. All episodes are restarted at a snapshot, since a simulator's
state can't be saved in general; so a resumed run sees the same data as one that was never stopped.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np

from trajstitch.benchmark.collect import SAMPLED, Part, Shard, roll_out
from trajstitch.benchmark.exploration import Environment, Exploration, Explorer, environment, evaluate, unflatten
from trajstitch.benchmark.ladder import TASKS, Checkpoint, Ladder, rounded, save_ladder
from trajstitch.benchmark.selection import RANDOM, Asked, Chosen, Curve, Play, Played, best_policies, twins
from trajstitch.benchmark.training_run import TrainingRun
from trajstitch.engines.workers import cores
from trajstitch.errors import InputError
from trajstitch.evaluation.processes import evaluators, light_processes
from trajstitch.learning.bounds import SEED, Bounds, check_bounds, check_seeds
from trajstitch.policies.policy import Layers
from trajstitch.progress import logger, progress

if TYPE_CHECKING:
    from trajstitch.policies.online import Online

EVALUATION_SEED = 10_000
MATCH_SEED = 15_000
"""The checkpoints of a shortlist are played on other seeds than those they came onto it by."""
FINAL_SEED, FINAL_EPISODES = 20_000, 20
"""The ladder's are measured on other seeds than those they were chosen by."""

T = TypeVar("T")


@dataclass(frozen=True)
class Expert:
    """How a ladder of policies is trained with TD3 or SAC."""

    task: str
    """hopper, walker2d or halfcheetah; or the Gymnasium id of a task with continuous actions."""
    algorithm: Literal["td3", "sac"] = "td3"
    """td3: deterministic policies. sac: stochastic ones, as D4RL's sets were collected with; with more checkpoints, of
    which medium and expert are those that come nearest to D4RL's sets."""
    steps: Annotated[int, Bounds(1)] = 1_000_000
    """Environment steps for each seed."""
    seed: Annotated[int, SEED] = 0
    """The first seed."""
    seeds: Annotated[int, Bounds(1)] = 1
    """Seeds trained together; TD3's best one becomes the ladder, or SAC's whose sets come nearest to D4RL's."""
    environments: Annotated[int, Bounds(1)] = 8
    """Environments stepped together for each seed, in a process of its own."""
    round_steps: Annotated[int, Bounds(1)] = 25
    """Steps of each environment between two exchanges of policy and data with the learner."""
    replay: Annotated[int, Bounds(1)] = 1_000_000
    """Transitions that each seed's replay buffer holds."""
    checkpoint_every: Annotated[int, Bounds(1)] = 10_000
    """Steps between two checkpoints, each evaluated while training continues."""
    episodes: Annotated[int, Bounds(1)] = 10
    """Episodes in an evaluation, without noise; stochastic policies are sampled."""
    evaluators: Annotated[int, Bounds(1)] = 2
    """Processes that evaluate."""
    snapshot_every: Annotated[int, Bounds(1)] = 50_000
    """Steps between two snapshots to resume from. All episodes are restarted at a snapshot."""
    run: Path | None = None
    """The run's folder; by default runs/expert-TASK-seed-SEED."""
    resume: bool = False
    """Continue from the last snapshot in that folder."""

    @property
    def folder(self) -> Path:
        return self.run or Path("runs") / f"expert-{self.task}-seed-{self.seed}".replace("/", "-")

    @property
    def round(self) -> int:
        """Steps of a seed in one round."""
        return self.environments * self.round_steps

    def command(self) -> str:
        """Return the command that trains this ladder."""
        given = [
            f"--{field.name.replace('_', '-')} {getattr(self, field.name)}"
            for field in fields(Expert)
            if field.name not in ("task", "run", "resume") and getattr(self, field.name) != field.default
        ]
        return " ".join(["trajstitch expert", self.task, *given])

    def check(self, algorithm: "Online") -> None:
        """Raise for settings that make no sense."""
        check_bounds(self)
        check_seeds(self.seed, self.seeds)
        round_steps = f"`environments={self.environments}` × `round_steps={self.round_steps}`"
        if self.round % algorithm.policy_delay:
            raise InputError(f"{round_steps} must be a multiple of the policy delay, {algorithm.policy_delay}")
        for name in ("steps", "replay", "checkpoint_every", "snapshot_every"):
            if getattr(self, name) < 1 or getattr(self, name) % self.round:
                raise InputError(
                    f"`{name}={getattr(self, name)}` must be a multiple of a round's {self.round} steps ({round_steps})"
                )


def expert(config: Expert, algorithm: "Online | None" = None) -> Path:
    """Train, choose and measure a ladder; return its file, `ladder.safetensors` in the run folder.

    `algorithm` has the settings, if they are not the usual ones of the algorithm that `config` names.
    """
    algorithm = algorithm or default(config.algorithm)
    config.check(algorithm)
    task = environment(config.task)
    run = open_run(config, algorithm)
    with light_processes():
        train(run, config, algorithm, task)
        ladder = build_ladder(run.folder)
    shutil.rmtree(run.folder / "replay", ignore_errors=True)
    logger.info(f"{config.task}: expert returns {ladder.expert.mean_return:,.0f} ± {ladder.expert.std_return:,.0f}")
    return run.folder / "ladder.safetensors"


def default(algorithm: str) -> "Online":
    """Return an algorithm with its usual settings."""
    from trajstitch.policies.sac import SAC
    from trajstitch.policies.td3 import TD3

    return {one.name: one for one in (TD3, SAC)}[algorithm]()


def open_run(config: Expert, algorithm: "Online") -> TrainingRun:
    """Start or resume the run; a resumed one may have another folder and number of evaluators."""
    free = ("run", "resume", "evaluators")
    kept = {field.name: getattr(config, field.name) for field in fields(Expert) if field.name not in free}
    kept["algorithm"] = {"name": algorithm.name} | asdict(algorithm)  # pyright: ignore[reportArgumentType]
    return TrainingRun.start(config.folder, "expert", kept, resume=config.resume, command=config.command())


def train(run: TrainingRun, config: Expert, algorithm: "Online", task: Environment) -> None:
    """Train from the run's last snapshot (or the start) to the last step, and evaluate every checkpoint."""
    from trajstitch.benchmark.learner import Learner

    seeds = [config.seed + i for i in range(config.seeds)]
    sizes = (task.observations, *algorithm.hidden, algorithm.actor_outputs * len(task.bound))
    learner = Learner(algorithm, task, seeds, min(config.replay, config.steps), config.round)
    begin, recent = run.restore(learner, config.steps, config.round)
    if begin >= config.steps and not run.unevaluated(seeds):
        return

    with ExitStack() as stack:
        pool = stack.enter_context(evaluators(config.evaluators))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        evaluations = Evaluations(run, pool, task, config.episodes)
        for seed, steps in run.unevaluated(seeds):
            evaluations.submit(seed, steps, run.layers(seed, steps))
        advance = stack.enter_context(progress(f"Training {config.task}", config.steps, "steps"))
        advance(begin)

        explorers = [
            stack.enter_context(
                closing(
                    Explorer(
                        Exploration(
                            task,
                            seed,
                            config.environments,
                            config.round_steps,
                            sizes,
                            algorithm.exploration_noise,
                            algorithm.start_steps,
                        )
                    )
                )
            )
            for seed in (seeds if begin < config.steps else [])
        ]
        unsaved = []
        for done in range(begin, config.steps, config.round):
            index = done // config.round
            for explorer, weights in zip(explorers, learner.weights(), strict=True):
                explorer.weights[:] = weights
            starts = done % config.snapshot_every == 0
            for explorer in explorers:
                explorer.start(index, starts or done == begin)
            if recent is not None:
                learner.insert(recent)
            if done >= algorithm.start_steps:
                learner.improve(index)
            for explorer in explorers:
                explorer.finish()
            recent = np.stack([explorer.rows for explorer in explorers])
            unsaved.append(recent)

            now = done + config.round
            # The policy does not change before the first update: one checkpoint of it is enough.
            moved = now > algorithm.start_steps or now == config.checkpoint_every
            if (now % config.checkpoint_every == 0 and moved) or now == config.steps:
                checkpoint = [unflatten(weights, sizes) for weights in learner.weights()]
                run.save_checkpoint(now, dict(zip(seeds, checkpoint, strict=True)), learner.metrics)
                for seed, layers in zip(seeds, checkpoint, strict=True):
                    evaluations.submit(seed, now, layers)
            if now % config.snapshot_every == 0 and now < config.steps:
                run.save_snapshot(now, learner, np.concatenate(unsaved, axis=1))
                unsaved = []
            evaluations.collect()
            advance(config.round, **evaluations.shown())
        evaluations.wait()


class Evaluations:
    """Evaluations in other processes; each is recorded in the run when it is done."""

    def __init__(self, run: TrainingRun, pool: ProcessPoolExecutor, task: Environment, episodes: int) -> None:
        self.run, self.pool, self.task, self.episodes = run, pool, task, episodes
        self.pending: dict[tuple[int, int], Future[list[float]]] = {}
        self.latest: dict[int, float] = {}

    def submit(self, seed: int, steps: int, layers: Layers) -> None:
        self.pending[seed, steps] = self.pool.submit(evaluate, self.task, layers, self.episodes, EVALUATION_SEED)

    def collect(self) -> None:
        for seed, steps in [key for key, future in self.pending.items() if future.done()]:
            returns = self.pending.pop((seed, steps)).result()
            self.run.record(seed, steps, returns)
            self.latest[seed] = float(np.mean(returns))

    def wait(self) -> None:
        for future in list(self.pending.values()):
            future.result()
            self.collect()

    def shown(self) -> dict[str, float]:
        return {"best_return": max(self.latest.values())} if self.latest else {}


def build_ladder(folder: Path) -> Ladder:
    """Make the ladder of a run from the checkpoints evaluated so far, and write it to the run's ladder.safetensors.

    `benchmark/selection.py` says which seed and checkpoints are taken. They are rounded to half precision and measured
    again, on 20 episodes that were not used for the choice.
    """
    run = TrainingRun.open(folder, "expert")
    curves: dict[int, Curve] = {}
    for seed, steps, mean, std, _ in sorted(run.evaluations.values()):
        curves[seed] = [*curves.get(seed, []), (steps, mean, std)]
    if not curves:
        raise InputError(f"{folder}: no checkpoint has been evaluated yet")
    facts, trained = run.facts, run.facts["config"]["algorithm"]
    name = facts["config"]["task"]
    task = environment(name)

    with light_processes(), evaluators(cores()) as pool:

        def play(asked: Sequence[Asked]) -> list[Played]:
            shards = [
                Shard(
                    task.name,
                    Part([] if at == RANDOM else rounded(run.layers(seed, at)), SAMPLED, steps),
                    (MATCH_SEED, seed, at, steps),
                )
                for seed, at, steps in asked
            ]
            return [Played(*one) for one in _known(pool.map(played, shards), f"Playing {name}", len(shards))]

        chosen = select(name, trained, curves, play)
        logger.info(f"{name}: seed {chosen.seed} of {len(curves)} is taken; measuring {len(chosen.steps)} policies")
        layers, count = [rounded(run.layers(chosen.seed, steps)) for steps in chosen.steps], len(chosen.steps)
        results = list(pool.map(evaluate, [task] * count, layers, [FINAL_EPISODES] * count, [FINAL_SEED] * count))
    ladder = Ladder(
        task=name,
        environment=task.name,
        checkpoints=tuple(
            Checkpoint(steps, float(np.mean(returns)), float(np.std(returns)), len(returns), one)
            for steps, one, returns in zip(chosen.steps, layers, results, strict=True)
        ),
        seed=chosen.seed,
        algorithm=trained["name"],
        random_steps=trained["start_steps"],
        chosen_medium=chosen.medium,
        curves=run.curves(),
        versions=facts["versions"],
        machine=facts["machine"],
        command=facts["command"],
    )
    save_ladder(ladder, folder / "ladder.safetensors")
    return ladder


def played(shard: Shard) -> tuple[list[float], list[int]]:
    """Play a shard; return the returns and the lengths of its episodes."""
    episodes = roll_out(shard)
    return [float(one.rewards.sum()) for one in episodes], [len(one.rewards) for one in episodes]


def _known(results: Iterable[T], what: str, count: int) -> Iterator[T]:
    """Yield results as they come, and show how many there are."""
    with progress(what, count, "policies") as advance:
        for one in results:
            advance()
            yield one


def select(task: str, trained: Mapping[str, Any], curves: dict[int, Curve], play: Play) -> Chosen:
    """Choose the seed and checkpoints of a ladder, by what they are for."""
    matched = trained["name"] == "sac" and task in TASKS and any(len(rows) > 1 for rows in curves.values())
    return twins(task, trained["start_steps"], curves, play) if matched else best_policies(curves)
