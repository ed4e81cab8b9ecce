"""Checksums: what is read is what was written, or the reader learns that it isn't.

They are CRC-32, which finds every flipped bit and every damaged stretch of up to four bytes, and misses one in four
billion of all other damage. They protect from failing disks and copies, not from people.
"""

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

KEY = "trajstitch_checksum"
"""The key of a JSON object, or of a file's metadata, that holds its checksum."""
BLOCK = 4 << 20
"""Bytes that one thread takes at a time."""
CHANGED = "its checksum is another: it has changed since it was written, as on a failing disk"


def checksum(*parts: str | bytes | np.ndarray) -> str:
    """Return the checksum of texts, bytes and arrays; an array's dtype and shape count too."""
    whole = 0
    for part in parts:
        if isinstance(part, np.ndarray):
            array = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
            whole = zlib.crc32(f"{array.dtype.kind}{array.dtype.itemsize} {part.shape}".encode(), whole)
            whole = _add(array.reshape(-1).view(np.uint8).data, whole)
        else:
            content = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            whole = _add(memoryview(content), zlib.crc32(b"%d" % len(content), whole))
    return f"{whole:08x}"


def _add(content: memoryview, before: int) -> int:
    """Return the checksum of what came before and these bytes; many are summed in blocks, by several threads."""
    if len(content) <= BLOCK:
        return zlib.crc32(content, before)
    blocks = [content[start : start + BLOCK] for start in range(0, len(content), BLOCK)]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        sums = pool.map(zlib.crc32, blocks)
        return zlib.crc32(np.array(list(sums), "<u4").tobytes(), before)


def checksum_of_files(path: Path) -> str:
    """Return the checksum of a file, or of all files in a folder with their names."""
    if path.is_file():
        return _of_file(path)
    files = sorted(one for one in path.rglob("*") if one.is_file())
    return checksum(*(text for one in files for text in (one.relative_to(path).as_posix(), _of_file(one))))


def _of_file(path: Path) -> str:
    whole = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            whole = zlib.crc32(block, whole)
    return f"{whole:08x}"


def sealed(value: dict[str, Any], belongs_to: str = "") -> dict[str, Any]:
    """Return a JSON object with its checksum, which is another in another place."""
    plain = {name: one for name, one in json.loads(json.dumps(value)).items() if name != KEY}
    return {**plain, KEY: checksum(json.dumps(plain, sort_keys=True), belongs_to)}


def unsealed(value: dict[str, Any], belongs_to: str = "") -> dict[str, Any]:
    """Return the object that `sealed` was given; raise ValueError if it, or its place, is another.

    An object without a checksum is returned as it is.
    """
    if KEY in value and sealed(value, belongs_to)[KEY] != value[KEY]:
        raise ValueError(CHANGED)
    return {name: one for name, one in value.items() if name != KEY}
