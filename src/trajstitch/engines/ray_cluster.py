"""A Ray cluster: tasks with declared resources, made again when their worker is lost.

What all tasks share (states, models) is put once into Ray's object store, and each worker keeps it as long as it works
on the same. Results come back in the order of the parts, so that nothing depends on which worker was faster.
"""

import logging
import os
import re
import signal
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Annotated, Any, TypeVar

from trajstitch.errors import InputError, JobError, one_line
from trajstitch.learning.bounds import Bounds, check_bounds
from trajstitch.progress import logger, progress

Result = TypeVar("Result")

PASSED_ON = ("PYTHONPATH", "JAX_PLATFORMS", "XLA_FLAGS", "MINARI_DATASETS_PATH", "TRAJSTITCH_COMMIT")
"""Environment variables that workers get from the process that calls them."""

STARTS = 3
"""How often it is tried to start a cluster on this machine."""

ANSWER = 10.0
"""Seconds in which a cluster's address must answer."""

GLANCE = 0.2
"""Seconds that Ray waits for a task at once: it takes longer than a Ctrl-C may to notice one."""

LOOK = 10.0
"""Seconds between two looks at whether a task that is waited for has room on any machine."""


@dataclass(frozen=True)
class RaySettings:
    """What a task on a Ray cluster is given."""

    address: str | None = None
    """Address of the cluster, such as auto on one of its machines; RAY_ADDRESS if not given, and without that local: a
    cluster that is started on this machine for this command."""
    cpus: Annotated[float, Bounds(0)] = 1.0
    """CPU cores that a task asks for. More: fewer tasks at once, each with more room."""
    gpus: Annotated[float, Bounds(0)] = 0.0
    """GPUs that a task asks for; a fraction shares one. Without any, tasks compute on the CPU."""
    memory: Annotated[float, Bounds(0)] = 0.0
    """GiB of memory that a task asks for; 0: not counted."""
    retries: Annotated[int, Bounds(0)] = 3
    """How often a task is made again when its worker or machine is lost."""
    wait: Annotated[float, Bounds(0)] = 0.0
    """Seconds to wait for a machine with room for a task where none has it: a cluster that starts machines when tasks
    wait takes minutes. 0: fail at once."""
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
        self._roomless: float | None = None
        self._require_room()

    def _connect(self) -> None:
        address = self.settings.address
        if address in (None, "", "auto"):
            address = os.environ.get("RAY_ADDRESS") or address or "local"
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if not self.settings.gpus:
            passed["JAX_PLATFORMS"] = "cpu"
        options: dict[str, Any] = {"runtime_env": {"env_vars": passed}}
        options |= {"log_to_driver": False, "logging_level": logging.WARNING}
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of tasks that nobody waits for any more
        if address == "local":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody asked to tell anybody
            options |= {"num_cpus": self.settings.workers, "include_dashboard": False}
            # Ours only waits while its workers work, and Ray would try a task for ever that memory is too small for.
            options["_system_config"] = {"worker_niceness": 0, "task_oom_retries": self.settings.retries}
        elif self.settings.workers is not None:
            raise InputError(
                "`ray.workers` is for a cluster that is started for this command, not for one with an address"
            )
        else:
            self._require_answer(address)
        for left in reversed(range(STARTS)):
            try:
                with _as_it_was():
                    self.ray.init(address, **options)
                break
            except Exception as error:  # Ray raises plain ones too: a busy machine takes longer than it waits
                self.ray.shutdown()
                if not left or "timed out during startup" not in str(error):
                    where = "this machine" if address == "local" else address
                    hint = "; has it a token (RAY_AUTH_MODE=token)?" if "Failed to connect" in str(error) else ""
                    raise InputError(f"no Ray cluster at {where}: {one_line(str(error))}{hint}") from error
        if hasattr(self.ray._private.worker, "print_to_stdstream"):
            self.ray._private.worker.print_to_stdstream = _log
        have = self.ray.cluster_resources()
        logger.info(f"Ray: {have.get('CPU', 0):g} cores and {have.get('GPU', 0):g} GPUs")

    def _require_answer(self, address: str) -> None:
        """Raise if nothing answers at an address: Ray would try it for a quarter of an hour."""
        found = address
        with suppress(AttributeError, OSError, ValueError):  # Ray says it better if it can't find one
            # A head that was killed has left its address behind.
            found = self.ray._private.services.canonicalize_bootstrap_address(address) or address
        host, _, port = found.rpartition(":")
        if not port.isdecimal() or "://" in found:
            return
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"no Ray cluster at {found}: {reason}") from error

    @property
    def _needs(self) -> dict[str, float]:
        """What a machine must have for a task."""
        given = self.settings
        needs = {"CPU": given.cpus, "GPU": given.gpus, "memory": given.memory * 2**30}
        return {name: amount for name, amount in needs.items() if amount}

    def _require_room(self) -> None:
        """Raise if for longer than the settings allow no machine has been large enough for a task."""
        machines = [machine["Resources"] for machine in self.ray.nodes() if machine["Alive"]]
        if any(all(has.get(name, 0) >= amount for name, amount in self._needs.items()) for has in machines):
            self._roomless = None
            return
        if self._roomless is None:
            self._roomless = time.monotonic()
        if time.monotonic() - self._roomless < self.settings.wait:
            return
        most = {name: max((has.get(name, 0) for has in machines), default=0) for name in self._needs}
        lacking = [
            f"{amount / 2**30:g} GiB, the most is {most[name] / 2**30:.1f}"
            if name == "memory"
            else f"{amount:g} {name}, the most is {most[name]:g}"
            for name, amount in self._needs.items()
            if most[name] < amount
        ]
        raise InputError(
            f"no machine of the Ray cluster has room for a task ({'; '.join(lacking) or 'together'}): ask for less "
            "with `ray.cpus`, `ray.gpus` or `ray.memory`, or let it wait for a machine to join with `ray.wait`"
        )

    def _task(self, *words: Any) -> Any:
        """Start `function(*arguments)`, given as words, as a task of the cluster."""
        given = self.settings
        options = {"num_cpus": given.cpus, "num_gpus": given.gpus, "max_retries": given.retries}
        if given.memory:
            options["memory"] = int(given.memory * 2**30)
        return self.ray.remote(_call).options(**options).remote(version("trajstitch"), *words)

    @property
    def _ahead(self) -> int:
        """How many tasks to have sent: twice as many as can be worked on now, so that a cluster that can grow does."""
        cores = self.ray.cluster_resources().get("CPU", 1)
        return 2 * max(1, int(cores / max(self.settings.cpus, 1e-3)))

    def map(self, function: Callable[[Any, Any], Result], shared: Any, parts: Iterable[Any]) -> Iterator[Result]:
        """Yield `function(shared, part)` for each part, in order. A few parts more than can be worked on are sent."""
        with self._plainly("what all tasks share does not fit into the cluster"):
            kept = [self.ray.put(shared)]  # in a list, Ray passes the reference and not what it stands for
        left, waiting = iter(parts), deque()
        try:
            while True:
                more = max(self._ahead - len(waiting), 0)
                waiting.extend(self._task(_apply, function, kept, part) for part in islice(left, more))
                if not waiting:
                    return
                self._wait([waiting[0]])
                found = self._get(waiting[0])
                waiting.popleft()
                yield found
        finally:
            self._cancel(waiting)

    def run(self, function: Callable[[Any], list[str]], groups: Sequence[Any]) -> list[str]:
        """Return all that `function(group)` returns for the groups, and a line for each whose workers were lost."""
        waiting = {self._task(function, group): group for group in groups}
        lines: list[str] = []
        try:
            with progress("groups of cells on Ray", len(groups), "groups") as advance:
                while waiting:
                    ready = self._wait([*waiting])
                    group = waiting.pop(ready)
                    try:
                        lines += self._get(ready)
                    except JobError as error:
                        lines.append(f"{group[0]} and {len(group) - 1} more: {error}")
                    advance()
        finally:
            self._cancel(waiting)
        return lines

    def _wait(self, references: list[Any]) -> Any:
        """Return the first of these tasks that is done."""
        looked = time.monotonic()
        while not (ready := self.ray.wait(references, num_returns=1, timeout=GLANCE)[0]):
            if time.monotonic() - looked > LOOK:
                self._require_room()
                looked = time.monotonic()
        return ready[0]

    def _cancel(self, references: Iterable[Any]) -> None:
        """Let the cluster forget tasks that nobody waits for any more."""
        for reference in references:
            if self.ray.is_initialized():
                self.ray.cancel(reference)

    def _get(self, reference: Any) -> Any:
        """Return a task's result; raise what it raised, or in one line that its workers were lost."""
        with self._plainly(f"a task was lost on the cluster {self.settings.retries + 1} times"):
            return self.ray.get(reference)

    @contextmanager
    def _plainly(self, what: str) -> Iterator[None]:
        """Raise what a task raised, and in one line what happened to Ray."""
        try:
            yield
        except self.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ImportError | self.exceptions.RayError):
                lacks = f"a machine of the Ray cluster can't do a task: {_first_line(cause)}"
                raise JobError(f"{lacks}. Install the same version of trajstitch on each") from error
            raise cause if isinstance(cause, Exception) else error from None
        except self.exceptions.RayError as error:
            lost = f"{what}: {_first_line(error)}"
            raise JobError(f"{lost}. Machines short of memory lose workers: see `ray.memory`") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def _log(said: dict[str, Any], **_: Any) -> None:
    """Log what Ray says of lost workers: it would print it on stdout, where results go."""
    for message in said["lines"]:
        line = next(iter(message.strip().splitlines()), "")
        logger.warning(f"Ray: {re.split(' (?:To troubleshoot|Error:|Last 20 lines)', line)[0]}")


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Keep what Ray changes about this process while it connects."""
    main = threading.current_thread() is threading.main_thread()
    kept = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        # Ray forks to start its own programs at once: the threads that JAX and Python warn of stay here.
        warnings.filterwarnings("ignore", ".*fork", RuntimeWarning)
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        try:
            yield
        finally:
            if main and kept is not None:
                signal.signal(signal.SIGTERM, kept)


def _call(wanted: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on a worker, if it has the version of trajstitch that the command has."""
    if (own := version("trajstitch")) != wanted:
        raise InputError(f"a machine of the Ray cluster has trajstitch {own}, this one {wanted}: install the same one")
    return function(*arguments)


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
