"""Tables: what we write comes back, real logs are understood, and every bad row is named."""

import gzip
import re
import resource
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from gymnasium.spaces import Box
from hypothesis import given

from strategies import trajectories
from trajstitch import formats
from trajstitch.data.trajectories import Finding, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import table, table_writing
from trajstitch.formats.spellings import SPELLINGS
from trajstitch.formats.table import Columns

LOG = """\
episode,step,obs_x,obs_v,action_force,reward,terminated,truncated
a,0,0.0,1.0,0.5,1,0,0
a,1,0.1,1.5,0.25,2,0,0
a,2,0.2,2.0,,,,
b,0,5.0,0.0,-0.5,3,0,0
b,1,6.0,0.0,-0.25,4,1,0
b,2,7.0,0.0,,,,
"""


def load(folder: Path, text: str, columns: Columns | None = None, name: str = "log.csv") -> Trajectories:
    (folder / name).write_text(text)
    return table.load(str(folder / name), columns)


def load_parquet(folder: Path, content: dict[str, Any], columns: Columns | None = None) -> Trajectories:
    pyarrow.parquet.write_table(pa.table(content), folder / "log.parquet")
    return table.load(str(folder / "log.parquet"), columns)


# What we write


@given(trajectories(dtypes=(np.float16, np.float32, np.float64), empty_episodes=True))
def test_parquet_keeps_everything(tmp_path_factory: pytest.TempPathFactory, data: Trajectories) -> None:
    path = tmp_path_factory.getbasetemp() / "round.parquet"
    table.save(data, str(path), force=True)
    again = table.load(str(path))
    assert again.equals(data)
    assert again.metadata == replace(data.metadata, source=f"table:{path}")
    assert (again.provenance is None) == (data.provenance is None)
    if data.provenance is not None and again.provenance is not None:
        for item in fields(Provenance):
            stored, kept = getattr(data.provenance, item.name), getattr(again.provenance, item.name)
            assert kept.dtype == stored.dtype
            np.testing.assert_array_equal(kept, stored)


@given(trajectories(dtypes=(np.float16, np.float32, np.float64), empty_episodes=True))
def test_csv_keeps_every_value_exactly(tmp_path_factory: pytest.TempPathFactory, data: Trajectories) -> None:
    path = tmp_path_factory.getbasetemp() / "round.csv"
    table.save(data, str(path), force=True)
    again = table.load(str(path))
    for name in ("observations", "actions", "rewards"):
        wide = getattr(data, name).astype(np.float64)
        assert getattr(again, name).dtype == np.float64
        assert getattr(again, name).tobytes() == wide.tobytes()
    for name in ("terminated", "truncated", "offsets"):
        assert np.array_equal(getattr(again, name), getattr(data, name))
    if data.provenance is not None and again.provenance is not None:
        for item in fields(Provenance):
            np.testing.assert_array_equal(getattr(again.provenance, item.name), getattr(data.provenance, item.name))
    assert (again.provenance is None) == (data.provenance is None)


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.csv.gz", "log.parquet", "log.pq"])
def test_blocks_join_without_a_seam_in_every_kind_of_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    random = np.random.default_rng(0)
    offsets = np.array([0, 7, 8, 8, 20])
    data = Trajectories(
        random.normal(size=(24, 3)),
        random.normal(size=(20, 2)),
        random.normal(size=20),
        random.random(20) < 0.3,
        random.random(20) < 0.3,
        offsets,
    )
    monkeypatch.setattr(table_writing, "BLOCK", 5)
    table.save(data, str(tmp_path / name), force=False)
    assert table.load(str(tmp_path / name)).equals(data)


def test_a_csv_of_ours_reads_like_a_log(tmp_path: Path) -> None:
    data = load(tmp_path, LOG)
    table.save(data, str(tmp_path / "ours.csv"), force=False)
    lines = (tmp_path / "ours.csv").read_text().splitlines()
    assert lines[0].replace('"', "") == LOG.partition("\n")[0]
    assert lines[1].replace('"', "") == "a,0,0,1,0.5,1,false,false"
    assert lines[3].replace('"', "") == "a,2,0.2,2,,,,"
    assert table.load(str(tmp_path / "ours.csv")).equals(data)


def test_nan_and_infinity_survive_and_are_refused_with_their_place(tmp_path: Path) -> None:
    data = load(tmp_path, LOG)
    broken = data.rewards.copy()
    broken[3] = np.nan
    data = replace(data, rewards=broken)
    for name in ("bad.csv", "bad.parquet"):
        table.save(data, str(tmp_path / name), force=False)
        assert formats.load(f"table:{tmp_path / name}", allow_nonfinite=True).equals(data)
        with pytest.raises(InputError, match="rewards hold a NaN or infinite value in episode 'b', step 1"):
            formats.load(f"table:{tmp_path / name}")


def test_columns_get_the_names_asked_for_and_parquet_remembers_them(tmp_path: Path) -> None:
    data = load(tmp_path, LOG)
    names = Columns(episode=("run",), observations=("position", "speed"), actions=("u*",), reward="gain")
    table.save(data, str(tmp_path / "named.parquet"), force=False, columns=names)
    header = pyarrow.parquet.read_schema(tmp_path / "named.parquet").names
    assert header == ["run", "step", "position", "speed", "u0", "gain", "terminated", "truncated"]
    assert table.load(str(tmp_path / "named.parquet")).equals(data)


def test_what_the_user_says_comes_before_what_our_file_says(tmp_path: Path) -> None:
    names = Columns(observations=("position", "speed"), actions=("u",), reward="gain")
    table.save(load(tmp_path, LOG), str(tmp_path / "named.parquet"), force=False, columns=names)
    data = table.load(str(tmp_path / "named.parquet"), Columns(observations=("speed",), action_low=(-2,)))
    assert data.observation_size == 1
    assert data.rewards.tolist() == [1, 2, 3, 4]
    assert data.metadata.action_space == Box(-2, np.inf, (1,), np.float64)


def test_damaged_metadata_of_ours_is_said(tmp_path: Path) -> None:
    content = pa.table({"obs": [1.0]}).replace_schema_metadata({"trajstitch": "{}"})
    pyarrow.parquet.write_table(content, tmp_path / "log.parquet")
    with pytest.raises(InputError, match="its metadata is damaged"):
        table.load(str(tmp_path / "log.parquet"))


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (Columns(observations=("x",)), "names 1 columns, but there are 2"),
        (Columns(reward="episode"), "two columns would be named 'episode'"),
    ],
)
def test_names_that_do_not_fit_are_refused(tmp_path: Path, columns: Columns, complaint: str) -> None:
    data = load(tmp_path, LOG)
    with pytest.raises(InputError, match=complaint):
        table.save(data, str(tmp_path / "named.csv"), force=False, columns=columns)
    assert not (tmp_path / "named.csv").exists()


def test_an_existing_file_is_only_replaced_by_force(tmp_path: Path) -> None:
    data = load(tmp_path, LOG)
    with pytest.raises(InputError, match="exists already"):
        table.save(data, str(tmp_path / "log.csv"), force=False)
    with pytest.raises(InputError, match="exists already"):
        table.require_free(str(tmp_path / "log.csv"), force=False)
    assert (tmp_path / "log.csv").read_text() == LOG
    table.save(data, str(tmp_path / "log.csv"), force=True)
    assert table.load(str(tmp_path / "log.csv")).equals(data)


def test_a_name_without_a_known_ending_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"name of a table to write must end in \.parquet or \.csv"):
        table.require_free(str(tmp_path / "log.xlsx"), force=False)


@pytest.mark.parametrize("name", ["full.csv", "full.csv.gz", "full.parquet"])
def test_a_full_disk_is_said_and_nothing_half_made_stays(tmp_path: Path, name: str) -> None:
    data = load(tmp_path, LOG)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(InputError, match="the disk is full; nothing was written"):
            table.save(data, str(tmp_path / name), force=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.csv"]


# What others write


def test_a_last_row_without_an_action_is_where_the_episode_ended(tmp_path: Path) -> None:
    data = load(tmp_path, LOG)
    assert data.lengths.tolist() == [2, 2]
    assert data.observations.tolist() == [[0, 1], [0.1, 1.5], [0.2, 2], [5, 0], [6, 0], [7, 0]]
    assert data.actions[:, 0].tolist() == [0.5, 0.25, -0.5, -0.25]
    assert data.rewards.tolist() == [1, 2, 3, 4]
    assert data.episode_terminated.tolist() == [False, True]
    assert data.metadata.name == "log"
    assert [finding.detail for finding in data.metadata.findings] == [
        "guessed: observations = obs_x, obs_v",
    ]


def test_a_flag_on_the_last_observation_belongs_to_the_step_before_it(tmp_path: Path) -> None:
    moved = LOG.replace("a,2,0.2,2.0,,,,", "a,2,0.2,2.0,,,0,1")
    data = load(tmp_path, moved)
    assert data.episode_truncated.tolist() == [True, False]
    assert data.truncated.tolist() == [False, True, False, False]


def test_without_labels_a_row_without_an_action_ends_an_episode(tmp_path: Path) -> None:
    text = "\n".join(",".join(line.split(",")[2:]) for line in LOG.splitlines()) + "\n"
    assert "episode" not in text
    assert load(tmp_path, text).equals(load(tmp_path, LOG))


def test_an_episode_whose_end_was_not_recorded_keeps_its_last_step_with_an_unknown_next_state(tmp_path: Path) -> None:
    data = load(tmp_path, LOG.replace("a,2,0.2,2.0,,,,\n", ""))
    assert data.lengths.tolist() == [2, 2]
    assert data.rewards.tolist() == [1, 2, 3, 4]
    assert data.next_known.tolist() == [True, False, True, True]
    assert first_column(data) == [0, 0.1, None, 5, 6, 7]


PLAIN = """\
run;time;x;thrust;gain;crashed;late
r1;2024-01-01T00:00:02;1;0.1;1;no;no
r2;2024-01-01T00:00:00;7;0.3;5;no;no
r1;2024-01-01T00:00:01;0;0.2;2;no;no
r2;2024-01-01T00:00:01;8;0.4;6;no;yes
r1;2024-01-01T00:00:03;2;0.5;3;yes;no
"""
MAPPING = Columns(
    episode=("run",),
    step="time",
    observations=("x",),
    actions=("thrust",),
    reward="gain",
    terminated="crashed",
    truncated="late",
)


def first_column(data: Trajectories) -> list[float | None]:
    """The first number of each observation; None for a state that was not recorded."""
    return [None if np.isnan(number) else number for number in data.observations[:, 0].tolist()]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PLAIN.replace("x", "T [°C]").encode("cp1252"), "its header is not UTF-8 text: save it as UTF-8"),
        (PLAIN.replace("r1", "Öl 1").encode("cp1252"), "is not UTF-8 text: save it as UTF-8"),
    ],
)
def test_a_file_of_other_text_than_utf8_says_so(tmp_path: Path, text: bytes, says: str) -> None:
    (tmp_path / "log.csv").write_bytes(text)
    with pytest.raises(InputError, match=says):
        formats.load(f"table:{tmp_path}/log.csv", columns=MAPPING)


def test_decimal_commas_are_read_where_no_comma_separates(tmp_path: Path) -> None:
    commas = load(tmp_path, PLAIN.replace("0.", "0,").replace(";7;", ";-7,5e1;"), MAPPING)
    points = load(tmp_path, PLAIN.replace(";7;", ";-7.5e1;"), MAPPING)
    assert commas.equals(points)
    notes = [finding.detail for finding in commas.metadata.findings if finding.check == "decimals"]
    assert notes == ["numbers are read with a decimal comma, as in 20,5"]
    assert not any(finding.check == "decimals" for finding in points.metadata.findings)


def test_a_few_commas_among_points_are_cells_to_repair(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 2 holds '0,3' in column 'thrust', which is not a number;"):
        load(tmp_path, PLAIN.replace("0.3", "0,3"), MAPPING)
    with pytest.raises(InputError, match=r"row 1 holds '1\.0' in column 'gain', which is not a number"):
        load(tmp_path, PLAIN.replace("0.", "0,").replace("0,1;1;", "0,1;1.0;"), MAPPING)


def test_scattered_rows_are_put_together_by_label_and_time(tmp_path: Path) -> None:
    data = load(tmp_path, PLAIN, MAPPING)
    assert data.lengths.tolist() == [3, 2]
    assert first_column(data) == [0, 1, 2, None, 7, 8, None]
    assert data.rewards.tolist() == [2, 1, 3, 5, 6]
    assert data.episode_terminated.tolist() == [True, False]
    assert data.episode_truncated.tolist() == [False, True]
    assert {finding.check for finding in data.metadata.findings} == {"order", "continuity"}


def test_without_a_step_column_the_files_order_counts(tmp_path: Path) -> None:
    data = load(tmp_path, PLAIN.replace("yes", "no").replace("time", "clock"), replace(MAPPING, step=None))
    assert first_column(data) == [1, 0, 2, None, 7, 8, None]


@pytest.mark.parametrize("zone", ["", "Z"])
def test_times_may_have_a_zone(tmp_path: Path, zone: str) -> None:
    text = "\n".join(line.replace(";", f"{zone};", 2).replace(f"{zone};", ";", 1) for line in PLAIN.splitlines())
    text = text.replace(f"time{zone}", "time")
    assert load(tmp_path, text, MAPPING).equals(load(tmp_path, PLAIN, MAPPING))


def test_several_columns_together_name_an_episode(tmp_path: Path) -> None:
    text = "robot,run,t,s,a,r\nA,0,0,1,1,1\nB,0,0,2,2,2\nA,0,1,3,3,3\nB,0,1,4,4,4\nA,1,0,5,5,5\nA,1,1,6,6,6\n"
    columns = Columns(episode=("robot", "run"), step="t", observations=("s",), actions=("a",), reward="r")
    assert first_column(load(tmp_path, text, columns)) == [1, 3, None, 2, 4, None, 5, 6, None]
    with pytest.raises(InputError, match="rows 1 and 2 are the same step of the same episode"):
        load(tmp_path, text, replace(columns, episode=("run",)))


def test_end_flags_alone_divide_the_rows(tmp_path: Path) -> None:
    text = "obs,action,reward,done,next_obs\n0,1,1,False,1\n1,1,1,True,2\n7,1,1,False,8\n8,1,1,True,9\n"
    data = load(tmp_path, text)
    assert data.lengths.tolist() == [2, 2]
    assert data.observations[:, 0].tolist() == [0, 1, 2, 7, 8, 9]
    assert data.terminated.tolist() == [False, True, False, True]
    assert "time-outs can't be told" in data.metadata.findings[-1].detail


def test_labels_without_end_columns_leave_the_ends_open_and_say_so(tmp_path: Path) -> None:
    data = load(tmp_path, "episode,obs,action,reward\n0,1,1,1\n0,2,1,1\n1,3,1,1\n1,4,1,1\n")
    assert data.lengths.tolist() == [2, 2]
    assert not (data.terminated | data.truncated).any()
    assert any(finding.check == "ends" for finding in data.metadata.findings)


def test_vectors_in_parquet_columns_are_read_as_lerobot_writes_them(tmp_path: Path) -> None:
    states = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    data = load_parquet(
        tmp_path,
        {
            "observation.state": pa.array(states, pa.list_(pa.float32(), 2)),
            "action": pa.array([[0.5], [0.25], [0.5], [0.25]], pa.list_(pa.float32())),
            "next.reward": pa.array([1, 2, 3, 4], pa.float32()),
            "next.done": [False, True, False, True],
            "episode_index": [0, 0, 1, 1],
            "frame_index": [0, 1, 0, 1],
            "task": ["push", "push", "push", "push"],
        },
    )
    assert data.observations[data.state_rows].tolist() == states
    assert data.observations.dtype == data.actions.dtype == np.float32
    assert data.lengths.tolist() == [2, 2]
    assert Finding("left out", "note", "columns that are not used: task") in data.metadata.findings


def test_columns_of_different_types_meet_in_the_widest(tmp_path: Path) -> None:
    content = {
        "episode": [0, 0],
        "observation_a": pa.array([1, 2], pa.float32()),
        "observation_b": pa.array([True, False]),
        "action": pa.array([1, 2], pa.int64()),
        "reward": pa.array([1, 2], pa.decimal128(5, 2)),
    }
    data = load_parquet(tmp_path, content)
    assert data.observations.dtype == np.float32
    assert data.actions.dtype == data.rewards.dtype == np.float64
    assert data.observations[:-1].tolist() == [[1, 1], [2, 0]]


def test_numbered_columns_are_put_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"obs_{number}" for number in (0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9)]
    header = ",".join([*names, "action", "reward", "episode"])
    row = ",".join([name.removeprefix("obs_") for name in names] + ["1", "1", "0"])
    for columns in (None, Columns(observations=("obs_*",))):
        assert load(tmp_path, f"{header}\n{row}\n{row}\n", columns).observations[0].tolist() == list(range(11))


def test_a_log_that_starts_with_whole_numbers_may_go_on_with_others(tmp_path: Path) -> None:
    rows = "".join(f"0,{row},1,1\n" for row in range(200_000))
    data = load(tmp_path, f"episode,obs,action,reward\n{rows}0,0.5,0.5,0.5\n0,1,1,1\n")
    assert data.observations[-3:-1, 0].tolist() == [0.5, 1]


def test_spaces_byte_order_marks_and_compression_do_no_harm(tmp_path: Path) -> None:
    spaced = "\ufeff" + LOG.replace(",", ", ").replace("\n", "\r\n")
    assert load(tmp_path, spaced).equals(load(tmp_path, LOG))
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(LOG.encode()))
    assert table.load(str(tmp_path / "log.csv.gz")).equals(load(tmp_path, LOG))


def test_what_the_user_knows_of_the_log_becomes_metadata(tmp_path: Path) -> None:
    known = Columns(environment="Hopper-v5", action_low=(-1,), action_high=(2,))
    metadata = load(tmp_path, LOG, known).metadata
    assert metadata.environment is not None
    assert '"Hopper-v5"' in metadata.environment
    assert metadata.action_space == Box(-1, 2, (1,), np.float64)


@pytest.mark.parametrize(
    ("known", "complaint"),
    [
        (Columns(action_low=(1,), action_high=(-1,)), "the lowest action must be below the highest"),
        (Columns(action_low=(-1, -1, -1)), "3 lowest and 1 highest values don't go with 1 actions"),
        (Columns(environment="Hoper-v5"), r"unknown environment 'Hoper-v5' \(did you mean 'Hopper-v5'\?\)"),
    ],
)
def test_wrong_knowledge_is_refused(tmp_path: Path, known: Columns, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        load(tmp_path, LOG, known)


# Which column is what


def test_a_toml_file_names_the_columns(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(
        'episode = "run"\nstep = "time"\nobservations = ["x"]\nactions = "thrust"\nreward = "gain"\n'
        'terminated = "crashed"\ntruncated = "late"\naction_low = -1\naction_high = [1.5]\n'
    )
    columns = Columns.from_toml(tmp_path / "columns.toml")
    assert columns == replace(MAPPING, action_low=(-1,), action_high=(1.5,))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('rewards = "r"', r"unknown key 'rewards' \(did you mean 'reward'\?\): the keys are episode, step"),
        ("reward = 3", "reward = 3 must be text"),
        ('reward = ["a", "b"]', r"reward = \['a', 'b'\] must be text"),
        ("observations = [1]", r"observations = \[1\] must be text or a list of text"),
        ('action_low = "low"', "action_low = 'low' must be numbers or a list of numbers"),
        ("action_low = true", "action_low = True must be numbers"),
        ("reward =", r"columns\.toml: is not a TOML file"),
    ],
)
def test_a_slip_in_the_toml_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "columns.toml").write_text(text)
    with pytest.raises(InputError, match=complaint):
        Columns.from_toml(tmp_path / "columns.toml")
    with pytest.raises(InputError, match="no such file"):
        Columns.from_toml(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("header", "columns", "complaint"),
    [
        (
            "x,action,reward",
            None,
            r"which columns are the observations: name them with `columns\.observations`",
        ),
        ("obs,u,reward", None, r"which columns are the actions: .* `columns\.actions`; the file has obs, u, reward"),
        ("obs,action,gain", None, r"which column is the reward: name it with `columns\.reward`"),
        ("obs_0,state_0,action,reward", None, r"obs_0 and state_0 all look like the observations: choose with"),
        ("obs,action,reward", Columns(reward="rewrd"), r"no column 'rewrd' \(did you mean 'reward'\?\)"),
        ("obs,action,reward", Columns(observations=("joint_*",)), r"has no column 'joint_\*'"),
        ("obs,action,reward", Columns(observations=("obs", "action")), r"'action' is named more than once, for obser"),
        ("obs,action,reward", Columns(observations=("obs", "obs")), r"'obs' is named more than once"),
        ("obs,action,reward,reward", None, r"has 2 columns named 'reward': rename all but one"),
        ("r1,r2,obs,action", Columns(reward="r*"), r"reward is one column, but r1, r2 match 'r\*'"),
        ("obs_0,obs_1,action,reward,next_obs", None, r"1 next_observations don't go with 2 observations"),
    ],
)
def test_columns_that_can_not_be_told_are_an_error_that_says_which_flag_to_use(
    tmp_path: Path, header: str, columns: Columns | None, complaint: str
) -> None:
    row = ",".join("1" for _ in header.split(","))
    with pytest.raises(InputError, match=complaint) as error:
        load(tmp_path, f"{header}\n{row}\n{row}\n", columns)
    assert "\n" not in str(error.value)


# Bad files: one line each


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("a,1,0.1,", "a,1,oops,", r"row 2 holds 'oops' in column 'obs_x', which is not a number"),
        ("a,1,0.1,", "a,1,,", r"row 2 holds nothing in column 'obs_x'"),
        ("b,0,5.0,0.0,-0.5,3,0,0", "b,0,5.0,0.0,,3,0,0", r"row 4 holds nothing in column 'action_force'"),
        ("b,0,5.0,0.0,-0.5,3,0,0", "b,0,5.0,0.0,-0.5,,0,0", r"row 4 holds nothing in column 'reward'"),
        ("b,0,5.0,0.0,-0.5,3,0,0", "b,0,5.0,0.0,-0.5,3,,0", r"row 4 holds nothing in column 'terminated'"),
        (
            "b,0,5.0,0.0,-0.5,3,0,0",
            "b,0,5.0,0.0,,,0,0",
            r"row 4 holds no action and no reward, yet its episode goes on",
        ),
        ("b,0,5.0", ",0,5.0", r"row 4 holds nothing in column 'episode'"),
        ("b,0,5.0", "b,,5.0", r"row 4 holds nothing in column 'step'"),
        ("b,0,5.0", "b,soon,5.0", r"column 'step' holds neither numbers nor ISO times"),
        ("4,1,0", "4,maybe,0", r"column 'terminated' holds 'maybe': flags are true or false"),
        ("b,2,7.0,0.0,,,,", "b,2,7.0", r"row 6 has 3 values for 8 columns: the file is damaged or cut short"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in LOG
    with pytest.raises(InputError, match=complaint) as error:
        load(tmp_path, LOG.replace(old, new))
    assert "\n" not in str(error.value)
    assert "log.csv" in str(error.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"reward": pa.array(["a", "b"])}, r"column 'reward' holds string values, not numbers"),
        ({"obs": pa.array([[1.0], [1.0, 2.0]])}, r"column 'obs' holds list<.*> values of 2 lengths"),
        ({"done": pa.array([0, 2])}, r"column 'done' is 2 in row 2"),
        (
            {"action": pa.array([1.0, None]), "reward": pa.array([1.0, None]), "next_obs": [1.0, 2.0]},
            r"leave one of the",
        ),
        ({"obs": pa.array([], pa.float64())}, r"holds no rows, so no episodes"),
    ],
)
def test_a_bad_parquet_column_is_named(tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    good: dict[str, Any] = {"obs": [1.0, 2.0], "action": [1.0, 1.0], "reward": [1.0, 1.0], "done": [False, True]}
    if "holds no rows" in complaint:
        content = {name: pa.array([], pa.float64()) for name in good}
    with pytest.raises(InputError, match=complaint):
        load_parquet(tmp_path, {**good, **content})


def truncate_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"obs": np.arange(1000.0)}), path)
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("name", "make", "complaint"),
    [
        ("log.csv", lambda path: None, "no such file"),
        ("log.csv", lambda path: path.mkdir(), "is a folder"),
        ("log.csv", lambda path: path.write_bytes(b""), "log.csv: is empty"),
        ("log.csv", lambda path: path.write_bytes(b"\x7fELF\0\0\0"), "is neither a CSV nor a Parquet file"),
        ("log.csv", lambda path: path.write_text("obs,action,reward\n"), "holds no rows"),
        ("log.csv.gz", lambda path: path.write_bytes(gzip.compress(LOG.encode() * 99)[:-40]), "copy or download"),
        ("log.parquet", lambda path: path.write_text(LOG), "is not a whole Parquet file"),
        ("log.parquet", lambda path: path.write_bytes(b""), "is not a whole Parquet file"),
        ("log.parquet", truncate_parquet, "is not a whole Parquet file"),
    ],
)
def test_files_that_are_no_tables_get_one_clear_line(
    tmp_path: Path, name: str, make: Callable[[Path], Any], complaint: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(InputError, match=complaint) as error:
        table.load(str(tmp_path / name))
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    content = {name: np.random.default_rng(0).random(1000) for name in ("obs", "action", "reward")}
    pyarrow.parquet.write_table(
        pa.table({**content, "episode": np.zeros(1000, int)}), path, use_dictionary=False, compression="gzip"
    )
    damaged = bytearray(path.read_bytes())
    damaged[200:220] = bytes(20)
    path.write_bytes(bytes(damaged))
    with pytest.raises(InputError, match="column 'obs' is damaged"):
        table.load(str(path))


# The documentation


def documented(language: str) -> str:
    """The only block of this language in the page about formats."""
    page = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
    (block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return block


def test_the_documented_mapping_reads_a_log_with_those_columns(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(documented("toml"))
    columns = Columns.from_toml(tmp_path / "columns.toml")
    assert columns.episode == ("robot", "run")
    header = "robot,run,time,x,y,joint_0,motor_0,gain,crashed,time_limit"
    data = load(tmp_path, f"{header}\nA,1,0,0,0,0,0.5,1,no,no\nA,1,1,1,1,1,0.5,2,no,yes\n", columns)
    assert data.steps == 2
    assert data.truncated.tolist() == [False, True]


def test_the_documented_table_is_one_of_ours(tmp_path: Path) -> None:
    data = load(tmp_path, documented("csv"))
    table.save(data, str(tmp_path / "again.csv"), force=False)
    again = pyarrow.csv.read_csv(tmp_path / "again.csv")
    assert again.equals(pyarrow.csv.read_csv(tmp_path / "log.csv").cast(again.schema))


def test_every_spelling_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "formats.md").read_text()
    assert all(f"`{name}`" in page for names in SPELLINGS.values() for name in names)


@pytest.mark.parametrize("time", ["inf", "-inf", "1e300"])
def test_times_without_end_are_none(time, tmp_path):
    rows = "".join(f"{time if row == 5 else row},{row // 6},{row},1,1,{row % 6 == 5}\n" for row in range(12))
    with pytest.raises(InputError, match=r"holds .* in row 6, which is no time"):
        load(tmp_path, f"step,episode,obs,act,reward,done\n{rows}")
    data = load(tmp_path, f"time,episode,obs,act,reward,done\n{rows}")
    assert data.labels is None or data.labels.times is None
