"""Refuse files that declare far more data than they hold or than memory can take, before anything is allocated.

A file of a few kilobytes can declare terabytes: an HDF5 dataset without chunks, a compressed array of zeros, a header
with a wrong shape. So readers take what they are about to allocate from a `Budget`, by the sizes that a file declares.
"""

from pathlib import Path

from trajstitch.errors import InputError

RATIO = 25
"""Bytes of data for each byte of the file: logs compress to a third or a tenth."""
ALWAYS_FINE = 64 << 20
"""Bytes that any file may declare: they are loaded in a second or two."""


class Budget:
    """What a file may still declare; `source` names it in errors."""

    def __init__(self, path: Path, source: str, *, allow_large: bool = False) -> None:
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        self.stored = sum(one.stat().st_size for one in files)
        self.source, self.allow_large = source, allow_large
        self.free = free_memory()
        self.taken = 0

    def take(self, declared: int) -> None:
        """Count bytes that are about to be allocated; raise if they are too many."""
        self.taken += int(declared)
        if self.taken > self.free:
            raise InputError(
                f"{self.source}: declares {_size(self.taken)} of data, but {_size(self.free)} of memory are free: load "
                "a part of it, or use a machine with more memory"
            )
        if not self.allow_large and self.taken > max(ALWAYS_FINE, RATIO * self.stored):
            raise InputError(
                f"{self.source}: declares {_size(self.taken)} of data in {_size(self.stored)}, as damaged and hostile "
                "files do: if you know that it is right, load it with `allow_large=True`"
            )


def free_memory() -> int:
    """Return the bytes of memory that this process may still take: the machine's, or its container's if less."""
    found = [1 << 62]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")]
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        found += [int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text())] if limit != "max" else []
    except (OSError, ValueError, IndexError):
        pass  # no Linux: only the ratio counts
    return min(found)


def _size(count: int) -> str:
    power = min((len(str(count)) - 1) // 3, 4)
    return f"{count / 1000**power:,.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
