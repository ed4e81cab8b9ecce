"""Ways to damage a file: its bytes, or its structure with the library that writes it."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet

Random = np.random.Generator
Mutation = Callable[[Path, Random], None]

ESCAPE = "\x1b[31mred\x1b]0;title\x07"
WORDS = ("", "x", "nan", "inf", "-1", "1e999", "9" * 400, ESCAPE, "\u202eabc", "<script>", "a\nb", "\udcff")
RAW = (
    "9" * 4000,
    '"\\u0000"',
    "[" * 63 + "]" * 63,
    '{"a": 1, "a": [2]}',
    "-0",
    "1E-999",
    "9" * 5000,
    "[" * 20_000,
    "-",
    "NaN",
    "Infinity",
    "1e400",
    '"\\ud800"',
    "{" * 50,
    "tru",
    "\x00",
)
"""JSON text that is put where a value was, as it is."""
NUMBERS = (-1, 0, 2**31, 10**30, 0.5, 1e308)
VALUES: tuple[Any, ...] = (None, True, *NUMBERS, [], {}, [None], {"a": {}}, [[1, 2], [3]], *WORDS)


def pick(random: Random, options: Any) -> Any:
    """Return one of the options."""
    options = list(options)
    return options[int(random.integers(len(options)))]


# Bytes


def flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(int(pick(random, (1, 1, 2, 8, 64)))):
        if content:
            content[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
    path.write_bytes(content)


def cut(path: Path, random: Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(random.integers(len(content) + 1))])


def zeros(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    start = int(random.integers(max(len(content), 1)))
    stop = min(len(content), start + int(random.integers(1, 200)))
    content[start:stop] = bytes([pick(random, (0, 255, 65))]) * (stop - start)
    path.write_bytes(content)


def swap(path: Path, random: Random) -> None:
    content = path.read_bytes()
    a, b = sorted(int(at) for at in random.integers(0, len(content) + 1, 2))
    path.write_bytes(content[:a] + content[b:] if random.random() < 0.5 else content[:b] + content[a:])


def number(path: Path, random: Random) -> None:
    """Write an extreme number somewhere, in the width of a size or an offset."""
    content = bytearray(path.read_bytes())
    width = pick(random, (2, 4, 8))
    value = pick(random, (0, 1, (1 << (8 * width)) - 1, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1, 1 << 20))
    at = int(random.integers(max(1, len(content) - width)))
    content[at : at + width] = (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")
    path.write_bytes(content)


BYTES: tuple[Mutation, ...] = (flip, cut, zeros, swap, number)


# JSON


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += _places(part, (*path, key))
    return found


def mutated_json(text: str, random: Random) -> str:
    """Return JSON with one part replaced, removed or renamed, or with text that is none."""
    value = json.loads(text)
    path = pick(random, _places(value))
    if not path:
        return pick(random, (*RAW, *(json.dumps(one) for one in VALUES)))
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    last, how = path[-1], random.random()
    if isinstance(inner[last], str) and inner[last].startswith("{") and how < 0.5:  # JSON within JSON
        inner[last] = mutated_json(inner[last], random)
        return json.dumps(value)
    if how < 0.1 and isinstance(inner, dict):  # the last of two keys of a name counts
        inner["@AGAIN@"] = pick(random, VALUES)
        return json.dumps(value).replace('"@AGAIN@"', json.dumps(last))
    if how < 0.2:
        del inner[last]
    elif how < 0.3 and isinstance(inner, dict):
        inner[pick(random, WORDS)] = inner.pop(last)
    elif how < 0.4:
        inner[last] = "@RAW@"
        return json.dumps(value).replace('"@RAW@"', pick(random, RAW))
    else:
        inner[last] = pick(random, VALUES)
    return json.dumps(value)


def edit_json(path: Path, random: Random) -> None:
    path.write_text(mutated_json(path.read_text(), random), encoding="utf-8", errors="surrogatepass")


def encode(path: Path, random: Random) -> None:
    text = path.read_text()
    path.write_bytes(text.encode(pick(random, ("utf-16", "utf-32", "utf-8-sig", "cp037"))))


# Arrays


def awkward_array(array: np.ndarray, random: Random) -> np.ndarray:
    """Return an array of another shape, dtype or content."""
    choice = int(random.integers(14))
    if array.dtype.kind not in "fiub":
        array = np.zeros(3)
    if choice == 0:
        return array[: len(array) // 2] if array.ndim else array
    if choice == 1:
        return array[..., None]
    if choice == 2:
        return array.reshape(-1)
    if choice == 3:
        return array.astype(pick(random, ("i8", "u1", "c8", "f2", ">f8", "S3", "U9", "?", "f4")), casting="unsafe")
    if choice == 4:
        return np.zeros((0, *array.shape[1:]), array.dtype)
    if choice == 5:
        return np.array(pick(random, WORDS))
    if choice == 6:
        return np.zeros((*array.shape[:1], 0), array.dtype)
    if choice == 7:
        return np.zeros(len(array) if array.ndim else 1, [("a", "f4"), ("b", "i4")])
    if choice == 8:
        return np.array(0, array.dtype)
    if choice == 9:
        return np.zeros(array.shape, "M8[s]")
    if array.dtype.kind == "f" and array.size:
        changed = array.copy()
        changed.flat[int(random.integers(changed.size))] = pick(random, (np.nan, np.inf, -np.inf, 1e38, 0.5))
        return changed
    if array.dtype.kind in "iu" and array.size:
        changed = array.copy()
        info = np.iinfo(array.dtype)
        changed.flat[int(random.integers(changed.size))] = pick(random, (info.min, info.max, 0))
        return changed
    return ~array if array.dtype.kind == "b" else array


# NPZ


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write_members(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npz_array(path: Path, random: Random) -> None:
    members = _members(path)
    name = pick(random, members)
    file = io.BytesIO()
    np.save(file, awkward_array(np.load(io.BytesIO(members[name])), random))
    _write_members(path, members | {name: file.getvalue()})


def npz_pickle(path: Path, random: Random) -> None:
    members = _members(path)
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}, None], object), allow_pickle=True)
    _write_members(path, members | {pick(random, members): file.getvalue()})


def npz_header(path: Path, random: Random) -> None:
    """Change the text of a .npy header."""
    members = _members(path)
    name = pick(random, members)
    content = members[name]
    size = struct.unpack("<H", content[8:10])[0]
    head, rest = content[10 : 10 + size].decode("latin1"), content[10 + size :]
    shape = head[head.index("(") : head.index(")") + 1]
    text = pick(
        random,
        (
            head.replace(shape, "(99999999999,)"),
            head.replace(shape, "(100000000, 3)"),
            head.replace(shape, "(-1,)"),
            head.replace(shape, "(1e9,)"),
            head.replace(shape, "(" * 300 + ")" * 300),
            head.replace("False", "True"),
            head.replace("<f4", "|O"),
            head.replace("<f4", "<f9"),
            head.replace("<f4", "U99999999"),
            head.replace("descr", "x"),
            head.replace("(", "(12L, ", 1),
            head.replace("<f4", "<f4,<f4"),
            head.replace("'<f4'", "[('a', '<f4', (3,))]"),
            head.replace("'<f4'", "{'names': ['a'], 'formats': ['<f4'], 'offsets': [999999999]}"),
            head + " " * 20_000,
            "[" * 3000,
            "{",
            "",
            "open('x', 'w')",
        ),
    )
    version = pick(random, ((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    members[name] = content[:6] + bytes(version) + length + text.encode("latin1") + rest
    _write_members(path, members)


def npz_members(path: Path, random: Random) -> None:
    """Remove, rename, repeat or replace a member, or pack it in another way."""
    members, how = _members(path), int(random.integers(7))
    name = pick(random, members)
    if how == 0:
        del members[name]
    elif how == 1:
        members[pick(random, ("rewards.npy", "dones.npy", "../../x.npy", "a\x1b[31m.npy", "offsets.npy"))] = members[
            name
        ]
    elif how == 2:
        members[name] = pick(random, (b"", b"no array", b"\x93NUMPY", bytes(100)))
    elif how == 3:
        members[name.removesuffix(".npy")] = members.pop(name)
    _write_members(path, members, pick(random, (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)))
    if how == 4:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, members[name])
    if how == 5:  # says that it is encrypted
        content = bytearray(path.read_bytes())
        for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            content[content.index(mark) + at] |= 1
        path.write_bytes(content)


class _Unseekable(io.RawIOBase):
    """A pipe: what is written to it has its sizes after each member."""

    def __init__(self) -> None:
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        self.content += bytes(content)
        return len(content)


def _in_archive(path: Path, random: Random, mark: bytes, at: int, width: int) -> None:
    """Write a number into one of an archive's records."""
    content = bytearray(path.read_bytes())
    starts = [place for place in range(len(content)) if content.startswith(mark, place)]
    start = pick(random, starts) + at
    value = pick(random, (0, 1, 8, 9, 12, 14, 99, 255, (1 << (8 * width)) - 1, (1 << (8 * width - 1)) - 1, 1 << 12))
    content[start : start + width] = (value % (1 << (8 * width))).to_bytes(width, "little")
    path.write_bytes(content)


def npz_archive(path: Path, random: Random) -> None:
    """Change how the archive is made: its records, what is around it, the sizes' places."""
    members, how = _members(path), int(random.integers(8))
    method = pick(random, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    if how == 0:
        pipe = _Unseekable()
        with zipfile.ZipFile(pipe, "w", method) as archive:  # pyright: ignore[reportArgumentType]
            for name, content in members.items():
                archive.writestr(name, content)
        path.write_bytes(pipe.content)
        return
    _write_members(path, members, method)
    central, local = b"PK\x01\x02", b"PK\x03\x04"
    if how == 1:  # in the folder's records: method, checksum, sizes, name's length, flags, place
        place, width = pick(random, ((10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (8, 2), (42, 4)))
        _in_archive(path, random, central, place, width)
    elif how == 2:  # in the members' own
        place, width = pick(random, ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)))
        _in_archive(path, random, local, place, width)
    elif how == 3:  # in the end's
        place, width = pick(random, ((4, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)))
        _in_archive(path, random, b"PK\x05\x06", place, width)
    elif how == 4:
        path.write_bytes(b"PK" + bytes(int(random.integers(100))) + path.read_bytes())
    elif how == 5:
        path.write_bytes(path.read_bytes() + bytes(int(random.integers(100))))
    elif how == 6:
        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = pick(random, (b"trajstitch 00000000", b"trajstitch ", ESCAPE.encode() * 9))
    else:
        with zipfile.ZipFile(path, "a") as archive:
            name = pick(random, ("folder/", "REWARDS.npy", "rewards.npy.npy", "/rewards.npy", "a\0b.npy", "x" * 60_000))
            archive.writestr(name, members[pick(random, members)])


def npz_booleans(path: Path, random: Random) -> None:
    """Put other bytes than 0 and 1 into booleans."""
    members = _members(path)
    flags = [name for name, content in members.items() if b"'|b1'" in content[:100]]
    if not flags:
        return npz_header(path, random)
    name = pick(random, flags)
    content = bytearray(members[name])
    content[-1 - int(random.integers(3))] = int(pick(random, (2, 7, 128, 255)))
    return _write_members(path, members | {name: bytes(content)})


def npz_metadata(path: Path, random: Random) -> None:
    members = _members(path)
    if "metadata.npy" not in members:
        return npz_array(path, random)
    text = str(np.load(io.BytesIO(members["metadata.npy"])))
    file = io.BytesIO()
    np.save(file, np.array(mutated_json(text, random)))
    return _write_members(path, members | {"metadata.npy": file.getvalue()})


# HDF5


def _datasets(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return found


def hdf5_array(path: Path, random: Random) -> None:
    with h5py.File(path, "a") as file:
        name = pick(random, _datasets(file))
        before = file[name]
        assert isinstance(before, h5py.Dataset)
        array = before[()] if before.dtype.kind in "fiub" else np.zeros(3)
        fresh = awkward_array(np.asarray(array), random)
        del file[name]
        file[name] = np.zeros(fresh.shape) if fresh.dtype.kind in "MU" else fresh


def _with_parents() -> Any:
    properties = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    properties.set_create_intermediate_group(True)
    return properties


def hdf5_strange(path: Path, random: Random) -> None:
    """Put something else where a dataset was: ways out of the file, huge shapes, types that are no numbers."""
    with h5py.File(path, "a") as file:
        name, how = pick(random, _datasets(file)), int(random.integers(24))
        shape = getattr(file[name], "shape", (3,)) or (3,)
        del file[name]
        if how == 0:
            file[name] = h5py.Empty("f4")
        elif how == 1:
            file.create_group(name)
        elif how == 2:
            file[name] = h5py.SoftLink(pick(random, ("/nowhere", f"/{name}", "/rewards", "/")))
        elif how == 3:
            file[name] = h5py.ExternalLink(pick(random, ("other.hdf5", str(path), "/etc/passwd")), "/rewards")
        elif how == 4:
            file.create_dataset(name, (8,), "u1", external=[("/etc/passwd", 0, 8)])
        elif how == 5:
            layout = h5py.VirtualLayout((4,), "f4")
            layout[:] = h5py.VirtualSource("/etc/passwd", "rewards", (4,))
            file.create_virtual_dataset(name, layout)
        elif how == 6:
            file.create_dataset(name, (10**8, *shape[1:]), "f4", chunks=(1000, *shape[1:]))
        elif how == 7:
            file.create_dataset(name, (2**62,), "f4", chunks=(2,))
        elif how == 8:
            file.create_dataset(name, shape, "f4", chunks=(1 << 28, *shape[1:]), maxshape=(None, *shape[1:]))
        elif how == 9:
            file[name] = np.array(pick(random, (b"\xff\xfe", b"{}", b"")), "S20")
        elif how == 10:
            file.create_dataset(name, shape, h5py.special_dtype(vlen=np.float32))
        elif how == 11:
            file.create_dataset(name, shape, h5py.ref_dtype)
        elif how == 12:
            file.create_dataset(name, shape, np.dtype("V7"))
        elif how == 13:
            file.create_dataset(name, shape, h5py.enum_dtype({"A": 0, "B": 1}, "i4"))
        elif how == 14:
            file.create_dataset(name, shape, h5py.regionref_dtype)
        elif how == 15:
            file.create_dataset(name, shape[:1], np.dtype(("f4", (int(pick(random, (3, 10**8))),))), chunks=(1,))
        elif how == 16:
            file.create_dataset(name, shape, h5py.opaque_dtype(np.dtype("M8[s]")))
        elif how == 17:  # links in a row, more than HDF5 follows
            for number in range(40):
                file[f"link_{number}"] = h5py.SoftLink(f"/link_{number + 1}")
            file[name] = h5py.SoftLink("/link_0")
        elif how == 18:
            file[name] = np.dtype("f4")  # a named type
        elif how == 19:  # booleans that are neither
            kind = h5py.h5t.py_create(np.dtype(bool), logical=True)
            space = h5py.h5s.create_simple(tuple(map(int, shape)))
            dataset = h5py.h5d.create(file.id, name.encode(), kind, space, lcpl=_with_parents())
            values = np.full(shape, 7, np.int8)
            dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
        elif how == 20:
            file.create_dataset(name, data=np.zeros((3_000_000,)), chunks=(1_000_000,), compression="gzip")
        elif how == 21:
            file.create_dataset(name, (1,) * 31 + (12,), "f4")
        elif how == 22:
            file.create_dataset(name, shape, "f4", fillvalue=pick(random, (np.nan, np.inf, 7)))
        else:
            for number in range(1000):
                file[f"metadata/{number}"] = "x" * 100


def hdf5_metadata(path: Path, random: Random) -> None:
    with h5py.File(path, "a") as file:
        text = file.get("metadata/trajstitch")
        if not isinstance(text, h5py.Dataset):
            array = awkward_array(np.arange(3.0), random)
            file[f"metadata/{pick(random, ('a', ESCAPE))}"] = array if array.dtype.kind in "fiub" else 1.0
            return
        before = str(text.asstr()[()])
        del file["metadata/trajstitch"]
        file["metadata/trajstitch"] = mutated_json(before, random).replace("\x00", "").encode("utf-8", "replace")


def hdf5_packed(path: Path, random: Random) -> None:
    """Pack a dataset in another way, which loads as the same data."""
    with h5py.File(path, "a") as file:
        name = pick(random, [one for one in _datasets(file) if getattr(file[one], "shape", ()) != ()])
        before = file[name]
        assert isinstance(before, h5py.Dataset)
        array = before[()]
        del file[name]
        file.create_dataset(name, data=array, chunks=(1, *array.shape[1:]), compression="gzip", shuffle=True)


# CSV


def csv_cell(path: Path, random: Random) -> None:
    lines = [line.split(",") for line in path.read_text().splitlines()]
    row = int(pick(random, (0, random.integers(len(lines)))))
    lines[row][int(random.integers(len(lines[row])))] = pick(
        random, (*WORDS, '"', '"a,b"', "\x00", "NaN", "2", "é" * 9)
    )
    path.write_text("\n".join(",".join(line) for line in lines), errors="surrogateescape")


def csv_column(path: Path, random: Random) -> None:
    """Remove or repeat a column."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    at, again = int(random.integers(len(lines[0]))), random.random() < 0.5
    lines = [[*line[: at + again], *line[at + 1 - again + again :]] for line in lines]
    path.write_text("\n".join(",".join([*line, line[at]] if again and at < len(line) else line) for line in lines))


def csv_lines(path: Path, random: Random) -> None:
    lines, how = path.read_text().splitlines(), int(random.integers(6))
    at = int(random.integers(len(lines)))
    if how == 0:
        lines.pop(at)
    elif how == 1:
        lines.insert(at, lines[at])
    elif how == 2:
        lines[at] += pick(random, (",", ",,,,", ",1", ";"))
    elif how == 3:
        lines[at] = ""
    elif how == 4:
        lines = lines[::-1]
    path.write_text(pick(random, ("\n", "\r\n", "\r")).join(lines))


def csv_bytes(path: Path, random: Random) -> None:
    """Put bytes that are no text somewhere, or a very long cell, or write the lines' ends in several ways."""
    content, how = path.read_bytes(), int(random.integers(6))
    at = int(random.integers(len(content)))
    if how == 0:
        content = content[:at] + pick(random, (b"\0", b"\xff", b"\xed\xa0\x80", b"\x1a", b"\x85")) + content[at:]
    elif how == 1:
        content = b"\xef\xbb\xbf" * int(random.integers(1, 3)) + content
    elif how == 2:
        content = content[:at] + b"9" * int(pick(random, (5000, 200_000, 2_000_000))) + content[at:]
    elif how == 3:
        content = content.replace(b"\n", pick(random, (b"\r\n", b"\r", b"\n\n", b"\n\r")), int(random.integers(1, 5)))
    elif how == 4:
        content = content[:at] + b'"' + content[at:] + b"1,1,1,1\n" * 10_000
    else:
        content = content.replace(b",", pick(random, (b";", b"\t", b" ,", b", ")))
    path.write_bytes(content)


# Parquet

ARROW: tuple[Callable[[int], pa.Array], ...] = (
    lambda rows: pa.array([[1.0, 2.0]] * rows),
    lambda rows: pa.array([[0]] * rows),
    lambda rows: pa.array([[]] * rows, pa.list_(pa.float32())),
    lambda rows: pa.array([[True]] * rows),
    lambda rows: pa.array([[1.0]] * (rows - 1) + [None]),
    lambda rows: pa.array([{"a": 1}] * rows),
    lambda rows: pa.array(["true", "false"] * (rows // 2) + ["no"] * (rows % 2)),
    lambda rows: pa.array([b"\xff\xfe"] * rows),
    lambda rows: pa.array([None] * rows),
    lambda rows: pa.array(range(rows), pa.timestamp("ns", "UTC")),
    lambda rows: pa.array([2**63 - 1] * rows),
    lambda rows: pa.array([2**64 - 1] * rows, pa.uint64()),
    lambda rows: pa.array([0.5] * rows, pa.float16()),
    lambda rows: pa.array(["x" * 1000] * rows).dictionary_encode(),
    lambda rows: pa.array([1] * rows).dictionary_encode(),
    lambda rows: pa.array([float("nan")] * rows),
    lambda rows: pa.array([10**30] * rows, pa.decimal256(40)),
    lambda rows: pa.array([[1.0]] * rows, pa.list_(pa.float32(), 1)),
    lambda rows: pa.array([[[1.0]]] * rows),
    lambda rows: pa.array([-(2**62)] * rows, pa.duration("s")),
    lambda rows: pa.array(range(rows), pa.date64()),
    lambda rows: pa.array([0] * rows, pa.time32("s")),
    lambda rows: pa.array([[("a", 1.0)]] * rows, pa.map_(pa.string(), pa.float32())),
    lambda rows: pa.array([{"a": {"b": [1.0]}}] * rows),
    lambda rows: pa.array([[[[[[1.0]]]]]] * rows),
    lambda rows: pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((rows, 3), np.float32)),
    lambda rows: pa.array([[0.0] * 1_000_000, *[[0.0]] * (rows - 1)], pa.list_(pa.float32())),
    lambda rows: pa.array(["x" * 3_000_000, *["y"] * (rows - 1)]),
    lambda rows: pa.array(["a"] * rows, pa.large_string()),
    lambda rows: pa.array([2**62] * rows, pa.timestamp("us")),
)


def parquet_column(path: Path, random: Random) -> None:
    table = pyarrow.parquet.read_table(path)
    names, how = table.column_names, random.random()
    at = int(random.integers(len(names)))
    if how < 0.6:
        table = table.set_column(at, names[at], pick(random, ARROW)(len(table)))
    elif how < 0.7:
        table = table.remove_column(at)
    elif how < 0.85:
        table = table.append_column(names[at], pick(random, ARROW)(len(table)))
    else:
        fresh = pick(random, (*WORDS, *names)).encode("utf-8", "replace").decode()
        renamed = [fresh if number == at else name for number, name in enumerate(names)]
        table = table.rename_columns(renamed)
    pyarrow.parquet.write_table(table, path)


def parquet_metadata(path: Path, random: Random) -> None:
    table = pyarrow.parquet.read_table(path)
    stored = dict(table.schema.metadata or {})
    before = stored.get(b"trajstitch", b"{}").decode()
    stored[b"trajstitch"] = mutated_json(before, random).encode("utf-8", "replace")
    pyarrow.parquet.write_table(table.replace_schema_metadata(stored), path)


def parquet_packed(path: Path, random: Random) -> None:
    """Pack the table in another way, which loads as the same data."""
    table = pyarrow.parquet.read_table(path)
    compression, rows = pick(random, ("gzip", "zstd", "none")), pick(random, (1, 5, 100))
    pyarrow.parquet.write_table(table, path, compression=compression, row_group_size=rows)


# Minari's Arrow files


def arrow_columns(path: Path, random: Random) -> None:
    """Replace, remove or repeat a column, or pack the batches in another way."""
    table = pa.ipc.open_file(path).read_all()
    names, how = table.column_names, random.random()
    at = int(random.integers(len(names)))
    if how < 0.5:
        table = table.set_column(at, names[at], pick(random, ARROW)(len(table)))
    elif how < 0.6:
        table = table.remove_column(at)
    elif how < 0.7:
        table = table.append_column(names[at], table.column(at))
    options = pa.ipc.IpcWriteOptions(compression=pick(random, (None, "zstd", "lz4")))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=int(pick(random, (1, 3, 100))))


# Safetensors


def tensors_header(path: Path, random: Random) -> None:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    text = mutated_json(content[8 : 8 + size].decode(), random).encode("utf-8", "replace")
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def tensors_array(path: Path, random: Random) -> None:
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        facts = file.metadata()
    name = pick(random, tensors)
    fresh = np.ascontiguousarray(awkward_array(tensors[name], random))
    if fresh.dtype.kind in "fiub" and fresh.dtype.isnative:
        tensors[name] = fresh
    else:
        tensors[name] = np.zeros_like(tensors[name])
    save_file(tensors, path, facts)


HARMLESS: tuple[Mutation, ...] = (hdf5_packed, parquet_packed)
"""Data that is changed by one of these is the same data."""

OF_ENDING: dict[str, tuple[Mutation, ...]] = {
    ".npz": (
        *(npz_array, npz_array, npz_pickle, npz_header, npz_members, npz_metadata, npz_metadata),
        *(npz_archive, npz_archive, npz_booleans),
    ),
    ".hdf5": (hdf5_array, hdf5_array, hdf5_strange, hdf5_strange, hdf5_metadata, hdf5_packed),
    ".csv": (csv_cell, csv_cell, csv_column, csv_lines, csv_bytes, encode),
    ".parquet": (parquet_column, parquet_column, parquet_column, parquet_metadata, parquet_packed),
    ".arrow": (*BYTES, arrow_columns, arrow_columns, arrow_columns),
    ".json": (edit_json, edit_json, edit_json, edit_json, encode),
    ".safetensors": (tensors_header, tensors_header, tensors_array),
}
"""By the ending of a file's name, ways to damage its structure."""


def mutation(path: Path, random: Random) -> Mutation:
    """Return a way to damage this file: its structure twice as often as its bytes."""
    return pick(random, BYTES if random.random() < 0.33 else OF_ENDING[path.suffix])
