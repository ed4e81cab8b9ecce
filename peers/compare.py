"""Our policies against d3rlpy's: the same data, steps, seeds, machine and evaluation.

python peers/compare.py data FOLDER SET      in trajstitch's environment: the data's arrays, as they are in memory
python peers/compare.py theirs FOLDER        in that of peers/requirements.txt: trains with d3rlpy, keeps its networks
python peers/compare.py ours FOLDER          in trajstitch's: trains with ours, rolls both out alike, prints the table

d3rlpy's networks are exported as plain layers, so that one evaluator plays all policies from the same seeds.
"""

# pyright: reportMissingImports=false

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("BC", "TD3BC", "IQL")
ARRAYS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")
WARM_UP = 100
"""Updates before the clock starts: compilation, caches."""


def write_data(folder: Path, name: str, transitions: int) -> None:
    from trajstitch import save
    from trajstitch.sets.collect import Collect, collect

    data = collect(Collect(name, transitions=transitions))
    folder.mkdir(parents=True, exist_ok=True)
    save(data, f"npz:{folder}/data.npz", force=True)
    np.savez(folder / "arrays.npz", **{name: getattr(data, name) for name in ARRAYS})
    print(f"{name}: {data.steps:,} transitions in {len(data)} episodes")


# In the other environment


def train_theirs(folder: Path, steps: int, seeds: int) -> None:
    import d3rlpy
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    arrays = dict(np.load(folder / "arrays.npz"))
    rows = np.arange(len(arrays["rewards"])) + np.repeat(
        np.arange(len(arrays["offsets"]) - 1), np.diff(arrays["offsets"])
    )
    dataset = d3rlpy.dataset.MDPDataset(
        arrays["observations"][rows].astype(np.float32),
        arrays["actions"].astype(np.float32),
        arrays["rewards"].astype(np.float32),
        arrays["terminated"].astype(np.float32),
        arrays["truncated"].astype(np.float32),
    )
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    layers: dict[str, np.ndarray] = {}
    for name in NAMES:
        for seed in range(seeds):
            d3rlpy.seed(seed)
            algorithm = theirs(name, steps).create(device="cpu")
            algorithm.build_with_dataset(dataset)
            quiet = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory()}
            algorithm.fit(dataset, n_steps=WARM_UP, n_steps_per_epoch=WARM_UP, **quiet)
            begun = time.perf_counter()
            algorithm.fit(dataset, n_steps=steps - WARM_UP, n_steps_per_epoch=steps - WARM_UP, **quiet)
            rates[name].append((steps - WARM_UP) / (time.perf_counter() - begun))
            layers |= {f"{name}/{seed}/{key}": value for key, value in exported(algorithm, arrays).items()}
            print(f"d3rlpy {name}, seed {seed}: {rates[name][-1]:.0f} updates/s", flush=True)
    np.savez(folder / "theirs.npz", **layers)  # pyright: ignore[reportArgumentType]
    facts = {"version": d3rlpy.__version__, "steps": steps, "seeds": seeds, "rates": rates}
    (folder / "theirs.json").write_text(json.dumps(facts))


def theirs(name: str, steps: int) -> Any:
    """d3rlpy's config with the published settings that ours have."""
    from d3rlpy.algos import BCConfig, IQLConfig, TD3PlusBCConfig
    from d3rlpy.optimizers import AdamFactory
    from d3rlpy.optimizers.lr_schedulers import CosineAnnealingLRFactory
    from d3rlpy.preprocessing import ReturnBasedRewardScaler, StandardObservationScaler

    if name == "BC":
        return BCConfig(batch_size=256, learning_rate=1e-3)
    if name == "TD3BC":
        return TD3PlusBCConfig(observation_scaler=StandardObservationScaler())
    return IQLConfig(
        reward_scaler=ReturnBasedRewardScaler(multiplier=1000.0),
        actor_optim_factory=AdamFactory(lr_scheduler_factory=CosineAnnealingLRFactory(T_max=steps)),
    )


def exported(algorithm: Any, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The policy network as layers and units; checked against the library's own prediction."""
    modules = algorithm.impl.modules
    state = (modules.imitator if hasattr(modules, "imitator") else modules.policy).state_dict()
    names = [key for key in state if key.endswith("weight")]
    layers = {}
    for index, key in enumerate(names):
        layers[f"{index}/weight"] = state[key].numpy().T
        layers[f"{index}/bias"] = state[key.removesuffix("weight") + "bias"].numpy()
    scaler = algorithm.observation_scaler
    size = arrays["observations"].shape[1]
    mean = np.zeros(size) if scaler is None else np.asarray(scaler.mean).ravel()
    std = np.ones(size) if scaler is None else np.asarray(scaler.std).ravel() + scaler.eps
    seen = arrays["observations"][:100].astype(np.float32)
    hidden = (seen - mean) / std
    for index in range(len(names)):
        hidden = hidden @ layers[f"{index}/weight"] + layers[f"{index}/bias"]
        hidden = np.tanh(hidden) if index == len(names) - 1 else np.maximum(hidden, 0)
    np.testing.assert_allclose(hidden, algorithm.predict(seen), atol=1e-4)
    return layers | {"mean": mean, "std": std}


# In trajstitch's environment again


def train_ours(folder: Path, episodes: int, to: Path | None) -> None:
    import jax

    import trajstitch
    from trajstitch.evaluation import evaluate
    from trajstitch.fit import fit
    from trajstitch.policies.bc import BC
    from trajstitch.policies.iql import IQL
    from trajstitch.policies.policy import Policy, Units
    from trajstitch.policies.td3_bc import TD3BC
    from trajstitch.runs import machine
    from trajstitch.scores import Summary, normalised, probability_of_improvement
    from trajstitch.sets.ladder import layers_from
    from trajstitch.training import exported, start

    data = trajstitch.load(f"npz:{folder}/data.npz")
    facts = json.loads((folder / "theirs.json").read_text())
    networks = dict(np.load(folder / "theirs.npz"))
    steps, seeds = facts["steps"], range(facts["seeds"])
    bounds = np.full((2, data.action_size), [[-1.0], [1.0]])
    rows = []
    for name, algorithm in zip(NAMES, (BC(steps=steps), TD3BC(steps=steps), IQL(steps=steps)), strict=True):
        problem = algorithm.problem(data)

        def timed(seeds: Any, algorithm: Any = algorithm, problem: Any = problem) -> tuple[Any, float]:
            times: list[float] = []
            state = fit(
                algorithm,
                start(algorithm, data, seeds),
                problem.samples,
                every=WARM_UP,
                title=f"ours {type(algorithm).__name__}, {len(seeds)} seed(s)",
                each=lambda *_: times.append(time.perf_counter()),
            )
            jax.block_until_ready(state.model)
            return state, len(seeds) * (steps - WARM_UP) / (times[-1] - times[0])

        _, alone = timed([0])
        state, together = timed(seeds)
        ours = exported(state, problem.units, seeds, {})
        others = [
            Policy(
                layers_from(networks, f"{name}/{seed}/"),
                Units(networks[f"{name}/{seed}/mean"], networks[f"{name}/{seed}/std"], *bounds),
                seed,
            )
            for seed in seeds
        ]
        returns = evaluate([*ours, *others], data.metadata, episodes)
        scores = normalised(returns.mean(1), data.metadata).reshape(2, -1)
        rows.append(
            {
                "policy": name,
                "ours": Summary.of(scores[0]).to_json(),
                "theirs": Summary.of(scores[1]).to_json(),
                "ours_better": probability_of_improvement([scores[0]], [scores[1]])._asdict(),
                "our_updates_per_second": alone,
                "our_updates_per_second_all_seeds": together,
                "their_updates_per_second": float(np.median(facts["rates"][name])),
            }
        )
    lines = [
        f"{data.metadata.source}: {data.steps:,} transitions, {steps:,} steps, {len(seeds)} seeds × {episodes} "
        f"episodes, last policy; d3rlpy {facts['version']}; {machine()}",
        "",
        "| | score, ours | score, d3rlpy | P(ours better) | updates/s, ours (1 seed) | "
        f"ours ({len(seeds)} seeds) | d3rlpy | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [
            f"{part['mean']:.1f} ± {part['std'] or 0:.1f}, IQM {part['iqm']['value']:.1f}"
            + (f" [{part['iqm']['low']:.1f}, {part['iqm']['high']:.1f}]" if part["iqm"]["low"] is not None else "")
            for part in (row["ours"], row["theirs"])
        ]
        ratio = row["our_updates_per_second"] / row["their_updates_per_second"]
        rates = ("our_updates_per_second", "our_updates_per_second_all_seeds", "their_updates_per_second")
        cells = [row["policy"], *shown, f"{row['ours_better']['value']:.2f}", *(f"{row[key]:,.0f}" for key in rates)]
        lines.append(f"| {' | '.join([*cells, f'{ratio:.1f}×'])} |")
    print("\n".join(lines))
    (folder / "compared.json").write_text(json.dumps({"machine": machine(), **facts, "rows": rows}, indent=1) + "\n")
    if to is not None:
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("a") as file:
            file.write("\n".join(lines) + "\n\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("data", "theirs", "ours"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("set", nargs="?", default="hopper/medium-replay", help="the built-in set")
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20_000, help="gradient steps of each policy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--to", type=Path, help="add the table to this file")
    asked = parser.parse_args()
    if asked.what == "data":
        write_data(asked.folder, asked.set, asked.transitions)
    elif asked.what == "theirs":
        train_theirs(asked.folder, asked.steps, asked.seeds)
    else:
        train_ours(asked.folder, asked.episodes, asked.to)
