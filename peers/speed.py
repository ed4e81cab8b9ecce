"""Updates per second of both libraries, which take turns on the same cores in the same process."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cell import TITLES, hold_to, versions
from measure import FOLDER, SETS, all_cores, data_file

from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing


@dataclass(frozen=True)
class Speed:
    """Measure updates per second: whole training steps, with drawing the batch, of one seed, after a warm-up."""

    to: Path = FOLDER / "speed.json"
    """The rates."""
    data: Path = FOLDER
    """Folder of the data files, which are collected where they are missing."""
    set: str = SETS[0]
    """The built-in set."""
    algorithms: tuple[str, ...] = tuple(TITLES)
    """Algorithms to train."""
    transitions: int = 100_000
    """Transitions of the set."""
    cores: int = 2
    """Cores that both may use. d3rlpy is measured with a thread per core and with one; the better rate counts."""
    rounds: int = 5
    """How often each is measured, in turn; the median counts."""
    ours: int = 500
    """Updates per round by trajstitch."""
    theirs: int = 150
    """Updates per round by d3rlpy."""


def measure_speed(config: Speed) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    path = data_file(config.data, config.set, config.transitions)
    cores = all_cores()[: config.cores]
    hold_to(cores)

    import theirs

    import trajstitch
    from trajstitch.storage.runs import machine

    if len(cores) < config.cores:
        logger.info(f"only {len(cores)} of {config.cores} cores are here")
    theirs.quietly(len(cores))
    data = trajstitch.load(f"npz:{path}")
    rows = theirs.dataset(data)
    found = {
        "set": config.set,
        "transitions": config.transitions,
        "cores": len(cores),
        "ours_a_round": config.ours,
        "theirs_a_round": config.theirs,
        "load_before": os.getloadavg()[0],
        "rates": {name: alternated(config, name, data, rows, len(cores)) for name in config.algorithms},
        "machine": machine(),
        "versions": versions(),
    }
    with replacing(config.to, force=True) as fresh:
        fresh.write_text(json.dumps(found, indent=1) + "\n")


def alternated(config: Speed, algorithm: str, data: Any, rows: Any, cores: int) -> dict[str, list[float]]:
    """Return the rates of every round by "ours" and, for d3rlpy, by the number of its threads.

    Ours are taken between the chunks of one training, and d3rlpy's turn comes within its callback.
    """
    import theirs
    import torch

    from trajstitch.learning.fit import fit
    from trajstitch.policies import algorithm_class
    from trajstitch.policies.train import initial_state

    rounds = config.rounds + 1
    method: Any = algorithm_class(algorithm)(steps=rounds * config.ours)
    peer = theirs.learner(algorithm, rounds * config.theirs * 2, 0, rows)
    rates: dict[str, list[float]] = {"ours": [], **{str(threads): [] for threads in sorted({1, cores})}}
    begun = time.perf_counter()

    def their_turn(*_: Any) -> None:
        nonlocal begun
        rates["ours"].append(config.ours / (time.perf_counter() - begun))
        for threads in sorted({1, cores}):
            torch.set_num_threads(threads)
            begun = time.perf_counter()
            theirs.fit(peer, rows, config.theirs)
            rates[str(threads)].append(config.theirs / (time.perf_counter() - begun))
        shown = ", ".join(f"{name} {values[-1]:.0f}" for name, values in rates.items())
        logger.info(f"{TITLES[algorithm]}, updates/s: {shown}{' (warm-up)' if len(rates['ours']) == 1 else ''}")
        begun = time.perf_counter()

    samples = method.training_data(data).samples
    fit(method, initial_state(method, data, [0]), samples, every=config.ours, title=TITLES[algorithm], each=their_turn)
    return {name: values[1:] for name, values in rates.items()}
