"""Worker processes: spawned, with one thread each, and ended with the process that started them.

Nothing here imports jax, so that a worker starts in a second and can run beside a process that uses an accelerator.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.pool import Pool
from typing import Any

SPAWN = multiprocessing.get_context("spawn")  # a forked jax can deadlock


def pool(processes: int) -> Pool:
    """Return a pool of processes that leave Ctrl-C, which reaches them all, to this one; it ends them itself."""
    # A child inherits what is blocked, so it is not interrupted while it starts either. Ours comes after the start.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return SPAWN.Pool(processes)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def evaluators(processes: int) -> ProcessPoolExecutor:
    """Return a pool of processes that leave Ctrl-C to this one, and end with it, however it ends."""
    return ProcessPoolExecutor(processes, SPAWN, _end_with_parent)


def _end_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches them all
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def portable(value: Any) -> bool:
    """Return whether a worker process can import what this value is made of.

    It can't if its class, or a function or object that it holds, is defined in the user's script, which workers started
    within `light_processes` don't run, or inside a function.
    """
    parts = [value, *getattr(value, "__dict__", {}).values()]
    if any(isinstance(part, str) and part.startswith("__main__:") for part in parts):  # an environment's entry point
        return False
    return all(_importable(part if isinstance(part, type) or callable(part) else type(part)) for part in parts)


def _importable(defined: Any) -> bool:
    """Return whether a class or function can be imported; an object that is called counts by its class."""
    defined = defined if hasattr(defined, "__qualname__") else type(defined)
    return defined.__module__ != "__main__" and "<" not in defined.__qualname__


@contextlib.contextmanager
def light_processes() -> Iterator[None]:
    """Let processes started within use one BLAS thread and not run the user's script.

    One thread is fastest for networks this small. A spawned process runs the user's script again, and a script without
    a `__main__` guard would start processes of its own.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
