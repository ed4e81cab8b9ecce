"""Small finished runs for tests of the page: a stitching of the point's log, and clones of random pendulum swings."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from point import collect
from test_stitching import SMALL
from trajstitch import cli
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.formats import save
from trajstitch.report.jumps import jump_table
from trajstitch.report.stitch_run import Stitching, StitchRun
from trajstitch.stitching import config
from trajstitch.stitching.result import assemble

HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1>\"'&amp;{{ 7*7 }}"
"""A name that would run a script wherever it is not escaped."""


def named_log(names: list[str], name: str = "log") -> Trajectories:
    """The point's log, with names for its columns."""
    data = collect(episodes=40, length=30)
    return replace(data, metadata=replace(data.metadata, name=name, extra={"observation_names": names}))


def stitch_log(folder: Path, *flags: str) -> Path:
    """Stitch the point's log in a folder by the command; return the run's folder."""
    save(named_log(["east", "north"]), f"npz:{folder}/log.npz")
    small = replace(SMALL, tests={"consistency": SMALL.tests["consistency"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.PRESETS, "quick", small)
        words = ["stitch", f"npz:{folder}/log.npz", f"npz:{folder}/better.npz", "--preset", "quick"]
        assert cli.run([*words, "--run", str(folder / "run"), *flags]) == 0
    return folder / "run"


def renamed(run: Path, folder: Path, name: str, columns: list[str]) -> Path:
    """Return a copy of a stitching's run under another name, of a log whose columns have other names."""
    save(named_log(columns, name), f"npz:{folder}/log.npz")
    shutil.copytree(run, folder / name.replace("/", " "))
    path = folder / name.replace("/", " ") / "run.json"
    facts = json.loads(path.read_text())
    del facts["trajstitch_checksum"]
    facts["command"] = name
    facts["config"]["source"] = f"npz:{folder}/log.npz"
    path.write_text(json.dumps(facts))
    return path.parent


def swings(episodes: int = 6, length: int = 40) -> Trajectories:
    """Random actions in Pendulum, with the environment on record."""
    environment, random = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    states, actions, rewards = [], [], []
    for seed in range(episodes):
        states.append(environment.reset(seed=seed)[0])
        for _ in range(length):
            actions.append(random.uniform(-2, 2, 1).astype(np.float32))
            state, reward, *_ = environment.step(actions[-1])
            states.append(state)
            rewards.append(reward)
    ends = np.arange(episodes * length) % length == length - 1
    return Trajectories(
        observations=np.array(states, np.float32),
        actions=np.array(actions, np.float32),
        rewards=np.array(rewards, np.float32),
        terminated=np.zeros(len(ends), bool),
        truncated=ends,
        offsets=np.arange(0, episodes * length + 1, length),
        metadata=Metadata("swings", environment=spec_json("Pendulum-v1")),
    )


def clone_swings(folder: Path, run: str, *flags: str) -> Path:
    """Clone random swings by the commands, and score the clones; return the run's folder."""
    save(swings(), f"npz:{folder}/swings.npz", force=True)
    train = ["train", "bc", f"npz:{folder}/swings.npz", "--steps", "20", "--seeds", "2", "--hidden", "8"]
    assert cli.run([*train, "--run", str(folder / run), *flags]) == 0
    assert cli.run(["evaluate", str(folder / run), "--episodes", "2", "--processes", "1"]) == 0
    return folder / run


def large_run(transitions: int) -> StitchRun:
    """A stitching of this many transitions as its folder would hold it: orbits, each continued by a better one."""
    length, columns, random = 1000, 11, np.random.default_rng(0)
    episodes = transitions // length
    steps, half = episodes * length, length // 2
    radius = random.uniform(0.3, 1, (episodes, 1, 1)).astype(np.float32)
    phase = (
        np.linspace(0, 20, length + 1, dtype=np.float32)[None, :, None]
        * np.arange(1, columns + 1, dtype=np.float32)
        / 4
    )
    states = radius * np.sin(phase) + 0.05 * random.standard_normal((episodes, length + 1, columns), np.float32)
    rewards = np.repeat(radius[:, 0], length, 1) * random.random((episodes, length), np.float32)
    before = Trajectories(
        observations=states.reshape(-1, columns),
        actions=random.standard_normal((steps, 3), np.float32),
        rewards=rewards.reshape(-1),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(steps) % length == length - 1,
        offsets=np.arange(0, steps + 1, length),
        metadata=Metadata("large"),
    )
    order = np.argsort(before.returns)
    better = np.empty(episodes, np.int32)
    better[order] = order[np.minimum(np.arange(episodes) + episodes // 10, episodes - 1)]
    joined = (np.concatenate((part[:, :half], part[better, half:]), 1) for part in (states, rewards))
    source = np.repeat(np.stack((np.arange(episodes, dtype=np.int32), better), 1), half, 1).reshape(-1)
    jumps = np.arange(steps) % length == half - 1
    origin = replace(Provenance.logged(before.offsets), source_episode=source, stitched=jumps)
    observations, paid = joined
    after = replace(before, observations=observations.reshape(-1, columns), rewards=paid.reshape(-1), provenance=origin)
    facts = {"kind": "stitch", "config": {"source": "npz:large.npz", "stitching": {"tests": {}}}, "command": "stitch"}
    whole = assemble(before, [after], keep_original=False)
    return StitchRun(
        "large", facts, before, None, whole, (Stitching(after, jump_table(before, after), 0),), passes=(), seconds={}
    )
