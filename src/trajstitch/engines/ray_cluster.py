"""A Ray cluster: tasks with declared resources, made again when their worker is lost.

What all tasks share (states, models) is put once into Ray's object store, and each worker keeps it as long as it works
on the same. Results come back in the order of the parts, so that nothing depends on which worker was faster.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

from trajstitch.errors import InputError, one_line
from trajstitch.learning.bounds import Bounds, check_bounds
from trajstitch.progress import logger, progress

Result = TypeVar("Result")

PASSED_ON = ("PYTHONPATH", "JAX_PLATFORMS", "XLA_FLAGS", "MINARI_DATASETS_PATH", "TRAJSTITCH_COMMIT")
"""Environment variables that workers get from the process that calls them."""

STARTS = 3
"""How often it is tried to start a cluster on this machine."""


@dataclass(frozen=True)
class RaySettings:
    """What a task on a Ray cluster is given."""

    address: str | None = None
    """Address of the cluster, such as auto on one of its machines; RAY_ADDRESS if not given, and without that a cluster
    that is started on this machine for this command."""
    cpus: Annotated[float, Bounds(0)] = 1.0
    """CPU cores that a task asks for. More: fewer tasks at once, each with more room."""
    gpus: Annotated[float, Bounds(0)] = 0.0
    """GPUs that a task asks for; a fraction shares one. Without any, tasks compute on the CPU."""
    memory: Annotated[float, Bounds(0)] = 0.0
    """GiB of memory that a task asks for; 0: not counted."""
    retries: Annotated[int, Bounds(0)] = 3
    """How often a task is made again when its worker or machine is lost."""
    workers: Annotated[int, Bounds(1)] | None = None
    """Cores of the cluster that is started for this command; all of this machine's if not given."""


class RayCluster:
    """A connection to a Ray cluster."""

    rows = 16_384

    def __init__(self, settings: RaySettings | None = None) -> None:
        """Connect to the cluster that the settings name, or start one here, which ends with this process."""
        self.settings = settings or RaySettings()
        check_bounds(self.settings)
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from ray import exceptions  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError('Ray is not installed: pip install "trajstitch[ray]"') from error
        self.ray, self.exceptions = ray, exceptions
        if not ray.is_initialized():
            self._connect()

    def _connect(self) -> None:
        address = self.settings.address or os.environ.get("RAY_ADDRESS")
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        options: dict[str, Any] = {"runtime_env": {"env_vars": passed}, "log_to_driver": False}
        if address is None:
            options |= {"num_cpus": self.settings.workers, "include_dashboard": False}
            options["_system_config"] = {"worker_niceness": 0}  # the command itself only waits
        elif self.settings.workers is not None:
            raise InputError("`workers` is for a cluster that is started for this command, not for one with an address")
        for left in reversed(range(STARTS)):
            try:
                self.ray.init(address, **options)
                break
            except Exception as error:  # Ray raises plain ones too: a busy machine takes longer than it waits
                self.ray.shutdown()
                if not left or "timed out during startup" not in str(error):
                    where = address or "this machine"
                    raise InputError(f"no Ray cluster at {where}: {one_line(str(error))}") from error
        have = self.ray.cluster_resources()
        logger.info(f"Ray: {have.get('CPU', 0):g} cores and {have.get('GPU', 0):g} GPUs")

    def _task(self, function: Callable[..., Result]) -> Any:
        """Return a function as a task of the cluster."""
        given = self.settings
        options = {"num_cpus": given.cpus, "num_gpus": given.gpus, "max_retries": given.retries}
        if given.memory:
            options["memory"] = int(given.memory * 2**30)
        return self.ray.remote(function).options(**options)

    def map(self, function: Callable[[Any, Any], Result], shared: Any, parts: Iterable[Any]) -> Iterator[Result]:
        """Yield `function(shared, part)` for each part, in order. A few parts more than can be worked on are sent."""
        kept = [self.ray.put(shared)]  # in a list, Ray passes the reference and not what it stands for
        task, left = self._task(_apply), iter(parts)
        cores = self.ray.cluster_resources().get("CPU", 1)
        ahead = 2 * max(1, int(cores / max(self.settings.cpus, 1e-3)))
        waiting = deque(task.remote(function, kept, part) for part in islice(left, ahead))
        while waiting:
            found = self._get(waiting.popleft())
            waiting.extend(task.remote(function, kept, part) for part in islice(left, 1))
            yield found

    def run(self, function: Callable[[Any], list[str]], groups: Sequence[Any]) -> list[str]:
        """Return all that `function(group)` returns for the groups, and a line for each whose workers were lost."""
        task = self._task(function)
        waiting = {task.remote(group): group for group in groups}
        lines: list[str] = []
        with progress("groups of cells on Ray", len(groups), "groups") as advance:
            while waiting:
                (ready,), _ = self.ray.wait([*waiting], num_returns=1)
                group = waiting.pop(ready)
                try:
                    lines += self._get(ready)
                except InputError as error:
                    lines.append(f"{group[0]} and {len(group) - 1} more: {error}")
                advance()
        return lines

    def _get(self, reference: Any) -> Any:
        """Return a task's result; raise what it raised, or in one line that its workers were lost."""
        try:
            return self.ray.get(reference)
        except self.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except self.exceptions.RayError as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"a task failed on the cluster {self.settings.retries + 1} times: {line}") from error


_kept: dict[str, Any] = {}
"""What this worker's tasks share: the last one, by its reference."""


def _apply(function: Callable[[Any, Any], Result], kept: list[Any], part: Any) -> Result:
    """Apply a function on a worker."""
    import ray  # pyright: ignore[reportMissingImports]

    name = kept[0].hex()
    if name not in _kept:
        _kept.clear()
        _kept[name] = ray.get(kept[0])
    return function(_kept[name], part)
