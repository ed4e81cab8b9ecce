"""A log of one's own: blank cells, gaps, names, times and an environment of the user's."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import plant
import trajstitch
from plant import COLUMNS, FLAGS
from trajstitch import formats
from trajstitch.benchmark.sources import reload_source
from trajstitch.cli import run
from trajstitch.data.labels import Labels, distinct
from trajstitch.data.mend import LONGEST, mend
from trajstitch.data.trajectories import Provenance, Trajectories, concatenate
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.stitching.graph import Edges
from trajstitch.stitching.paths import Jumps, Paths
from trajstitch.storage.runs import Run


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log with one flaw in each of several lots."""
    cells = plant.rows()
    cells[3][2] = ""  # L-7: a blank observation
    cells[12 + 4][5] = "NaN"  # L-8: no reward
    cells[24 + 5][4] = "Bad Input"  # L-9: text for an action
    cells[36 + 6][4] = cells[36 + 6][5] = ""  # L-10: neither action nor reward
    del cells[48 + 7]  # L-11: a row is missing
    return plant.write(tmp_path / "log.csv", cells)


ROLLED_OUT = ("--environment", "plant:Plant-v0")
"""An environment, so that training doesn't end in estimates, which take long."""


def load(uri: str, **options) -> Trajectories:
    return trajstitch.load(uri, columns=COLUMNS, **options)


def names(data: Trajectories) -> list[str]:
    assert data.labels is not None
    assert data.labels.episodes is not None
    return data.labels.episodes.tolist()


# Missing and uneven


def test_a_flawed_log_is_refused_in_one_line_with_counts_and_the_flag(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", log, "npz:out.npz", *FLAGS]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for part in ("1 blank cell (temp [°C] 1)", "'L-7'", "'Bad Input'", "--missing split", "no action and no reward"):
        assert part in line


def test_inspect_shows_everything_that_is_wrong(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", log, "--json", *FLAGS]) == 2
    checks = {one["check"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert {name for name, one in checks.items() if one["verdict"] == "bad"} == {
        "finite values",
        "missing values",
        "time steps",
    }
    assert "row 30 holds 'Bad Input' in column 'valve'" in checks["missing values"]["detail"]
    assert "1 gaps in time" in checks["time steps"]["detail"]
    assert "'L-11', step 6" in checks["time steps"]["detail"]
    assert "2 NaN and 0 infinite values in rewards, first in episode 'L-8', step 4" in checks["finite values"]["detail"]


def test_inspect_of_mended_data_finds_nothing_bad(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    for missing in ("split", "interpolate", "drop"):
        assert run(["inspect", log, "--missing", missing, *FLAGS]) == 0
        assert "Fit to learn from" in capsys.readouterr().out


def test_drop_leaves_out_the_episodes_with_flaws(log: str) -> None:
    assert names(load(log, missing="drop")) == ["L-12"]


def test_split_keeps_every_whole_step_and_the_lots_name(log: str) -> None:
    data = load(log, missing="split")
    lots = [7, 8, 9, 10, 11]
    assert names(data) == [*(f"L-{lot}/{part}" for lot in lots for part in (1, 2)), "L-12"]
    assert data.lengths.tolist() == [3, 8, 4, 7, 5, 6, 6, 5, 7, 4, 12]
    assert data.truncated.sum() == 5
    assert not np.isnan(data.actions).any()
    assert not np.isnan(data.rewards).any()
    # The state before a blank one has an unknown successor; that before a blank action has a known one.
    known = data.next_known[data.offsets[1:] - 1]
    assert known.tolist() == [False, False, True, False, True, False, True, False, False, False, False]


def test_splitting_into_short_parts_is_said(log: str, tmp_path: Path) -> None:
    cells = plant.rows(lots=2, steps=40)
    for row in cells[4::5]:
        row[2] = ""
    shreds = load(plant.write(tmp_path / "shreds.csv", cells), missing="split")
    notes = {one.check: one.detail for one in shreds.metadata.findings}
    assert "half of them have 4 steps or fewer" in notes["mended"]
    assert "`missing=interpolate`" in notes["mended"]
    notes = {one.check: one.detail for one in load(log, missing="split").metadata.findings}
    assert "half of them" not in notes["mended"]


def test_interpolation_draws_straight_lines_through_cells_and_gaps(log: str, tmp_path: Path) -> None:
    data, whole = load(log, missing="interpolate"), load(plant.write(tmp_path / "whole.csv", plant.rows()))
    assert names(data) == names(whole)
    assert data.offsets.tolist() == whole.offsets.tolist()
    middle = (whole.observations[2, 0] + whole.observations[4, 0]) / 2
    assert data.observations[3, 0] == pytest.approx(middle)
    gap = data.first_rows[4] + 7
    np.testing.assert_allclose(data.observations[gap], whole.observations[[gap - 1, gap + 1]].mean(0))
    assert data.labels is not None
    assert whole.labels is not None
    np.testing.assert_array_equal(data.labels.times, whole.labels.times)


def test_a_long_hole_is_split_even_by_interpolation(tmp_path: Path) -> None:
    cells = plant.rows(lots=1, steps=40)
    for row in cells[10 : 10 + LONGEST + 1]:
        row[2] = ""
    data = load(plant.write(tmp_path / "log.csv", cells), missing="interpolate")
    assert data.lengths.tolist() == [10, 40 - 10 - LONGEST - 1]


def test_nan_in_any_format_is_mended(tmp_path: Path, log: str) -> None:
    data = replace(load(log, allow_nonfinite=True), labels=None)
    formats.save(data, f"npz:{tmp_path / 'log.npz'}")
    with pytest.raises(InputError, match=r"first of 5 in 4 of 6 episodes.*`missing=split`"):
        trajstitch.load(f"npz:{tmp_path / 'log.npz'}")
    for missing in ("split", "interpolate", "drop"):
        trajstitch.load(f"npz:{tmp_path / 'log.npz'}", missing=missing)


def test_rows_without_a_lot_or_a_time_are_counted_and_left_out(tmp_path: Path) -> None:
    cells = plant.rows(lots=2)
    cells[0][0] = cells[23][1] = ""
    uri = plant.write(tmp_path / "log.csv", cells)
    with pytest.raises(InputError, match=r"2 blank cells \(lot 1, when 1\).*row 1 holds nothing in column 'lot'"):
        load(uri)
    assert load(uri, missing="split").lengths.tolist() == [11, 11]


def test_repeated_times_are_counted_and_left_out(tmp_path: Path) -> None:
    cells = plant.rows(lots=2)
    cells.insert(4, cells[3])
    uri = plant.write(tmp_path / "log.csv", cells)
    with pytest.raises(InputError, match="rows 4 and 5 are the same step of the same episode"):
        load(uri)
    assert load(uri, missing="drop").steps == 24


def test_steps_of_any_length_are_no_gaps(tmp_path: Path) -> None:
    cells = plant.rows(lots=2)
    for number, row in enumerate(cells):
        row[1] = str(plant.START + np.timedelta64(number * number * 7, "s"))
    data = load(plant.write(tmp_path / "log.csv", cells))
    (check,) = (one for one in trajstitch.inspect(data)["checks"] if one["check"] == "time steps")
    assert check["verdict"] == "note"


def test_resampling_keeps_returns_and_lengthens_steps(tmp_path: Path) -> None:
    uri = plant.write(tmp_path / "log.csv", plant.rows())
    data, coarse = load(uri), load(uri, resample=120.0)
    assert coarse.lengths.tolist() == [6] * 6
    np.testing.assert_allclose(coarse.returns, data.returns)
    np.testing.assert_allclose(coarse.actions[0], data.actions[:2].mean(0))
    np.testing.assert_array_equal(coarse.observations[:6], data.observations[:12:2])
    fine = load(uri, resample=30.0)
    assert fine.steps == 2 * data.steps
    np.testing.assert_allclose(fine.returns, data.returns)


def test_resampling_needs_times(tmp_path: Path) -> None:
    uri = plant.write(tmp_path / "log.csv", plant.rows())
    with pytest.raises(InputError, match=r"no times.*`columns.step`"):
        trajstitch.load(uri, columns=replace(COLUMNS, step=None), resample=60.0)
    with pytest.raises(InputError, match="above 0"):
        load(uri, resample=0.0)


def test_a_time_column_is_recognised_and_its_gaps_are_found(tmp_path: Path) -> None:
    lines = ["episode,time,obs_x,action,reward"] + [f"{lot},{t},1.5,{t},1" for lot in "ab" for t in range(9) if t != 4]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="2 gaps in time, where a step takes longer than the usual 1, in 2 of 2"):
        trajstitch.load(f"table:{tmp_path / 'log.csv'}")


def test_parquet_with_nulls_is_mended_too(tmp_path: Path) -> None:
    table = {"episode": ["a"] * 4 + ["b"] * 4, "obs_x": [1, None, 3, 4, 5, 6, 7, 8], "action": [0.5] * 8}
    table["reward"] = [1.0, 2.0, 3.0, None, 1.0, 2.0, 3.0, 4.0]
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "log.parquet")
    data = trajstitch.load(f"table:{tmp_path / 'log.parquet'}", missing="interpolate")
    assert data.observations[:4, 0].tolist() == [1, 2, 3, 4]
    assert data.rewards[:4].tolist() == [1, 2, 3, 3]


def test_a_run_mends_its_data_again(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--missing", "split", "--resample", "90", *ROLLED_OUT, "--steps", "4", "--seeds", "1", "--run", "bc"]
    assert run(["train", "bc", "table:log.csv", *flags, *FLAGS, "--json"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = reload_source(Run.open(Path("../bc"), "train"))
    assert again.equals(load(log, missing="split", resample=90.0))


# Names


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
@pytest.mark.parametrize("through", ["npz:{}/way.npz", "d4rl:{}/way.hdf5", "minari:my/way-v0", "table:{}/way.parquet"])
def test_names_and_times_come_back_through_every_format(tmp_path: Path, name: str, through: str) -> None:
    data = load(plant.write(tmp_path / "log.csv", plant.rows()))
    formats.save(data, through.format(tmp_path))
    again = formats.load(through.format(tmp_path))
    formats.save(again, f"table:{tmp_path / name}")
    back = load(f"table:{tmp_path / name}")
    assert back.equals(data)
    assert names(back) == [f"L-{lot}" for lot in range(7, 13)]
    if name.endswith("csv"):
        lines = (tmp_path / name).read_text(encoding="utf-8").replace('"', "").splitlines()
        assert lines[0] == "lot,when,temp [°C],flow [l/h],valve,yield,terminated,truncated,trajstitch:1+1+2+1+1+1+1"
        assert lines[1].startswith("L-7,2024-03-01T06:00:00,")


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
@pytest.mark.parametrize("stitched", [False, True])
def test_a_table_of_ours_needs_no_columns_under_any_names(tmp_path: Path, ending: str, stitched: bool) -> None:
    data = load(plant.write(tmp_path / "log.csv", plant.rows()))
    if stitched:
        data = replace(data, provenance=Provenance.logged(data.offsets))
    target = f"table:{tmp_path}/ours.{ending}"
    formats.save(data, target)
    again = trajstitch.load(target)
    assert again.equals(data)
    assert names(again) == names(data)
    assert not [one for one in again.metadata.findings if "guessed" in one.detail or "not used" in one.detail]
    header = (tmp_path / "ours.csv").read_text().partition("\n")[0] if ending == "csv" else None
    assert header is None or header.startswith('"lot","when","temp [°C]","flow [l/h]","valve","yield",')
    formats.save(again, f"table:{tmp_path}/third.{ending}")
    assert trajstitch.load(f"table:{tmp_path}/third.{ending}").equals(data)


def test_a_layout_counts_only_for_the_columns_it_was_written_for(tmp_path: Path) -> None:
    data = load(plant.write(tmp_path / "log.csv", plant.rows()))
    formats.save(data, f"table:{tmp_path}/ours.csv")
    lines = (tmp_path / "ours.csv").read_text().splitlines()
    (tmp_path / "more.csv").write_text("\n".join([f"note,{lines[0]}", *(f"x,{line}" for line in lines[1:])]))
    with pytest.raises(InputError, match=r"can't tell which columns are the observations.*`columns\.observations`"):
        trajstitch.load(f"table:{tmp_path}/more.csv")
    assert load(f"table:{tmp_path}/more.csv").equals(data), "with its columns named it is read as before"


def test_several_columns_of_an_episode_come_back_as_several(tmp_path: Path) -> None:
    text = "line,lot,t,s,a,r\n" + "".join(
        f"{line},{lot},{t},1,2,{t}\n" for line in "AB" for lot in (3, 4) for t in (5, 6)
    )
    (tmp_path / "log.csv").write_text(text)
    columns = Columns(episode=("line", "lot"), step="t", observations=("s",), actions=("a",), reward="r")
    data = trajstitch.load(f"table:{tmp_path / 'log.csv'}", columns=columns)
    assert names(data) == ["A / 3", "A / 4", "B / 3", "B / 4"]
    formats.save(data, f"table:{tmp_path / 'out.csv'}")
    assert (tmp_path / "out.csv").read_text().replace('"', "").splitlines()[1] == "A,3,5,1,2,5,false,false,"


# Costs


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "npz"])
@pytest.mark.parametrize("name", ["yield", "cost"])
def test_costs_are_rewards_below_zero_and_come_back_as_costs(tmp_path: Path, ending: str, name: str) -> None:
    cells = [[*row[:-1], row[-1].removeprefix("-")] for row in plant.rows()]  # a plant's rewards are below 0
    uri = plant.write(tmp_path / "log.csv", cells)
    text = (tmp_path / "log.csv").read_text().replace("yield", name, 1)
    (tmp_path / "log.csv").write_text(text)
    data = trajstitch.load(uri, columns=replace(COLUMNS, reward=None, cost=name))
    assert data.equals(load(plant.write(tmp_path / "gains.csv", plant.rows())))
    target = f"npz:{tmp_path}/ours.npz" if ending == "npz" else f"table:{tmp_path}/ours.{ending}"
    formats.save(data, target)
    again = trajstitch.load(target)
    assert again.equals(data)
    formats.save(again, f"table:{tmp_path}/third.csv")
    header, first, *_ = (tmp_path / "third.csv").read_text().replace('"', "").splitlines()
    assert header == f"lot,when,temp [°C],flow [l/h],valve,{name},terminated,truncated,trajstitch:1+1+2+1-1+1+1"
    assert float(first.split(",")[5]) == float(cells[0][5])
    assert trajstitch.load(f"table:{tmp_path}/third.csv").equals(data)
    named = trajstitch.load(f"table:{tmp_path}/third.csv", columns=replace(COLUMNS, reward=name))
    np.testing.assert_array_equal(named.rewards, -data.rewards)  # what the user says comes first


def test_rewards_that_look_like_costs_are_noted(tmp_path: Path) -> None:
    header, rows = "episode,obs_x,action,{}\n", "".join(f"{lot},{t},0.5,{t}\n" for lot in "ab" for t in range(5))
    for name, noted in (("reward", False), ("Energy cost [EUR]", True), ("lossless", False)):
        (tmp_path / "log.csv").write_text(header.format(name) + rows)
        data = trajstitch.load(f"table:{tmp_path / 'log.csv'}", columns=Columns(reward=name))
        assert any("`columns.cost`" in one.detail for one in data.metadata.findings) is noted
    (tmp_path / "log.csv").write_text(header.format("costs") + rows)
    data = trajstitch.load(f"table:{tmp_path / 'log.csv'}")
    assert data.rewards.tolist() == [0, -1, -2, -3, -4] * 2
    assert any("guessed" in one.detail and "cost = costs" in one.detail for one in data.metadata.findings)
    with pytest.raises(InputError, match=r"`columns.reward` is 'a' and `columns.cost` is 'b'"):
        trajstitch.load(f"table:{tmp_path / 'log.csv'}", columns=Columns(reward="a", cost="b"))


def test_names_follow_their_episodes(tmp_path: Path) -> None:
    data = load(plant.write(tmp_path / "log.csv", plant.rows()))
    assert names(data[[4, 0]]) == ["L-11", "L-7"]
    assert names(concatenate([data[:2], data[1:2]])) == ["L-7", "L-8", "L-8"]
    assert distinct(np.array(["a", "a", "a (2)", "a"])).tolist() == ["a", "a (3)", "a (2)", "a (4)"]
    with pytest.raises(InputError, match="labels: episodes"):
        replace(data, labels=Labels(np.array(["one"])))


def test_stitched_trajectories_keep_names_and_have_rising_times(tmp_path: Path) -> None:
    data = load(plant.write(tmp_path / "log.csv", plant.rows(lots=2)))
    paths = Paths.of(data)
    same = paths.trajectories()
    assert names(same) == names(data)
    assert same.labels is not None
    assert data.labels is not None
    np.testing.assert_array_equal(same.labels.times, data.labels.times)
    # The first lot jumps into the second one after its third state.
    node, kind = paths.node.copy(), paths.kind.copy()
    node[3:13], kind[3:12], kind[2] = np.arange(16, 26), np.arange(16, 25), paths.nodes
    edges = Edges(np.array([2]), np.array([16]), {}, np.zeros((1, 1)), np.zeros(1))
    jumped = replace(paths, node=node, kind=kind, jumps=Jumps(edges, np.zeros(1), np.zeros(1))).trajectories()
    assert names(jumped) == names(data)
    assert jumped.labels is not None
    assert jumped.labels.times is not None
    assert data.labels.times is not None
    # The second lot is a day later: the jump takes a minute all the same.
    assert set(np.diff(jumped.labels.times[:13]).tolist()) == {60 * 10**9}
    assert jumped.labels.times[0] == data.labels.times[0]


def test_print_is_three_lines(tmp_path: Path) -> None:
    data = load(plant.write(tmp_path / "log.csv", plant.rows()))
    lines = str(data).splitlines()
    assert len(lines) == 3
    assert "6 episodes, 72 steps" in lines[0]
    assert "temp [°C], flow [l/h]" in lines[1]
    assert "L-7" in lines[2]
    assert len(repr(replace(data, labels=None)).splitlines()) == 3


# Environments


def test_an_environment_of_ones_own_is_evaluated_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    formats.save(load(plant.write(tmp_path / "log.csv", plant.rows())), "npz:log.npz")
    assert run(["train", "bc", "npz:log.npz", *ROLLED_OUT, "--steps", "4", "--seeds", "1", "--run", "bc"]) == 0
    capsys.readouterr()
    # A class has no limit of its own: episodes are as long as the longest logged one.
    for name, limit in (("plant:Plant", ["--max-steps", "5"]), ("plant:Plant", []), ("plant:Plant-v0", [])):
        common = ["--environment", name, "--episodes", "2", "--processes", "1", "--json", *limit]
        assert run(["evaluate", "bc", *common]) == 0
        assert json.loads(capsys.readouterr().out)["environment"] == name.replace("plant:Plant-v0", "Plant-v0")
    assert run(["evaluate", "bc", "--environment", "nowhere:Plant"]) == 2
    assert "can't be imported" in capsys.readouterr().err
    assert run(["evaluate", "bc", "--environment", "plant:Plnt"]) == 2
    assert "has no Plnt" in capsys.readouterr().err


def test_an_environment_that_can_not_be_found_never_stops_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plant.write(tmp_path / "log.csv", plant.rows())
    common = [
        "train",
        "bc",
        "table:log.csv",
        *FLAGS,
        "--steps",
        "4",
        "--seeds",
        "1",
        "--json",
        "--force",
        "--run",
        "bc",
    ]
    for flags in (["--environment", "nowhere:Plant"], ["--columns.environment", "Plnt-v7"]):
        assert run([*common, *flags]) == 0
        assert "going on without it" in capsys.readouterr().err


def test_jumps_are_replayed_in_any_environment_with_set_state(tmp_path: Path) -> None:
    from trajstitch.data.environments import with_environment
    from trajstitch.evaluation.simulator import replay

    data = load(plant.write(tmp_path / "log.csv", plant.rows(lots=2)))
    metadata = with_environment(data.metadata, "plant:Plant")
    states, actions = data.observations[:11], data.actions[:11]
    found = replay(metadata, states, actions, processes=1)
    assert found.known.all()
    np.testing.assert_allclose(found.next_observations[:10], data.observations[1:11], atol=1e-5)
    np.testing.assert_allclose(found.rewards, data.rewards[:11], atol=1e-5)


# Runs


def test_training_is_extended_to_what_one_long_training_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plant.write(tmp_path / "log.csv", plant.rows())
    common = ["train", "bc", "table:log.csv", *FLAGS, *ROLLED_OUT, "--seeds", "1", "--json"]
    assert run([*common, "--steps", "6", "--run", "short"]) == 0
    assert run([*common, "--steps", "13", "--run", "short", "--resume"]) == 0
    assert run([*common, "--steps", "13", "--run", "long"]) == 0
    short, long = (trajstitch.load_policy(folder) for folder in ("short", "long"))
    assert short.steps == long.steps == 13
    for name, array in long.tensors().items():
        np.testing.assert_allclose(short.tensors()[name], array, atol=1e-6)  # programs of other lengths round otherwise
    assert run([*common, "--steps", "6", "--run", "short", "--resume"]) == 2  # never shortened
    assert run([*common, "--steps", "6", "--run", "short"]) == 2
    assert run([*common, "--steps", "6", "--run", "short", "--force"]) == 0
    assert trajstitch.load_policy("short").steps == 6


def test_force_removes_only_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match="exists already"):
        Run.start(tmp_path, "train", {}, force=True)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX")
def test_a_target_that_can_not_be_written_is_found_before_the_work() -> None:
    for place in ("/proc/out.npz", f"{'x' * 300}.npz"):
        with pytest.raises(InputError):
            formats.require_free(f"npz:{place}", force=False)


@pytest.mark.usefixtures("wrong_types")
def test_mending_says_what_it_can_not_do(log: str) -> None:
    with pytest.raises(InputError, match="`missing` must be split, interpolate, drop, not 'fill'"):
        load(log, missing="fill")
    with pytest.raises(InputError, match="nothing would be left"):
        mend(load(log, allow_nonfinite=True)[:2], "drop")
