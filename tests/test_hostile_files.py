"""Files made to harm: they read no other file, take no memory and no time, and write nothing to a terminal but text."""

import io
import json
import logging
import os
import resource
import subprocess
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from h5py import h5s  # pyright: ignore[reportAttributeAccessIssue]
from safetensors.numpy import save_file

import trajstitch
from soak.samples import logged, minari_in, rows, stitched, without_checksums
from trajstitch import InputError, Metadata, cli, formats
from trajstitch.benchmark.sources import load_original
from trajstitch.data import environments, spaces
from trajstitch.data.environments import spec_json
from trajstitch.data.labels import Labels
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.errors import clean, one_line
from trajstitch.formats import limits, minari
from trajstitch.formats.columns import Columns
from trajstitch.progress import SafeConsole, logger, progress
from trajstitch.report.card import card
from trajstitch.report.entry import Entry
from trajstitch.report.page import render
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.tensors import read_tensors

SECRET = "the-secret-of-another-file"


def refused(uri: str, **options: object) -> str:
    """Return the one line with which a file is refused, within 10 seconds and little memory."""
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError) as caught:
        formats.load(uri, **options)  # pyright: ignore[reportArgumentType]
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10
    line = str(caught.value)
    assert "\n" not in line
    return line


def write_d4rl(path: Path, change: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "w") as file:
        for name, array in rows().items():
            file[name] = array
        change(file)


def put(name: str, make: Callable[[h5py.File, str], object]) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        make(file, name)

    return change


# HDF5 files that point out of themselves


def external_storage(file: h5py.File, name: str, size: int = 12) -> None:
    file.create_dataset(name, (size,), "f4", external=[("secret.bin", 0, 4 * size)])


def external_link(file: h5py.File, name: str, size: int = 12) -> None:
    file[name] = h5py.ExternalLink("other.hdf5", "/rewards")


def soft_link_out(file: h5py.File, name: str, size: int = 12) -> None:
    file["/way"] = h5py.ExternalLink("other.hdf5", "/")
    file[name] = h5py.SoftLink("/way/rewards")


def virtual(file: h5py.File, name: str, size: int = 12) -> None:
    layout = h5py.VirtualLayout((size,), "f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "rewards", (12,))[:size]
    file.create_virtual_dataset(name, layout)


WAYS_OUT = {
    "stored in another file": external_storage,
    "a link to another file": external_link,
    "way is a link to another file": soft_link_out,
    "a virtual dataset": virtual,
}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("secret.bin").write_bytes((SECRET * 4).encode())
    with h5py.File("other.hdf5", "w") as file:
        file["rewards"] = np.full(12, 1234.5, "f4")
    return tmp_path


@pytest.mark.parametrize("complaint", WAYS_OUT)
@pytest.mark.parametrize("ours", [False, True])
def test_d4rl_file_reads_no_other_file(complaint, ours, secrets, capsys):
    if ours:
        trajstitch.save(stitched(), "d4rl:log.hdf5")
        with h5py.File("log.hdf5", "a") as file:
            put("rewards", WAYS_OUT[complaint])(file)
    else:
        write_d4rl(Path("log.hdf5"), put("rewards", WAYS_OUT[complaint]))
    assert cli.run(["convert", "d4rl:log.hdf5", "npz:out.npz"]) == 2
    assert complaint in capsys.readouterr().err
    assert not Path("out.npz").exists()


@pytest.mark.parametrize("complaint", WAYS_OUT)
@pytest.mark.parametrize("name", ["rewards", "terminations"])
@pytest.mark.parametrize("episode", [0, 2])
def test_minari_set_reads_no_other_file(complaint, name, episode, secrets, minari_store):
    trajstitch.save(stitched(), "minari:my/log-v0")
    with h5py.File(minari_store / "my" / "log-v0" / "data" / "main_data.hdf5", "a") as file:
        group = file[f"episode_{episode}"]
        assert isinstance(group, h5py.Group)
        del group[name]
        WAYS_OUT[complaint](group, name, 4)  # pyright: ignore[reportArgumentType]
    assert complaint in refused("minari:my/log-v0")


@pytest.mark.parametrize("key", ["note", "metadata/author", "infos/qpos"])
def test_link_out_of_what_is_not_even_read_is_refused(key, secrets):
    write_d4rl(Path("log.hdf5"), lambda file: file.__setitem__(key, h5py.ExternalLink("/dev/zero", "/")))
    assert "a link to another file" in refused("d4rl:log.hdf5")


def test_soft_link_within_the_file_is_followed(tmp_path):
    def change(file: h5py.File) -> None:
        file.move("rewards", "logged/rewards")
        file["rewards"] = h5py.SoftLink("/logged/rewards")

    write_d4rl(tmp_path / "log.hdf5", change)
    assert formats.load(f"d4rl:{tmp_path}/log.hdf5").equals(logged())


def virtual_without_end(group: h5py.Group, name: str, other: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4", maxshape=(None,))
    source = h5py.VirtualSource(str(other), "rewards", (4,), maxshape=(None,))
    layout[0 : h5s.UNLIMITED] = source[0 : h5s.UNLIMITED]  # pyright: ignore[reportArgumentType]
    group.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("episode", [0, 2])
def test_minari_set_of_virtual_datasets_opens_no_other_file(episode, tmp_path, minari_store):
    trajstitch.save(logged(), "minari:my/log-v0")
    os.mkfifo(tmp_path / "pipe")  # who opens it waits for ever
    with h5py.File(minari_store / "my" / "log-v0" / "data" / "main_data.hdf5", "a") as file:
        group = file[f"episode_{episode}"]
        assert isinstance(group, h5py.Group)
        del group["rewards"]
        virtual_without_end(group, "rewards", tmp_path / "pipe")
    assert "a virtual dataset" in refused("minari:my/log-v0")


# Files of more parts than can be visited


def test_hdf5_of_groups_within_groups_does_not_end_the_process(tmp_path):
    with h5py.File(tmp_path / "log.hdf5", "w", libver="latest") as file:
        group: h5py.Group = file
        for _ in range(15_000):
            group = group.create_group("g")
    assert "groups within groups" in refused(f"d4rl:{tmp_path}/log.hdf5")


def test_hdf5_whose_groups_share_parts_is_refused(minari_store):
    trajstitch.save(logged(), "minari:my/log-v0")
    folder = minari_store / "my" / "log-v0" / "data"
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        group = file.create_group("episode_0/observations")
        for level in range(40):  # two ways at each level
            inner = file.create_group(f"shared_{level}")
            group["a"] = group["b"] = inner
            group = inner
        group["x"] = np.zeros((5, 3), "f4")
    stored = without_checksums(json.loads((folder / "metadata.json").read_text()))
    stored = {name: value for name, value in stored.items() if not name.endswith("_space")}
    (folder / "metadata.json").write_text(json.dumps(stored))
    assert "declares" in refused("minari:my/log-v0")


@pytest.mark.parametrize(("size", "times"), [(1, 1100), (1_000_000, 70)])
def test_hdf5_that_repeats_one_text_is_refused(size, times, tmp_path):
    def change(file: h5py.File) -> None:
        file["metadata/note"] = "x" * size
        for number in range(times):
            file[f"metadata/note_{number}"] = file["metadata/note"]

    with h5py.File(tmp_path / "log.hdf5", "w", libver="latest") as file:
        for name, array in rows().items():
            file[name] = array
        change(file)
    assert "declares" in refused(f"d4rl:{tmp_path}/log.hdf5")


# Files that declare more than they hold


def huge(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (10**8, 3), "f4", chunks=(1000, 3))


def without_end(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (2**60, 3), "f4", chunks=(1000, 3))


def huge_chunk(file: h5py.File, name: str) -> None:
    shape = (12, 3) if name == "observations" else (12,)
    file.create_dataset(name, shape, "f4", chunks=(1 << 28, *shape[1:]), maxshape=(None, *shape[1:]))


def tiny_chunks(file: h5py.File, name: str) -> None:
    file.create_dataset(name, (10**7,), "f4", chunks=(1,))


@pytest.mark.parametrize("make", [huge, without_end, huge_chunk, tiny_chunks])
@pytest.mark.parametrize("name", ["observations", "rewards"])
def test_hdf5_that_declares_too_much_is_refused_at_once(make, name, tmp_path):
    def change(file: h5py.File) -> None:
        for other in rows() if make is not huge_chunk else [name]:
            shape = rows()[other].shape
            del file[other]
            if make is huge_chunk:
                make(file, other)
            else:
                sizes = {huge: 10**8, without_end: 2**60, tiny_chunks: 10**7}
                chunk = 1 if make is tiny_chunks else 1000
                file.create_dataset(other, (sizes[make], *shape[1:]), rows()[other].dtype, chunks=(chunk, *shape[1:]))

    write_d4rl(tmp_path / "log.hdf5", change)
    line = refused(f"d4rl:{tmp_path}/log.hdf5")
    assert "declares" in line
    assert "`allow_large=True`" in line or "memory are free" in line


@pytest.mark.parametrize("times", [3, 200_000])
def test_minari_set_that_repeats_an_episode_is_bounded(times, minari_store):
    trajstitch.save(replace(logged(), provenance=None), "minari:my/log-v0")
    folder = minari_store / "my" / "log-v0" / "data"
    with h5py.File(folder / "main_data.hdf5", "a", libver="latest") as file:
        for episode in range(3, min(times, 20_000)):
            file[f"episode_{episode}"] = file["episode_0"]
    stored = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**stored, "total_episodes": times}))
    if times == 3:
        assert formats.load("minari:my/log-v0").equals(logged())
    else:
        assert "declares" in refused("minari:my/log-v0")


def npz_with(path: Path, name: str, header: dict[str, object], content: bytes = b"") -> None:
    """Write a foreign NPZ file with one array whose header says something else."""
    np.savez(path, **{key: array for key, array in rows().items() if key != name})  # pyright: ignore[reportArgumentType]
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, header)  # pyright: ignore[reportArgumentType]
        archive.writestr(f"{name}.npy", file.getvalue() + content)


@pytest.mark.parametrize("shape", [(10**12,), (2**62, 2**62), (10**9, 3)])
def test_npz_with_a_huge_shape_is_one_line(shape, tmp_path):
    npz_with(tmp_path / "log.npz", "rewards", {"descr": "<f4", "fortran_order": False, "shape": shape})
    assert "rewards declares another size than it has" in refused(f"npz:{tmp_path}/log.npz")


@pytest.mark.parametrize(("version", "length"), [(b"\2\0", 1 << 29), (b"\1\0", 60_000)])
def test_npz_with_a_huge_header_is_not_unpacked(version, length, tmp_path):
    np.savez(tmp_path / "log.npz", **{key: array for key, array in rows().items() if key != "rewards"})  # pyright: ignore[reportArgumentType]
    size = length.to_bytes(4 if version == b"\2\0" else 2, "little")
    with zipfile.ZipFile(tmp_path / "log.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rewards.npy", b"\x93NUMPY" + version + size + b" " * length)
    assert f"a header of {length:,} bytes" in refused(f"npz:{tmp_path}/log.npz")


def test_npz_with_a_header_of_python_2_loads_without_a_warning(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (12L,), }\n"
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + rows()["rewards"].tobytes()
    np.savez(tmp_path / "log.npz", **{key: array for key, array in rows().items() if key != "rewards"})  # pyright: ignore[reportArgumentType]
    with zipfile.ZipFile(tmp_path / "log.npz", "a") as archive:
        archive.writestr("rewards.npy", content)
    assert formats.load(f"npz:{tmp_path}/log.npz").equals(logged())


def test_booleans_that_are_neither_true_nor_false_are_refused(tmp_path):
    np.savez(tmp_path / "log.npz", **{**rows(), "terminals": np.full(12, 7, np.uint8).view(bool)})  # pyright: ignore[reportArgumentType]
    assert "neither true nor false" in refused(f"npz:{tmp_path}/log.npz")
    save_file({"mask": np.full(9, 2, np.uint8).view(bool)}, tmp_path / "state.safetensors")
    with pytest.raises(InputError, match="neither true nor false"):
        read_tensors(tmp_path / "state.safetensors")


@pytest.mark.parametrize("scheme", ["npz", "d4rl", "table", "minari"])
def test_location_with_a_null_character_is_one_line(scheme):
    uri = f"{scheme}:a\0b-v0"
    assert "null character" in refused(uri)
    for call in (formats.exists, formats.stored_file, lambda uri: formats.save(logged(), uri)):
        with pytest.raises(InputError, match="null character"):
            call(uri)


def test_file_of_very_many_tensors_is_read_at_once(tmp_path):
    save_file({f"tensor {number}": np.zeros(1, np.float32) for number in range(30_000)}, tmp_path / "x.safetensors")
    start = time.process_time()
    assert len(read_tensors(tmp_path / "x.safetensors")[0]) == 30_000
    assert time.process_time() - start < 5


def test_space_of_many_large_parts_is_refused(tmp_path):
    box = {"type": "Box", "dtype": "float32", "shape": [1 << 20], "low": -1, "high": 1}
    space = {"type": "Dict", "subspaces": {f"part_{number}": box for number in range(500)}}
    with pytest.raises(InputError, match="more than 1,048,576 numbers"):
        spaces.from_json(json.dumps(space))


def test_numbers_wider_than_formats_keep_are_refused(tmp_path):
    wide = {name: array.astype(np.longdouble) if array.dtype.kind == "f" else array for name, array in rows().items()}
    np.savez(tmp_path / "log.npz", **wide)  # pyright: ignore[reportArgumentType]
    assert "float128" in refused(f"npz:{tmp_path}/log.npz")
    write_d4rl(tmp_path / "log.hdf5", put("rewards", lambda file, name: file.__setitem__(name, wide[name])))
    assert "float128" in refused(f"d4rl:{tmp_path}/log.hdf5")
    box = {"type": "Box", "dtype": "longdouble", "shape": [1], "low": -1, "high": 1}
    with pytest.raises(InputError, match="float128"):
        spaces.from_json(json.dumps(box))


def test_npz_of_zeros_is_refused_unless_allowed(tmp_path):
    count = 40_000_000
    header = {"descr": "|b1", "fortran_order": False, "shape": (count,)}
    npz_with(tmp_path / "log.npz", "rewards", header, bytes(count))
    with zipfile.ZipFile(tmp_path / "log.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        file = io.BytesIO()
        np.save(file, np.zeros(count, bool))
        archive.writestr("dones.npy", file.getvalue())
    assert (tmp_path / "log.npz").stat().st_size < 1 << 20
    uri = f"npz:{tmp_path}/log.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ALWAYS_FINE", 1 << 20)
        assert "declares 40 MB of data in" in refused(uri)
        # Allowed, it is read, and then refused for what it is.
        with pytest.raises(InputError, match="rows"):
            formats.load(uri, allow_large=True)


def test_parquet_that_repeats_one_value_is_refused(tmp_path):
    column = pa.array(np.zeros(10_000_000, np.int8))
    table = pa.table(dict.fromkeys(("episode", "obs", "action", "reward"), column))
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    assert (tmp_path / "log.parquet").stat().st_size < 1 << 20
    assert "declares" in refused(f"table:{tmp_path}/log.parquet")


def minari_episode(store: Path, kind: str) -> tuple[Path, pa.Table]:
    """Write a set in one of Minari's Arrow formats; return its first episode's file, and what is in it."""
    minari_in(kind)(store.parent)
    (path,) = (store / "my" / "log-v0" / "data" / "0").glob(f"*.{kind}")
    return path, pyarrow.parquet.read_table(path) if kind == "parquet" else pa.ipc.open_file(path).read_all()


def write_episode(path: Path, table: pa.Table, compression: str) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, compression=compression)
        return
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_minari_episode_that_unpacks_to_much_is_refused_before_it_is_unpacked(kind, compression, minari_store):
    path, table = minari_episode(minari_store, kind)
    lists = pa.array([np.zeros(20_000_000, np.float32), *np.zeros((len(table) - 1, 3), np.float32)])
    write_episode(path, table.set_column(table.column_names.index("observations"), "observations", lists), compression)
    assert path.stat().st_size < 1 << 20
    assert "declares" in refused("minari:my/log-v0")


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_minari_episode_loads_however_it_is_packed(kind, minari_store):
    path, table = minari_episode(minari_store, kind)
    before = formats.load("minari:my/log-v0")
    for compression in ("zstd", "lz4"):
        note = pa.array(["x" * 1000] * len(table)).dictionary_encode()
        write_episode(path, table.append_column("note", note), compression)
        assert formats.load("minari:my/log-v0").equals(before)


def test_column_of_a_minari_episode_that_nothing_needs_is_not_unpacked(minari_store):
    path, table = minari_episode(minari_store, "parquet")
    before = formats.load("minari:my/log-v0")
    write_episode(path, table.append_column("note", pa.array(["x" * 100_000_000] + [""] * (len(table) - 1))), "zstd")
    assert path.stat().st_size < 1 << 20
    assert formats.load("minari:my/log-v0").equals(before)


def test_compressed_csv_is_unpacked_only_as_far_as_is_sane(tmp_path):
    import gzip

    content = b"episode,obs,action,reward\n" + b"1,1,1,1\n" * 12_500_000
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(content, 1))
    assert (tmp_path / "log.csv.gz").stat().st_size < 1 << 20
    assert "`allow_large=True`" in refused(f"table:{tmp_path}/log.csv.gz")


def test_text_that_many_rows_share_is_read_once(tmp_path):
    rows = 10_000
    label = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * 1_000_000]))
    numbers = pa.array(np.arange(rows, dtype=np.float32))
    ends = pa.array(np.arange(rows) == rows - 1)
    table = pa.table({"episode": label, "obs": numbers, "action": numbers, "reward": numbers, "done": ends})
    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "the name of an episode has 1,000,000 characters" in refused(f"table:{tmp_path}/log.parquet")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


def test_csv_of_too_many_columns_is_refused(tmp_path):
    (tmp_path / "log.csv").write_text(",".join(f"obs_{number}" for number in range(50_000)) + "\n")
    assert "50,000 columns" in refused(f"table:{tmp_path}/log.csv")


def test_allow_large_is_a_flag_of_every_verb_that_loads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limits, "ALWAYS_FINE", 0)
    monkeypatch.setattr(limits, "RATIO", 0)
    trajstitch.save(logged(), "npz:log.npz")
    assert cli.run(["inspect", "npz:log.npz"]) == 2
    assert "--allow-large" in capsys.readouterr().err
    assert cli.run(["convert", "npz:log.npz", "npz:out.npz", "--allow-large"]) == 0
    assert trajstitch.load("npz:out.npz", allow_large=True).equals(logged())
    for verb in ("stitch", "evaluate", "simulate", "inspect"):
        with pytest.raises(SystemExit):
            cli.run([verb, "--help-all"])
        assert "--allow-large" in capsys.readouterr().out


def test_more_than_the_machine_has_is_refused_even_if_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 100)
    trajstitch.save(logged(), f"npz:{tmp_path}/log.npz")
    assert "memory are free" in refused(f"npz:{tmp_path}/log.npz", allow_large=True)


# Tables of many parts, and names of many characters


def write_parquet(path: Path, **columns: object) -> str:
    table: dict[str, object] = dict.fromkeys(("obs", "action", "reward"), np.arange(12.0))
    pyarrow.parquet.write_table(pa.table({**table, "done": np.arange(12) % 4 == 3, **columns}), path)
    return f"table:{path}"


def test_parquet_of_many_lists_is_loaded_at_once(tmp_path, monkeypatch):
    lists = {f"obs_{number}": [[float(number), float(row)] for row in range(12)] for number in range(40)}
    uri = write_parquet(tmp_path / "log.parquet", obs=np.arange(12.0), **lists)
    asked = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: asked.append(given) or run(*given, **options))
    data = formats.load(uri, columns=Columns(observations=("obs_*",)))
    np.testing.assert_array_equal(data.observations[0], [part for number in range(40) for part in (number, 0)])
    assert len(asked) == 1


def test_parquet_of_many_columns_takes_no_time_for_each(tmp_path):
    table = {name: np.arange(4.0) for name in ("action", "reward", *(f"obs_{number}" for number in range(3000)))}
    pyarrow.parquet.write_table(pa.table({**table, "done": np.arange(4) == 3}), tmp_path / "log.parquet")
    start = time.process_time()
    data = formats.load(f"table:{tmp_path}/log.parquet")
    assert time.process_time() - start < 3
    assert data.observation_size == 3000
    np.testing.assert_array_equal(data.observations[:4], np.repeat(np.arange(4.0)[:, None], 3000, 1))


def test_damaged_column_of_several_is_named(tmp_path):
    uri = write_parquet(tmp_path / "log.parquet", obs_1=np.arange(12) / 7)
    found = pyarrow.parquet.read_metadata(tmp_path / "log.parquet").row_group(0)
    (chunk,) = (one for one in map(found.column, range(found.num_columns)) if one.path_in_schema == "obs_1")
    content = bytearray((tmp_path / "log.parquet").read_bytes())
    content[chunk.data_page_offset : chunk.data_page_offset + 20] = b"\xff" * 20
    (tmp_path / "log.parquet").write_bytes(content)
    assert "column 'obs_1' is damaged" in refused(uri, columns=Columns(observations=("obs*",)))


def test_labels_in_an_unknown_time_zone_are_one_line(tmp_path):
    stamps = pa.array(np.arange(12) // 4, pa.timestamp("ns", "Mars/Olympus"))
    uri = write_parquet(tmp_path / "log.parquet", episode=stamps)
    assert "column 'episode' can't be read" in refused(uri)


@pytest.mark.parametrize("count", [12, 200_000])
def test_names_take_no_more_memory_than_they_have_characters(count, tmp_path):
    names = ["n" * (5_000_000 if count == 12 else 900), *map(str, range(count - 1))]
    columns = {name: np.zeros(count) for name in ("obs", "action", "reward")}
    uri = write_parquet(tmp_path / "log.parquet", episode=pa.array(names), done=np.ones(count, bool), **columns)
    line = refused(uri)
    assert "the name of an episode has" in line
    assert len(line) < 400


def test_labels_that_metadata_makes_up_are_refused(tmp_path):
    lengths = np.array([4, 4])
    for stored in (
        {"episodes": ["a", "b" * 5000], "times": None, "clock": None},
        {"episodes": None, "times": {"starts": [0, 9], "step": 1}, "clock": ["x" * 1_000_000, "Z"]},
        {"episodes": None, "times": {"starts": [0, 9], "step": 1}, "clock": ["T", "\x1b[31m"]},
    ):
        with pytest.raises(InputError, match="its labels are damaged"):
            Labels.from_json(stored, lengths, "npz:log.npz")


def test_checksum_that_is_a_pipe_or_without_end_is_not_read(tmp_path):
    head = "episode,obs,act,reward\n"
    for name, make in (("pipe", os.mkfifo), ("zero", lambda path: path.symlink_to("/dev/zero")), ("dir", Path.mkdir)):
        (tmp_path / f"{name}.csv").write_text(head + "1,1,1,1\n" * 4)
        make(tmp_path / f"{name}.csv.sha256")
        assert formats.load(f"table:{tmp_path}/{name}.csv").steps == 4


@pytest.mark.parametrize("count", [10**9, 10**18, -5, 0])
def test_stitched_data_that_claims_other_originals_takes_no_memory(count):
    data = stitched()
    data = replace(data, metadata=StitchRecord(True, 1, count, 3, 1).added_to(data.metadata))
    with pytest.raises(InputError, match="doesn't know its original"):
        load_original(data)


def test_a_line_is_never_as_long_as_a_name(tmp_path, caplog):
    uri = write_parquet(tmp_path / "log.parquet", **{"obs_" + "x" * 1_000_000: pa.array(["text"] * 12)})
    line = refused(uri, columns=Columns(observations=("obs_*",)))
    assert len(line) < 2200
    assert line.endswith("leave it out")
    with caplog.at_level(logging.INFO, "trajstitch"):
        logger.info("y" * 1_000_000)
    assert len(caplog.messages[-1]) < 2200


# Folders of strangers


def damage_minari(store: Path, name: str, make: Callable[[Path], object]) -> None:
    trajstitch.save(logged(), "minari:my/log-v0", force=True)
    path = store / "my" / "log-v0" / "data" / name
    path.rename(store.parent / name)
    make(path)


@pytest.mark.parametrize("name", ["metadata.json", "main_data.hdf5"])
def test_links_out_of_a_minari_set_are_never_followed(name, minari_store):
    damage_minari(minari_store, name, lambda path: path.symlink_to(minari_store.parent / name))
    assert "is a link out of the set's folder" in refused("minari:my/log-v0")


@pytest.mark.parametrize("name", ["metadata.json", "main_data.hdf5"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_minari_set_of_pipes_and_devices_is_refused_unread(name, make, minari_store, capsys):
    trajstitch.save(logged(), "minari:my/whole-v0")
    damage_minari(minari_store, name, make)
    refused("minari:my/log-v0")
    assert cli.run(["sets", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["minari"]) == ["my/whole-v0"]


def test_minari_set_that_is_elsewhere_as_a_whole_is_loaded(minari_store):
    trajstitch.save(logged(), "minari:my/log-v0")
    (minari_store / "my" / "log-v0").rename(minari_store.parent / "elsewhere")
    (minari_store / "my" / "log-v0").symlink_to(minari_store.parent / "elsewhere")
    assert formats.load("minari:my/log-v0").equals(logged())
    assert minari.local_sets() == {"my/log-v0": {"episodes": 3, "steps": 12}}


# Text that no file can hold


def test_metadata_that_is_no_unicode_is_one_line(tmp_path, minari_store):
    data = replace(logged(), metadata=replace(logged().metadata, extra={"observation_names": ["\ud800", "y", "z"]}))
    trajstitch.save(data, f"npz:{tmp_path}/log.npz")
    trajstitch.save(data, "minari:my/log-v0")
    for uri in (f"npz:{tmp_path}/log.npz", "minari:my/log-v0"):
        assert "text that is no Unicode" in refused(uri)


def test_page_and_card_show_what_would_deceive_as_codes():
    evil = "\x1b[31m\u202e\ud800<script>"
    charts = {"curves": {evil: [evil]}}
    entry = Entry(evil, "train", evil, evil, [], [(evil, evil)], [("Command", evil)], evil, charts)
    page = render([entry])
    assert evil[5] not in page
    assert "\\u202e" in page
    page.encode()
    made = card(logged(), stitched(), [], {"command": evil, "config": {"source": evil, "fingerprint": evil}}, uri=evil)
    assert "<script>" not in made.replace("`", "").split("command", 1)[0]
    assert not {"\x1b", "\u202e", "\ud800"} & set(made)


# Environments


def test_nothing_but_rollouts_starts_an_environment(tmp_path, monkeypatch, minari_store):
    monkeypatch.chdir(tmp_path)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("an environment was started")

    monkeypatch.setattr(gymnasium, "make", forbidden)
    trajstitch.save(logged(), "minari:my/log-v0")
    facts = minari_store / "my" / "log-v0" / "data" / "metadata.json"
    stored = without_checksums(json.loads(facts.read_text()))
    facts.write_text(json.dumps({name: value for name, value in stored.items() if not name.endswith("_space")}))
    assert cli.run(["inspect", "minari:my/log-v0"]) == 0
    for target in ("npz:log.npz", "d4rl:log.hdf5", "table:log.parquet", "minari:my/other-v0"):
        assert cli.run(["convert", "minari:my/log-v0", target]) == 0
        assert formats.load(target).equals(logged())
    assert cli.run(["train", "bc", "npz:log.npz", "--steps", "2", "--seeds", "1", "--run", "run"]) == 0
    assert cli.run(["sets"]) == 0
    trajstitch.save(logged()[0], "npz:one.npz")
    assert cli.run(["stitch", "npz:one.npz", "npz:better.npz", "--preset", "quick", "--run", "stitched"]) == 0


def test_nested_minari_set_without_spaces_is_loaded_from_its_arrays(minari_store):
    trajstitch.save(logged(nested=True), "minari:my/log-v0")
    facts = minari_store / "my" / "log-v0" / "data" / "metadata.json"
    stored = without_checksums(json.loads(facts.read_text()))
    facts.write_text(json.dumps({name: value for name, value in stored.items() if not name.endswith("_space")}))
    loaded = formats.load("minari:my/log-v0")
    assert loaded.equals(logged())
    assert any("no spaces are recorded" in finding.detail for finding in loaded.metadata.findings)


@pytest.mark.parametrize("value", ["/etc/passwd", "../x.xml", "~/x", "./x", ".x", ["a", "/b"], {"a": "/b"}, "C:\\x"])
def test_arguments_of_an_environment_name_no_file(value):
    spec = json.dumps({**json.loads(spec_json("Pendulum-v1")), "kwargs": {"g": value}})
    with pytest.raises(InputError, match="may not name other files"):
        environments.spec(Metadata(environment=spec))


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a mark when it is imported, and holds an environment."""
    mark = tmp_path / "ran-code"
    source = "from gymnasium.envs.classic_control.pendulum import PendulumEnv\nclass Env(PendulumEnv): pass\n"
    (tmp_path / "evil_code.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n{source}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "evil_code", raising=False)
    return mark


def test_columns_in_a_parquet_file_import_nothing(evil):
    trajstitch.save(logged(), "table:log.parquet")
    table = pyarrow.parquet.read_table("log.parquet")
    stored = json.loads(table.schema.metadata[b"trajstitch"])
    stored["columns"]["environment"] = "evil_code:Evil-v0"
    del stored["trajstitch_checksum"]
    pyarrow.parquet.write_table(table.replace_schema_metadata({"trajstitch": json.dumps(stored)}), "log.parquet")
    assert formats.load("table:log.parquet").equals(logged())
    assert not evil.exists()


def test_columns_in_a_run_folder_import_nothing(evil):
    from trajstitch.benchmark.sources import reload_source
    from trajstitch.data.source_facts import source_facts
    from trajstitch.storage.runs import Run

    trajstitch.save(logged(), "table:log.csv")
    facts = source_facts(logged(), "table:log.csv", {"environment": "evil_code:Evil-v0"})
    run = Run.start(Path("run"), "train", facts)
    with pytest.raises(InputError, match="unknown environment 'evil_code:Evil-v0'"):
        reload_source(run)
    assert not evil.exists()


def test_users_word_starts_the_environment_of_the_data(evil, monkeypatch, capsys):
    spec = {**json.loads(spec_json("Pendulum-v1")), "id": "Evil-v0", "entry_point": "evil_code:Env"}
    monkeypatch.setattr(gymnasium, "registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    data = replace(logged(), metadata=Metadata("log", environment=json.dumps(spec)))
    trajstitch.save(data, "npz:log.npz")
    assert cli.run(["train", "bc", "npz:log.npz", "--steps", "2", "--seeds", "1", "--run", "run"]) == 0
    assert cli.run(["evaluate", "run", "--episodes", "1"]) == 2
    assert "--trust-environment" in capsys.readouterr().err
    assert not evil.exists()
    assert cli.run(["evaluate", "run", "--episodes", "1", "--processes", "1", "--trust-environment"]) == 0
    assert evil.exists()


# Terminals, logs and pages

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\u202e\u2028\x08\r\nerror: forged"


def test_clean_text_commands_no_terminal():
    shown = clean(ESCAPES)
    assert not set(shown) & {
        *map(chr, range(9)),
        *map(chr, range(11, 32)),
        *map(chr, range(127, 160)),
        "\u202e",
        "\u2028",
    }
    assert r"\x1b[31m" in shown
    assert "\n" not in one_line(ESCAPES)
    assert clean("ä × – ✓ 日本\t\n") == "ä × – ✓ 日本\t\n"


def evil_files(folder: Path) -> list[str]:
    """Write files whose names, keys, headers, ids and texts hold escapes; return their URIs."""
    named = replace(
        logged(), metadata=replace(logged().metadata, name=ESCAPES, extra={"observation_names": [ESCAPES] * 3})
    )
    trajstitch.save(named, f"npz:{folder}/name.npz")
    np.savez(folder / "key.npz", **rows(), **{ESCAPES: np.zeros(3)})  # pyright: ignore[reportArgumentType]
    np.savez(folder / "keys.npz", **{ESCAPES: np.zeros(3)})  # pyright: ignore[reportArgumentType]
    spec = json.dumps({**json.loads(spec_json("Pendulum-v1")), "id": ESCAPES})
    trajstitch.save(replace(logged(), metadata=Metadata("a", environment=spec)), f"npz:{folder}/id.npz")
    write_d4rl(folder / "group.hdf5", lambda file: file.__setitem__(ESCAPES.replace("/", ""), 1.0))
    write_d4rl(folder / "missing.hdf5", lambda file: [file.__setitem__(ESCAPES, 1.0), file.__delitem__("rewards")])
    header = f'"{ESCAPES}",obs,action,reward,done\n'.replace("\r\n", " ")
    (folder / "header.csv").write_text(header + "1,1,1,1,0\n1,2,2,2,1\n")
    (folder / "cell.csv").write_text(f"obs,action,reward,done\n1,1,1,{ESCAPES[:20]}\n")
    (folder / "number.csv").write_text(f"obs,action,reward,done\n{ESCAPES[:20]},1,1,1\n")
    table = pa.table({ESCAPES: ["a"], "obs": [1.0], "action": [1.0], "reward": ["b"], "done": [True]})
    pyarrow.parquet.write_table(table, folder / "column.parquet")
    tables = ("header.csv", "cell.csv", "number.csv", "column.parquet")
    return [
        *(f"npz:{folder}/{name}.npz" for name in ("name", "key", "keys", "id")),
        *(f"d4rl:{folder}/{name}.hdf5" for name in ("group", "missing")),
        *(f"table:{folder}/{name}" for name in tables),
    ]


def test_no_escape_of_a_file_reaches_the_terminal(tmp_path, capsys):
    for uri in evil_files(tmp_path):
        for arguments in (
            ["inspect", uri],
            ["inspect", uri, "--json"],
            ["convert", uri, f"npz:{tmp_path}/out.npz", "--force"],
        ):
            cli.run(arguments)
            shown = capsys.readouterr()
            for text in (shown.out, shown.err):
                assert not set(text) & {"\x1b", "\x07", "\x08", "\r", "\x9b", "\u202e", "\u2028"}, (arguments, text)
                assert not any(line.startswith("error: forged") for line in text.splitlines()), (arguments, text)


def test_log_lines_are_clean_in_any_handler(caplog):
    with caplog.at_level(logging.INFO, "trajstitch"):
        logger.info(f"loading {ESCAPES}")
    assert "\x1b" not in caplog.text


def test_our_own_colours_stay(monkeypatch):
    from rich.text import Text

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = SafeConsole()
    with console.capture() as shown:
        console.print(Text.assemble((f"name{ESCAPES}", "bold red")))
    assert "\x1b[1;31m" in shown.get()
    assert "\x1b[2J" not in shown.get()


def test_progress_of_a_strange_name_is_drawn(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress(f"loading [/]{ESCAPES}", 2) as advance:
        advance(2, note="[/red]\x1b]0;owned\x07")
    assert "\x1b]0" not in capsys.readouterr().err


def test_no_html_reaches_a_page():
    table = markdown_table(["set"], [["<script>alert(1)</script>\n| forged |"]])
    assert "<script" not in table
    assert len(table.splitlines()) == 3
