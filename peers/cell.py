"""One piece of the measurement in a process of its own: one library's policies from one set, trained and rolled out.

python peers/cell.py JOB.json RESULT.json
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TITLES = {"bc": "BC", "td3-bc": "TD3+BC", "iql": "IQL"}
LIBRARIES = ("trajstitch", "d3rlpy")


@dataclass(frozen=True)
class Cell:
    library: str
    set: str
    algorithm: str
    transitions: int
    steps: int
    episodes: int
    seeds: tuple[int, ...]
    """trajstitch trains them together, d3rlpy one by one."""


def hold_to(cores: list[int]) -> None:
    """Keep this process on these cores. Call it before jax or torch is imported: both start a thread per core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def versions() -> dict[str, str]:
    from trajstitch.storage import runs

    found = runs.versions()
    for name in ("torch", "d3rlpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def measured(cell: Cell, data_path: str, cores: int) -> list[dict[str, Any]]:
    """Return a row per seed, as JSON values."""
    import numpy as np

    import trajstitch
    from trajstitch.data import environments
    from trajstitch.data.environments import normalised
    from trajstitch.evaluation.evaluate import FIRST_SEED
    from trajstitch.evaluation.rollouts import Rollout, roll_out
    from trajstitch.storage.runs import machine

    data = trajstitch.load(f"npz:{data_path}")
    facts, seen = data.metadata, data.observations[data.state_rows]
    start = time.monotonic()
    policies = trained(cell, data, cores)
    seconds = (time.monotonic() - start) / len(policies)
    rows = []
    for policy in policies:
        rollout = Rollout(environments.spec(facts), facts.observation_space, policy, FIRST_SEED, cell.episodes)
        returns = roll_out(rollout)
        asked = {name: value for name, value in asdict(cell).items() if name != "seeds"}
        made = {
            "returns": returns,
            "score": float(normalised(float(np.mean(returns)), facts)),
            "action_error": float(np.square(policy.act(seen) - data.actions).mean()),
            "seconds": round(seconds, 1),
            "cores": cores,
        }
        rows.append({**asked, "seed": policy.seed, **made, "machine": machine(), "versions": versions()})
    return rows


def trained(cell: Cell, data: Any, cores: int) -> list[Any]:
    if cell.library == "d3rlpy":
        import theirs

        theirs.quietly(cores)
        return [theirs.train(data, cell.algorithm, cell.steps, seed) for seed in cell.seeds]
    from trajstitch.policies import algorithm_class
    from trajstitch.policies.train import train

    seeds = range(cell.seeds[0], cell.seeds[-1] + 1)
    made = train(data, algorithm_class(cell.algorithm)(steps=cell.steps), len(seeds), seeds[0])
    return [policy for policy in made if policy.seed in cell.seeds]


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    hold_to(job["cores"])
    wanted = Cell(**job["cell"] | {"seeds": tuple(job["cell"]["seeds"])})
    Path(sys.argv[2]).write_text(json.dumps(measured(wanted, job["data"], len(job["cores"]))))
