"""The command line as a person meets it: help, exit codes, one clear line for each mistake."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest

import trajstitch
from trajstitch import cli
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats import require_free, save


def small(episodes: int = 3, length: int = 5, seed: int = 0) -> Trajectories:
    random = np.random.default_rng(seed)
    steps = episodes * length
    ends = np.tile(np.arange(length) == length - 1, episodes)
    return Trajectories(
        observations=random.normal(size=(steps + episodes, 3)),
        actions=random.uniform(-1, 1, (steps, 2)).astype(np.float32),
        rewards=random.normal(size=steps),
        terminated=ends & (np.repeat(np.arange(episodes), length) % 2 == 0),
        truncated=ends & (np.repeat(np.arange(episodes), length) % 2 == 1),
        offsets=np.arange(0, steps + 1, length),
    )


FORMATS = ["npz:{}/data.npz", "d4rl:{}/data.hdf5", "table:{}/data.parquet", "table:{}/data.csv", "minari:test/data-v0"]


def run(*arguments: str) -> int:
    """The exit code of a command, tyro's own exits included."""
    try:
        return cli.run(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line a refused command prints."""
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("error: ")
    return lines[0]


def test_help_is_instant_and_imports_no_jax():
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trajstitch", "--help"], capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - start
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "trajstitch.cli" in imported
    assert not imported & {"jax", "numpy", "gymnasium"}
    assert all(verb in done.stdout for verb in cli.VERBS)
    assert seconds < 1.5  # 0.3 on a quiet machine; the imports above are what decides


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_explains_itself(verb, capsys):
    assert run(verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"trajstitch {verb}" in text
    assert "Traceback" not in text


def test_no_verb_shows_the_help_and_is_a_usage_error(capsys):
    assert run() == 2
    assert "verbs:" in capsys.readouterr().out


def test_unknown_verb_names_the_nearest(capsys):
    assert "did you mean 'inspect'" in refused(capsys, "inspec", "x")


def test_unknown_flag_is_a_usage_error(capsys):
    assert run("inspect", "npz:x.npz", "--no-such-flag") == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("npz:nowhere.npz", "nowhere.npz"),
        ("d4rl:nowhere.hdf5", "nowhere.hdf5"),
        ("table:nowhere.csv", "nowhere.csv"),
        ("minari:no/such-v0", "no/such-v0"),
        ("s3:bucket", "unknown scheme 's3'"),
        ("nzp:file.npz", "did you mean 'npz'"),
        ("hopper/medium-reply", "did you mean 'hopper/medium-replay'"),
        ("file.hdf5", "file.hdf5: no such file"),
        ("file.parquet", "file.parquet: no such file"),
        ("reports/file", "no built-in set 'reports/file'"),
        ("npz:", "names no data set"),
    ],
)
def test_sources_that_are_not_there(uri, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "inspect", uri)


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("target", FORMATS)
def test_any_format_converts_to_any_other(source, target, tmp_path, capsys):
    data = small()
    source, target = source.format(tmp_path / "a"), target.format(tmp_path / "b").replace("data-v0", "other-v0")
    save(data, source)
    assert run("convert", source, target) == 0
    assert capsys.readouterr().out.startswith(target)
    copy = trajstitch.load(target)
    np.testing.assert_array_equal(copy.observations, data.observations)
    np.testing.assert_array_equal(copy.actions, data.actions)
    np.testing.assert_array_equal(copy.rewards, data.rewards)
    np.testing.assert_array_equal(copy.terminated, data.terminated)
    np.testing.assert_array_equal(copy.truncated, data.truncated)
    np.testing.assert_array_equal(copy.offsets, data.offsets)


@pytest.mark.parametrize("target", FORMATS)
def test_target_that_exists_is_refused_and_forced(target, tmp_path, capsys):
    source, target = f"npz:{tmp_path}/source.npz", target.format(tmp_path)
    save(small(), source)
    save(small(seed=1), target)
    assert "--force" in refused(capsys, "convert", source, target)
    assert trajstitch.load(target).returns.tolist() == small(seed=1).returns.tolist()
    assert run("convert", source, target, "--force") == 0
    assert trajstitch.load(target).returns.tolist() == small().returns.tolist()


def test_names_are_printed_as_they_are(tmp_path, capsys):
    save(small(), f"npz:{tmp_path}/data.npz")
    target = f"npz:{tmp_path}/log[red]:a:.npz"
    assert run("convert", f"npz:{tmp_path}/data.npz", target) == 0
    assert target in capsys.readouterr().out


def test_header_with_a_stray_line_end_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "log.csv").write_bytes(b"observation_0,action_0,reward,done\r,comment\n0,0,0,0,a\n")
    assert "is no CSV header" in refused(capsys, "inspect", f"table:{tmp_path}/log.csv")


def test_store_that_can_not_be_opened_is_said(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "store"))
    assert "MINARI_DATASETS_PATH" in refused(capsys, "sets")


def test_built_in_set_is_no_target(capsys, tmp_path):
    save(small(), f"npz:{tmp_path}/data.npz")
    assert "can't be written" in refused(capsys, "convert", f"npz:{tmp_path}/data.npz", "hopper/medium")


@pytest.mark.parametrize("target", FORMATS)
def test_inspect_speaks_json_for_every_format(target, tmp_path, capsys):
    target = target.format(tmp_path)
    save(small(), target)
    assert run("inspect", target, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 15
    assert {check["check"] for check in report["checks"]} >= {"continuity", "missing ends", "finite values"}


def test_inspect_shows_a_nan_and_says_it_is_bad(tmp_path, capsys):
    uri = f"d4rl:{tmp_path}/nan.hdf5"
    save(small(), uri)
    with h5py.File(tmp_path / "nan.hdf5", "r+") as file:
        rewards = file["rewards"]
        assert isinstance(rewards, h5py.Dataset)
        rewards[7] = np.nan
    assert "its content" in refused(capsys, "inspect", uri)
    assert run("inspect", uri, "--allow-changed") == 2
    assert "episode 1, step 2" in " ".join(capsys.readouterr().out.split())
    assert "episode 1, step 2" in refused(capsys, "convert", uri, f"npz:{tmp_path}/copy.npz", "--allow-changed")
    assert not (tmp_path / "copy.npz").exists()


def test_no_permission_is_said_before_the_work():
    # Root may write anywhere, so it steps down for this; pytest's own folders would then be closed to it.
    with TemporaryDirectory() as folder:
        locked = Path(folder) / "locked"
        save(small(), f"npz:{folder}/data.npz")
        locked.mkdir(mode=0o500)
        Path(folder).chmod(0o755)
        user = os.geteuid()
        try:
            os.seteuid(user or 65534)
            with pytest.raises(InputError, match="no permission"):
                require_free(f"npz:{locked}/data.npz", force=True)
        finally:
            os.seteuid(user)


def test_collect_saves_where_it_is_told_and_says_so(tmp_path, capsys):
    uri = f"npz:{tmp_path}/hopper.npz"
    assert run("collect", "hopper/medium", "--transitions", "300", "--to", uri, "--json") == 0
    assert json.loads(capsys.readouterr().out)["saved"] == uri
    assert trajstitch.load(uri).steps >= 300


def test_collect_fills_the_minari_store_and_sets_lists_it(capsys):
    assert run("collect", "hopper/medium", "--transitions", "300") == 0
    capsys.readouterr()
    assert run("sets", "--json") == 0
    listed = {item["name"]: item for item in json.loads(capsys.readouterr().out)["built_in"]}
    assert listed["hopper/medium"]["collected"] >= 300
    assert listed["hopper/expert"]["collected"] is None
    assert trajstitch.load("hopper/medium").steps == listed["hopper/medium"]["collected"]
    assert run("sets") == 0
    assert "hopper/medium-replay" in capsys.readouterr().out


def test_terminated_job_leaves_nothing_behind(tmp_path: Path):
    command = [sys.executable, "-m", "trajstitch", "collect", "hopper/expert", "--to", f"npz:{tmp_path}/out/x.npz"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        assert job.stderr is not None
        job.stderr.readline()  # the first line of progress: it is at work
        job.send_signal(signal.SIGTERM)
        try:
            assert job.wait(20) == 143
        finally:
            job.kill()
    assert not list(tmp_path.rglob("*.npz"))


def test_failed_job_exits_with_one(monkeypatch, capsys, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the engine stopped")

    save(small(), f"npz:{tmp_path}/data.npz")
    monkeypatch.setattr("trajstitch.formats.load", broken)
    assert run("inspect", f"npz:{tmp_path}/data.npz") == 1
    assert "the engine stopped" in capsys.readouterr().err


def test_terminal_without_our_signs_still_shows_the_report(tmp_path):
    save(small(), f"npz:{tmp_path}/data.npz")
    done = subprocess.run(
        [sys.executable, "-m", "trajstitch", "inspect", f"npz:{tmp_path}/data.npz"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"15 steps" in done.stdout


def test_public_names_stay_what_they_are():
    for _ in range(2):
        assert callable(trajstitch.inspect)
        assert callable(trajstitch.load)
    assert all(hasattr(trajstitch, name) for name in trajstitch.__all__)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "bc", "npz:log.npz", "--steps", "1", "--run", "@"),
        ("stitch", "npz:log.npz", "npz:better.npz", "--run", "@"),
        ("learn", "npz:log.npz", "--run", "@"),
        *((verb, "@") for verb in ("evaluate", "report", "simulate", "inspect", "learn")),
        ("export", "@", "policy.safetensors"),
        ("convert", "npz:log.npz", "npz:@.npz"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("length", [300, 5000])
def test_a_name_that_no_file_system_takes_is_one_line(arguments, length, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(small(), "npz:log.npz")
    line = refused(capsys, *(word.replace("@", "a" * length) for word in arguments))
    assert len(line) < 2200


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400])
def test_a_number_of_very_many_digits_is_one_line(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save(small(), "npz:log.npz")
    assert "`" not in refused(capsys, "train", "bc", "npz:log.npz", "--steps", number)
    assert "`" not in refused(capsys, "stitch", "npz:log.npz", "npz:better.npz", "--seed", number)
