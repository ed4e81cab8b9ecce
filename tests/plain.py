"""Networks and losses in plain NumPy, one formula after the other, from the weights of a model alone."""

from typing import Any

import jax
import numpy as np


def array(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


def network(layers: list[tuple[Any, Any]], x: np.ndarray) -> np.ndarray:
    """The output of linear layers with ReLU between them."""
    for number, (weight, bias) in enumerate(layers):
        x = x @ array(weight) + array(bias)
        if number < len(layers) - 1:
            x = np.where(x > 0, x, 0)
    return x


def slope_in_last_input(layers: list[tuple[Any, Any]], x: np.ndarray) -> np.ndarray:
    """The derivative of a network's one output by the last of its inputs, for each row."""
    slope = np.zeros_like(x)
    slope[:, -1] = 1
    for number, (weight, bias) in enumerate(layers):
        x, slope = x @ array(weight) + array(bias), slope @ array(weight)
        if number < len(layers) - 1:
            slope, x = np.where(x > 0, slope, 0), np.where(x > 0, x, 0)
    return slope[:, 0]


def one_of(networks: Any, number: int) -> list[tuple[Any, Any]]:
    """The layers of one of several stacked networks."""
    return [(weight[number], bias[number]) for weight, bias in networks.layers]


def standardised(normaliser: Any, rows: Any) -> np.ndarray:
    return (array(rows) - array(normaliser.mean)) / array(normaliser.std)


def undone(normaliser: Any, rows: Any) -> np.ndarray:
    return array(rows) * array(normaliser.std) + array(normaliser.mean)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(x))


def log_density(value: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """The log density of independent Gaussians, for each row."""
    return (-0.5 * ((value - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))).sum(-1)


def adam(gradients: np.ndarray, rates: np.ndarray, beta_1: float = 0.9, beta_2: float = 0.999) -> np.ndarray:
    """The changes that Adam makes of one weight, step by step (Kingma & Ba 2014, Algorithm 1)."""
    mean, square, changes = 0.0, 0.0, []
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        changes.append(-rate * (mean / (1 - beta_1**step)) / (np.sqrt(square / (1 - beta_2**step)) + 1e-8))
    return np.array(changes)


def shaken(model: Any, seed: int = 0) -> Any:
    """The model with other numbers everywhere, so that no two of its networks are equal; deviations stay positive."""
    random = np.random.default_rng(seed)

    def other(path: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or leaf.dtype.kind != "f":
            return leaf
        if "std" in str(path[-1]) and "log_std" not in str(path[-1]):
            return jax.numpy.asarray(random.uniform(0.5, 2, leaf.shape), leaf.dtype)
        return jax.numpy.asarray(random.normal(0, 0.7, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(other, model)
