"""Work that is divided into parts, and pickled on its way, has the bits of work that is not."""

import pickle
import sys
from importlib.metadata import version

import numpy as np
import pytest

from point import collect
from trajstitch import cli
from trajstitch.engines.ray_cluster import RayCluster, RaySettings, _call
from trajstitch.engines.workers import LOCAL, Local
from trajstitch.errors import InputError
from trajstitch.experiments.methods import limited
from trajstitch.stitching import graph as graphs
from trajstitch.stitching.config import preset
from trajstitch.stitching.neighbours import Method, NeighbourSearch, find_neighbours
from trajstitch.stitching.pipeline import Stages, StitchJob
from trajstitch.storage.tensors import read_tensors


class Elsewhere:
    """Workers that get everything as it arrives on another machine, in parts."""

    def __init__(self, rows: int) -> None:
        self.rows, self.parts = rows, 0

    def map(self, function, shared, parts):
        own = pickle.loads(pickle.dumps(shared))
        for part in parts:
            self.parts += 1
            yield function(own, pickle.loads(pickle.dumps(part)))


@pytest.mark.parametrize("method", ["tree", "flat", "accelerator", "approximate"])
def test_neighbours_of_parts_are_those_of_all(method: Method) -> None:
    random = np.random.default_rng(0)
    states = np.repeat(random.normal(size=(300, 4)), 2, axis=0).astype(np.float32)  # each twice
    episode = np.arange(600) // 40
    search = NeighbourSearch(k=5, method=method)
    workers = Elsewhere(70)
    whole, apart = find_neighbours(states, episode, search), find_neighbours(states, episode, search, workers=workers)
    assert workers.parts >= 5
    np.testing.assert_array_equal(whole.offsets, apart.offsets)
    np.testing.assert_array_equal(whole.index, apart.index)


def test_graph_in_parts_equals_the_local_one_bit_for_bit(tmp_path, monkeypatch) -> None:
    job = StitchJob(collect(episodes=30, length=20), limited(preset("quick"), 32, 100))
    monkeypatch.setattr(graphs, "BLOCK", 150)
    stages = Stages(job)
    local = graphs.build_graph(stages.data, stages.scorer(), job.config.neighbours)
    workers = Elsewhere(100)
    apart = graphs.build_graph(stages.data, stages.scorer(), job.config.neighbours, workers)
    assert workers.parts > 8
    assert len(local.edges) > 100
    local.save(tmp_path / "local.safetensors")
    apart.save(tmp_path / "apart.safetensors")
    (one, facts), (other, own) = (read_tensors(tmp_path / f"{name}.safetensors") for name in ("local", "apart"))
    assert facts == own
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_local_workers_apply_functions_here() -> None:
    assert [*LOCAL.map(lambda shared, part: shared + part, 1, [1, 2])] == [2, 3]
    assert Local.rows is None


def test_missing_ray_says_what_to_install(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.run(["stitch", "npz:a.npz", f"npz:{tmp_path / 'b.npz'}", "--engine", "ray"]) == 2
    assert 'pip install "trajstitch[ray]"' in capsys.readouterr().err
    with pytest.raises(InputError, match="`retries` must be"):
        RayCluster(RaySettings(retries=-1))


def test_worker_with_another_version_is_refused() -> None:
    assert _call(version("trajstitch"), max, 1, 2) == 2
    with pytest.raises(InputError, match=r"has trajstitch .*, this one 0\.0\.1: install the same one"):
        _call("0.0.1", max, 1, 2)
