"""The page in a real browser: drawn without an error, answering, readable in the dark and on a phone."""

import base64
from pathlib import Path

import numpy as np
import pytest

from sample_runs import HOSTILE, clone_swings, large_run, renamed, stitch_log, swings
from test_learn import SHORT
from trajstitch.report.page import render, write_page
from trajstitch.report.stitch_entry import stitch_entry
from trajstitch.workflow.learn import learn

pytestmark = pytest.mark.browser

CHARTS = "return [...document.querySelectorAll('.chart')].map(place => place.dataset.chart)"
EMPTY = """
return [...document.querySelectorAll('.chart')].filter(place => {
  const canvas = place.querySelector('canvas');
  if (!canvas) return place.querySelectorAll('svg path').length < 3;
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size < 20;
}).map(place => place.dataset.chart)
"""
TOO_WIDE = """
return [...document.querySelectorAll('main *')]
  .filter(one => !one.closest('.scroll, .chart, pre') && one.getBoundingClientRect().right > innerWidth + 1)
  .map(one => one.outerHTML)
"""
SERIES = "return echarts.getInstanceByDom(document.querySelector(arguments[0])).getOption().series"
MAP = '[data-chart="map"]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return stitch_log(folder)


@pytest.fixture(scope="module")
def stitched(run: Path, folder: Path) -> Path:
    return write_page([run], folder / "stitched.html")


@pytest.fixture(scope="module")
def several(run: Path, folder: Path) -> Path:
    clones = [clone_swings(folder, "first"), clone_swings(folder, "second", "--seed", "2")]
    return write_page([*clones, run], folder / "several.html")


@pytest.fixture(scope="module")
def learned(folder: Path) -> Path:
    """The page of a run of `learn`, whose clones are rolled out at their last checkpoint."""
    data = swings(episodes=12)
    found = learn(data, "5m", run=folder / "learned", config=SHORT, steps=30, seeds=3, episodes=2, compare=True)
    assert found.report is not None
    return found.report


@pytest.fixture
def opened():
    browser = pytest.importorskip("browser", reason="needs the extra `browser`")
    with browser.browser() as found:
        yield found


def choose(found, role: str, value: str) -> None:
    """Choose an option of a control as a user would."""
    script = "const [role, value] = arguments; const place = document.querySelector(`[data-role=${role}]`);"
    found.execute_script(f"{script} place.value = value; place.dispatchEvent(new Event('change'))", role, value)


def hover_over(found, x: float, y: float) -> str:
    """Move the mouse to a place of the map, in its own coordinates; return the tooltip's text."""
    place = found.execute_script(
        "const [selector, x, y] = arguments; const place = document.querySelector(selector);"
        "place.scrollIntoView({block: 'center'});"
        "const box = place.getBoundingClientRect();"
        "const [left, top] = echarts.getInstanceByDom(place).convertToPixel({seriesIndex: 0}, [x, y]);"
        "return [box.x + left, box.y + top]",
        MAP, x, y,
    )  # fmt: skip
    for shift in (-3, 0):
        event = {"type": "mouseMoved", "x": place[0] + shift, "y": place[1]}
        found.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    script = "return [...document.querySelectorAll('.chart[data-chart=map] > div')].at(-1).innerText"
    return found.execute_script(script)


def test_every_chart_is_drawn_without_an_error(opened, stitched, several, learned):
    import browser

    parts = {"returns", "lengths", "map", "viewer", "consistency", "doubt"}
    for page, expected in ((stitched, parts), (several, {"compare"}), (learned, {"compare", "scores", "curves"})):
        browser.open_page(opened, page)
        assert set(opened.execute_script(CHARTS)) >= expected
        assert opened.execute_script(EMPTY) == []
        assert browser.errors(opened) == []


def test_hovering_over_a_state_tells_where_it_was_logged(opened, stitched):
    import browser

    browser.open_page(opened, stitched)
    series = opened.execute_script(SERIES, MAP)
    states = np.array([point for one in series if one["name"] == "states" for point in one["data"]])
    jumps = next(one["markLine"]["data"] for one in series if one["name"] == "jumps")
    ends = np.array([end["coord"] for jump in jumps for end in jump])
    far = states[np.linalg.norm(states[:, None, :2] - ends, axis=-1).min(1).argmax()]  # on no arrow
    assert f"logged in episode {far[3]:.0f}, step {far[4]:.0f}" in hover_over(opened, far[0], far[1])


def test_hovering_over_a_jump_tells_what_was_predicted(opened, stitched):
    import browser

    browser.open_page(opened, stitched)
    choose(opened, "trajectory", "0")
    jumps = next(one for one in opened.execute_script(SERIES, MAP) if one["name"] == "jumps")["markLine"]["data"]
    start, end = max(jumps, key=lambda jump: np.linalg.norm(np.subtract(jump[0]["coord"], jump[1]["coord"])))
    text = hover_over(opened, *np.mean([start["coord"], end["coord"]], axis=0).tolist())
    assert "jump at step" in text
    assert "predicted miss, beyond the usual" in text


def test_map_shows_one_trajectory_alone_and_zooms(opened, stitched):
    import browser

    browser.open_page(opened, stitched)

    def jumps() -> list:
        return next(one for one in opened.execute_script(SERIES, MAP) if one["name"] == "jumps")["markLine"]["data"]

    every = len(jumps())
    choose(opened, "trajectory", "0")
    shown = opened.execute_script("return JSON.parse(document.getElementById('data').textContent).entries[0].viewer")
    assert len(jumps()) == len(shown["trajectories"][0]["jumps"]) < every
    path = next(one for one in opened.execute_script(SERIES, MAP) if one["name"] == "path")
    assert len(path["data"]) > 10
    choose(opened, "trajectory", "")
    assert len(jumps()) == every
    zoom = f"return echarts.getInstanceByDom(document.querySelector('{MAP}')).getOption().dataZoom[0].end"
    opened.execute_script("document.querySelector('[data-role=in]').click()")
    assert opened.execute_script(zoom) < 100
    opened.execute_script("document.querySelector('[data-role=reset]').click()")
    assert opened.execute_script(zoom) == 100
    assert browser.errors(opened) == []


def test_viewer_goes_from_jump_to_jump(opened, stitched):
    import browser

    browser.open_page(opened, stitched)
    text = "return document.querySelector('[data-role=step-text]').innerText"
    first = opened.execute_script(text)
    assert "predicted reward" in first
    assert "predicted miss, beyond the usual" in first
    slider = "const place = document.querySelector('[data-role=step]'); place.value = '0';"
    opened.execute_script(f"{slider} place.dispatchEvent(new Event('input'))")
    assert opened.execute_script(text).startswith("Step 0 of")
    opened.execute_script("document.querySelector('[data-role=next]').click()")
    assert "Jump to state" in opened.execute_script(text)
    cursor = next(one for one in opened.execute_script(SERIES, MAP) if one["name"] == "cursor")
    assert len(cursor["data"]) == 1
    choose(opened, "viewed", "1")
    assert opened.execute_script(text) != first
    assert browser.errors(opened) == []


def test_dark_page_has_dark_charts(opened, stitched):
    import browser

    paper = "return getComputedStyle(document.body).backgroundColor"
    tones = {}
    browser.open_page(opened, stitched)
    for dark in (False, True):
        browser.set_dark(opened, dark)
        browser.next_frame(opened)
        accent = opened.execute_script(SERIES, '[data-chart="returns"]')[1]["lineStyle"]["color"]
        tones[dark] = (opened.execute_script(paper), accent)
    assert tones[False][0] == "rgb(253, 253, 252)"
    assert tones[True][0] == "rgb(20, 23, 26)"
    assert tones[True][1] != tones[False][1]
    assert opened.execute_script(EMPTY) == []
    assert browser.errors(opened) == []


def test_phone_needs_no_sideways_scrolling(stitched, several, learned):
    browser = pytest.importorskip("browser", reason="needs the extra `browser`")
    with browser.browser(400, 800, phone=True) as found:
        for page in (stitched, several, learned):
            browser.open_page(found, page)
            assert found.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [400, 400]
            assert found.execute_script(TOO_WIDE) == []
            assert browser.errors(found) == []


def test_hostile_names_run_nothing(opened, run, tmp_path):
    import browser

    folder = renamed(run, tmp_path, HOSTILE, [HOSTILE, "<img src=x onerror=window.stolen=1>"])
    browser.open_page(opened, write_page([folder], tmp_path / "page.html"))
    choose(opened, "trajectory", "0")
    opened.execute_script("document.querySelector('[data-role=next]').click()")
    states = [point for one in opened.execute_script(SERIES, MAP) if one["name"] == "states" for point in one["data"]]
    hover_over(opened, *states[0][:2])
    assert opened.execute_script("return window.stolen") is None
    assert opened.execute_script("return document.querySelectorAll('img').length") == 0
    assert HOSTILE in opened.execute_script("return document.querySelector('.record').textContent")
    assert browser.errors(opened) == []


def test_page_of_learn_begins_with_its_verdict_and_shows_every_seed(opened, learned):
    import browser

    browser.open_page(opened, learned)
    top = opened.execute_script("return document.querySelector('header').innerText")
    assert "is chosen" in top
    assert "bc of the best 10 % of" in top
    series = opened.execute_script(SERIES, "[data-chart=compare]")
    dots = next(one["data"] for one in series if one.get("name") == "seed")
    assert len(dots) == 3 * opened.execute_script("return document.querySelectorAll('[data-kind=train]').length")
    wide = opened.execute_script("return document.querySelector('[data-kind=stitch]').offsetWidth")
    assert wide > 0.9 * opened.execute_script("return document.querySelector('main').offsetWidth - 40")


def test_page_prints_on_paper(opened, stitched):
    import browser

    browser.open_page(opened, stitched)
    browser.set_dark(opened, True)
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(base64.b64decode(printed["data"])) > 50_000
    assert browser.errors(opened) == []


def test_two_million_transitions_are_drawn_in_two_seconds(tmp_path):
    browser = pytest.importorskip("browser", reason="needs the extra `browser`")
    page = tmp_path / "large.html"
    page.write_text(render([stitch_entry(large_run(2_000_000))]))
    assert page.stat().st_size < 5_000_000
    took = []
    for _ in range(3):  # each of them a fresh browser
        with browser.browser() as found:
            took.append(browser.open_page(found, page))
            assert found.execute_script(EMPTY) == []
            assert browser.errors(found) == []
    assert max(took) < 2
