"""Memory is told before the work, with the setting that lowers it, and what can't fit is refused."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import trajstitch
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError, as_flags
from trajstitch.stitching import memory
from trajstitch.stitching.config import PRESETS
from trajstitch.stitching.memory import GIB, check_memory, needed
from trajstitch.stitching.neighbours import NeighbourSearch

DEFAULT = PRESETS["default"]


def data_of(steps: int, size: int = 17, actions: int = 6) -> Trajectories:
    """Data of these sizes; numbers that are never read take no memory."""
    ends = np.arange(1, steps + 1) % 1000 == 0
    return Trajectories(
        observations=np.zeros((steps + steps // 1000, size), np.float32),
        actions=np.zeros((steps, actions), np.float32),
        rewards=np.zeros(steps, np.float32),
        terminated=np.zeros(steps, bool),
        truncated=ends,
        offsets=np.arange(0, steps + 1, 1000),
    )


def told(free: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, **changes: Any) -> list[str]:
    monkeypatch.setattr(memory, "free_memory", lambda: int(free * GIB))
    with caplog.at_level(logging.INFO, "trajstitch"):
        check_memory(data_of(1_000_000), replace(DEFAULT, **changes))
    return caplog.messages


def test_little_data_needs_no_word(monkeypatch, caplog) -> None:
    with caplog.at_level(logging.INFO, "trajstitch"):
        check_memory(data_of(50_000), DEFAULT)
    assert not caplog.messages


def test_what_a_stitching_takes_is_told_with_the_flag_that_lowers_it(monkeypatch, caplog) -> None:
    (line,) = told(24, monkeypatch, caplog)
    assert "stitching 1,000,000 transitions takes" in line
    assert "24 GiB are available" in line
    assert as_flags(line).endswith("--neighbours.k lowers it")


@pytest.mark.parametrize("free", [1.9, 2.0, 2.1, 2.2, 2.3])
def test_a_stitching_that_may_not_fit_names_a_number_of_neighbours_that_does(free, monkeypatch, caplog) -> None:
    (line,) = told(free, monkeypatch, caplog)
    assert caplog.records[0].levelno == logging.WARNING
    k = int(line.partition("`neighbours.k=")[2].partition("`")[0])
    fits, next_one = (
        needed(data_of(1_000_000), replace(DEFAULT, neighbours=NeighbourSearch(some))).most for some in (k, k + 1)
    )
    assert fits <= free * GIB < next_one


def test_a_stitching_that_cannot_fit_is_refused_before_the_work(monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10_000_000)
    with pytest.raises(InputError, match=r"0\.0093 GiB are available: stitch a part of the data, or use a machine"):
        trajstitch.stitch(data_of(20_000))


def test_five_million_transitions_need_no_more_than_a_machine_of_24_gib() -> None:
    per_transition = (needed(data_of(200_000), DEFAULT).most - needed(data_of(100_000), DEFAULT).most) / 100_000
    assert 5_000_000 * per_transition + memory.COMPILED < 20 * GIB
