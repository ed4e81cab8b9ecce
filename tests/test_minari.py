"""Minari sets: the real library reads what we write, we read what it writes, and nothing half-made ever shows."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

import h5py
import minari as library
import numpy as np
import pytest
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from hypothesis import given, settings
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from minari.namespace import get_namespace_metadata, list_local_namespaces

from disasters import (
    as_nobody,
    kill_while_saving,
    leftovers,
    save_to_a_full_disk,
    save_with_little_room,
    tiny_disk,
    two_megabytes,
)
from strategies import trajectories
from trajstitch import formats
from trajstitch.data import environments, spaces
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import episodes, minari

ID = "lab/hopper/tiny-v0"


def small(**changes: Any) -> Trajectories:
    """An episode of two steps that terminates and one of three that times out."""
    return Trajectories(
        **{
            "observations": np.arange(14.0).reshape(7, 2),
            "actions": np.linspace(-1, 1, 5, dtype=np.float32)[:, None],
            "rewards": np.arange(5.0),
            "terminated": np.array([0, 1, 0, 0, 0], bool),
            "truncated": np.array([0, 0, 0, 0, 1], bool),
            "offsets": np.array([0, 2, 5]),
            **changes,
        }
    )


def stored_metadata(store: Path, identifier: str = ID) -> dict[str, Any]:
    return json.loads((store / identifier / "data" / "metadata.json").read_text())


def write_by_minari(
    store: Path,
    *buffers: EpisodeBuffer,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    identifier: str = "theirs-v0",
    data_format: str = "hdf5",
    **metadata: Any,
) -> str:
    """A set written by Minari's own storage."""
    folder = store / identifier / "data"
    folder.parent.mkdir(parents=True)
    storage = MinariStorage.new(
        folder,
        observation_space=observation_space or spaces.vector(2),
        action_space=action_space or Box(-1, 1, (1,), np.float32),
        data_format=data_format,
    )
    storage.update_metadata({"dataset_id": identifier, "minari_version": library.__version__, **metadata})
    storage.update_episodes(buffers)
    return identifier


def as_buffers(data: Trajectories, **infos: Any) -> list[EpisodeBuffer]:
    space = data.metadata.observation_space or spaces.vector(data.observation_size)
    return [
        EpisodeBuffer(
            observations=spaces.unflatten(space, episode.observations),
            actions=episode.actions,  # pyright: ignore[reportArgumentType]
            rewards=episode.rewards,  # pyright: ignore[reportArgumentType]
            terminations=episode.terminated,  # pyright: ignore[reportArgumentType]
            truncations=episode.truncated,  # pyright: ignore[reportArgumentType]
            **infos,
        )
        for episode in data
    ]


# What we write


@settings(max_examples=60, deadline=None)
@given(trajectories(dtypes=(np.float16, np.float32, np.float64), empty_episodes=True))
def test_a_round_trip_keeps_everything(data: Trajectories) -> None:
    minari.save(data, ID, force=True)
    again = minari.load(ID)
    assert again.equals(data)
    assert again.metadata == replace(data.metadata, name=ID, source=f"minari:{ID}")
    assert (again.provenance is None) == (data.provenance is None)
    if data.provenance is not None and again.provenance is not None:
        for item in fields(Provenance):
            stored, kept = getattr(data.provenance, item.name), getattr(again.provenance, item.name)
            assert kept.dtype == stored.dtype
            np.testing.assert_array_equal(kept, stored)


@settings(max_examples=40, deadline=None)
@given(trajectories())
def test_minari_reads_the_same_episodes(data: Trajectories) -> None:
    minari.save(data, ID, force=True)
    dataset = library.load_dataset(ID)
    assert dataset.total_episodes == len(data)
    assert dataset.total_steps == dataset.spec.total_steps == data.steps
    assert dataset.observation_space == data.metadata.observation_space
    assert dataset.action_space == data.metadata.action_space
    assert len(list(dataset.sample_episodes(len(data)))) == len(data)
    for theirs, ours in zip(dataset.iterate_episodes(), data, strict=True):
        rows = spaces.flatten(dataset.observation_space, theirs.observations)
        np.testing.assert_array_equal(rows, ours.observations)
        np.testing.assert_array_equal(spaces.flatten(dataset.action_space, theirs.actions), ours.actions)
        np.testing.assert_array_equal(theirs.rewards, ours.rewards)
        np.testing.assert_array_equal(theirs.terminations, ours.terminated)
        np.testing.assert_array_equal(theirs.truncations, ours.truncated)
        if ours.provenance is not None:
            infos = theirs.infos["provenance"]
            assert {len(values) for values in infos.values()} == {len(ours.rewards) + 1}
            np.testing.assert_array_equal(infos["stitched"][1:], ours.provenance.stitched)


def test_each_observation_lies_in_the_space_minari_declares() -> None:
    space = Dict(goal=Box(-9, 9, (1,), np.float32), observation=Box(-9, 9, (2, 2), np.float64))
    rows = np.linspace(-5, 5, 35).reshape(7, 5)
    rows[:, 0] = rows[:, 0].astype(np.float32)
    minari.save(small(observations=rows, metadata=Metadata(observation_space=space)), ID, force=False)
    episode = next(library.load_dataset(ID).iterate_episodes())
    first = {name: values[0] for name, values in episode.observations.items()}
    assert library.load_dataset(ID).observation_space.contains(first)


def test_the_environments_can_be_recovered() -> None:
    known = Metadata(environment=spec_json("Hopper-v5"), evaluation_environment=spec_json("Walker2d-v4"))
    minari.save(small(metadata=known), ID, force=False)
    dataset = library.load_dataset(ID)
    for evaluation, name in ((False, "Hopper-v5"), (True, "Walker2d-v4")):
        spec = dataset.recover_environment(eval_env=evaluation).spec
        assert spec is not None
        assert spec.id == name


def test_minari_lists_the_set_with_its_facts(minari_store: Path) -> None:
    described = Metadata(reference=(1.0, 5.0), extra={"author": "Ada", "description": "tiny"})
    minari.save(small(metadata=described), ID, force=False)
    listed = library.list_local_datasets()
    assert list(listed) == [ID]
    assert listed[ID]["total_steps"] == 5
    assert listed[ID]["author"] == ["Ada"]
    assert listed[ID]["dataset_size"] == pytest.approx(
        (minari_store / ID / "data" / "main_data.hdf5").stat().st_size / 1e6, abs=0.05
    )
    assert list_local_namespaces() == ["lab", "lab/hopper"]
    assert get_namespace_metadata("lab/hopper") == {}
    assert library.get_normalized_score(library.load_dataset(ID), np.array(3.0)) == 0.5


def test_namespaces_that_are_there_keep_their_description(minari_store: Path) -> None:
    (minari_store / "lab").mkdir(parents=True)
    (minari_store / "lab" / "namespace_metadata.json").write_text('{"description": "ours"}')
    minari.save(small(), ID, force=False)
    assert get_namespace_metadata("lab") == {"description": "ours"}
    assert get_namespace_metadata("lab/hopper") == {}


def test_minari_can_add_to_our_set_and_combine_it() -> None:
    data = small()
    minari.save(data, ID, force=False)
    library.load_dataset(ID).update_dataset_from_buffer(as_buffers(data))
    assert minari.load(ID).steps == 10
    both = library.combine_datasets([library.load_dataset(ID)] * 2, "both-v0")
    assert both.total_steps == minari.load("both-v0").steps == 20


def test_a_minari_that_is_two_releases_old_accepts_our_version(minari_store: Path) -> None:
    minari.save(small(), ID, force=False)
    assert stored_metadata(minari_store)["minari_version"] == "0.5.3"


def test_data_without_spaces_gets_vectors() -> None:
    minari.save(small(), ID, force=False)
    assert minari.load(ID).metadata.observation_space == spaces.vector(2, np.float64)
    assert minari.load(ID).metadata.action_space == spaces.vector(1, np.float32)


def test_a_space_that_does_not_hold_the_data_is_an_error(minari_store: Path) -> None:
    with pytest.raises(InputError, match="the observations have 2 columns"):
        minari.save(small(metadata=Metadata(observation_space=spaces.vector(3))), ID, force=False)
    assert not (minari_store / "lab").exists()


def test_mujoco_is_not_needed(minari_store: Path) -> None:
    program = """
import sys
sys.modules["mujoco"] = None
sys.path.insert(0, "tests")
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata
from test_minari import ID, small
from trajstitch.formats import minari
import minari as library
minari.save(small(metadata=Metadata(environment=spec_json("Hopper-v5"))), ID, force=False)
assert minari.load(ID).equals(small())
assert library.load_dataset(ID).total_steps == 5
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[1])


# What Minari writes


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("space", [None, Dict(goal=Box(-9, 99, (1,)), a=Dict(b=Box(-9, 99, (1,))))])
def test_sets_that_minari_wrote_load_the_same_in_every_storage(
    minari_store: Path, data_format: str, space: Space | None
) -> None:
    data = small(metadata=Metadata(observation_space=space))
    if space is not None:
        data = replace(data, observations=data.observations.astype(np.float32))
    identifier = write_by_minari(
        minari_store, *as_buffers(data), observation_space=space, data_format=data_format, author={"Ada"}
    )
    loaded = minari.load(identifier)
    assert loaded.equals(data)
    assert loaded.metadata.extra == {"author": ["Ada"]}
    assert loaded.metadata.findings == ()


def test_minaris_own_chunks_and_many_lengths_load_the_same(minari_store: Path) -> None:
    random = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(random.integers(1, 3000, 12))))
    steps = int(offsets[-1])
    data = Trajectories(
        observations=random.normal(size=(steps + 12, 17)),
        actions=random.normal(size=(steps, 6)),
        rewards=random.normal(size=steps),
        terminated=random.random(steps) < 0.1,
        truncated=random.random(steps) < 0.1,
        offsets=offsets,
    )
    buffers = as_buffers(data)
    theirs = minari.load(
        write_by_minari(minari_store, *buffers, observation_space=spaces.vector(17), action_space=spaces.vector(6))
    )
    assert theirs.equals(data)
    minari.save(theirs, ID, force=False)
    assert minari.load(ID).equals(data)


def test_what_is_not_carried_over_is_said(minari_store: Path) -> None:
    buffers = as_buffers(small(), infos={"qpos": np.zeros(3)}, seed=7)
    (finding,) = minari.load(write_by_minari(minari_store, *buffers)).metadata.findings
    assert (finding.check, finding.verdict) == ("infos", "note")
    assert finding.detail == "not carried over: infos/qpos, each episode's seed"


def test_reference_scores_and_specs_are_understood(minari_store: Path) -> None:
    facts = {"env_spec": spec_json("Hopper-v5"), "ref_min_score": 1.0, "ref_max_score": 9.0, "code_permalink": "here"}
    metadata = minari.load(write_by_minari(minari_store, *as_buffers(small()), **facts)).metadata
    assert metadata.environment == facts["env_spec"]
    assert metadata.reference == (1.0, 9.0)
    assert metadata.extra == {"code_permalink": "here"}


def test_an_environment_from_before_gymnasium_1_can_be_made(minari_store: Path) -> None:
    old = json.dumps({**json.loads(spec_json("Hopper-v5")), "apply_api_compatibility": False, "autoreset": False})
    metadata = minari.load(write_by_minari(minari_store, *as_buffers(small()), env_spec=old)).metadata
    assert environments.make(metadata).observation_space.shape == (11,)


def test_an_environment_that_is_not_installed_is_said() -> None:
    robot = {**json.loads(spec_json("Hopper-v5")), "id": "Robot-v1", "entry_point": "no_such_package:Robot"}
    with pytest.raises(InputError, match=r"Robot-v1 can't be started .*no_such_package.*: install the package"):
        environments.make(Metadata(environment=json.dumps(robot)))


def test_integer_rewards_become_floats(minari_store: Path) -> None:
    (buffer, _) = as_buffers(small())
    loaded = minari.load(write_by_minari(minari_store, replace(buffer, rewards=[3, 4])))
    assert loaded.rewards.dtype == np.float64
    assert loaded.rewards.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("role", "space"),
    [
        ("action", Discrete(3)),
        ("action", Dict(a=Box(-1, 1, (1,)))),
        ("observation", Box(0, 255, (64, 64, 3), np.uint8)),
        ("observation", Tuple((Box(-1, 1, (1,)), Box(-1, 1, (1,))))),
        ("observation", Text(5)),
        ("observation", Box(0, 9, (2,), np.int64)),
        ("observation", Dict(picture=Box(0, 255, (64, 64), np.uint8))),
    ],
)
def test_spaces_that_are_not_supported_are_an_error(minari_store: Path, role: str, space: Space) -> None:
    identifier = write_by_minari(minari_store, *as_buffers(small()))
    change(minari_store, lambda stored: stored.update({f"{role}_space": spaces.to_json(space)}))
    with pytest.raises(InputError, match=rf"^minari:{identifier}: the {role} space.* supported are"):
        minari.load(identifier)


def change(store: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the metadata of the set that Minari wrote."""
    path = store / "theirs-v0" / "data" / "metadata.json"
    stored = json.loads(path.read_text())
    edit(stored)
    path.write_text(json.dumps(stored))


# What isn't there


@pytest.mark.parametrize(
    "identifier",
    ["hopper", "hopper-v", "lab/hopper", "-v0", "../up-v0", "/etc/hopper-v0", "a//b-v0", "lab/data/x-v0", "a b-v0", ""],
)
def test_ids_that_minari_can_not_hold_are_an_error(identifier: str) -> None:
    for attempt in (
        minari.load,
        lambda name: minari.save(small(), name, force=False),
        lambda name: minari.require_free(name, force=True),
    ):
        with pytest.raises(InputError, match="is not a Minari id: write NAMESPACE/NAME-v0"):
            attempt(identifier)


def test_a_set_that_is_not_there_is_said_with_the_nearest_one() -> None:
    minari.save(small(), ID, force=False)
    with pytest.raises(InputError, match=rf"not in the local store \(did you mean '{ID}'\?\)"):
        minari.load("lab/hopper/tinny-v0")


def test_a_built_in_set_that_is_not_there_says_how_to_make_it() -> None:
    with pytest.raises(InputError, match="`trajstitch collect SET` makes the built-in sets"):
        minari.load("trajstitch/hopper/medium-replay-v0")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (ImportError("huggingface_hub"), 'pip install "minari[hf]"'),
        (ValueError("Couldn't find any version"), "Minari's remote has no such set"),
        (ConnectionError("name resolution failed\nand more"), r"could not be downloaded (ConnectionError: name resol"),
    ],
)
def test_a_failed_download_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, failure: Exception, said: str) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(minari, "_remote_answers", lambda: True)
    monkeypatch.setattr(library, "download_dataset", fail)
    with pytest.raises(InputError) as error:
        minari.load("mujoco/hopper/medium-v0")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_set_is_downloaded_with_minari_which_keeps_to_stderr(
    monkeypatch: pytest.MonkeyPatch, minari_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def download(identifier: str) -> None:
        print("downloading")
        write_by_minari(minari_store, *as_buffers(small()), identifier=identifier)

    monkeypatch.setattr(minari, "_remote_answers", lambda: True)
    monkeypatch.setattr(library, "download_dataset", download)
    assert minari.load("mujoco/hopper/medium-v0").equals(small())
    assert capsys.readouterr().out == ""


# Damaged sets


def cut_short(data: Path) -> None:
    path = data / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[:-500])


def not_hdf5(data: Path) -> None:
    (data / "main_data.hdf5").write_text("not what you think")


def no_file(data: Path) -> None:
    (data / "main_data.hdf5").unlink()


def broken_json(data: Path) -> None:
    (data / "metadata.json").write_text("{")


def no_format(data: Path) -> None:
    change(data.parents[1], lambda stored: stored.pop("data_format"))


def count_as_text(data: Path) -> None:
    change(data.parents[1], lambda stored: stored.update(total_episodes="two"))


def no_episodes(data: Path) -> None:
    change(data.parents[1], lambda stored: stored.update(total_episodes=0))


def too_many_episodes(data: Path) -> None:
    change(data.parents[1], lambda stored: stored.update(total_episodes=3))


def strange_space(data: Path) -> None:
    change(data.parents[1], lambda stored: stored.update(observation_space='{"type": "Sphere"}'))


def replacing(name: str, values: Any) -> Callable[[Path], None]:
    def change_array(data: Path) -> None:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            del file[name]
            if values is not None:
                file[name] = values

    return change_array


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (cut_short, "the file is cut short"),
        (not_hdf5, "is not an HDF5 file"),
        (no_file, "no such file"),
        (broken_json, "its metadata.json is damaged"),
        (no_format, "its metadata.json is damaged"),
        (count_as_text, "its metadata.json is damaged"),
        (no_episodes, "the data set has no episodes"),
        (too_many_episodes, "episode 2 of 3 is missing"),
        (strange_space, "its spaces can't be told"),
        (replacing("episode_1/rewards", None), "episode 1 of 2 is missing or has no rewards"),
        (replacing("episode_1/actions", None), "episode 1 holds no actions"),
        (replacing("episode_0/actions", None), "episode 0 holds no actions"),
        (replacing("episode_1/observations", np.zeros((3, 2))), r"episode 1: observations has shape \(3, 2\), but"),
        (replacing("episode_1/observations", np.zeros((4, 3))), r"its 3 steps need \(4, 2\)"),
        (replacing("episode_1/rewards", np.zeros((3, 1))), r"episode 1: rewards have shape \(3, 1\)"),
        (replacing("episode_1/truncations", np.zeros(2, bool)), r"truncations has shape \(2,\)"),
        (replacing("episode_0/rewards", np.array([b"a", b"b"])), "rewards have dtype"),
        (replacing("episode_1/rewards", np.zeros(3, np.longdouble)), "but float64 in episode 0"),
        (replacing("episode_1/terminations", np.full(3, 2)), "terminations have dtype int64, but bool in episode 0"),
    ],
)
def test_damaged_sets_get_one_clear_line_and_are_not_touched(
    minari_store: Path, damage: Callable[[Path], None], complaint: str
) -> None:
    identifier = write_by_minari(minari_store, *as_buffers(small()))
    damage(minari_store / identifier / "data")
    before = {path: path.read_bytes() for path in minari_store.rglob("*.*") if path.is_file()}
    with pytest.raises(InputError, match=complaint) as error:
        minari.load(identifier)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in minari_store.rglob("*.*") if path.is_file()} == before


def test_a_step_count_that_is_wrong_is_said(minari_store: Path) -> None:
    identifier = write_by_minari(minari_store, *as_buffers(small()))
    change(minari_store, lambda stored: stored.update(total_steps=6))
    (finding,) = minari.load(identifier).metadata.findings
    assert finding.detail == "metadata.json counts 6 steps, the episodes hold 5"


def test_an_arrow_set_that_minari_can_not_read_gets_one_clear_line(minari_store: Path) -> None:
    identifier = write_by_minari(minari_store, *as_buffers(small()), data_format="arrow")
    shutil.rmtree(minari_store / identifier / "data" / "1")
    with pytest.raises(InputError, match="Minari can't read it"):
        minari.load(identifier)


# Writing whole or not at all


def test_an_existing_set_is_only_replaced_by_force() -> None:
    old, new = small(), small(rewards=np.full(5, 7.0))
    minari.save(old, ID, force=False)
    for attempt in (minari.require_free, lambda *a, **k: minari.save(new, *a, **k)):
        with pytest.raises(InputError, match="exists already: choose another name, or overwrite it with `force=True`"):
            attempt(ID, force=False)
    assert minari.load(ID).equals(old)
    minari.save(new, ID, force=True)
    assert minari.load(ID).equals(new)
    assert list(library.list_local_datasets()) == [ID]


def test_force_never_replaces_a_namespace_nor_nests_sets() -> None:
    minari.save(small(), "lab/hopper-v0/inner-v0", force=False)
    with pytest.raises(InputError, match="is a namespace with sets of its own"):
        minari.save(small(), "lab/hopper-v0", force=True)
    with pytest.raises(InputError, match="is a data set, which can't hold another"):
        minari.save(small(), "lab/hopper-v0/inner-v0/more-v0", force=True)
    assert list(library.list_local_datasets()) == ["lab/hopper-v0/inner-v0"]


def test_a_set_can_be_replaced_by_one_made_from_itself() -> None:
    minari.save(small(), ID, force=False)
    minari.save(minari.load(ID)[[1]], ID, force=True)
    assert minari.load(ID).equals(small()[[1]])


def test_a_failed_save_leaves_the_old_set_and_nothing_else(minari_store: Path) -> None:
    minari.save(small(), ID, force=False)
    before = leftovers(minari_store)
    impossible = small(metadata=Metadata(extra={"not JSON": object()}))
    for identifier in (ID, "another/namespace/new-v0"):
        with pytest.raises(TypeError):
            minari.save(impossible, identifier, force=True)
    assert leftovers(minari_store) == before
    assert minari.load(ID).equals(small())


def test_a_set_that_is_being_written_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    write = episodes.write

    def look(*arguments: Any) -> None:
        write(*arguments)
        seen.append((library.list_local_datasets(), list_local_namespaces()))

    monkeypatch.setattr(episodes, "write", look)
    minari.save(small(), ID, force=False)
    assert seen == [({}, [])]


@pytest.mark.parametrize("signal", [SIGKILL, SIGTERM])
def test_a_killed_save_shows_nothing_and_the_next_save_cleans_up(minari_store: Path, signal: Signals) -> None:
    kill_while_saving(f"minari:{ID}", signal)
    assert any("main_data.hdf5" in name for name in leftovers(minari_store))
    assert library.list_local_datasets() == {}
    assert list_local_namespaces() == []
    with pytest.raises(InputError, match="is not in the local store"):
        minari.load(ID)
    minari.save(small(), ID, force=False)
    assert leftovers(minari_store) == [
        "lab",
        "lab/hopper",
        "lab/hopper/namespace_metadata.json",
        "lab/hopper/tiny-v0",
        "lab/hopper/tiny-v0/data",
        "lab/hopper/tiny-v0/data/main_data.hdf5",
        "lab/hopper/tiny-v0/data/metadata.json",
        "lab/namespace_metadata.json",
    ]


def test_a_set_whose_replacement_was_killed_between_the_two_renames_comes_back(
    minari_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari.save(small(), ID, force=False)
    kill_while_saving(f"minari:{ID}", SIGKILL)
    (workspace,) = (minari_store / "lab" / "hopper").glob(".trajstitch-*")
    (workspace / "replaced").mkdir()
    (minari_store / ID).rename(workspace / "replaced" / "tiny-v0")
    minari.save(small()[[0]], "lab/hopper/other-v0", force=False)
    assert minari.load(ID).equals(small())
    assert not workspace.exists()


@pytest.mark.parametrize("room", [500, 600_000, None])
def test_a_full_disk_is_said_and_nothing_half_made_stays(minari_store: Path, room: int | None) -> None:
    if room is None:
        minari.save(two_megabytes(), ID, force=False)
        room = (minari_store / ID / "data" / "main_data.hdf5").stat().st_size - 1
        shutil.rmtree(minari_store / "lab")
    assert "the disk is full; nothing was written" in save_with_little_room(f"minari:{ID}", room)
    assert leftovers(minari_store) == []


def test_a_really_full_disk_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with tiny_disk() as disk:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(disk))
        assert "the disk is full; nothing was written" in save_to_a_full_disk(f"minari:{ID}")
        assert leftovers(disk) == []


def test_no_permission_is_said(minari_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari.save(small(), ID, force=False)
    for path in (minari_store / ID / "data").iterdir():
        path.chmod(0)
    for folder in (tmp_path, minari_store, *minari_store.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o555)
    for folder in tmp_path.parents:
        if "pytest" not in str(folder):
            break
        folder.chmod(0o755)
    with as_nobody():
        with pytest.raises(InputError, match="no permission to read"):
            minari.load(ID)
        with pytest.raises(InputError, match="no permission to write"):
            minari.save(small(), "lab/hopper/new-v0", force=False)
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
        with pytest.raises(InputError, match="name another folder in MINARI_DATASETS_PATH"):
            minari.save(small(), ID, force=False)


def test_saving_and_loading_go_through_the_front_door() -> None:
    formats.save(small(), f"minari:{ID}")
    assert formats.load(f"minari:{ID}").equals(small())
