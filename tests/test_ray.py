"""A Ray cluster of two workers gives the same bits as this process, also when a worker is lost."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from point import collect
from trajstitch import Trajectories, cli, formats
from trajstitch.engines.ray_cluster import RayCluster, RaySettings
from trajstitch.errors import InputError, JobError
from trajstitch.experiments import grid
from trajstitch.experiments.cells import read_results
from trajstitch.experiments.methods import Asked, cells_of, limited
from trajstitch.experiments.table1 import METHODS
from trajstitch.stitching import graph as graphs
from trajstitch.stitching.config import preset
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.storage.tensors import read_tensors

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of two workers on this machine, which find this module."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))
        made = RayCluster(RaySettings(workers=2))
    assert made.ray.cluster_resources()["CPU"] == 2
    yield made
    made.ray.shutdown()


def die_once(marker: Path) -> None:
    """Kill this process, unless it was done before."""
    if not marker.exists():
        marker.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)


def doubled(shared: tuple[Path, np.ndarray], part: int) -> float:
    if part == 3:
        die_once(shared[0])
    return float(shared[1][part] * 2)


def test_parts_come_back_in_order_though_a_worker_is_lost(cluster: RayCluster, tmp_path: Path) -> None:
    values = np.arange(12.0)
    found = [*cluster.map(doubled, (tmp_path / "died", values), range(12))]
    assert found == (2 * values).tolist()
    assert int((tmp_path / "died").read_text()) != os.getpid()


def refused(shared: None, part: int) -> int:
    raise InputError("part is bad")


def killed(shared: None, part: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return part


def test_what_fails_fails_in_one_line(cluster: RayCluster) -> None:
    with pytest.raises(InputError, match=r"^part is bad$"):
        next(cluster.map(refused, None, [1]))
    once = RayCluster(RaySettings(retries=0))
    with pytest.raises(JobError, match="failed on the cluster 1 times") as caught:
        next(once.map(killed, None, [1]))
    assert "\n" not in str(caught.value)


class Deadly:
    """Passes work on to a cluster; the worker that scores the second block of the graph is lost."""

    rows = 150

    def __init__(self, cluster: RayCluster, marker: Path) -> None:
        self.cluster, self.marker = cluster, marker
        self.parts: list[int] = []

    def map(self, function, shared, parts):
        parts = [*parts]
        self.parts.append(len(parts))
        numbered = [(number, part) for number, part in enumerate(parts)]
        return self.cluster.map(_dying, (function, shared, self.marker), numbered)


def _dying(shared, part):
    function, own, marker = shared
    if part[0] == 1 and function.__qualname__.endswith("edges"):
        die_once(marker)
    return function(own, part[1])


def test_graph_of_two_workers_equals_the_local_one_bit_for_bit(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = collect(episodes=30, length=20)
    config = limited(preset("quick"), 32, 100)
    monkeypatch.setattr(graphs, "BLOCK", 150)
    local = Stages(StitchJob(data, config)).graph()
    workers = Deadly(cluster, tmp_path / "died")
    apart = Stages(StitchJob(data, config, workers=workers)).graph()
    assert min(workers.parts) > 2
    assert (tmp_path / "died").exists()
    local.save(tmp_path / "local.safetensors")
    apart.save(tmp_path / "apart.safetensors")
    assert len(local.edges) > 100
    (one, facts), (other, own) = (read_tensors(tmp_path / f"{name}.safetensors") for name in ("local", "apart"))
    assert facts == own
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@dataclass(frozen=True)
class Point:
    """A world whose scoring loses a worker once."""

    marker: Path
    deadly: bool

    def collect(self, seed: int = 0) -> Trajectories:
        return collect(episodes=30, length=20, seed=seed)

    def score(self, act, episodes: int = 100, seed: int = 0) -> np.ndarray:
        if self.deadly:
            die_once(self.marker)
        states = np.random.default_rng(seed).normal(size=(episodes, 2)).astype(np.float32)
        return -np.square(act(states)).sum(1)

    def true_returns(self, data: Trajectories) -> np.ndarray:
        return data.returns


def test_cells_on_a_cluster_have_the_results_of_this_process_though_a_worker_is_lost(
    cluster: RayCluster, tmp_path: Path
) -> None:
    asked = Asked(size="small", sets=("point",), methods=("bc", "ts-bc", "top-bc"), stitchings=1, preset="quick")
    results = []
    for engine, deadly in ((grid.local, False), (cluster.run, True)):
        world, folder = {"point": Point(tmp_path / "died", deadly)}, tmp_path / str(deadly)
        cells = [cell for some in cells_of(asked, METHODS, (), world).values() for cell in some]
        assert len(grid.groups(cells, {cell.data: (2, 2) for cell in cells})) == 2
        assert grid.run(cells, folder, engine=engine, worlds=world) == []
        results.append(_comparable(folder))
    assert (tmp_path / "died").exists()
    assert results[0] == results[1]
    assert len(results[0]) == 3


def _comparable(folder: Path) -> dict[str, tuple]:
    """Return what the cells of a folder found, with the bits of their policies."""
    policies = {path.name: path.read_bytes()[-512:] for path in (folder / "policies").glob("*.safetensors")}
    assert policies
    found = {str(one["config"]): (one["returns"], one["checkpoints"]) for one in read_results(folder)}
    return {name: (*facts, tuple(sorted(policies.items()))) for name, facts in found.items()}


def test_stitch_command_on_a_cluster_writes_the_same_data(cluster: RayCluster, tmp_path: Path, capsys) -> None:
    formats.save(collect(episodes=12, length=20), f"npz:{tmp_path / 'log.npz'}")
    small = ["--preset", "quick", "--inverse.steps", "50", "--reward.steps", "50"]
    written = []
    for engine in ("local", "ray"):
        target = tmp_path / f"{engine}.npz"
        command = ["stitch", f"npz:{tmp_path / 'log.npz'}", f"npz:{target}", *small, "--engine", engine]
        assert cli.run([*command, "--run", str(tmp_path / engine)]) == 0, capsys.readouterr().err
        data = formats.load(f"npz:{target}")
        written.append((data.observations.tobytes(), data.actions.tobytes(), data.rewards.tobytes()))
    assert written[0] == written[1]
