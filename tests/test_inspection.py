"""The report: facts that are true, JSON that parses anywhere, and a page that fits the terminal."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from strategies import trajectories
from trajstitch.cli.charts import chart
from trajstitch.cli.inspect import render
from trajstitch.data import spaces
from trajstitch.data.environments import spec_json
from trajstitch.data.summary import inspect
from trajstitch.data.trajectories import Finding, Metadata, Provenance, Trajectories


def hopper() -> Trajectories:
    """200 episodes of 1 to 40 steps, each step worth 10; a quarter of the steps stitched."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 41, 200)
    lengths[:2] = 1, 40
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    steps = int(offsets[-1])
    last = np.zeros(steps, bool)
    last[offsets[1:] - 1] = True
    stitched = np.arange(steps) % 4 == 0
    logged = Provenance.logged(offsets)
    return Trajectories(
        observations=random.normal(size=(steps + 200, 11)),
        actions=random.uniform(-1, 1, (steps, 3)),
        rewards=np.full(steps, 10.0),
        terminated=last,
        truncated=np.zeros(steps, bool),
        offsets=offsets,
        metadata=Metadata(
            name="hopper/medium",
            source="npz:hopper.npz",
            environment=spec_json("Hopper-v5"),
            action_space=spaces.vector(3, np.float64, -1, 1),
        ),
        provenance=replace(
            logged,
            stitched=stitched,
            margin=np.where(stitched, 2.0, np.nan),
            value_gain=np.where(stitched, np.arange(steps), np.nan),
        ),
    )


def printed(data: Trajectories, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(inspect(data), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def with_bad_values() -> Trajectories:
    data = hopper()
    rewards = data.rewards.copy()
    rewards[100:] = np.nan
    rewards[0] = np.inf
    return replace(data, rewards=rewards)


def test_the_report_tells_the_facts() -> None:
    data = hopper()
    report = inspect(data)
    assert report["environment"] == "Hopper-v5"
    assert report["episodes"] == 200
    assert report["steps"] == data.steps
    assert report["ends"] == {"terminated": 200, "truncated": 0, "both": 0, "neither": 0}
    mean = data.returns.mean()
    assert report["score"]["mean"] == pytest.approx(100 * (mean + 20.272305) / (3234.3 + 20.272305))
    assert report["reference"] == [-20.272305, 3234.3]
    assert {check["verdict"] for check in report["checks"]} == {"ok", "note"}


def test_the_report_tells_what_is_stitched() -> None:
    data = hopper()
    stitched = inspect(data)["provenance"]
    assert stitched["stitched"] == len(range(0, data.steps, 4))
    assert stitched["share"] == pytest.approx(0.25, abs=0.01)
    assert stitched["episodes_changed"] == len({int(data.episode_of_step[step]) for step in range(0, data.steps, 4)})
    assert stitched["quartiles"]["margin"] == [2, 2, 2]
    assert stitched["quartiles"]["value_gain"][1] == pytest.approx(data.steps / 2, abs=4)
    assert inspect(replace(data, provenance=None))["provenance"] is None


@given(trajectories(empty_episodes=True))
def test_any_data_gives_json_and_a_page(data: Trajectories) -> None:
    text = json.dumps(inspect(data), allow_nan=False)
    assert json.loads(text)["episodes"] == len(data)
    assert printed(data)


def test_nan_and_infinity_become_null_and_the_page_still_prints() -> None:
    data = with_bad_values()
    report = json.loads(json.dumps(inspect(data), allow_nan=False))
    assert report["returns"]["mean"] is None
    assert report["score"]["mean"] is None
    assert sum(report["histograms"]["returns"]["counts"]) == np.isfinite(data.returns).sum()
    page = printed(data)
    assert "✗ finite values" in page
    assert "→ drop or repair those episodes" in page
    assert "Not fit to learn from: finite values." in page


@given(trajectories(empty_episodes=True))
def test_every_episode_is_in_each_histogram_once(data: Trajectories) -> None:
    for histogram in inspect(data)["histograms"].values():
        assert sum(histogram["counts"]) == len(data)
        assert len(histogram["edges"]) == len(histogram["counts"]) + 1


def test_the_largest_numbers_still_make_a_page() -> None:
    data = hopper()
    rewards = np.zeros(data.steps)
    rewards[:2] = np.finfo(float).max, -np.finfo(float).max
    assert sum(inspect(replace(data, rewards=rewards))["histograms"]["returns"]["counts"]) == 200
    assert printed(replace(data, rewards=rewards))


def test_few_whole_numbers_get_a_bin_each() -> None:
    data = hopper()
    histogram = inspect(data)["histograms"]["lengths"]
    assert histogram["counts"] == np.bincount(data.lengths, minlength=41)[1:].tolist()
    lines = chart(histogram, 80)
    assert lines[-1].split() == ["1", "40"]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_line_of_the_page_is_wider_than_the_terminal(width: int) -> None:
    for data in (hopper(), with_bad_values()):
        assert max(len(line) for line in printed(data, width).splitlines()) <= width


COUNTS = st.lists(st.integers(0, 10**6), min_size=2, max_size=48).filter(any)


@given(COUNTS, st.integers(20, 200))
def test_a_chart_fits_and_its_tallest_bin_reaches_the_top(counts: list[int], width: int) -> None:
    *bars, axis, ends = chart({"low": -1.0, "high": 1.0, "counts": counts}, width)
    assert max(map(len, [*bars, axis, ends])) <= width
    assert ends.split() == ["-1", "1"]
    assert "█" in bars[0]


@given(COUNTS)
def test_every_bin_that_holds_something_shows_and_no_other(counts: list[int]) -> None:
    *bars, axis, _ = chart({"low": -1.0, "high": 1.0, "counts": counts}, 80)
    assert axis.count("─") % len(counts) == 0
    cells = axis.count("─") // len(counts)
    base = bars[-1].split("│")[1].ljust(axis.count("─"))
    assert [base[number * cells] != " " for number in range(len(counts))] == [count > 0 for count in counts]


def test_equal_episodes_are_said_in_words_without_a_chart() -> None:
    data = hopper()[np.flatnonzero(hopper().lengths == 40)]
    page = printed(data)
    assert "Lengths        40 each" in page
    assert "Lengths of the episodes" not in page


def test_the_page_reads_top_to_bottom() -> None:
    page = printed(hopper())
    landmarks = [
        "hopper/medium  npz:hopper.npz",
        "200 episodes",
        "Environment    Hopper-v5",
        "Score",
        "Ends           200 terminated",
        "Stitched",
        "Margin       median 2, half of the jumps between 2 and 2",
        "Returns of the episodes",
        "Lengths of the episodes",
        "✓ finite values",
        "• rewards",
        "✓ Fit to learn from; 1 note above.",
    ]
    places = [page.index(landmark) for landmark in landmarks]
    assert places == sorted(places)


def test_brackets_in_names_and_findings_are_printed_as_they_are() -> None:
    data = hopper()
    findings = (Finding("left out", "note", "arrays [bold] obs[0]"),)
    data = replace(data, metadata=replace(data.metadata, name="set[red]", findings=findings))
    page = printed(data)
    assert "set[red]" in page
    assert "arrays [bold] obs[0]" in page
