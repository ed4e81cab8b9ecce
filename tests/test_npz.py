"""NPZ: our layout loses nothing, other people's layouts are understood, and bad files get one clear line."""

import json
import resource
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from hypothesis import given

from strategies import trajectories
from trajstitch import formats
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import npz

ROWS = 6


def log() -> dict[str, Any]:
    """Two episodes of three rows: the first terminates, the second is cut off."""
    numbers = np.arange(ROWS, dtype=np.float64)
    return {
        "observations": np.stack([numbers, -numbers], axis=1),
        "actions": numbers[:, None] / 10,
        "rewards": numbers * 2,
        "terminated": numbers == 2,
        "truncated": numbers == 5,
        "next_observations": np.stack([numbers + 1, -numbers - 1], axis=1),
    }


def load(folder: Path, arrays: dict[str, Any]) -> Trajectories:
    np.savez(folder / "log.npz", **arrays)
    return npz.load(str(folder / "log.npz"))


def renamed(**names: str) -> dict[str, np.ndarray]:
    return {names.get(name, name): array for name, array in log().items()}


def without(*names: str, **added: Any) -> dict[str, Any]:
    return {name: array for name, array in log().items() if name not in names} | added


# Our own layout


@given(trajectories(dtypes=(np.float16, np.float32, np.float64), empty_episodes=True))
def test_a_round_trip_keeps_everything(tmp_path_factory: pytest.TempPathFactory, data: Trajectories) -> None:
    path = tmp_path_factory.getbasetemp() / "round.npz"
    npz.save(data, str(path), force=True)
    again = npz.load(str(path))
    assert again.equals(data)
    assert again.metadata == replace(data.metadata, source=f"npz:{path}")
    assert (again.provenance is None) == (data.provenance is None)
    if data.provenance is not None and again.provenance is not None:
        for item in fields(Provenance):
            stored, kept = getattr(data.provenance, item.name), getattr(again.provenance, item.name)
            assert kept.dtype == stored.dtype
            np.testing.assert_array_equal(kept, stored)


def test_what_the_loader_once_found_stays_with_the_data(tmp_path: Path) -> None:
    data = load(tmp_path, without("next_observations"))
    npz.save(data, str(tmp_path / "again.npz"), force=False)
    assert npz.load(str(tmp_path / "again.npz")).metadata.findings == data.metadata.findings != ()


def test_a_dicts_order_which_is_the_order_of_columns_is_kept(tmp_path: Path) -> None:
    space = Dict([("z", Box(-1, 1, (1,))), ("a", Box(-2, 2, (1,)))])
    data = replace(load(tmp_path, log()), metadata=Metadata(observation_space=space))
    npz.save(data, str(tmp_path / "again.npz"), force=False)
    kept = npz.load(str(tmp_path / "again.npz")).metadata.observation_space
    assert isinstance(kept, Dict)
    assert list(kept.spaces) == ["z", "a"]


def test_our_file_is_plain_numpy_with_the_documented_keys(tmp_path: Path) -> None:
    npz.save(load(tmp_path, log()), str(tmp_path / "ours.npz"), force=False)
    with np.load(tmp_path / "ours.npz", allow_pickle=False) as archive:
        assert set(archive) == {"observations", "actions", "rewards", "terminated", "truncated", "offsets", "metadata"}
        assert archive["observations"].shape == (ROWS + 2, 2)
        assert json.loads(str(archive["metadata"]))["name"] == "log"


def test_our_arrays_without_metadata_load_too(tmp_path: Path) -> None:
    whole = load(tmp_path, log())
    arrays = {name: getattr(whole, name) for name in npz.ARRAYS}
    assert load(tmp_path, arrays).equals(whole)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    npz.save(load(tmp_path, log()), str(tmp_path / "ours.npz"), force=False)
    with np.load(tmp_path / "ours.npz") as archive:
        arrays = {name: archive[name] for name in archive if name != "offsets"}
    with pytest.raises(InputError, match="holds no offsets"):
        load(tmp_path, arrays)


@pytest.mark.usefixtures("wrong_types")
def test_an_array_of_another_length_is_named_with_the_file(tmp_path: Path) -> None:
    whole = load(tmp_path, log())
    traced = replace(whole, provenance=Provenance.logged(whole.offsets))
    npz.save(traced, str(tmp_path / "ours.npz"), force=False)
    with np.load(tmp_path / "ours.npz") as archive:
        arrays = dict(archive)
    with pytest.raises(InputError, match=r"log\.npz: provenance: margin has another length"):
        load(tmp_path, {**arrays, "provenance_margin": np.zeros(2)})
    with pytest.raises(InputError, match=r"log\.npz: actions: has 2 rows"):
        load(tmp_path, {**arrays, "actions": np.zeros((2, 1))})


def test_damaged_metadata_is_said(tmp_path: Path) -> None:
    whole = load(tmp_path, log())
    arrays = {name: getattr(whole, name) for name in npz.ARRAYS}
    with pytest.raises(InputError, match="metadata is damaged"):
        load(tmp_path, {**arrays, "metadata": np.array('{"format": "trajstitch 1"}')})
    with pytest.raises(InputError, match="update trajstitch"):
        load(tmp_path, {**arrays, "metadata": np.array('{"format": "trajstitch 99"}')})


def test_an_existing_file_is_only_replaced_by_force(tmp_path: Path) -> None:
    data = load(tmp_path, log())
    target = str(tmp_path / "log.npz")
    before = Path(target).read_bytes()
    for refused in (lambda: npz.save(data, target, force=False), lambda: npz.require_free(target, force=False)):
        with pytest.raises(InputError, match="exists already"):
            refused()
    assert Path(target).read_bytes() == before
    npz.save(data, target, force=True)
    assert npz.load(target).equals(data)


def test_a_full_disk_is_said_and_nothing_half_made_stays(tmp_path: Path) -> None:
    data = load(tmp_path, log())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(InputError, match="the disk is full; nothing was written"):
            npz.save(data, str(tmp_path / "full.npz"), force=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.npz"]


# Other people's


def test_rows_with_next_observations_lose_no_step(tmp_path: Path) -> None:
    data = load(tmp_path, log())
    assert data.lengths.tolist() == [3, 3]
    assert data.observations[:, 0].tolist() == [0, 1, 2, 3, 3, 4, 5, 6]
    assert data.episode_terminated.tolist() == [True, False]
    assert data.metadata.name == "log"
    assert data.metadata.source == f"npz:{tmp_path / 'log.npz'}"


@pytest.mark.parametrize(
    "names",
    [
        {"observations": "obs", "actions": "act", "rewards": "rew", "next_observations": "next_obs"},
        {"observations": "states", "actions": "action", "rewards": "reward", "next_observations": "next_states"},
        {"observations": "state", "terminated": "terminals", "truncated": "timeouts"},
        {"observations": "observation", "terminated": "terminal", "truncated": "timeout"},
        {"terminated": "dones", "truncated": "truncations", "next_observations": "next_state"},
        {"terminated": "done"},
    ],
)
def test_the_usual_spellings_mean_the_same(tmp_path: Path, names: dict[str, str]) -> None:
    plain = load(tmp_path, log())
    spelled = load(tmp_path, renamed(**names))
    assert spelled.equals(plain)
    assert spelled.metadata.findings == ()


@pytest.mark.parametrize(
    ("name", "twin"),
    [("observations", "obs"), ("actions", "act"), ("rewards", "rew"), ("terminated", "terminals")],
)
def test_two_spellings_of_one_thing_are_an_error(tmp_path: Path, name: str, twin: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' and '{twin}' both mean {name}"):
        load(tmp_path, {**log(), twin: log()[name]})


def test_done_alone_counts_as_terminated_and_is_said(tmp_path: Path) -> None:
    data = load(tmp_path, without("terminated", "truncated", done=np.isin(np.arange(ROWS), (2, 5))))
    assert data.episode_terminated.tolist() == [True, True]
    assert not data.truncated.any()
    (finding,) = data.metadata.findings
    assert (finding.check, finding.verdict) == ("ends", "note")
    assert "time-outs can't be told from terminations" in finding.detail


@pytest.mark.parametrize("also_at_timeouts", [False, True])
def test_done_beside_time_outs_means_terminated(tmp_path: Path, also_at_timeouts: bool) -> None:
    done = np.isin(np.arange(ROWS), (2, 5) if also_at_timeouts else (2,))
    assert load(tmp_path, without("terminated", done=done)).equals(load(tmp_path, log()))


def test_done_beside_terminated_tells_the_time_outs(tmp_path: Path) -> None:
    data = load(tmp_path, without("truncated", done=np.isin(np.arange(ROWS), (2, 5))))
    assert data.equals(load(tmp_path, log()))


def test_done_that_contradicts_the_other_flags_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="done contradicts the other end flags, first in row 0"):
        load(tmp_path, {**log(), "done": np.arange(ROWS) == 0})
    with pytest.raises(InputError, match="done contradicts the other end flags, first in row 2"):
        load(tmp_path, without("truncated", done=np.arange(ROWS) == 5))


@pytest.mark.parametrize(
    "divider",
    [
        {"episode": np.array([7, 7, 7, 2, 2, 2])},
        {"episode_id": np.array(["a", "a", "a", "b", "b", "b"])},
        {"episodes": np.array([[0], [0], [0], [1], [1], [1]])},
        {"offsets": np.array([0, 3, 6])},
        {"episode_ends": np.array([3, 6])},
        {"episode_ends": np.array([2, 5])},
        {"episode_ends": np.isin(np.arange(ROWS), (2, 5))},
        {"episode_starts": np.array([0, 3], np.uint16)},
        {"episode_starts": np.isin(np.arange(ROWS), (0, 3))},
    ],
)
def test_labels_and_boundaries_divide_the_rows(tmp_path: Path, divider: dict[str, np.ndarray]) -> None:
    data = load(tmp_path, without("terminated", "truncated", **divider))
    assert data.offsets.tolist() == [0, 3, 6]
    assert data.observations[:, 0].tolist() == [0, 1, 2, 3, 3, 4, 5, 6]
    assert [finding.detail for finding in data.metadata.findings] == [
        "no end flags: no episode is known to have terminated or been truncated"
    ]


@pytest.mark.parametrize("divider", [{}, {"offsets": np.array([0, 3, 6])}, {"episode": np.arange(ROWS) // 3}])
def test_one_observation_more_for_each_episode_needs_no_next_observations(
    tmp_path: Path, divider: dict[str, np.ndarray]
) -> None:
    whole = load(tmp_path, log())
    arrays = without("next_observations", observations=whole.observations, **divider)
    assert load(tmp_path, arrays).equals(whole)


def test_a_single_episode_needs_no_flags_if_its_last_observation_is_there(tmp_path: Path) -> None:
    states = np.arange(7.0)[:, None]
    data = load(tmp_path, {"obs": states, "act": states[:6], "rew": np.ones(6)})
    assert len(data) == 1
    assert data.steps == 6


def test_scalars_become_columns_and_columns_of_flags_become_flat(tmp_path: Path) -> None:
    arrays = log()
    flat = {
        "observations": arrays["observations"][:, 0],
        "next_observations": arrays["next_observations"][:, 0],
        "actions": arrays["actions"][:, 0],
        "rewards": arrays["rewards"][:, None],
        "terminated": arrays["terminated"][:, None],
        "truncated": arrays["truncated"][:, None].astype(np.float32),
    }
    data = load(tmp_path, flat)
    whole = load(tmp_path, log())
    assert data.observations.shape == (8, 1)
    assert np.array_equal(data.actions, whole.actions)
    assert np.array_equal(data.rewards, whole.rewards)
    assert np.array_equal(data.truncated, whole.truncated)


def test_floats_keep_their_dtype_and_integers_become_exact_floats(tmp_path: Path) -> None:
    arrays = log()
    data = load(tmp_path, {**arrays, "actions": arrays["actions"].astype(np.float16)})
    assert data.actions.dtype == np.float16
    numbers = {name: arrays[name].astype(np.int64) for name in ("observations", "next_observations", "rewards")}
    data = load(tmp_path, {**arrays, **numbers})
    assert data.observations.dtype == data.rewards.dtype == np.float32
    large = arrays["rewards"].astype(np.int64) + (1 << 24)
    data = load(tmp_path, {**arrays, "rewards": large})
    assert data.rewards.dtype == np.float64
    assert data.rewards.tolist() == large.tolist()
    assert load(tmp_path, {**arrays, "rewards": arrays["rewards"].astype(">f8")}).rewards.dtype.isnative


def test_what_is_not_used_is_said(tmp_path: Path) -> None:
    data = load(tmp_path, {**log(), "infos": np.zeros(3), "metadata": np.array("my notes"), "policy": np.zeros(2)})
    assert data.metadata.findings == (Finding("left out", "note", "arrays that are not used: infos, metadata, policy"),)


# Bad files: one line each


@pytest.mark.parametrize("name", ["observations", "actions", "rewards"])
def test_a_missing_key_is_named_with_the_spellings_looked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"log\.npz: holds no {name} \(looked for {name}, .*; it has .*truncated"):
        load(tmp_path, without(name))


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        (without("rewards", rewards=np.zeros(5)), r"actions has 6 rows, but rewards has 5"),
        (without("actions", act=np.zeros((4, 1))), r"act has 4 rows, but rewards has 6"),
        (without("observations", obs=np.zeros((9, 2))), r"next_observations has shape \(6, 2\), but obs has \(9, 2\)"),
        (without("observations", "next_observations", obs=np.zeros((9, 2))), r"obs has 9 rows, but rewards has 6 in 2"),
        (without("next_observations", next_obs=np.zeros((6, 3))), r"next_obs has shape \(6, 3\), but observations has"),
        (without("terminated", done=np.zeros(7, bool)), r"done has 7 rows"),
        ({**log(), "episode": np.zeros(7)}, r"episode has 7 rows"),
        ({**log(), "offsets": np.array([0, 3, 7])}, r"offsets must rise from 0 to the number of steps \(6\)"),
        ({**log(), "offsets": np.array([0, 3, 5])}, r"offsets must rise from 0"),
        ({**log(), "episode_ends": np.array([3.0, 6.0])}, r"episode_ends has dtype float64"),
        ({**log(), "episode_ends": np.zeros(4, bool)}, r"episode_ends has 4 rows for 6 steps"),
        ({**log(), "episode": np.zeros(6), "offsets": np.array([0, 6])}, r"'offsets' and 'episode' both divide"),
        ({**log(), "observations": np.zeros((6, 4, 4, 3), np.uint8)}, r"observations has shape \(6, 4, 4, 3\)"),
        ({**log(), "observations": np.float64(3)}, r"observations has shape \(\)"),
        ({**log(), "rewards": np.zeros((6, 2))}, r"rewards has shape \(6, 2\), not \(rows,\)"),
        ({**log(), "rewards": np.array(["a"] * 6)}, r"rewards has dtype <U1: it must hold numbers"),
        ({**log(), "observations": np.zeros((6, 2), complex)}, r"observations has dtype complex128"),
        ({**log(), "actions": np.zeros(6, np.int64)}, r"actions has dtype int64: discrete actions are not supported"),
        ({**log(), "terminated": np.full(6, 2)}, r"terminated is 2 in row 0: flags are booleans"),
        ({**log(), "terminated": np.full(6, np.nan)}, r"terminated is nan in row 0"),
        ({**log(), "terminated": np.array(["no"] * 6)}, r"terminated has dtype <U2"),
        (without("terminated", "truncated", "next_observations"), r"nothing says where episodes end"),
        (
            {"obs": np.zeros((0, 2)), "act": np.zeros((0, 1)), "rew": np.zeros(0), "done": np.zeros(0, bool)},
            r"holds no rows, so no episodes",
        ),
        ({}, r"holds no rewards \(looked for .*; it has nothing\)"),
    ],
)
def test_arrays_that_do_not_fit_get_one_clear_line(tmp_path: Path, arrays: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as error:
        load(tmp_path, arrays)
    assert "\n" not in str(error.value)
    assert "log.npz" in str(error.value)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    infos = np.array([{"a": 1}], dtype=object)
    with pytest.raises(InputError, match="holds pickled objects"):
        load(tmp_path, {**log(), "rewards": infos})
    kept = load(tmp_path, {**log(), "infos": infos, "metadata": infos})
    assert "infos, metadata" in kept.metadata.findings[0].detail


def make_text(path: Path) -> None:
    path.write_text("observations,actions\n1,2\n")


def make_truncated(path: Path) -> None:
    np.savez(path, **log())
    path.write_bytes(path.read_bytes()[:-200])


def make_corrupt(path: Path) -> None:
    np.savez(path, **log())
    content = bytearray(path.read_bytes())
    content[content.index(log()["rewards"].tobytes())] ^= 255
    path.write_bytes(bytes(content))


def make_single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (make_text, "is not an NPZ file"),
        (lambda path: path.write_bytes(b""), "is not an NPZ file"),
        (make_truncated, "is not a whole NPZ file"),
        (make_single_array, "is a single array, not an NPZ file"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, r"no such file$"),
    ],
)
def test_files_that_are_not_npz_get_one_clear_line(
    tmp_path: Path, make: Callable[[Path], None], complaint: str
) -> None:
    path = tmp_path / "log.npz"
    make(path)
    with pytest.raises(InputError, match=complaint) as error:
        npz.load(str(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    make_corrupt(tmp_path / "log.npz")
    with pytest.raises(InputError, match="is not a whole NPZ file"):
        npz.load(str(tmp_path / "log.npz"))


def test_a_misspelt_file_name_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "hopper.npz").touch()
    with pytest.raises(InputError, match=r"no such file \(did you mean 'hopper\.npz'\?\)"):
        npz.load(str(tmp_path / "hoper.npz"))
    with pytest.raises(InputError, match="there is no folder"):
        npz.load(str(tmp_path / "nowhere" / "hopper.npz"))


def test_no_permission_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="no permission to read it"):
        npz.load(str(tmp_path / "log.npz"))


@pytest.mark.parametrize(
    ("name", "row", "place"),
    [
        ("observations", 4, "episode 1, step 1"),
        ("actions", 5, "episode 1, step 2"),
        ("rewards", 0, "episode 0, step 0"),
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_place(
    tmp_path: Path, name: str, row: int, place: str, value: float
) -> None:
    arrays = log()
    arrays[name][row] = value
    np.savez(tmp_path / "log.npz", **arrays)
    with pytest.raises(InputError, match=f"{name} hold a NaN or infinite value in {place}"):
        formats.load(f"npz:{tmp_path / 'log.npz'}")
    assert formats.load(f"npz:{tmp_path / 'log.npz'}", allow_nonfinite=True).steps == 6
