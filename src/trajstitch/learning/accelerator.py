"""Where JAX keeps the programs it compiles for a GPU, so that they start fast and give the same bits every time.

On a GPU, XLA tries several kernels for each matrix product and takes the fastest, so two processes may choose
different ones and round differently. With the programs kept, the choice is made once for a machine, and nothing is
compiled twice. On the CPU nothing is chosen by time, so nothing is kept.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own variable. If it is set, it is respected; `JAX_ENABLE_COMPILATION_CACHE=0` keeps nothing."""


def keep_programs() -> None:
    """Tell JAX where to keep what it compiles for a GPU, if the user has not set a folder."""
    jax = sys.modules.get("jax")  # if it is imported already, it has read its environment
    given = os.environ.get(VARIABLE) or getattr(getattr(jax, "config", None), "jax_compilation_cache_dir", None)
    if given or not _has_plugin():
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in some containers
        return
    os.environ[VARIABLE] = str(cache / "trajstitch" / "xla")
    if jax is not None:
        jax.config.update("jax_compilation_cache_dir", os.environ[VARIABLE])


def _has_plugin() -> bool:
    """Return whether JAX is installed for a GPU."""
    try:
        plugins = find_spec("jax_plugins")
    except (ImportError, ValueError):  # where policies are deployed, JAX may not even be looked for
        return False
    places = None if plugins is None else plugins.submodule_search_locations
    return any(module.name.startswith(("xla_cuda", "xla_rocm")) for module in iter_modules(places or []))
