"""Training a ladder: TD3 on a Gymnasium task, several seeds at once, every checkpoint kept.

Training goes in rounds. While the accelerator makes one update for each step of the last round, each seed's process
plays the next round with the policy as it was when the round began. That fixed delay makes a run's result depend on
nothing but its configuration, however fast either side is. All episodes start anew at a snapshot, since a simulator's
state can't be saved in general; so a resumed run meets the same data as one that was never stopped.
"""

import csv
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from safetensors import safe_open
from tyro.conf import Positional, arg

from trajstitch import console
from trajstitch.errors import InputError
from trajstitch.formats.atomic import replacing
from trajstitch.sets.ladder import (
    TASKS,
    Checkpoint,
    Ladder,
    Layers,
    first_medium,
    layers_from,
    named,
    rounded,
    save_ladder,
    save_tensors,
)
from trajstitch.sets.rollout import (
    Environment,
    Exploration,
    Explorer,
    environment,
    evaluate,
    evaluators,
    one_thread_each,
    unflatten,
)

if TYPE_CHECKING:
    from trajstitch.policies.td3 import TD3
    from trajstitch.sets.learner import Learner

CHECKPOINTS = 17
"""Checkpoints of a ladder before its expert."""
UP_TO_MEDIUM = 10
"""How many of them lie at or before medium."""
LAST = 10
"""A seed is judged by the mean of this many last evaluations."""
EVALUATION_SEED = 10_000
FINAL_SEED = 20_000
"""Episodes that choose the checkpoints start from other seeds than those that measure them."""
FINAL_EPISODES = 20


@dataclass(frozen=True)
class Expert:
    """Train a ladder of policies with TD3 and keep it in the run folder."""

    task: Annotated[Positional[str], arg(metavar="TASK")]
    """hopper, walker2d or halfcheetah; or the Gymnasium id of a task with continuous actions."""
    steps: int = 1_000_000
    """Environment steps for each seed."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """Seeds trained side by side, from `seed` on; the best one becomes the ladder."""
    environments: int = 8
    """Environments stepped together for each seed, in a process of its own."""
    round_steps: int = 25
    """Steps of each environment between two exchanges of policy and data with the learner."""
    replay: int = 1_000_000
    """Transitions that each seed's replay holds."""
    checkpoint_every: int = 10_000
    """Steps between two checkpoints, each evaluated while training goes on."""
    episodes: int = 10
    """Episodes without noise in an evaluation."""
    evaluators: int = 2
    """Processes that evaluate."""
    snapshot_every: int = 50_000
    """Steps between two snapshots of everything, to resume from. All episodes start anew at a snapshot."""
    run: Path | None = None
    """The run's folder; by default runs/expert-TASK-seed-SEED."""
    resume: bool = False
    """Go on from the last snapshot of that folder."""

    @property
    def folder(self) -> Path:
        return self.run or Path("runs") / f"expert-{self.task}-seed-{self.seed}".replace("/", "-")

    @property
    def round(self) -> int:
        """Steps of a seed in a round."""
        return self.environments * self.round_steps

    def command(self) -> str:
        given = [
            f"--{field.name.replace('_', '-')} {getattr(self, field.name)}"
            for field in fields(self)
            if field.name not in ("task", "run", "resume") and getattr(self, field.name) != field.default
        ]
        return " ".join(["trajstitch expert", self.task, *given])

    def check(self, algorithm: "TD3") -> None:
        for name in ("steps", "seeds", "environments", "round_steps", "replay", "episodes", "evaluators"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if self.seed < 0:
            raise InputError(f"--seed must not be negative, not {self.seed}")
        if self.round % algorithm.policy_delay:
            raise InputError(
                f"--environments {self.environments} × --round-steps {self.round_steps} must be a multiple of "
                f"TD3's policy delay, {algorithm.policy_delay}"
            )
        for name in ("steps", "replay", "checkpoint_every", "snapshot_every"):
            if getattr(self, name) < 1 or getattr(self, name) % self.round:
                raise InputError(
                    f"--{name.replace('_', '-')} {getattr(self, name)} must be a multiple of a round's {self.round} "
                    f"steps (--environments {self.environments} × --round-steps {self.round_steps})"
                )


def expert(config: Expert, algorithm: "TD3 | None" = None) -> Path:
    """Train, choose and measure a ladder; return its file, `ladder.safetensors` in the run folder."""
    from trajstitch.policies.td3 import TD3

    algorithm = algorithm or TD3()
    config.check(algorithm)
    task = environment(config.task)
    run = Run.open(config, algorithm, task)
    with one_thread_each():
        train(run, config, algorithm, task)
        ladder = build_ladder(run.folder)
    shutil.rmtree(run.folder / "replay", ignore_errors=True)
    console.log(f"{config.task}: expert returns {ladder.expert.mean_return:,.0f} ± {ladder.expert.std_return:,.0f}")
    return run.folder / "ladder.safetensors"


def train(run: "Run", config: Expert, algorithm: "TD3", task: Environment) -> None:
    """Train from the run's last snapshot, or from the start, to the last step, and evaluate every checkpoint."""
    from trajstitch.sets.learner import Learner

    seeds = [config.seed + i for i in range(config.seeds)]
    sizes = (task.observations, *algorithm.hidden, len(task.bound))
    learner = Learner(algorithm, task, seeds, min(config.replay, config.steps), config.round)
    begin, recent = run.restore(learner, config)
    if begin >= config.steps and not run.unevaluated(seeds):
        return

    with ExitStack() as stack:
        pool = stack.enter_context(evaluators(config.evaluators))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        evaluations = Evaluations(run, pool, task, config.episodes)
        for seed, steps in run.unevaluated(seeds):
            evaluations.submit(seed, steps, run.layers(seed, steps))
        advance = stack.enter_context(console.progress(f"Training {config.task}", config.steps, "steps"))
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
            # The policy stands still before the first update: one checkpoint of it is enough.
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
    """Evaluations under way in other processes; each is recorded in the run as it comes."""

    def __init__(self, run: "Run", pool: ProcessPoolExecutor, task: Environment, episodes: int) -> None:
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


class Run:
    """The folder of a training run.

    config.json                   configuration, versions and machine
    evaluations.csv               a line for each evaluated checkpoint and seed
    checkpoints/STEPS.safetensors the actors of all seeds after STEPS steps
    snapshot.safetensors          the learner's state to resume from
    replay/STEPS.safetensors      the transitions between the snapshot at STEPS and the one before
    ladder.safetensors            the result
    """

    COLUMNS = ("seed", "steps", "mean_return", "std_return", "episodes")
    FREE = ("run", "resume", "evaluators")
    """What a resumed run may set differently."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.facts: dict[str, Any] = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: not the folder of a training run ({error})") from error
        self.evaluations = {(row[0], row[1]): row for row in self._read()}

    @classmethod
    def open(cls, config: Expert, algorithm: "TD3", task: Environment) -> "Run":
        folder = config.folder
        kept = json.loads(
            json.dumps({name: value for name, value in asdict(config).items() if name not in cls.FREE})
        ) | {"algorithm": json.loads(json.dumps(asdict(algorithm)))}
        if folder.exists() and any(folder.iterdir()):
            if not config.resume:
                raise InputError(f"{folder} exists already: go on with it by --resume, or name another by --run")
            run = cls(folder)
            for name, value in run.facts["config"].items():
                if kept.get(name) != value:
                    raise InputError(f"{folder} was started with {name} {value}, not {kept.get(name)}: it can't go on")
            return run
        facts = {
            "config": kept,
            "environment": asdict(task),
            "versions": versions(),
            "machine": machine(),
            "command": config.command(),
        }
        with replacing(folder / "config.json", force=True) as fresh:
            fresh.write_text(json.dumps(facts, indent=1) + "\n")
        return cls(folder)

    def _read(self) -> Iterator[tuple[int, int, float, float, int]]:
        path = self.folder / "evaluations.csv"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        for line in csv.reader(lines):
            if len(line) == len(self.COLUMNS) and line[-1]:  # a killed run may leave part of a line
                yield int(line[0]), int(line[1]), float(line[2]), float(line[3]), int(line[4])

    def record(self, seed: int, steps: int, returns: Sequence[float]) -> None:
        """Add an evaluation."""
        self.evaluations[seed, steps] = (seed, steps, float(np.mean(returns)), float(np.std(returns)), len(returns))
        with (self.folder / "evaluations.csv").open("a", newline="") as file:
            csv.writer(file).writerow(self.evaluations[seed, steps])

    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """Seed to (steps, mean return), in training order."""
        curves: dict[int, list[tuple[int, float]]] = {}
        for seed, steps, mean, *_ in sorted(self.evaluations.values()):
            curves.setdefault(seed, []).append((steps, mean))
        return curves

    def checkpoints(self) -> list[int]:
        """The steps at which there are checkpoints."""
        return sorted(int(path.stem) for path in (self.folder / "checkpoints").glob("*.safetensors"))

    def unevaluated(self, seeds: Sequence[int]) -> list[tuple[int, int]]:
        return [
            (seed, steps) for steps in self.checkpoints() for seed in seeds if (seed, steps) not in self.evaluations
        ]

    def save_checkpoint(self, steps: int, actors: dict[int, Layers], metrics: dict[str, Any]) -> None:
        tensors = {}
        for seed, layers in actors.items():
            tensors |= named(layers, f"{seed}/")
        shown = {name: json.dumps(np.asarray(values).tolist()) for name, values in metrics.items()}
        save_tensors(tensors, self.folder / "checkpoints" / f"{steps:09}.safetensors", {"steps": str(steps)} | shown)

    def layers(self, seed: int, steps: int) -> Layers:
        tensors, _ = read_tensors(self.folder / "checkpoints" / f"{steps:09}.safetensors")
        return layers_from(tensors, f"{seed}/")

    def save_snapshot(self, steps: int, learner: "Learner", rows: np.ndarray) -> None:
        """Save everything needed to go on; `rows` are the transitions since the last snapshot."""
        save_tensors({"rows": rows}, self.folder / "replay" / f"{steps:09}.safetensors", {"steps": str(steps)})
        save_tensors(learner.tensors(), self.folder / "snapshot.safetensors", {"steps": str(steps)})
        for path in (self.folder / "replay").glob("*.safetensors"):
            if int(path.stem) <= steps - self.facts["config"]["replay"] - rows.shape[1]:
                path.unlink()

    def restore(self, learner: "Learner", config: Expert) -> tuple[int, np.ndarray | None]:
        """Bring the learner to where the run goes on; return its steps and the last round's transitions.

        What the run wrote after that point goes, and is made again.
        """
        if config.steps in self.checkpoints():
            return config.steps, None
        begin, recent = 0, None
        if (self.folder / "snapshot.safetensors").exists():
            tensors, facts = read_tensors(self.folder / "snapshot.safetensors")
            begin = int(facts["steps"])
            paths = sorted((self.folder / "replay").glob("*.safetensors"))
            rows = [read_tensors(path)[0]["rows"] for path in paths if int(path.stem) <= begin]
            replay = np.concatenate(rows, axis=1)
            recent = replay[:, -config.round :]
            learner.restore(tensors, replay[:, : -config.round], begin - config.round)
            console.log(f"{self.folder}: going on from step {begin:,}")
        for steps in self.checkpoints():
            if steps > begin:
                (self.folder / "checkpoints" / f"{steps:09}.safetensors").unlink()
        self.evaluations = {key: row for key, row in self.evaluations.items() if key[1] <= begin}
        with (
            replacing(self.folder / "evaluations.csv", force=True) as fresh,
            fresh.open("w", newline="") as file,
        ):
            csv.writer(file).writerows([self.COLUMNS, *self.evaluations.values()])
        return begin, recent


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}, file.metadata() or {}


def build_ladder(folder: Path) -> Ladder:
    """The ladder of a run, from the checkpoints evaluated so far; written to the run's ladder.safetensors.

    The best seed is the one with the highest mean over its last ten evaluations, so that no single lucky checkpoint
    decides. The expert is the steadiest of those ten: highest mean return less one standard deviation. The chosen
    policies are rounded to half precision and measured again, on 20 episodes that had no part in the choice.
    """
    run = Run(folder)
    curves = run.curves()
    if not curves:
        raise InputError(f"{folder}: no checkpoint has been evaluated yet")
    seed = max(curves, key=lambda seed: float(np.mean([value for _, value in curves[seed][-LAST:]])))
    rows = sorted(row for key, row in run.evaluations.items() if key[0] == seed)
    best = max(range(max(len(rows) - LAST, 0), len(rows)), key=lambda i: rows[i][2] - rows[i][3])
    chosen = [rows[i][1] for i in choose([(row[1], row[2]) for row in rows[: best + 1]])]
    policies = [rounded(run.layers(seed, steps)) for steps in chosen]

    facts = run.facts
    task = Environment(**facts["environment"] | {"bound": tuple(facts["environment"]["bound"])})
    console.log(
        f"{facts['config']['task']}: seed {seed} is the best of {len(curves)}; measuring {len(chosen)} policies"
    )
    with one_thread_each(), evaluators(min(os.cpu_count() or 1, len(policies))) as pool:
        count = len(policies)
        results = list(pool.map(evaluate, [task] * count, policies, [FINAL_EPISODES] * count, [FINAL_SEED] * count))
    ladder = Ladder(
        task=facts["config"]["task"],
        environment=task.name,
        checkpoints=tuple(
            Checkpoint(steps, float(np.mean(returns)), float(np.std(returns)), len(returns), layers)
            for steps, returns, layers in zip(chosen, results, policies, strict=True)
        ),
        seed=seed,
        curves=curves,
        versions=facts["versions"],
        machine=facts["machine"],
        command=facts["command"],
    )
    save_ladder(ladder, folder / "ladder.safetensors")
    return ladder


def choose(curve: Sequence[tuple[int, float]]) -> list[int]:
    """Indices of the checkpoints that make a ladder, from a curve of (steps, return) that ends with the expert.

    Up to medium they are spread evenly over the steps, and from there to the expert evenly over the returns.
    """
    returns = [value for _, value in curve]
    medium, expert = first_medium(returns), len(curve) - 1
    early = np.unique(np.linspace(0, medium, min(UP_TO_MEDIUM, medium + 1)).round().astype(int)).tolist()
    early = [i for i in early if i < expert]
    later = list(range(medium + 1, expert))
    wanted = min(CHECKPOINTS - len(early), len(later))
    chosen: list[int] = []
    for level in np.linspace(returns[medium], returns[expert], wanted + 2)[1:-1]:
        left = [i for i in later if i not in chosen]
        chosen.append(min(left, key=lambda i: abs(returns[i] - level)))
    return [*early, *sorted(chosen), expert]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("trajstitch", "jax", "gymnasium", "mujoco", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """The accelerator, the processor and how many of its cores this machine has."""
    import jax

    device = jax.devices()[0]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.machine()
    cores = f"{os.cpu_count()} × {processor}"
    return cores if device.platform == "cpu" else f"{device.device_kind}, {cores}"


def main() -> None:
    """`python -m trajstitch.sets.expert train|ladder|report`."""
    import tyro

    from trajstitch.sets.ladder_report import write_report

    def ladder(run: Positional[Path]) -> None:
        """Make the ladder of a run from the checkpoints evaluated so far."""
        build_ladder(run)
        print(run / "ladder.safetensors")

    def report(ladders: Positional[tuple[str, ...]] = tuple(TASKS), to: Path = Path("docs/results/ladders.md")) -> None:
        """Write the results page of ladders, given by task or file."""
        write_report(ladders, to)
        print(to)

    try:
        asked = tyro.extras.subcommand_cli_from_dict({"train": Expert, "ladder": ladder, "report": report})
        if isinstance(asked, Expert):
            print(expert(asked))
    except InputError as error:
        console.log(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
