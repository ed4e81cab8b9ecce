"""The multilayer perceptron that every network of the project is made of, and normalisers as JAX arrays."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer, PRNGKeyArray

from trajstitch.data.normaliser import Normaliser


class MLP(eqx.Module):
    """Linear layers with ReLU between them, applied to the last axis of any batch.

    Weights are (in, out), so that a batch needs no vmap. They are initialised as PyTorch does, uniformly within
    ±1/√in, which the published hyper-parameters of offline RL assume.
    """

    layers: list[tuple[Float[Array, "inputs outputs"], Float[Array, " outputs"]]]

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, key: PRNGKeyArray) -> None:
        shapes = list(pairwise([inputs, *hidden, outputs]))
        # One draw for all layers compiles in a fraction of the time that one for each takes.
        counts = [count for rows, columns in shapes for count in (rows * columns, columns)]
        draws = jax.random.uniform(key, (sum(counts),), minval=-1, maxval=1)
        pieces = iter(jnp.split(draws, list(accumulate(counts))[:-1]))
        self.layers = [
            (next(pieces).reshape(rows, columns) / math.sqrt(rows), next(pieces) / math.sqrt(rows))
            for rows, columns in shapes
        ]

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        for weight, bias in self.layers[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = self.layers[-1]
        return x @ weight + bias


def change_normaliser_of(
    observations: Float[np.ndarray, "states columns"], rows: Integer[np.ndarray, " steps"]
) -> Normaliser:
    """Return the normaliser of the changes from these rows to the next ones, as JAX arrays in float32."""
    changes = observations[rows + 1] - observations[rows]
    return Normaliser(*(jnp.asarray(part, jnp.float32) for part in Normaliser.of_changes(changes, observations)))


def normaliser_of(rows: Float[np.ndarray, "rows columns"]) -> Normaliser:
    """Return the normaliser of rows as JAX arrays in float32."""
    return Normaliser(*(jnp.asarray(part, jnp.float32) for part in Normaliser.of(rows)))
