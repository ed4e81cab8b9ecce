"""Losses and densities that several models share."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float


def log_density(
    value: Float[Array, "*#rows size"], mean: Float[Array, "*#rows size"], log_std: Float[Array, "*#rows size"]
) -> Float[Array, "*#rows"]:
    """Return the log density of a diagonal Gaussian."""
    away = (value - mean) * jnp.exp(-log_std)
    return -(0.5 * jnp.square(away) + log_std).sum(-1) - 0.5 * value.shape[-1] * math.log(2 * math.pi)
