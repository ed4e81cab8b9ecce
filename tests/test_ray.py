"""A Ray cluster of two workers gives the same bits as this process, also when a worker is lost."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from point import collect
from trajstitch import Trajectories, cli, formats
from trajstitch.engines import ray_cluster
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
    kept = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))
        made = RayCluster(RaySettings(workers=2))
    assert signal.getsignal(signal.SIGTERM) is kept
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


def lacking(shared: None, part: int) -> int:
    raise ModuleNotFoundError("No module named 'trajstitch'")


def killed_cells(group: list[str]) -> list[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    return group


def test_what_fails_fails_in_one_line(cluster: RayCluster, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"^part is bad$"):
        next(cluster.map(refused, None, [1]))
    with pytest.raises(JobError, match=r"can't do a task: No module named 'trajstitch'. Install"):
        next(cluster.map(lacking, None, [1]))
    once = RayCluster(RaySettings(retries=0))
    with pytest.raises(JobError, match="lost on the cluster 1 times") as caught:
        next(once.map(killed, None, [1]))
    assert "\n" not in str(caught.value)
    (line,) = once.run(killed_cells, [["one", "two"]])
    assert line.startswith("one and 1 more: a task was lost on the cluster 1 times")
    assert capfd.readouterr().out == ""  # where results go


def test_task_that_no_machine_has_room_for_is_refused(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no machine .* \(1 GPU, the most is 0\)"):
        RayCluster(RaySettings(gpus=1))
    with pytest.raises(InputError, match=r"\(3 CPU, the most is 2; 1e\+06 GiB, the most is"):
        RayCluster(RaySettings(cpus=3, memory=1e6))
    monkeypatch.setattr(ray_cluster, "LOOK", 0.5)
    patient = RayCluster(RaySettings(gpus=1, wait=2))
    start = time.monotonic()
    with pytest.raises(InputError, match="1 GPU, the most is 0"):
        next(patient.map(refused, None, [1]))
    assert time.monotonic() - start > 1


def test_address_that_nobody_answers_at_ends_soon_in_one_line(tmp_path: Path) -> None:
    formats.save(collect(episodes=3, length=20), f"npz:{tmp_path / 'log.npz'}")
    with socket.socket() as taken:  # and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [
            "stitch",
            f"npz:{tmp_path / 'log.npz'}",
            f"npz:{tmp_path / 'new.npz'}",
            "--run",
            str(tmp_path / "run"),
        ]
        job = subprocess.run(
            [sys.executable, "-m", "trajstitch", *command, "--engine", "ray", "--ray.address", address],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert job.returncode == 2
    assert job.stderr.startswith("error: no Ray cluster at ")
    assert job.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["log.npz"]


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
    policies = {
        path.name: tuple((name, array.tobytes()) for name, array in sorted(read_tensors(path)[0].items()))
        for path in (folder / "policies").glob("*.safetensors")
    }
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


STOPPED = """
    import os, signal, sys, threading
    from trajstitch.cli import main
    from trajstitch.engines.ray_cluster import RayCluster

    def wait(self, references, usual=RayCluster._wait):
        threading.Timer(0.5, os.kill, (os.getpid(), int(sys.argv[1]))).start()  # a worker takes longer to start
        return usual(self, references)

    RayCluster._wait = wait
    main(sys.argv[2:])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_command_leaves_nothing_half_made_and_resumes_to_the_same_bits(
    cluster: RayCluster, tmp_path: Path, capsys, number: int, code: int
) -> None:
    log, target, run = tmp_path / "log.npz", tmp_path / "new.npz", tmp_path / "run"
    formats.save(collect(episodes=12, length=20), f"npz:{log}")
    command = ["stitch", f"npz:{log}", f"npz:{target}", "--preset", "quick", "--inverse.steps", "50", "--run", str(run)]
    apart = [*command, "--engine", "ray"]
    job = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STOPPED), str(int(number)), *apart, "--ray.workers", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert job.returncode == code, job.stderr
    assert job.stderr.endswith("the same command with --resume continues after what is finished\ninterrupted\n")
    assert job.stdout == ""
    assert not target.exists()
    assert (run / "models.safetensors").exists()
    assert cli.run([*apart, "--resume"]) == 0, capsys.readouterr().err
    resumed = target.read_bytes()
    assert cli.run([*command, "--force"]) == 0, capsys.readouterr().err
    assert target.read_bytes() == resumed
