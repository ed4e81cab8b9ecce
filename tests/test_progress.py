"""What a person sees while a job runs: which stage of how many, and that something is being compiled."""

import io
import sys

import pytest

from point import collect
from test_stitching import SMALL
from trajstitch import BC, progress, stitch, train
from trajstitch.progress import in_stage


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal that stands in for stderr, wide enough for a bar and what stands beside it."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)  # in the test itself: pytest sets it again after fixtures
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return screen


def test_stages_within_stages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with in_stage(2, 5, "stitch"), in_stage(1, 6), progress.progress("inverse", 3) as advance:
        advance(1)
    assert "2/5 stitch › 1/6 › inverse" in screen.getvalue()
    with progress.progress("alone", 3) as advance:
        advance(1)
    assert "› alone" not in screen.getvalue()


def test_a_bar_says_what_is_trained_on_which_data_and_that_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    train(collect(episodes=3, length=5), BC(steps=20, hidden=(3,)), 2)
    shown = screen.getvalue()
    assert "bc, 2 seeds, on point" in shown
    assert shown.index("compiling") < shown.index("loss")


def test_stitching_counts_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Bar:
        def __init__(self, description: str, *_: object) -> None:
            seen.append(description)

        def __call__(self, *_: object, **__: object) -> None: ...

    monkeypatch.setattr(progress, "_Plain", Bar)
    stitch(collect(episodes=8, length=8), SMALL)
    stages = [text.partition(" › ")[0] for text in seen if " › " in text]
    count = len(SMALL.tests) + 4
    trained = [f"{number}/{count}" for number in range(1, count - 1)]
    assert [one for one in dict.fromkeys(stages) if one in trained] == trained
    assert f"{count - 1}/{count} › graph" in seen
