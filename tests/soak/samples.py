"""Small healthy files of every format, Minari folders and run folders, which the fuzzer damages."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from gymnasium.spaces import Box, Dict

from small_graphs import graph_on
from trajstitch import formats
from trajstitch.benchmark.ladder import Checkpoint, Ladder, load_ladder, save_ladder
from trajstitch.benchmark.ladder_report import ladder_report
from trajstitch.data import environments
from trajstitch.data.environments import spec_json
from trajstitch.data.source_facts import source_facts
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.summary import inspect
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.formats import metadata
from trajstitch.policies.policy import NetworkPolicy, PolicyNormaliser, act, load_policies, save_policies
from trajstitch.stitching.acceptance import Summary
from trajstitch.stitching.layout import keep_graph, keep_result, place, read_graph, read_result
from trajstitch.storage.runs import Run


def logged(*, nested: bool = False) -> Trajectories:
    """Three short episodes with every kind of metadata."""
    random = np.random.default_rng(0)
    space = Dict(goal=Box(-9, 9, (1,)), state=Box(-9, 9, (2,))) if nested else Box(-9, 9, (3,))
    extra = {"author": ["Ada"], "observation_names": ["x", "y", "z"]}
    return Trajectories(
        observations=random.normal(size=(15, 3)).astype(np.float32),
        actions=random.uniform(-1, 1, (12, 1)).astype(np.float32),
        rewards=random.normal(size=12).astype(np.float32),
        terminated=np.isin(np.arange(12), (3,)),
        truncated=np.isin(np.arange(12), (7, 11)),
        offsets=np.array([0, 4, 8, 12]),
        metadata=Metadata(
            "log",
            environment=spec_json("Pendulum-v1"),
            observation_space=space,
            action_space=Box(-2, 2, (1,)),
            reference=(-1.5, 30.0),
            extra=extra,
        ),
    )


def stitched() -> Trajectories:
    """The same episodes as if they had been stitched."""
    data = logged()
    origin = Provenance.logged(data.offsets)
    jumps = np.arange(12) == 5
    numbers = np.where(jumps, 0.5, np.nan).astype(np.float32)
    origin = replace(origin, stitched=jumps, margin=numbers, value_gain=numbers, predicted_reward=numbers)
    described = StitchRecord(False, 1, 3, 3, 1, ("few states left",)).added_to(data.metadata)
    return replace(data, metadata=described, provenance=origin)


def rows() -> dict[str, np.ndarray]:
    """The arrays of a log as other people save it."""
    data = logged()
    return {
        "observations": data.observations[data.state_rows],
        "next_observations": data.observations[data.state_rows + 1],
        "actions": data.actions,
        "rewards": data.rewards,
        "terminals": data.terminated,
        "timeouts": data.truncated,
    }


def without_checksums(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object of ours as others would have written it."""
    return {name: value for name, value in stored.items() if not name.startswith("trajstitch_")}


@dataclass(frozen=True)
class Sample:
    """A healthy file or folder and what opening it means; `files` are those that the fuzzer may damage."""

    write: Callable[[Path], None]
    """Write it into an empty folder."""
    open: Callable[[Path], object]
    """Read all of it; raises InputError if it is bad."""
    files: tuple[str, ...]


def _load(uri: str) -> Callable[[Path], Trajectories]:
    def load(folder: Path) -> Trajectories:
        data = formats.load(uri.replace("@", str(folder)), allow_nonfinite=True, allow_changed=True)
        json.dumps(inspect(data))
        return data

    return load


def _saved(uri: str, data: Trajectories) -> Callable[[Path], None]:
    return lambda folder: formats.save(data, uri.replace("@", str(folder)), force=True)


def _foreign_npz(folder: Path) -> None:
    np.savez_compressed(folder / "log.npz", **rows(), note=np.array("by hand"))  # pyright: ignore[reportArgumentType]


def _foreign_d4rl(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "log.hdf5", "w") as file:
        for name, array in rows().items():
            file.create_dataset(name, data=array, chunks=(4, *array.shape[1:]), compression="gzip")
        file["metadata/algorithm"] = "SAC"


def _foreign_parquet(folder: Path) -> None:
    arrays = rows()
    table = pa.table(
        {
            "episode": pa.array(["a"] * 4 + ["b"] * 4 + ["c"] * 4),
            "obs": pa.array(list(arrays["observations"].tolist())),
            "action": pa.array(arrays["actions"][:, 0]),
            "reward": pa.array(arrays["rewards"]),
            "done": pa.array((arrays["terminals"] | arrays["timeouts"]).tolist()),
        }
    )
    pyarrow.parquet.write_table(table, folder / "log.parquet")


def _foreign_csv(folder: Path) -> None:
    head = "episode,step,obs_x,obs_y,act,reward,terminated,truncated"
    lines = [f"e{i // 4},{i % 4},{i / 7:.3f},{-i / 3:.3f},{i / 12:.3f},{i},{i == 3},{i in (7, 11)}" for i in range(12)]
    (folder / "log.csv").write_text("\n".join([head, *lines, ""]))


def minari_in(kind: str) -> Callable[[Path], None]:
    """Write a Minari set in one of the formats that only Minari reads."""

    def write(folder: Path) -> None:
        from minari.data_collector.episode_buffer import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage

        data = logged()
        assert data.metadata.observation_space is not None
        place = folder / "minari/my/log-v0/data"
        place.parent.mkdir(parents=True)
        storage = MinariStorage.new(
            place, data.metadata.observation_space, data.metadata.action_space, data_format=kind
        )
        storage.update_metadata({"dataset_id": "my/log-v0", "minari_version": "0.5.3"})
        for one in data:
            arrays: Any = (one.observations, one.actions, one.rewards, one.terminated, one.truncated)
            storage.update_episodes([EpisodeBuffer(None, None, None, *arrays)])

    return write


def _trained(folder: Path) -> None:
    data = logged()
    run = Run.start(folder / "run", "train", {"policy": "bc", "steps": 20, **source_facts(data, "npz:log.npz")})
    run.write_json("data", json.loads(metadata.to_json(data.metadata)))
    random = np.random.default_rng(1)
    sizes = ((3, 4), (4, 1))
    normaliser = PolicyNormaliser(np.zeros(3), np.ones(3), np.array([-2.0], np.float32), np.array([2.0], np.float32))
    policies = [
        NetworkPolicy(
            [(random.normal(size=size).astype(np.float32), np.zeros(size[1], np.float32)) for size in sizes],
            normaliser,
            seed,
            20,
            {"policy": "bc"},
        )
        for seed in (0, 1)
    ]
    save_policies(policies, run.path("checkpoints/000000020.safetensors"))
    run.log(step=20, loss=0.5)


def _open_trained(folder: Path) -> None:
    from trajstitch.evaluation.evaluate import stored_metadata

    run = Run.open(folder / "run", "train")
    for policy in load_policies(folder / "run"):
        if all(np.isfinite(array).all() for array in policy.tensors().values()):  # else its training diverged
            policy.act(np.zeros((2, policy.observation_size), np.float32))
    known = stored_metadata(run)
    environments.normalised(1.0, known)
    if environments.environment_id(known) is not None:
        environments.spec(known)
    for name, kind in (("steps", int), ("mean_return", (int, float)), ("fingerprint", str)):
        run.fact(name, kind)
    run.metrics()


def _ladder(folder: Path) -> None:
    random = np.random.default_rng(1)
    policies = [
        [(random.normal(size=size).astype(np.float32), np.zeros(size[1], np.float32)) for size in ((11, 4), (4, 3))]
        for _ in range(2)
    ]
    checkpoints = tuple(Checkpoint(10 * i, 5.0 * i, 1.5, 20, layers) for i, layers in enumerate(policies))
    ladder = Ladder("hopper", "Hopper-v5", checkpoints, 3, {3: [(0, 0.0), (10, 5.0)]}, {"jax": "1"}, "here", "command")
    save_ladder(ladder, folder / "ladder.safetensors")


def _open_ladder(folder: Path) -> None:
    ladder = load_ladder(folder / "ladder.safetensors")
    for one in ladder.checkpoints:
        act(one.layers, np.zeros((2, len(one.layers[0][0]))))
    ladder_report([ladder])


def _stitched(folder: Path) -> None:
    data, result = logged(), stitched()
    config = {"seed": 0, "seeds": 1, "stitching": {"stitchings": 1}, **source_facts(data, "npz:log.npz")}
    run = Run.start(folder / "run", "stitch", config)
    keep_graph(run, graph_on(data, {(0, 6): 1.0, (5, 12): 0.5}))
    keep_result(run, "", result, [asdict(Summary(1, 1, 1, 2.0, 3.0, 4.0, 0.5))])


def _open_stitched(folder: Path) -> None:
    run, data = Run.open(folder / "run", "stitch"), logged()
    shared, own = place(run)
    read_graph(run, shared, data)
    read_result(run, own, data)


MINARI = ("minari/my/log-v0/data/metadata.json", "minari/my/log-v0/data/main_data.hdf5")
EPISODE = "minari/my/log-v0/data/1/part-0"
RUN = ("run/run.json",)

SAMPLES = {
    "npz": Sample(_saved("npz:@/log.npz", stitched()), _load("npz:@/log.npz"), ("log.npz",)),
    "npz of others": Sample(_foreign_npz, _load("npz:@/log.npz"), ("log.npz",)),
    "d4rl": Sample(_saved("d4rl:@/log.hdf5", stitched()), _load("d4rl:@/log.hdf5"), ("log.hdf5",)),
    "d4rl of others": Sample(_foreign_d4rl, _load("d4rl:@/log.hdf5"), ("log.hdf5",)),
    "csv": Sample(_saved("table:@/log.csv", stitched()), _load("table:@/log.csv"), ("log.csv",)),
    "csv of others": Sample(_foreign_csv, _load("table:@/log.csv"), ("log.csv",)),
    "parquet": Sample(_saved("table:@/log.parquet", stitched()), _load("table:@/log.parquet"), ("log.parquet",)),
    "parquet of others": Sample(_foreign_parquet, _load("table:@/log.parquet"), ("log.parquet",)),
    "minari": Sample(_saved("minari:my/log-v0", stitched()), _load("minari:my/log-v0"), MINARI),
    "nested minari": Sample(_saved("minari:my/log-v0", logged(nested=True)), _load("minari:my/log-v0"), MINARI),
    "minari as arrow": Sample(minari_in("arrow"), _load("minari:my/log-v0"), (MINARI[0], f"{EPISODE}.arrow")),
    "minari as parquet": Sample(minari_in("parquet"), _load("minari:my/log-v0"), (MINARI[0], f"{EPISODE}.parquet")),
    "ladder": Sample(_ladder, _open_ladder, ("ladder.safetensors",)),
    "training": Sample(_trained, _open_trained, (*RUN, "run/data.json", "run/checkpoints/000000020.safetensors")),
    "stitching": Sample(
        _stitched, _open_stitched, (*RUN, "run/graph.safetensors", "run/passes.json", "run/result.npz")
    ),
}
"""For Minari, MINARI_DATASETS_PATH must be the folder's `minari`."""
