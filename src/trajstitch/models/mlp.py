"""The multilayer perceptron that every network of the project is made of."""

from collections.abc import Sequence
from itertools import pairwise

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray


class MLP(eqx.Module):
    """Linear layers with ReLU between them, applied to the last axis of any batch.

    Weights are (in, out), so that a batch needs no vmap. They start as PyTorch's do, uniform within
    ±1/√in, which the published hyper-parameters of offline RL assume.
    """

    layers: list[tuple[Float[Array, "inputs outputs"], Float[Array, " outputs"]]]

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, key: PRNGKeyArray) -> None:
        sizes = [inputs, *hidden, outputs]
        keys = jax.random.split(key, (len(sizes) - 1, 2))
        self.layers = [
            (
                jax.random.uniform(weight_key, (rows, columns), minval=-(rows**-0.5), maxval=rows**-0.5),
                jax.random.uniform(bias_key, (columns,), minval=-(rows**-0.5), maxval=rows**-0.5),
            )
            for (weight_key, bias_key), (rows, columns) in zip(keys, pairwise(sizes), strict=True)
        ]

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        for weight, bias in self.layers[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        weight, bias = self.layers[-1]
        return x @ weight + bias
