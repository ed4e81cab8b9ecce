"""D4RL files: D4RL's own layouts are understood, ours lose nothing and mislead no D4RL reader."""

import json
from dataclasses import fields, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings

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
from trajstitch.data import environments
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import d4rl, rows


def v2() -> dict[str, Any]:
    """Two episodes of three rows, as D4RL stores them: the first terminates, the second times out."""
    numbers = np.arange(6, dtype=np.float32)
    states = np.stack([numbers, -numbers], axis=1)
    reached = states + np.array([1, -1], np.float32)
    states[3:] += 100
    reached[3:] += 100
    return {
        "observations": states,
        "actions": numbers[:, None] / 10,
        "rewards": numbers * 2,
        "terminals": numbers == 2,
        "timeouts": numbers == 5,
        "next_observations": reached,
    }


def write(path: Path, arrays: dict[str, Any], **options: Any) -> str:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)
    return str(path)


def without(*names: str, **added: Any) -> dict[str, Any]:
    return {name: values for name, values in v2().items() if name not in names} | added


def small(**changes: Any) -> Trajectories:
    return Trajectories(
        **{
            "observations": np.arange(14.0).reshape(7, 2),
            "actions": np.zeros((5, 1)),
            "rewards": np.arange(5.0),
            "terminated": np.array([0, 1, 0, 0, 0], bool),
            "truncated": np.zeros(5, bool),
            "offsets": np.array([0, 2, 5]),
            **changes,
        }
    )


# Our own files


@settings(max_examples=60, deadline=None)
@given(trajectories(dtypes=(np.float16, np.float32, np.float64)))
def test_a_round_trip_keeps_everything(tmp_path_factory: pytest.TempPathFactory, data: Trajectories) -> None:
    path = tmp_path_factory.getbasetemp() / "round.hdf5"
    d4rl.save(data, str(path), force=True)
    again = d4rl.load(str(path))
    assert again.equals(data)
    assert again.metadata == replace(data.metadata, source=f"d4rl:{path}")
    assert (again.provenance is None) == (data.provenance is None)
    if data.provenance is not None and again.provenance is not None:
        for item in fields(Provenance):
            stored, kept = getattr(data.provenance, item.name), getattr(again.provenance, item.name)
            assert kept.dtype == stored.dtype
            np.testing.assert_array_equal(kept, stored)


def test_sets_larger_than_a_block_survive_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    offsets = np.concatenate(([0], np.cumsum(random.integers(1, 9, 50))))
    steps = int(offsets[-1])
    data = Trajectories(
        observations=random.normal(size=(steps + 50, 3)),
        actions=random.normal(size=(steps, 2)),
        rewards=random.normal(size=steps),
        terminated=np.zeros(steps, bool),
        truncated=np.zeros(steps, bool),
        offsets=offsets,
    )
    for block in (1, 2, 7, 64):
        monkeypatch.setattr(rows, "BLOCK", block)
        monkeypatch.setattr(d4rl, "BLOCK", block)
        d4rl.save(data, str(tmp_path / "blocks.hdf5"), force=True)
        assert d4rl.load(str(tmp_path / "blocks.hdf5")).equals(data)


def read_as_d4rl_does(path: str) -> dict[str, np.ndarray]:
    """Every dataset by its name, as `get_dataset` of an offline environment walks the file."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def transitions_as_corl_reads_them(arrays: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """(s, s', done) as the Q-learning reader forms them: s' is the next row, time-outs are skipped."""
    observations = arrays["observations"].astype(np.float32)
    count = len(arrays["rewards"])
    return [
        (observations[i], observations[i + 1], bool(arrays["terminals"][i]))
        for i in range(count - 1)
        if not arrays["timeouts"][i]
    ]


def test_a_d4rl_reader_finds_equally_long_arrays_of_the_right_kinds(tmp_path: Path) -> None:
    data = small(provenance=Provenance.logged(np.array([0, 2, 5])))
    d4rl.save(data, str(tmp_path / "ours.hdf5"), force=False)
    arrays = read_as_d4rl_does(str(tmp_path / "ours.hdf5"))
    kinds = {"observations": "f", "actions": "f", "rewards": "f", "terminals": "b", "timeouts": "b"}
    assert {name: arrays[name].dtype.kind for name in kinds} == kinds
    assert arrays["next_observations"].dtype.kind == "f"
    assert {len(values) for name, values in arrays.items() if not name.startswith("metadata/")} == {5}


def test_a_corl_reader_never_steps_from_one_episode_into_the_next(tmp_path: Path) -> None:
    # The second episode of three ends without a flag.
    data = small(
        observations=np.arange(16.0).reshape(8, 2),
        terminated=np.array([0, 1, 0, 0, 0], bool),
        offsets=np.array([0, 2, 4, 5]),
    )
    d4rl.save(data, str(tmp_path / "ours.hdf5"), force=False)
    read = transitions_as_corl_reads_them(read_as_d4rl_does(str(tmp_path / "ours.hdf5")))
    real = {(*data.observations[row], *data.observations[row + 1]) for row in data.state_rows}
    assert read
    assert all((*state, *following) in real for state, following, done in read if not done)
    assert d4rl.load(str(tmp_path / "ours.hdf5")).equals(data)


def test_no_row_ends_twice_for_readers_that_refuse_that(tmp_path: Path) -> None:
    both = small(truncated=np.array([0, 1, 0, 0, 1], bool))
    d4rl.save(both, str(tmp_path / "ours.hdf5"), force=False)
    arrays = read_as_d4rl_does(str(tmp_path / "ours.hdf5"))
    assert arrays["terminals"].tolist() == [False, True, False, False, False]
    assert arrays["timeouts"].tolist() == [False, False, False, False, True]
    assert d4rl.load(str(tmp_path / "ours.hdf5")).equals(both)


def test_episodes_without_steps_are_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trajstitch")
    data = small(observations=np.arange(16.0).reshape(8, 2), offsets=np.array([0, 2, 2, 5]))
    d4rl.save(data, str(tmp_path / "ours.hdf5"), force=False)
    assert "1 episodes without a step are left out" in caplog.text
    assert d4rl.load(str(tmp_path / "ours.hdf5")).equals(data[[0, 2]])


def test_nothing_but_empty_episodes_is_refused(tmp_path: Path) -> None:
    never = np.zeros(0, bool)
    data = Trajectories(np.zeros((1, 2)), np.zeros((0, 1)), np.zeros(0), never, never, np.array([0, 0]))
    with pytest.raises(InputError, match="no steps"):
        d4rl.save(data, str(tmp_path / "ours.hdf5"), force=False)
    assert leftovers(tmp_path) == []


# D4RL's own files


def test_v2_rows_lose_no_step_and_keep_the_state_each_episode_ended_in(tmp_path: Path) -> None:
    data = d4rl.load(write(tmp_path / "hopper_medium-v2.hdf5", v2()))
    assert data.offsets.tolist() == [0, 3, 6]
    assert data.observations[:, 0].tolist() == [0, 1, 2, 3, 103, 104, 105, 106]
    assert data.episode_terminated.tolist() == [True, False]
    assert data.episode_truncated.tolist() == [False, True]
    assert data.observations.dtype == data.actions.dtype == np.float32


def test_without_next_observations_no_step_is_lost_and_each_final_state_is_unknown(tmp_path: Path) -> None:
    whole = d4rl.load(write(tmp_path / "whole.hdf5", v2()))
    data = d4rl.load(write(tmp_path / "maze.hdf5", without("next_observations")))
    assert data.offsets.tolist() == [0, 3, 6]
    assert data.observations[data.state_rows, 0].tolist() == [0, 1, 2, 103, 104, 105]
    assert data.next_known.tolist() == [True, True, False, True, True, False]
    for name in ("actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(data, name), getattr(whole, name))


def test_v0_files_without_time_outs_are_cut_at_the_tasks_time_limit(tmp_path: Path) -> None:
    steps = 2500
    arrays = {
        "observations": np.arange(steps, dtype=np.float32)[:, None],
        "actions": np.zeros((steps, 1), np.float32),
        "rewards": np.zeros(steps, np.float32),
        "terminals": np.arange(steps) == 1199,
    }
    data = d4rl.load(write(tmp_path / "hopper_medium.hdf5", arrays))
    assert data.lengths.tolist() == [1000, 200, 1000, 300]
    assert data.episode_terminated.tolist() == [False, True, False, False]
    assert data.episode_truncated.tolist() == [True, False, True, False]
    assert "no timeouts" in data.metadata.findings[0].detail
    unknown = d4rl.load(write(tmp_path / "robot.hdf5", arrays))
    assert unknown.lengths.tolist() == [1200, 1300]


@pytest.mark.parametrize("block", [1, 2, 3, 4, 100])
def test_unmarked_breaks_are_cut_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(rows, "BLOCK", block)
    data = d4rl.load(write(tmp_path / "replay.hdf5", without(terminals=np.zeros(6, bool))))
    assert data.offsets.tolist() == [0, 3, 6]
    assert "1 unflagged break" in data.metadata.findings[0].detail
    assert not data.terminated.any()


def test_columns_of_one_number_and_flags_as_numbers_are_understood(tmp_path: Path) -> None:
    plain = d4rl.load(write(tmp_path / "plain.hdf5", v2()))
    odd = {
        **v2(),
        "rewards": v2()["rewards"][:, None],
        "terminals": v2()["terminals"].astype(np.float32)[:, None],
        "timeouts": v2()["timeouts"].astype(np.uint8),
    }
    assert d4rl.load(write(tmp_path / "odd.hdf5", odd)).equals(plain)


def test_compressed_files_load_the_same(tmp_path: Path) -> None:
    plain = d4rl.load(write(tmp_path / "plain.hdf5", v2()))
    assert d4rl.load(write(tmp_path / "packed.hdf5", v2(), compression="gzip")).equals(plain)


def test_the_environment_comes_from_the_files_name(tmp_path: Path) -> None:
    known = d4rl.load(write(tmp_path / "walker2d_medium_replay-v2.hdf5", v2())).metadata
    assert environments.environment_id(known) == "Walker2d-v4"
    assert known.action_space == Box(-1, 1, (1,), np.float32)
    assert known.name == "walker2d_medium_replay-v2"
    assert environments.normalised(4592.3, known) == pytest.approx(100)
    unknown = d4rl.load(write(tmp_path / "robot.hdf5", v2())).metadata
    assert unknown.environment is None
    assert unknown.action_space == Box(-np.inf, np.inf, (1,), np.float32)
    assert d4rl.load(write(tmp_path / "Ant_maze_noisy.hdf5", v2())).metadata.environment is None


def test_what_the_file_says_of_itself_is_kept_and_what_is_not_carried_is_said(tmp_path: Path) -> None:
    more = {
        **v2(),
        "metadata/algorithm": "SAC",
        "metadata/iteration": 600,
        "metadata/policy/weight": np.zeros((2, 2)),
        "infos/qpos": np.zeros((6, 3)),
    }
    metadata = d4rl.load(write(tmp_path / "hopper_medium-v2.hdf5", more)).metadata
    assert metadata.extra == {"algorithm": "SAC", "iteration": 600}
    assert json.dumps(metadata.extra)
    (finding,) = metadata.findings
    assert (finding.check, finding.verdict) == ("infos", "note")
    assert "infos" in finding.detail
    assert "metadata/policy" in finding.detail


# Bad files


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        (without("actions"), r"holds no actions \(it has .*next_observations.*\)"),
        (without("rewards"), "holds no rewards"),
        (without("terminals"), "holds no terminals"),
        (without("observations", **{"observations/a": np.zeros(6)}), "holds no observations"),
        (without(observations=np.zeros(6, np.float32)), r"observations has shape \(6,\): expected one row per step"),
        (without(actions=np.zeros((6, 1, 1), np.float32)), r"actions has shape \(6, 1, 1\)"),
        (without(rewards=np.zeros((6, 2))), r"rewards has shape \(6, 2\): expected one number per step"),
        (without(rewards=0.0), r"rewards has shape \(\)"),
        (without(actions=np.zeros((5, 1))), "actions has 5 rows, but rewards has 6"),
        (without(timeouts=np.zeros(7, bool)), "timeouts has 7 rows, but rewards has 6"),
        (without(next_observations=np.zeros((6, 3))), r"next_observations has shape \(6, 3\), but observations"),
        (without(actions=np.zeros((6, 1), int)), "actions has dtype int64: expected floating-point"),
        (without(observations=np.zeros((6, 2), np.uint8)), "observations has dtype uint8"),
        (without(rewards=np.array([b"a"] * 6)), r"rewards has dtype \|S1: expected numbers"),
        (without(terminals=np.full(6, 2)), "terminals is 2 in row 0"),
        ({name: values[:0] for name, values in v2().items()}, "holds no rows"),
        (without(next_observations=np.full((6, 2), 9.0)), "must be in the order they were logged"),
    ],
)
def test_arrays_that_do_not_fit_get_one_clear_line(tmp_path: Path, arrays: dict[str, Any], complaint: str) -> None:
    path = write(tmp_path / "bad.hdf5", arrays)
    before = Path(path).read_bytes()
    with pytest.raises(InputError, match=complaint) as error:
        d4rl.load(path)
    assert "bad.hdf5" in str(error.value)
    assert "\n" not in str(error.value)
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"observations,actions\n1,2\n" * 100, "is not an HDF5 file"),
        (None, "the file is cut short"),
    ],
)
def test_files_that_are_not_whole_hdf5_get_one_clear_line(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "bad.hdf5"
    if content is None:
        write(path, v2())
        content = path.read_bytes()[:-100]
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint) as error:
        d4rl.load(str(path))
    assert "\n" not in str(error.value)
    assert path.read_bytes() == content


def test_a_missing_file_is_said_with_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "hopper.hdf5", v2())
    with pytest.raises(InputError, match=r"no such file \(did you mean 'hopper.hdf5'\?\)"):
        d4rl.load(str(tmp_path / "hoper.hdf5"))
    with pytest.raises(InputError, match="is a folder"):
        d4rl.load(str(tmp_path))


def test_damaged_metadata_of_ours_is_said(tmp_path: Path) -> None:
    for number, wrong in enumerate(("{", np.zeros(3))):
        path = write(tmp_path / f"{number}.hdf5", {**v2(), "metadata/trajstitch": wrong})
        with pytest.raises(InputError, match="convert the original data again"):
            d4rl.load(path)


def test_no_permission_is_said(tmp_path: Path) -> None:
    with TemporaryDirectory() as folder:
        secret = Path(folder) / "secret.hdf5"
        write(secret, v2())
        secret.chmod(0)
        Path(folder).chmod(0o555)
        with as_nobody():
            with pytest.raises(InputError, match="no permission to read"):
                d4rl.load(str(secret))
            with pytest.raises(InputError, match="no permission to write"):
                d4rl.save(small(), f"{folder}/new.hdf5", force=False)
        Path(folder).chmod(0o755)
        assert leftovers(Path(folder)) == ["secret.hdf5"]


# Writing whole or not at all


def test_an_existing_file_is_only_replaced_by_force(tmp_path: Path) -> None:
    path = tmp_path / "kept.hdf5"
    path.write_text("precious")
    for attempt in (d4rl.require_free, lambda *a, **k: d4rl.save(small(), *a, **k)):
        with pytest.raises(InputError, match="exists already"):
            attempt(str(path), force=False)
    assert path.read_text() == "precious"
    d4rl.save(small(), str(path), force=True)
    assert d4rl.load(str(path)).equals(small())
    assert leftovers(tmp_path) == ["kept.hdf5"]


def test_force_never_replaces_a_folder_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "work.hdf5").mkdir()
    (tmp_path / "work.hdf5" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="is a folder"):
        d4rl.save(small(), str(tmp_path / "work.hdf5"), force=True)
    assert leftovers(tmp_path) == ["work.hdf5", "work.hdf5/thesis.tex"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept.hdf5"
    path.write_text("precious")
    impossible = small(metadata=Metadata(extra={"not JSON": object()}))
    for target in (path, tmp_path / "new" / "folder" / "data.hdf5"):
        with pytest.raises(TypeError):
            d4rl.save(impossible, str(target), force=True)
    assert path.read_text() == "precious"
    assert leftovers(tmp_path) == ["kept.hdf5"]


@pytest.mark.parametrize("signal", [SIGKILL, SIGTERM])
def test_a_killed_save_leaves_the_old_file_and_the_next_save_cleans_up(tmp_path: Path, signal: Signals) -> None:
    path = tmp_path / "kept.hdf5"
    d4rl.save(small(), str(path), force=False)
    kill_while_saving(f"d4rl:{path}", signal)
    assert d4rl.load(str(path)).equals(small())
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["kept.hdf5"]
    formats.save(small(), f"d4rl:{tmp_path}/next.hdf5")
    assert leftovers(tmp_path) == ["kept.hdf5", "next.hdf5"]


@pytest.mark.parametrize("room", [1_000, 500_000, None])
def test_a_full_disk_is_said_and_nothing_half_made_stays(tmp_path: Path, room: int | None) -> None:
    if room is None:
        whole = tmp_path / "whole.hdf5"
        d4rl.save(two_megabytes(), str(whole), force=False)
        room = whole.stat().st_size - 1
        whole.unlink()
    assert "the disk is full; nothing was written" in save_with_little_room(f"d4rl:{tmp_path}/data.hdf5", room)
    assert leftovers(tmp_path) == []


def test_a_really_full_disk_is_said_too() -> None:
    with tiny_disk() as disk:
        assert "the disk is full; nothing was written" in save_to_a_full_disk(f"d4rl:{disk}/data.hdf5")
        assert leftovers(disk) == []


def test_ant_is_evaluated_with_the_contact_forces_that_d4rl_logged(tmp_path: Path) -> None:
    path = tmp_path / "ant-medium-v2.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["next_observations"] = np.zeros((3, 111)), np.zeros((3, 111))
        file["actions"], file["rewards"] = np.zeros((3, 8)), np.arange(3.0)
        file["terminals"], file["timeouts"] = np.zeros(3, bool), np.array([False, False, True])
    environment = environments.make(d4rl.load(str(path)).metadata)
    assert environment.observation_space.shape == (111,)
