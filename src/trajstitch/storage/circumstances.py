"""What results depend on besides their inputs: versions, the machine, and the command."""

import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path

PACKAGES = ("trajstitch", "jax", "numpy", "gymnasium", "mujoco", "minari")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Return this machine's accelerator (if any), number of cores and processor, as text."""
    import jax

    device = jax.devices()[0]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.machine()
    cores = f"{os.cpu_count()} × {processor}"
    return cores if device.platform == "cpu" else f"{device.device_kind}, {cores}"


def command_line() -> str:
    """Return this process's command line as a user would type it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if spec is None else f"python -m {spec.name}"
    ours = program in ("trajstitch", "python -m trajstitch.__main__")
    return " ".join(["trajstitch" if ours else program, *map(shlex.quote, sys.argv[1:])])
