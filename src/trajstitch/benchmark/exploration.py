"""Environments of ladder training, stepped in worker processes: exploration and evaluation.

Nothing here imports jax, so that a worker starts in a second and can run beside a process that uses an accelerator.
"""

import contextlib
import struct
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from trajstitch.benchmark.behaviour import behave, is_stochastic
from trajstitch.benchmark.ladder import TASKS, unknown_task
from trajstitch.errors import InputError
from trajstitch.evaluation.processes import SPAWN
from trajstitch.evaluation.rollouts import play
from trajstitch.policies.policy import Layers

MESSAGE = struct.Struct("<q?")
"""A round's number, and whether all environments are reset."""


@dataclass(frozen=True)
class Environment:
    """A Gymnasium environment with flat observations and actions within ±bound."""

    name: str
    observations: int
    bound: tuple[float, ...]

    @property
    def row(self) -> int:
        """Length of a transition: observation, action, next observation, reward, terminated."""
        return 2 * self.observations + len(self.bound) + 2

    def make(self) -> gymnasium.Env:
        return gymnasium.make(self.name, disable_env_checker=True)


def environment(task: str) -> Environment:
    """Return the environment of a task (hopper), or that of a Gymnasium id (Pendulum-v1)."""
    name = TASKS.get(task, task)
    try:
        env = gymnasium.make(name, disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise InputError(f'{name} needs MuJoCo: pip install "trajstitch[mujoco]"') from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InputError(unknown_task(task)) from error
    observed, acted = env.observation_space, env.action_space
    env.close()
    if not isinstance(observed, gymnasium.spaces.Box) or len(observed.shape) != 1:
        raise InputError(f"{name}: observations are {observed}; a ladder's training needs a Box with one axis")
    if not isinstance(acted, gymnasium.spaces.Box) or len(acted.shape) != 1:
        raise InputError(f"{name}: actions are {acted}; a ladder's training needs a Box with one axis")
    if not np.isfinite(acted.high).all() or (acted.low != -acted.high).any():
        raise InputError(f"{name}: actions lie in {acted.low}..{acted.high}; a ladder's training needs finite ±bounds")
    return Environment(name, observed.shape[0], tuple(acted.high.tolist()))


def unflatten(weights: np.ndarray, sizes: Sequence[int]) -> Layers:
    """Return views of a flat vector of parameters as the layers of a network with these widths."""
    layers, start = [], 0
    for rows, columns in pairwise(sizes):
        middle, end = start + rows * columns, start + rows * columns + columns
        layers.append((weights[start:middle].reshape(rows, columns), weights[middle:end]))
        start = end
    return layers


@dataclass(frozen=True)
class Exploration:
    """How one seed explores."""

    environment: Environment
    seed: int
    environments: int
    """Environments stepped together."""
    steps: int
    """Steps of each environment in a round."""
    sizes: tuple[int, ...]
    """Widths of the policy's layers."""
    noise: float
    """Standard deviation of the noise on actions: relative to the bound, or to a stochastic policy's own."""
    start_steps: int
    """Random actions until all environments together have taken this many steps."""


class Explorer:
    """One seed's environments in a process; policy and transitions are exchanged through shared memory."""

    def __init__(self, plan: Exploration) -> None:
        size = plan.environments * plan.steps
        parameters = sum((rows + 1) * columns for rows, columns in pairwise(plan.sizes))
        weights = SPAWN.RawArray("f", parameters)
        rows = SPAWN.RawArray("f", size * plan.environment.row)
        self.weights = np.frombuffer(weights, np.float32)
        self.rows = np.frombuffer(rows, np.float32).reshape(size, plan.environment.row)
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(theirs, weights, rows, plan), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, index: int, reset: bool) -> None:
        """Start round `index` with the policy in `weights`; `reset` starts new episodes, seeded by the round."""
        self.pipe.send_bytes(MESSAGE.pack(index, reset))

    def finish(self) -> None:
        """Wait until the round's transitions are in `rows`: step by step, the environments in order."""
        try:
            error = self.pipe.recv_bytes()
        except (EOFError, ConnectionError) as gone:
            raise RuntimeError(f"an environment process ended with exit code {self.process.exitcode}") from gone
        if error:
            raise RuntimeError(f"an environment process failed:\n{error.decode()}")

    def close(self) -> None:
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def _serve(pipe: Connection, weights: Any, rows: Any, plan: Exploration) -> None:
    """Explore one round for each message, until the other end closes; this is the worker process."""
    try:
        explore = explorer(plan, np.frombuffer(weights, np.float32), np.frombuffer(rows, np.float32))
        while True:
            index, reset = MESSAGE.unpack(pipe.recv_bytes())
            explore(index, reset)
            pipe.send_bytes(b"")
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return
    except Exception:
        with contextlib.suppress(OSError):
            pipe.send_bytes(traceback.format_exc().encode())


def explorer(plan: Exploration, weights: np.ndarray, rows: np.ndarray) -> Callable[[int, bool], None]:
    """Return a function that plays round `index` and fills `rows` with its transitions.

    The same plan, round and policy give the same bits: the noise is drawn from (seed, round), and environments
    are seeded whenever they are all reset.
    """
    layers = unflatten(weights, plan.sizes)
    bound = np.asarray(plan.environment.bound, np.float32)
    count, width, actions = plan.environments, plan.environment.observations, len(bound)
    table = rows.reshape(plan.steps, count, plan.environment.row)
    environments = [plan.environment.make() for _ in range(count)]
    current = np.zeros((count, width), np.float32)

    def explore(index: int, reset: bool) -> None:
        random = np.random.default_rng((plan.seed, index))
        if reset:
            for i, env in enumerate(environments):
                current[i], _ = env.reset(seed=int(np.random.SeedSequence((plan.seed, index, i)).generate_state(1)[0]))
        for step in table:
            if index * plan.steps * count < plan.start_steps:
                action = random.uniform(-bound, bound, (count, actions)).astype(np.float32)
            else:
                away = plan.noise * random.standard_normal((count, actions), np.float32)
                action = behave(layers, current, away, bound)
            step[:, :width] = current
            step[:, width : width + actions] = action
            for i, env in enumerate(environments):
                following, reward, terminated, truncated, _ = env.step(action[i])
                step[i, width + actions : -2] = following
                step[i, -2:] = reward, terminated
                # The episode's last observation is stored above; the next row starts from the new one.
                current[i] = env.reset()[0] if terminated or truncated else following

    return explore


def evaluate(environment: Environment, layers: Layers, episodes: int, first_seed: int) -> list[float]:
    """Return the returns of the policy, a stochastic one's sampled; episode i starts from seed `first_seed` + i."""
    bound, shape = np.asarray(environment.bound, np.float32), (episodes, len(environment.bound))
    random, calm = np.random.default_rng(first_seed), np.zeros(shape, np.float32)
    stochastic = is_stochastic(layers, len(bound))

    def act(observations: np.ndarray) -> np.ndarray:
        return behave(layers, observations, random.standard_normal(shape) if stochastic else calm, bound)

    return play(_environments(environment, episodes), act, first_seed)


@cache
def _environments(environment: Environment, count: int) -> list[gymnasium.Env]:
    return [environment.make() for _ in range(count)]
