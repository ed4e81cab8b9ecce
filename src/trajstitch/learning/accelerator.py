"""An accelerator's compiled programs are kept, so that it starts fast and gives the same bits in every process.

XLA tries several kernels for each matrix product on the GPU and takes the fastest, so another process may choose
otherwise, and round otherwise. Once kept, the choice holds for the machine, and nothing is compiled twice. On the CPU
nothing is chosen by time, so nothing is kept.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
"""JAX's own: whoever sets it has the say, and `JAX_ENABLE_COMPILATION_CACHE=0` keeps nothing."""


def keep_programs() -> None:
    """Tell JAX where to keep what it compiles for a GPU, unless it has been told."""
    jax = sys.modules.get("jax")  # which, if it is there, has read its environment already
    told = os.environ.get(VARIABLE) or getattr(getattr(jax, "config", None), "jax_compilation_cache_dir", None)
    if told or not _has_plugin():
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in some containers
        return
    os.environ[VARIABLE] = str(cache / "trajstitch" / "xla")
    if jax is not None:
        jax.config.update("jax_compilation_cache_dir", os.environ[VARIABLE])


def _has_plugin() -> bool:
    """Whether JAX is installed for a GPU."""
    plugins = find_spec("jax_plugins")
    places = None if plugins is None else plugins.submodule_search_locations
    return any(module.name.startswith(("xla_cuda", "xla_rocm")) for module in iter_modules(places or []))
