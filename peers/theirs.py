"""d3rlpy's side of the comparison: its data set, its configs with the published settings, its policies as ours."""

# pyright: reportMissingImports=false

import io
import logging
import warnings
from contextlib import redirect_stderr
from typing import Any

import numpy as np

from trajstitch import NetworkPolicy, Trajectories
from trajstitch.policies.policy import PolicyNormaliser

EPOCH = 1000
"""Updates between two of d3rlpy's summaries: it averages all losses since the last one at every tenth update."""


def quietly(threads: int) -> Any:
    """Import d3rlpy, showing only errors, with this number of threads."""
    with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
        import d3rlpy
        import structlog
        import torch

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(threads)
    return d3rlpy


def dataset(data: Trajectories) -> Any:
    """Return the data as d3rlpy takes it.

    A step has no next observation of its own there, so a truncated episode loses its last step.
    """
    from d3rlpy.dataset import MDPDataset

    arrays = (data.observations[data.state_rows], data.actions, data.rewards, data.terminated, data.truncated)
    return MDPDataset(*(array.astype(np.float32) for array in arrays))


def config(algorithm: str, steps: int) -> Any:
    """Return the published settings, which are ours: d3rlpy's own defaults except for what is given here."""
    from d3rlpy.algos import BCConfig, IQLConfig, TD3PlusBCConfig
    from d3rlpy.optimizers import AdamFactory
    from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
    from d3rlpy.preprocessing import ReturnBasedRewardScaler, StandardObservationScaler

    if algorithm == "bc":
        return BCConfig(batch_size=256)
    if algorithm == "td3-bc":
        return TD3PlusBCConfig(observation_scaler=StandardObservationScaler())
    return IQLConfig(
        reward_scaler=ReturnBasedRewardScaler(multiplier=1000.0),
        actor_optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=steps)),
    )


def learner(algorithm: str, steps: int, seed: int, rows: Any) -> Any:
    """Return a learner before its first step."""
    import d3rlpy

    d3rlpy.seed(seed)
    made = config(algorithm, steps).create(device="cpu")
    made.build_with_dataset(rows)
    if algorithm == "iql":
        start_spread_at_one(made.impl.modules.policy)
    return made


def start_spread_at_one(policy: Any) -> None:
    """Let a Gaussian policy's standard deviation start at 1, as IQL's authors do; d3rlpy has it start at e^-1.5."""
    import torch

    share = -policy._min_logstd / (policy._max_logstd - policy._min_logstd)
    with torch.no_grad():
        policy._logstd.fill_(float(np.log(share / (1 - share))))


def fit(made: Any, rows: Any, steps: int) -> None:
    import d3rlpy

    every = min(EPOCH, steps)
    assert steps % every == 0, f"{steps:,} steps are not whole epochs of {every:,}"
    quiet: Any = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
    made.fit(rows, n_steps=steps, n_steps_per_epoch=every, **quiet)


def train(data: Trajectories, algorithm: str, steps: int, seed: int) -> NetworkPolicy:
    rows = dataset(data)
    made = learner(algorithm, steps, seed, rows)
    fit(made, rows, steps)
    policy = deployed(made, data, seed, steps)
    seen = data.observations[:100].astype(np.float32)
    np.testing.assert_allclose(policy.act(seen), made.predict(seen), atol=1e-4)
    return policy


def deployed(made: Any, data: Trajectories, seed: int = 0, steps: int = 0) -> NetworkPolicy:
    """Return the actor as one of our policies, so that one evaluator takes both libraries' policies."""
    scaler, size = made.observation_scaler, data.observation_size
    mean = np.zeros(size) if scaler is None else np.ravel(scaler.mean)
    std = np.ones(size) if scaler is None else np.ravel(scaler.std) + scaler.eps
    bound = np.ones(data.action_size, np.float32)
    return NetworkPolicy(
        layers(actor(made)),
        PolicyNormaliser(mean.astype(np.float32), std.astype(np.float32), -bound, bound),
        seed,
        steps,
    )


def actor(made: Any) -> Any:
    modules = made.impl.modules
    return modules.imitator if hasattr(modules, "imitator") else modules.policy


def layers(network: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return a network's linear layers, weights (in, out)."""
    found = [module for module in network.modules() if hasattr(module, "in_features")]
    return [(each.weight.detach().numpy().T.copy(), each.bias.detach().numpy().copy()) for each in found]
