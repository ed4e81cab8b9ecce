"""Pytrees of arrays as named tensors, and back."""

from typing import Any

import numpy as np

from trajstitch.errors import InputError

REMOVE = "remove it to make it again"
"""What to do about a damaged file of a run."""


def tensors_of(tree: Any) -> dict[str, np.ndarray]:
    """Return a pytree's arrays by their paths; random keys as the integers they consist of."""
    import equinox as eqx
    import jax

    return {
        jax.tree_util.keystr(path): np.asarray(_raw(leaf))
        for path, leaf in jax.tree.leaves_with_path(tree)
        if eqx.is_array(leaf)
    }


def tree_from(tensors: dict[str, np.ndarray], like: Any, where: str) -> Any:
    """Return `like` with its arrays replaced by those of `tensors`: the inverse of `tensors_of`.

    `where` names the file in errors.
    """
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    def leaf(path: Any, old: Any) -> Any:
        if not eqx.is_array(old):
            return old
        name = jax.tree_util.keystr(path)
        raw = _raw(old)
        if name not in tensors or (tensors[name].shape, tensors[name].dtype) != (np.shape(raw), raw.dtype):
            raise InputError(f"{where}: {name} doesn't fit this config and data: {REMOVE}")
        fresh = jnp.asarray(tensors[name])
        return jax.random.wrap_key_data(fresh) if _is_key(old) else fresh

    return jax.tree_util.tree_map_with_path(leaf, like)


def _is_key(leaf: Any) -> bool:
    import jax

    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    import jax

    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
