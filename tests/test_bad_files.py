"""Files that are wrong in one way get one line that says in which."""

import errno
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from safetensors import SafetensorError

import trajstitch
from soak.samples import SAMPLES, logged, rows, stitched, without_checksums
from trajstitch import InputError, Metadata, cli, formats, load_policy
from trajstitch.data.stitch_record import StitchRecord, describe_stitching
from trajstitch.formats.columns import Columns
from trajstitch.storage import locks
from trajstitch.storage.runs import Run
from trajstitch.storage.tensors import read_tensors, save_tensors
from trajstitch.workflow.export import export


def refused(uri: str) -> str:
    with pytest.raises(InputError) as caught:
        formats.load(uri)
    return str(caught.value)


# Tables


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["source_episode", "stitched", "margin"])
def test_stitched_table_without_one_provenance_column(ending, column, tmp_path):
    uri = f"table:{tmp_path}/log.{ending}"
    trajstitch.save(stitched(), uri)
    path = tmp_path / f"log.{ending}"
    if ending == "csv":
        lines = [line.split(",") for line in path.read_text().splitlines()]
        at = lines[0].index(f'"provenance_{column}"')
        path.write_text("\n".join(",".join(line[:at] + line[at + 1 :]) for line in lines))
        (tmp_path / "log.csv.sha256").unlink()
    else:
        table = pyarrow.parquet.read_table(path)
        pyarrow.parquet.write_table(table.drop_columns([f"provenance_{column}"]), path)
    assert f"but no provenance_{column}: put them back" in refused(uri)


@pytest.mark.parametrize("value", ["0.5", "-1", "nan", "1e300", "inf"])
def test_provenance_that_counts_no_episode(value, tmp_path):
    uri = f"table:{tmp_path}/log.csv"
    trajstitch.save(stitched(), uri)
    lines = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()]
    lines[1][lines[0].index('"provenance_source_step"')] = value
    (tmp_path / "log.csv").write_text("\n".join(map(",".join, lines)))
    (tmp_path / "log.csv.sha256").unlink()
    assert "expected a whole number from 0 on" in refused(uri)


def write_parquet(path: Path, **changes: pa.Array) -> str:
    columns = {"episode": ["a", "a", "b"], "obs": [1.0, 2, 3], "action": [1.0, 2, 3], "reward": [1.0, 2, 3]}
    pyarrow.parquet.write_table(pa.table({**columns, "done": [False, True, True], **changes}), path)
    return f"table:{path}"


PAIRS = pa.array([[1.0, 2.0]] * 3)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"reward": PAIRS}, "'reward' holds vectors of 2 numbers: each row needs one number"),
        ({"done": pa.array([[0, 1]] * 3)}, "'done' holds vectors of 2 numbers"),
        ({"episode": PAIRS}, "'episode' holds list<.*> values: each row needs one value"),
        ({"episode": pa.array([{"a": 1}] * 3)}, "'episode' holds struct<.*> values"),
        ({"obs": pa.array([[]] * 3, pa.list_(pa.float32()))}, "'obs' holds list"),
        ({"obs": pa.array([b"\xff"] * 3)}, "'obs' holds binary values, not numbers"),
        ({"done": pa.array(["maybe"] * 3)}, "flags are true or false"),
    ],
)
def test_parquet_column_of_a_wrong_kind(changes, complaint, tmp_path):
    with pytest.raises(InputError, match=complaint):
        formats.load(write_parquet(tmp_path / "log.parquet", **changes))


def test_vectors_of_one_number_are_numbers(tmp_path):
    uri = write_parquet(tmp_path / "log.parquet", reward=pa.array([[1.0], [2.0], [3.0]]))
    assert formats.load(uri).rewards.tolist() == [1, 2, 3]


def test_times_may_name_episodes(tmp_path):
    uri = write_parquet(tmp_path / "log.parquet", episode=pa.array([1, 1, 2], pa.timestamp("ns")))
    assert formats.load(uri).lengths.tolist() == [2, 1]


@pytest.mark.parametrize("name", ["episode", "obs", "reward", "done", "step"])
def test_parquet_with_two_columns_of_a_name(name, tmp_path):
    write_parquet(tmp_path / "log.parquet", step=pa.array([0, 1, 0]))
    table = pyarrow.parquet.read_table(tmp_path / "log.parquet")
    pyarrow.parquet.write_table(table.append_column(name, table.column(name)), tmp_path / "log.parquet")
    assert f"has 2 columns named '{name}'" in refused(f"table:{tmp_path}/log.parquet")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_csv_in_another_encoding_is_refused_in_one_line(encoding, tmp_path):
    text = "épisode,obs,action,reward,done\né,1,1,1,0\né,2,2,2,1\n"
    (tmp_path / "log.csv").write_bytes(text.encode(encoding))
    said = refused(f"table:{tmp_path}/log.csv")
    assert ("its header is not UTF-8 text" if encoding == "latin-1" else "neither a CSV nor a Parquet file") in said


def test_column_with_a_number_of_5000_digits_is_a_name(tmp_path):
    (tmp_path / "log.csv").write_text(f"obs_{'9' * 5000},action,reward,done\n1,1,1,0\n2,2,2,1\n")
    assert formats.load(f"table:{tmp_path}/log.csv").steps == 2


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "action_low = " + "9" * 5000, "\x00"])
def test_bad_columns_file(text, tmp_path):
    (tmp_path / "columns.toml").write_text(text)
    with pytest.raises(InputError, match="is not a TOML file"):
        Columns.from_toml(tmp_path / "columns.toml")


# NPZ


def test_encrypted_npz(tmp_path):
    np.savez(tmp_path / "log.npz", **rows())  # pyright: ignore[reportArgumentType]
    content = bytearray((tmp_path / "log.npz").read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := content.find(mark, place + 1)) >= 0:
            content[place + at] |= 1
    (tmp_path / "log.npz").write_bytes(content)
    assert "encrypted" in refused(f"npz:{tmp_path}/log.npz")


@pytest.mark.parametrize(
    "content", [b"", b"no array", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x05\x00{{{{{", b"\x93NUMPY\x09\x00"]
)
def test_npz_member_that_is_no_array(content, tmp_path):
    np.savez(tmp_path / "log.npz", **{name: array for name, array in rows().items() if name != "rewards"})  # pyright: ignore[reportArgumentType]
    with zipfile.ZipFile(tmp_path / "log.npz", "a") as archive:
        archive.writestr("rewards.npy", content)
    assert "rewards is damaged" in refused(f"npz:{tmp_path}/log.npz")


def test_big_endian_arrays_are_read_as_they_are(tmp_path):
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in rows().items()}
    np.savez(tmp_path / "log.npz", **swapped)  # pyright: ignore[reportArgumentType]
    assert formats.load(f"npz:{tmp_path}/log.npz").equals(logged())


# HDF5


@pytest.mark.parametrize("name", ["rewards", "observations", "terminals"])
def test_null_dataspace(name, tmp_path):
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for key, array in rows().items():
            file[key] = h5py.Empty("f4") if key == name else array
    assert f"{name} is empty" in refused(f"d4rl:{tmp_path}/log.hdf5")


def test_text_in_a_heap_that_hdf5_reads_for_ever(tmp_path):
    uri = f"d4rl:{tmp_path}/log.hdf5"
    trajstitch.save(logged(), uri)
    content = bytearray((tmp_path / "log.hdf5").read_bytes())
    heap = content.index(b"GCOL")
    content[heap + 16 : heap + 32] = bytes(16)  # no object, of no size
    (tmp_path / "log.hdf5").write_bytes(content)
    assert "metadata/trajstitch is damaged" in refused(uri)


@pytest.mark.parametrize("text", ["fixed", "varied", "", "×" * 100])
@pytest.mark.parametrize("userblock", [0, 512])
def test_texts_of_others_are_read(text, userblock, tmp_path):
    with h5py.File(tmp_path / "log.hdf5", "w", userblock_size=userblock) as file:
        for key, array in rows().items():
            file[key] = array
        file["metadata/note"] = np.bytes_(b"fixed") if text == "fixed" else text
        file["metadata/other"] = "another"
    extra = formats.load(f"d4rl:{tmp_path}/log.hdf5").metadata.extra
    assert extra == {"note": text, "other": "another"}


# Metadata


def with_metadata(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Write an NPZ file of ours whose metadata is changed."""
    trajstitch.save(logged(), f"npz:{path}")
    with np.load(path) as file:
        arrays = dict(file)
    stored = without_checksums(json.loads(str(arrays["metadata"])))
    change(stored)
    np.savez(path, **{**arrays, "metadata": np.array(json.dumps(stored))})
    return f"npz:{path}"


DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        *(("reference", value, "reference") for value in ([1, 1], [None, 1], ["a", "b"], [1], "ab", [1, 10**400], {})),
        *(("name", value, "name is of a wrong type") for value in (None, 5, [], {"a": 1})),
        *(("extra", value, "extra is of a wrong type") for value in (None, 5, [])),
        ("extra", {"a": DEEP}, "more than 64 deep"),
        *(("findings", value, "finding") for value in (5, [5], [{"check": 1}], [{"check": "a", "detail": "b"}])),
        ("findings", [{"check": "a", "verdict": "evil", "detail": "b"}], "verdict"),
        *(("environment", value, "environment") for value in (5, "no JSON", "{}", "[]", "[" * 10_000)),
        (
            "observation_space",
            '{"type": "Box", "dtype": "float32", "shape": [1000000000], "low": 0, "high": 1}',
            "numbers",
        ),
        ("observation_space", '{"type": "Box", "dtype": "float32", "shape": [3], "low": NaN, "high": 1}', "Box"),
        ("observation_space", '{"type": "Box", "dtype": "object", "shape": [3], "low": 0, "high": 1}', "Box"),
        ("action_space", '{"type": "Box", "dtype": "float32", "shape": [1], "low": 2, "high": 1}', "Box"),
        ("observation_space", '{"type": "Dict", "subspaces": 5}', "spaces can't be read"),
        ("observation_space", "[" * 10_000, "spaces can't be read"),
    ],
)
def test_metadata_of_a_wrong_type(key, value, complaint, tmp_path):
    uri = with_metadata(tmp_path / "log.npz", lambda stored: stored.update({key: value}))
    assert complaint in refused(uri)


@pytest.mark.parametrize("scores", [(1.0, 1.0), (None, 2.0), ("a", 2.0), ([1], 2.0), (True, 2.0), (1e400, 2.0)])
def test_minari_set_with_reference_scores_that_are_none(scores, minari_store):
    trajstitch.save(logged(), "minari:my/log-v0")
    path = minari_store / "my" / "log-v0" / "data" / "metadata.json"
    stored = without_checksums(json.loads(path.read_text()))
    path.write_text(json.dumps({**stored, "ref_min_score": scores[0], "ref_max_score": scores[1]}))
    assert "reference scores" in refused("minari:my/log-v0")
    path.write_text(json.dumps({**stored, "ref_min_score": None, "ref_max_score": None}))
    assert formats.load("minari:my/log-v0").metadata.reference is None


def test_bad_set_in_the_store_hides_no_other(minari_store, capsys):
    trajstitch.save(logged(), "minari:my/log-v0")
    trajstitch.save(logged(), "minari:my/bad-v0")
    path = minari_store / "my" / "bad-v0" / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_episodes": "many"}))
    assert cli.run(["sets"]) == 0
    assert "my/log-v0" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"changed": "x"}, {"stitchings": None}, {"warnings": 5}, {"kept_original": 3}])
def test_record_of_a_stitching_that_is_none_is_ignored(change):
    extra = StitchRecord(False, 1, 3, 3, 1).added_to(Metadata()).extra["trajstitch"] | change
    data = replace(stitched(), metadata=Metadata(extra={"trajstitch": extra}))
    assert describe_stitching(data) == "1 of 3 episodes replaced"


def test_provenance_of_a_far_episode_takes_no_memory():
    data = replace(stitched(), metadata=Metadata())
    assert data.provenance is not None
    far = replace(data.provenance, source_episode=np.full(12, 2**40))
    assert describe_stitching(replace(data, provenance=far)) is None


# Run folders


@pytest.mark.parametrize(
    ("name", "value"),
    [("low", np.nan), ("high", np.inf), ("low", 9.0), ("std", 0.0), ("std", -1.0), ("mean", np.nan), ("limit", np.nan)],
)
def test_checkpoint_that_can_scale_nothing(name, value, tmp_path):
    SAMPLES["training"].write(tmp_path)
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    tensors, facts = read_tensors(path)
    save_tensors({**tensors, name: np.full_like(tensors[name], value)}, path, facts)
    with pytest.raises(InputError, match=r"checkpoints.*is damaged"):
        load_policy(tmp_path / "run")


def test_the_same_tensors_are_the_same_bytes(tmp_path):
    facts = {f"fact {number}": f'"é"\\n\x1b{number}' for number in range(9)}
    for number in range(5):
        save_tensors({"b": np.arange(3.0), "a": np.zeros(2, bool)}, tmp_path / f"{number}.safetensors", facts)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    tensors, found = read_tensors(tmp_path / "0.safetensors")
    assert found == facts
    np.testing.assert_array_equal(tensors["b"], np.arange(3.0))


def test_state_of_another_dtype_is_refused(tmp_path):
    run = Run.start(tmp_path / "run", "train", {})
    import jax.numpy as jnp

    run.write_tensors("state", {"['a']": np.zeros(3, np.int32)})
    with pytest.raises(InputError, match="doesn't fit"):
        run.read_tree("state", {"a": jnp.zeros(3)})


@pytest.mark.parametrize("seeds", [[0] * 300_000, list(range(300_000)), [0, 0]])
def test_checkpoint_of_very_many_seeds_is_refused_at_once(seeds, tmp_path):
    SAMPLES["training"].write(tmp_path)
    path = tmp_path / "run/checkpoints/000000020.safetensors"
    tensors, facts = read_tensors(path)
    save_tensors(tensors, path, {**facts, "seeds": json.dumps(seeds)})
    with pytest.raises(InputError, match="more than 10,000 seeds, or one of them twice"):
        load_policy(path)


def test_full_disk_in_a_run_folder_is_one_line(tmp_path):
    script = (
        "import resource, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from trajstitch.storage.tensors import save_tensors\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "save_tensors({'a': np.zeros(100_000)}, Path(sys.argv[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state.safetensors")], capture_output=True, text=True, timeout=100
    )
    assert "InputError" in done.stderr.splitlines()[-1]
    assert "the disk is full; nothing was written" in done.stderr
    assert list(tmp_path.glob("*.safetensors")) == []


def test_metrics_on_a_full_disk_are_one_line(tmp_path, monkeypatch):
    run = Run.start(tmp_path / "run", "train", {})
    run.path("metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match="run: can't be written \\(No space left on device\\)"):
        run.log(step=1)


def test_a_lock_on_a_full_disk_is_held(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Holder: ...

    holder = Holder()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        locks.hold(tmp_path / "lock", holder, "the run")
    assert not locks.lost(tmp_path / "lock")
    script = "import sys; from trajstitch.storage.locks import try_lock; sys.exit(try_lock(sys.argv[1]) is None)"
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "lock")], check=False).returncode == 1


def test_exporting_to_a_full_disk_names_the_file(tmp_path, monkeypatch):
    SAMPLES["training"].write(tmp_path)

    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("trajstitch.storage.tensors.save_file", full)
    with pytest.raises(InputError, match=r"/policy\.safetensors: the disk is full") as caught:
        export(tmp_path / "run", tmp_path / "policy.safetensors", seed=0)
    assert ".trajstitch-" not in str(caught.value)


def test_csv_with_bytes_that_are_no_text_among_its_numbers(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"episode,obs_0,obs_1,action_0,reward,done\n1,0,\xff,0,1,0\n1,1,1,0,1,1\n")
    assert "column 'obs_1', which is not a number" in refused(f"table:{tmp_path}/log.csv")
