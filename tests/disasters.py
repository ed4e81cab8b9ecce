"""Saves that go wrong: killed half-way, out of disk, without permission."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from tempfile import TemporaryDirectory
from textwrap import dedent

import numpy as np
import pytest

from trajstitch.data.trajectories import Trajectories


def two_megabytes() -> Trajectories:
    """A set that takes about 2 MB in either HDF5 layout."""
    episodes, length, size = 60, 100, 17
    steps = episodes * length
    return Trajectories(
        observations=np.random.default_rng(0).normal(size=(steps + episodes, size)),
        actions=np.zeros((steps, 6)),
        rewards=np.zeros(steps),
        terminated=np.zeros(steps, bool),
        truncated=np.arange(1, steps + 1) % length == 0,
        offsets=np.arange(0, steps + 1, length),
    )


PRELUDE = """
import sys
from disasters import two_megabytes
from trajstitch import formats
from trajstitch.errors import InputError

data, uri = two_megabytes(), sys.argv[1]
"""


def kill_while_saving(uri: str, signal: Signals) -> None:
    """Save to `uri` with --force, and send the signal when part of the data is in the file."""
    code = """
        from contextlib import contextmanager
        from trajstitch.formats import d4rl, episodes

        @contextmanager
        def progress(*_):
            def advance(count=1, /):
                print("half-way", flush=True)
                input()
            yield advance

        d4rl.progress = episodes.progress = progress
        formats.save(data, uri, force=True)
    """
    process = _start(code, uri, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "half-way\n"
    process.send_signal(signal)
    process.communicate()
    assert process.returncode == -signal


def save_with_little_room(uri: str, room: int) -> str:
    """What is said when no file may grow beyond `room` bytes. The error alone: HDF5 must print nothing of its own."""
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
        try:
            formats.save(data, uri)
        except InputError as error:
            print(error)
    """
    return _said(_start(code, uri, str(room)))


def save_to_a_full_disk(uri: str) -> str:
    """What is said when the disk is full."""
    code = """
        try:
            formats.save(data, uri)
        except InputError as error:
            print(error)
    """
    return _said(_start(code, uri))


@contextmanager
def tiny_disk() -> Iterator[Path]:
    """A file system of 1 MB, where we may mount one."""
    with TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("may not mount a file system here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who may do anything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def leftovers(folder: Path) -> list[str]:
    """Everything in a folder, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _start(code: str, uri: str, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", PRELUDE + dedent(code), uri, *arguments]
    pipe, here = subprocess.PIPE, Path(__file__).parent
    return subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, cwd=here)


def _said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert err == ""
    assert process.returncode == 0
    return out.rstrip("\n")
