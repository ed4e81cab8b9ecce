"""How policies act where data is made: deterministic ones with noise added, stochastic ones sampled, or at random."""

import numpy as np
from jaxtyping import Float

from trajstitch.policies.policy import Layers, act, sampled


def is_stochastic(layers: Layers, actions: int) -> bool:
    """Return whether these are a squashed Gaussian policy's: a mean and a log standard deviation for each action."""
    return layers[-1][1].shape[-1] == 2 * actions


def behave(
    layers: Layers,
    observations: Float[np.ndarray, "batch observation"],
    away: Float[np.ndarray, "batch action"],
    bound: Float[np.ndarray, " action"],
) -> Float[np.ndarray, "batch action"]:
    """Return the actions of a policy that is `away` from its mean.

    `away` is relative to the action bound, of a stochastic policy to its own standard deviation. Without layers, it is
    the action itself, relative to the bound.
    """
    if not layers:
        return (away * bound).astype(np.float32)
    if is_stochastic(layers, len(bound)):
        return sampled(layers, observations, away, bound)
    return np.clip(act(layers, observations, bound) + away * bound, -bound, bound)
