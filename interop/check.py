"""Other libraries read what we write, unchanged: Minari, d3rlpy and a reader of D4RL files as CORL has it.

python interop/check.py write FOLDER    in trajstitch's environment
python interop/check.py read FOLDER     in that of interop/requirements.txt, where trajstitch is not installed
"""

# pyright: reportMissingImports=false

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np

LOGGED, STITCHED, GOALS = "interop/hopper-v0", "interop/stitched-v0", "interop/goals-v0"
THEIRS = "interop/theirs-v0"
STATES = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")


# In trajstitch's environment


def write(folder: Path) -> None:
    """Write the same data in each format, and its arrays as they are in memory."""
    from dataclasses import replace

    from gymnasium.spaces import Box, Dict

    from trajstitch import save
    from trajstitch.benchmark.collect import Collect, collect
    from trajstitch.data.trajectories import Provenance

    data = collect(Collect("hopper/medium-replay", transitions=4_000))
    space = Dict(
        observation=Box(-np.inf, np.inf, (8,), np.float64), desired_goal=Box(-np.inf, np.inf, (3,), np.float64)
    )
    goals = replace(data, metadata=replace(data.metadata, observation_space=space, environment=None))
    save(data, f"minari:{LOGGED}", force=True)
    save(replace(data, provenance=Provenance.logged(data.offsets)), f"minari:{STITCHED}", force=True)
    save(goals, f"minari:{GOALS}", force=True)
    save(data, f"d4rl:{d4rl_file(folder)}", force=True)
    np.savez(folder / "expected.npz", **{name: getattr(data, name) for name in STATES})
    print(f"wrote {data.steps:,} transitions in {len(data)} episodes to {folder}")


def d4rl_file(folder: Path) -> Path:
    return folder / "hopper_medium_replay-v2.hdf5"


# In the other environment


class Expected:
    """The arrays that were saved, by episode and by step."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "expected.npz") as arrays:
            self.arrays: dict[str, np.ndarray] = dict(arrays)
        offsets = self.arrays["offsets"]
        self.steps, self.episodes = int(offsets[-1]), len(offsets) - 1
        self.rows = np.arange(self.steps) + np.repeat(np.arange(self.episodes), np.diff(offsets))
        """Where in the observations each step starts."""

    def episode(self, number: int) -> dict[str, np.ndarray]:
        start, stop = self.arrays["offsets"][number : number + 2]
        parts = {name: self.arrays[name][start:stop] for name in STATES if name not in ("observations", "offsets")}
        return {**parts, "observations": self.arrays["observations"][start + number : stop + number + 1]}


def check_minari(folder: Path, expected: Expected) -> str:
    import minari

    names = {"actions": "actions", "rewards": "rewards", "terminations": "terminated", "truncations": "truncated"}
    for identifier in (LOGGED, STITCHED, GOALS):
        dataset = minari.load_dataset(identifier)
        assert (dataset.total_steps, dataset.total_episodes) == (expected.steps, expected.episodes)
        for number, episode in enumerate(dataset.iterate_episodes()):
            saved = expected.episode(number)
            seen = episode.observations
            if identifier == GOALS:
                seen = np.concatenate([seen["observation"], seen["desired_goal"]], axis=1)
            assert np.array_equal(seen, saved["observations"])
            for theirs, ours in names.items():
                assert np.array_equal(getattr(episode, theirs), saved[ours])
            if identifier == STITCHED:
                assert all(len(values) == len(episode) + 1 for values in episode.infos["provenance"].values())
    dataset = minari.load_dataset(LOGGED)
    assert len(list(dataset.sample_episodes(3))) == 3
    environment = dataset.recover_environment()
    observation, _ = environment.reset(seed=0)
    assert dataset.observation_space.contains(observation)
    environment.step(environment.action_space.sample())
    assert set(minari.list_local_datasets()) == {LOGGED, STITCHED, GOALS}
    return f"every episode of 3 sets, bit for bit; {environment.unwrapped} recovered and stepped"


def check_corl(folder: Path, expected: Expected) -> str:
    """Read a D4RL file as CORL's training scripts do: transitions whose next state is the next row."""
    arrays: dict[str, Any] = {}
    with h5py.File(d4rl_file(folder)) as file:
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    assert len({len(arrays[name]) for name in ("observations", "actions", "rewards", "terminals", "timeouts")}) == 1
    assert arrays["terminals"].dtype == arrays["timeouts"].dtype == bool
    kept = np.flatnonzero(~arrays["timeouts"][:-1])
    states = arrays["observations"][kept].astype(np.float32)
    following = arrays["observations"][kept + 1].astype(np.float32)
    done = arrays["terminals"][kept]
    observations = expected.arrays["observations"].astype(np.float32)
    assert np.array_equal(states, observations[expected.rows[kept]])
    assert np.array_equal(following[~done], observations[expected.rows[kept] + 1][~done])
    assert np.array_equal(arrays["next_observations"], expected.arrays["observations"][expected.rows + 1])
    return f"{len(kept):,} transitions, none from one episode into the next"


def check_d3rlpy_on_d4rl(folder: Path, expected: Expected) -> str:
    from d3rlpy.dataset import MDPDataset

    with h5py.File(d4rl_file(folder)) as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        dataset = MDPDataset(**{name: np.asarray(file[name]) for name in names})
    same_episodes(dataset, expected)
    return f"{len(dataset.episodes)} episodes, bit for bit; {train(dataset)}"


def check_d3rlpy_on_minari(folder: Path, expected: Expected) -> str:
    import minari
    from d3rlpy.dataset import MDPDataset

    episodes = list(minari.load_dataset(LOGGED).iterate_episodes())
    dataset = MDPDataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]),
        terminals=np.concatenate([episode.terminations for episode in episodes]),
        timeouts=np.concatenate([episode.truncations for episode in episodes]),
    )
    same_episodes(dataset, expected)
    return f"{len(dataset.episodes)} episodes, bit for bit; {train(dataset)}"


def check_d3rlpy_get_minari(folder: Path, expected: Expected) -> str:
    """Check that d3rlpy's own loader gives the same for our set as for one that Minari itself wrote."""
    import minari
    from d3rlpy.datasets import get_minari
    from minari.data_collector import EpisodeBuffer

    dataset, environment = get_minari(LOGGED)
    ours = minari.load_dataset(LOGGED)
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    buffers = [EpisodeBuffer(**{name: getattr(episode, name) for name in names}) for episode in ours]
    minari.create_dataset_from_buffers(THEIRS, buffers, env=ours.env_spec)
    theirs, _ = get_minari(THEIRS)
    minari.delete_dataset(THEIRS)
    assert len(dataset.episodes) == len(theirs.episodes) == expected.episodes
    for one, other in zip(dataset.episodes, theirs.episodes, strict=True):
        assert one.terminated == other.terminated
        assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names[:3])
    # It puts T+1 observations beside T actions, so that observations slip by one more with every episode.
    slips = not np.array_equal(dataset.episodes[1].observations, expected.episode(1)["observations"][:-1])
    note = " (from the second episode on, this d3rlpy shifts the observations of either)" if slips else ""
    return f"the same as from a set that Minari wrote{note}; {environment.unwrapped}; {train(dataset)}"


def same_episodes(dataset: Any, expected: Expected) -> None:
    assert len(dataset.episodes) == expected.episodes
    for number, episode in enumerate(dataset.episodes):
        saved = expected.episode(number)
        assert np.array_equal(episode.observations, saved["observations"][:-1])
        assert np.array_equal(episode.actions, saved["actions"])
        assert np.array_equal(episode.rewards[:, 0], saved["rewards"])
        assert episode.terminated == saved["terminated"][-1]


def train(dataset: Any) -> str:
    """Clone the behaviour for a few hundred gradient steps; the loss must fall."""
    from d3rlpy.algos import BCConfig
    from d3rlpy.logging import NoopAdapterFactory

    learner = BCConfig(batch_size=128).create(device=False)
    history = learner.fit(
        dataset, n_steps=300, n_steps_per_epoch=100, show_progress=False, logger_adapter=NoopAdapterFactory()
    )
    losses = [metrics["loss"] for _, metrics in history]
    assert losses[-1] < losses[0]
    return f"BC's loss fell from {losses[0]:.3f} to {losses[-1]:.3f}"


def read(folder: Path) -> None:
    import logging

    import structlog

    assert find_spec("trajstitch") is None, "trajstitch is installed here: it should not be needed"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    expected = Expected(folder)
    for name, check in (
        (f"Minari {version('minari')}", check_minari),
        ("CORL-style D4RL reader", check_corl),
        (f"d3rlpy {version('d3rlpy')} on the D4RL file", check_d3rlpy_on_d4rl),
        ("d3rlpy on the Minari episodes", check_d3rlpy_on_minari),
        ("d3rlpy's get_minari", check_d3rlpy_get_minari),
    ):
        print(f"{name}: {check(folder, expected)}", flush=True)


def main() -> None:
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "read"):
        sys.exit(__doc__)
    folder = Path(sys.argv[2]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    {"write": write, "read": read}[sys.argv[1]](folder)


if __name__ == "__main__":
    main()
