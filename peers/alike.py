"""Do both libraries take the same steps? Each starts from the same weights and sees the same batches.

Noise on target actions is left out, since each library draws its own. What is left is the update rule itself: where
two rules are equal, the policies differ by rounding, which training amplifies; where they are not, by more.
"""

# pyright: reportMissingImports=false

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cell import TITLES, versions
from measure import FOLDER, SETS, data_file

from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing


@dataclass(frozen=True)
class Alike:
    """Compare the libraries' updates from the same weights, on the same batches."""

    to: Path = FOLDER / "alike.json"
    """The differences."""
    data: Path = FOLDER
    """Folder of the data files, which are collected where they are missing."""
    set: str = SETS[0]
    """The built-in set."""
    transitions: int = 100_000
    """Transitions of the set."""
    episodes: int = 20
    """How many of its first episodes the batches are drawn from."""
    marks: tuple[int, ...] = (2, 10, 50)
    """Updates after which the policies are compared."""


def measure_alike(config: Alike) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    import theirs

    import trajstitch
    from trajstitch.storage.runs import machine

    path = data_file(config.data, config.set, config.transitions)
    theirs.quietly(1)
    data = trajstitch.load(f"npz:{path}")[np.arange(config.episodes)]
    found = {
        "set": config.set,
        "marks": config.marks,
        "differences": {name: differences(name, data, config.marks) for name in TITLES},
        "machine": machine(),
        "versions": versions(),
    }
    with replacing(config.to, force=True) as fresh:
        fresh.write_text(json.dumps(found, indent=1) + "\n")


def differences(algorithm: str, data: Any, marks: tuple[int, ...]) -> list[dict[str, float]]:
    """Return how far apart the actions are after each mark, and how far training has moved them (root mean squares)."""
    import jax
    import theirs

    from trajstitch.learning.fit import begin, fit
    from trajstitch.policies import algorithm_class
    from trajstitch.policies.train import initial_state

    method: Any = algorithm_class(algorithm)(steps=max(marks))
    peer = theirs.learner(algorithm, max(marks), 0, theirs.dataset(data))
    if algorithm == "td3-bc":
        method = replace(method, target_noise=0.0)
        peer.impl._target_smoothing_sigma = 0.0
    samples = method.training_data(data).samples
    state = initial_state(method, data, [0])
    state = begin(method, with_weights_of(state.model, peer), state.keys)
    key, first, rows = state.keys[0], acted(state, samples), []

    def their_turn(state: Any, _: Any) -> None:
        done = int(state.step)
        drawn = jax.random.randint(jax.random.fold_in(key, done - 1), (method.batch_size,), 0, data.steps)
        # d3rlpy counts from 0, so that it moves the actor at the first step; the authors, and we, at the second.
        peer.impl.update(mini_batch(samples, np.asarray(drawn)), done)
        if done in marks:
            ours = acted(state, samples)
            apart = spread(ours - peer.impl.predict_best_action(torch_array(samples.observation)).detach().numpy())
            rows.append({"updates": done, "apart": apart, "moved": spread(ours - first)})
            logger.info(f"{TITLES[algorithm]}, {done} updates: {apart:.1e} apart, moved {rows[-1]['moved']:.2f}")

    fit(method, state, samples, every=1, title=TITLES[algorithm], each=their_turn)
    return rows


def with_weights_of(model: Any, peer: Any) -> Any:
    """Return our model, of one seed, with d3rlpy's initial weights in place of its own."""
    import equinox as eqx
    import theirs

    modules = peer.impl.modules
    places: list[tuple[Any, Any]] = [(lambda model: model.actor.network.layers, theirs.layers(theirs.actor(peer)))]
    if hasattr(model, "critics"):
        pairs = zip(*(theirs.layers(network) for network in modules.q_funcs), strict=True)
        twins = [tuple(np.stack(part) for part in zip(*pair, strict=True)) for pair in pairs]
        places += [
            (lambda model: model.critics.networks.layers, twins),
            (lambda model: model.target_critics.networks.layers, twins),
        ]
    if hasattr(model, "target_actor"):
        places.append((lambda model: model.target_actor.network.layers, places[0][1]))
    if hasattr(model, "value"):
        places.append((lambda model: model.value.layers, theirs.layers(modules.value_func)))
    for where, layers in places:
        model = eqx.tree_at(where, model, [tuple(part[None] for part in layer) for layer in layers])
    return model


def mini_batch(samples: Any, drawn: np.ndarray) -> Any:
    """Return rows of our samples, normalised, as d3rlpy's update takes them; BC uses only two of the fields."""
    import torch
    from d3rlpy.torch_utility import TorchMiniBatch

    rows = {name: torch_array(np.asarray(leaf)[drawn]) for name, leaf in samples._asdict().items() if leaf is not None}
    none = torch.zeros(len(drawn), 1)
    return TorchMiniBatch(
        observations=rows["observation"],
        actions=rows["action"],
        rewards=rows["reward"][:, None] if "reward" in rows else none,
        next_observations=rows.get("next_observation", rows["observation"]),
        next_actions=rows["action"],
        returns_to_go=none,
        terminals=rows["terminated"][:, None] if "terminated" in rows else none,
        intervals=none + 1,
        device="cpu",
    )


def torch_array(values: Any) -> Any:
    import torch

    return torch.tensor(np.asarray(values, np.float32))


def acted(state: Any, samples: Any) -> np.ndarray:
    import jax

    return np.asarray(jax.tree.map(lambda leaf: leaf[0], state.model.actor)(samples.observation))


def spread(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))
