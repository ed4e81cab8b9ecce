"""`trajstitch report` and the data card: what the folder of a run holds is shown, and only as text."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import trajstitch
from point import collect
from sample_runs import HOSTILE, clone_swings, large_run, named_log, renamed, stitch_log
from test_stitch_command import table  # noqa: F401
from trajstitch import cli
from trajstitch.data.environments import observation_names, spec_json
from trajstitch.data.labels import Labels
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Metadata, Provenance, concatenate
from trajstitch.errors import InputError
from trajstitch.formats import save
from trajstitch.learning.fit_report import FitReport
from trajstitch.report import compare
from trajstitch.report.card import card, write_card
from trajstitch.report.gain import gain_interval
from trajstitch.report.jumps import jump_table
from trajstitch.report.page import MARK, read_entries, render, write_page
from trajstitch.report.state_map import StateMap, shown_names, telling_columns
from trajstitch.report.stitch_entry import stitch_entry
from trajstitch.report.stitch_run import read_stitch_runs
from trajstitch.report.trust import Reason, overall, stitching_reasons
from trajstitch.report.values import number, script_json, short
from trajstitch.stitching.layout import keep_result, read_result
from trajstitch.storage.runs import Run


@pytest.fixture(scope="module")
def stitched(tmp_path_factory) -> Path:
    return stitch_log(tmp_path_factory.mktemp("stitched"))


@pytest.fixture(scope="module")
def clones(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("clones")
    return clone_swings(folder, "first"), clone_swings(folder, "second", "--seed", "2")


class _Tags(HTMLParser):
    """What a browser would make of a page: tags with their attributes, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "script" and self.scripts:
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.found.append((f"/{tag}", {}))


def payload(page: str) -> dict:
    return json.loads(_Tags(page).scripts[0], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def written(*runs: Path, to: Path) -> str:
    assert cli.run(["report", *map(str, runs), "-o", str(to)]) == 0
    return to.read_text()


# The page of a stitching


def test_page_says_what_changed_by_how_much_and_why_to_trust_it(stitched, tmp_path, capsys):
    page = written(stitched, to=tmp_path / "page.html")
    before, after = (trajstitch.load(f"npz:{stitched.parent}/{name}.npz") for name in ("log", "better"))
    interval, gain = gain_interval(before, after), after.returns.mean() - before.returns.mean()
    assert interval is not None
    low, high = interval
    assert 0 < low < gain < high
    means = f"from {number(before.returns.mean())} to {number(after.returns.mean())}"
    assert f"{means} (+{number(gain)}; 95 % interval {number(low)} to {number(high)})" in page
    for claim in ("every model beats its baseline", "of the logged states are still visited", "forward ensemble"):
        assert claim in page
    for part in ("Command", "Its fingerprint", before.fingerprint, after.fingerprint, "Versions", "Machine"):
        assert part in page
    assert "page.html" in capsys.readouterr().out


def test_page_needs_no_network_and_runs_no_script_but_its_own(stitched, tmp_path):
    tags = _Tags(written(stitched, to=tmp_path / "page.html"))
    linked = [attrs[name] for _, attrs in tags.found for name in ("src", "href", "action") if name in attrs]
    assert linked == ["data:,"]
    assert sum(tag == "script" for tag, _ in tags.found) == 3
    policy = next(attrs["content"] for _, attrs in tags.found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_names_from_files_stay_text(stitched, tmp_path):
    folder = renamed(stitched, tmp_path, HOSTILE, [HOSTILE, "<i>north</i>"])
    page = written(folder, to=tmp_path / "page.html")
    assert HOSTILE not in page
    assert "<i>north" not in page
    tags = _Tags(page)
    assert sum(tag == "script" for tag, _ in tags.found) == 3
    assert not [tag for tag, _ in tags.found if tag in ("img", "i")]
    assert page.count("{{ 7*7 }}") > 2
    assert payload(page)["entries"][0]["viewer"]["names"] == [HOSTILE, "<i>north</i>"]


def test_jumps_carry_the_scores_of_the_edges_they_took(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    jumps = run.stitchings[0].jumps
    assert len(jumps) > 10
    assert set(jumps.scores) == {"consistency", "error"}
    assert np.isfinite(jumps.scores["consistency"]).all()
    assert (jumps.scores["consistency"] <= 0.5).all()
    np.testing.assert_array_equal(jumps.reward, run.stitchings[0].data.rewards[jumps.step])
    assert run.candidates is not None
    assert run.edges is not None
    assert run.candidates > run.edges > 0


def test_limit_of_the_consistency_is_that_test_s_own(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    facts = json.loads(json.dumps(run.facts))
    facts["job"]["stitching"]["tests"] |= {"other": {"limit": 0.01}}
    for one in (run, replace(run, facts=facts)):
        assert stitch_entry(one).charts["consistency"]["limit"] == 0.5


def test_true_miss_of_a_checked_jump_is_shown_and_others_stay_unknown(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    data = run.stitchings[0].data
    steps = run.stitchings[0].jumps.step
    found = jump_table(run.before, data, None, {"step": steps[[1, 3]], "ratio": np.array([0.25, 0.5])})
    assert found.miss[[1, 3]].tolist() == [0.25, 0.5]
    assert np.isnan(np.delete(found.miss, [1, 3])).all()


def test_viewer_follows_a_trajectory_through_its_sources(stitched, tmp_path):
    viewer = payload(written(stitched, to=tmp_path / "page.html"))["entries"][0]["viewer"]
    result = trajstitch.load(f"npz:{stitched}/result.npz")
    gains = [one["gain"] for one in viewer["trajectories"]]
    assert gains == sorted(gains, reverse=True)
    for shown in viewer["trajectories"]:
        one = result[shown["episode"]]
        assert one.provenance is not None
        assert shown["length"] == one.steps
        assert shown["return"] == pytest.approx(one.returns[0])
        assert [jump["at"] for jump in shown["jumps"]] == np.flatnonzero(one.provenance.stitched).tolist()
        states = [state for first, last, *_ in shown["stretches"] for state in range(first, last + 1)]
        assert states == list(range(one.steps))
        for first, last, episode, start, end in shown["stretches"]:
            assert (one.provenance.source_episode[first : last + 1] == episode).all()
            assert one.provenance.source_step[[first, last]].tolist() == [start, end]


def test_page_calls_episodes_by_the_log_s_own_names(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    assert not any(payload(render([stitch_entry(run)]))["entries"][0]["map"]["names"].values()), "the log has no names"
    assert run.before is not None
    lots = Labels(np.array([f"L-<b>{number + 7}" for number in range(len(run.before))]))
    first = replace(run.stitchings[0], data=replace(run.stitchings[0].data, labels=lots))
    named = replace(run, before=replace(run.before, labels=lots), stitchings=(first, *run.stitchings[1:]))
    page = render([stitch_entry(named)])
    assert "<b>7" not in page, "names stay text"
    found = payload(page)["entries"][0]
    names = found["map"]["names"]
    assert set(names["logged"]) == {str(one) for one in found["map"]["states"]["episode"]}
    for one in found["viewer"]["trajectories"]:
        assert names["trajectories"][str(one["episode"])] == f"L-<b>{one['episode'] + 7}"
        assert all(names["sources"][str(stretch[2])] == f"L-<b>{stretch[2] + 7}" for stretch in one["stretches"])


def test_page_of_two_million_transitions_is_sampled_and_says_so():
    entry = stitch_entry(large_run(200_000))  # tests/test_browser.py takes all two million
    page = render([entry])
    assert len(page) < 5_000_000
    assert "A sample of 5,000 of 200,000 states and all 200 jumps" in page
    assert "A sample of 24 of 200 rebuilt trajectories" in page


def test_page_without_the_source_data_says_what_is_missing(stitched, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(stitched, folder)
    run = Run.open(folder)
    run.facts["config"]["source"] = f"npz:{tmp_path}/gone.npz"
    run.write_json("run", run.facts)
    page = written(folder, to=tmp_path / "page.html")
    assert "The source data can&#39;t be compared" in page
    found = payload(page)["entries"][0]
    assert "before" not in found["returns"]
    assert found["viewer"]["trajectories"]


def test_page_of_data_that_was_left_unchanged_says_why(table, tmp_path):  # noqa: F811
    run = tmp_path / "run"
    assert cli.run(["stitch", table, f"npz:{tmp_path}/same.npz", "--preset", "quick", "--run", str(run)]) == 0
    page = written(run, to=tmp_path / "page.html")
    assert "every trajectory has a context of its own" in page
    assert "left this data unchanged" in (tmp_path / "same.npz.card.md").read_text()


def test_limits_that_were_derived_are_shown_with_what_passed(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    rows = {row[0]: row[1:] for row in stitch_entry(replace(run, precedent=0.35)).tables["limits"].rows}
    assert rows["A jump may miss its target by"][1] == "from held-out logged steps"
    assert rows["A logged step like the jump must be within"][0] == "35 % of its length"
    assert f"{run.edges:,} of {run.candidates:,}" in rows["Possible jumps that passed every test"][0]


def test_doubt_of_the_ensemble_is_shown_beside_its_error_on_held_out_steps(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    doubt = np.array(stitch_entry(run).charts["doubt"])
    assert doubt.shape == (10, 4)
    assert (np.diff(doubt) >= 0)[:, 1:].all()  # quartiles
    assert (np.diff(doubt[:, 0]) >= 0).all()


def test_each_stitching_of_several_is_on_the_page(tmp_path):
    run = stitch_log(tmp_path, "--stitchings", "2", "--keep-original")
    (entry,) = read_entries([run])
    (found,) = read_stitch_runs(Run.open(run))
    assert [one.seed for one in found.stitchings] == [0, 1]
    assert found.after is not None
    assert found.after.equals(trajstitch.load(f"npz:{tmp_path}/better.npz"))
    assert len(entry.tables["models"].rows) == 6
    assert "train a learner of values" in (tmp_path / "better.npz.card.md").read_text()


def test_run_that_is_not_finished_is_refused(stitched, tmp_path, capsys):
    folder = tmp_path / "half"
    folder.mkdir()
    shutil.copy(stitched / "run.json", folder)
    assert cli.run(["report", str(folder)]) == 2
    assert "is not finished: continue it with --resume" in capsys.readouterr().err


def test_result_whose_jumps_leave_an_episode_s_last_state_is_read(tmp_path):
    data = collect(episodes=3, length=5)
    origin = Provenance.logged(data.offsets)
    step = origin.source_step.copy()
    step[4] = 5  # a jump from the state after the last logged step
    run = Run.start(tmp_path / "run", "stitch", {})
    keep_result(run, "", replace(data, provenance=replace(origin, source_step=step)), [])
    found, _ = read_result(run, "", data)
    assert found.provenance.source_step[4] == 5  # pyright: ignore
    step[4] = 6
    keep_result(run, "", replace(data, provenance=replace(origin, source_step=step)), [])
    with pytest.raises(InputError, match="not made from this data"):
        read_result(run, "", data)


# The traffic light


def test_light_is_that_of_the_worst_reason(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    bad = replace(run, reports=(FitReport("forward dynamics", False, {"R²": 0.0}),))
    assert overall(stitching_reasons(bad)) == "red"
    assert "No better than a baseline on held-out steps: forward dynamics." in [
        reason.text for reason in stitching_reasons(bad)
    ]
    assert overall(stitching_reasons(replace(run, reports=()))) != "green"  # nothing is known about the models
    assert overall([Reason("green", ""), Reason("amber", ""), Reason("green", "")]) == "amber"


def test_gain_by_predicted_rewards_is_not_trusted(stitched):
    (run,) = read_stitch_runs(Run.open(stitched))
    one = run.stitchings[0]
    paid = one.jumps.reward.copy()
    invented = replace(one, jumps=replace(one.jumps, logged_reward=paid - 1000))
    reasons = stitching_reasons(replace(run, stitchings=(invented,)))
    assert "red" in [reason.light for reason in reasons if "predicted reward of jumps" in reason.text]


@pytest.mark.parametrize("copies", [1, 100])
def test_interval_is_that_of_the_gain_of_each_trajectory(copies):
    before = collect(episodes=40, length=5)
    before = concatenate([before] * copies)
    random = np.random.default_rng(0)
    each = np.where(random.random(len(before)) < 0.3, random.exponential(10, len(before)), 0)
    rewards = before.rewards + np.repeat(each / 5, 5).astype(np.float32)
    record = StitchRecord(False, 1, len(before), len(before), len(before))
    after = replace(before, rewards=rewards, metadata=record.added_to(before.metadata))
    found = gain_interval(before, after)
    assert found is not None
    half = 1.96 * each.std() / len(each) ** 0.5
    assert found == pytest.approx((each.mean() - half, each.mean() + half), abs=0.4 * half)
    assert found[0] > 0


# The page of trainings


def test_page_of_a_training_shows_every_seed_and_both_checkpoints(clones, tmp_path):
    page = written(clones[0], to=tmp_path / "page.html")
    scores = json.loads((clones[0] / "scores.json").read_text())
    found = payload(page)["entries"][0]
    for part, shown in zip(scores["checkpoints"], found["scores"]["scores"], strict=True):
        assert shown == pytest.approx(part["scores"], rel=1e-3)
    assert "last checkpoint" in page
    assert "best of each seed" in page
    assert "action error" in page
    assert found["curves"]["metrics"].keys() >= {"loss"}
    assert re.search(r"<dt>Time taken</dt><dd>training \d+ s</dd>", page)


def test_training_that_was_not_evaluated_says_so(clones, tmp_path):
    shutil.copytree(clones[0], tmp_path / "run")
    (tmp_path / "run" / "scores.json").unlink()
    assert "has not scored them yet" in written(tmp_path / "run", to=tmp_path / "page.html")


def test_training_without_an_environment_shows_what_logged_data_tells(tmp_path):
    save(collect(episodes=20, length=10), f"npz:{tmp_path}/log.npz")
    train = ["train", "bc", f"npz:{tmp_path}/log.npz", "--steps", "20", "--seeds", "2", "--hidden", "8"]
    assert cli.run([*train, "--run", str(tmp_path / "run")]) == 0
    assert cli.run(["evaluate", str(tmp_path / "run")]) == 0
    (entry,) = read_entries([tmp_path / "run"])
    stored = json.loads((tmp_path / "run" / "estimate.json").read_text())
    assert stored["sentence"] in entry.headline
    assert [row[0] for row in entry.tables["estimates"].rows] == ["run", "logged behaviour", "always the mean action"]
    verdict = next(one["verdict"] for one in stored["verdicts"] if one["name"] == "run")
    assert next(reason.text for reason in entry.reasons if "logged data alone" in reason.text).endswith(f"{verdict}.")
    assert compare.sentence([entry, entry]) == stored["sentence"]
    assert "Estimated returns" in render([entry])


def test_what_policies_of_the_best_episodes_learned_from_is_the_mean_of_those(tmp_path):
    run = clone_swings(tmp_path, "best", "--top", "0.5")
    data = trajstitch.load(f"npz:{tmp_path}/swings.npz")
    learned = float(data.best(0.5).returns.mean())
    assert learned > data.returns.mean()
    stored = json.loads((run / "scores.json").read_text())
    assert stored["data"]["mean_return"] == pytest.approx(learned)
    assert "the best 50 % of swings.npz" in read_entries([run])[0].headline


def test_runs_of_the_same_name_are_told_apart(clones, tmp_path):
    for place in ("monday", "tuesday"):
        shutil.copytree(clones[0], tmp_path / place / "clone")
    entries = read_entries([tmp_path / "monday" / "clone", tmp_path / "tuesday" / "clone", clones[1]])
    assert [entry.title for entry in entries] == ["monday/clone", "tuesday/clone", "second"]


def test_several_runs_are_compared_only_under_the_same_conditions(clones, stitched, tmp_path):
    page = written(*clones, stitched, to=tmp_path / "page.html")
    assert "too few seeds to tell from chance" in page
    assert [run["name"] for run in payload(page)["compare"]["runs"]] == ["first", "second"]
    entries = read_entries(clones)
    assert entries[1].scores is not None
    entries[1].scores["episodes"] = 7
    assert "can't be compared" in compare.sentence(entries)
    assert compare.chart(entries) is None


@pytest.mark.parametrize("name", ["scores.json", "action-error.json", "estimate.json"])
@pytest.mark.parametrize("text", ["{}", "[]", "nothing", '{"last": {"scores": ["<b>"]}, "action_error": ["x"]}'])
def test_damaged_file_is_named(clones, tmp_path, capsys, name, text):
    shutil.copytree(clones[0], tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    assert cli.run(["report", str(tmp_path / "run")]) == 2
    assert name in capsys.readouterr().err


# The file


def test_page_goes_into_the_run_and_replaces_only_a_page(clones, tmp_path, capsys):
    shutil.copytree(clones[0], tmp_path / "run")
    target = tmp_path / "run" / "report.html"
    for _ in range(2):
        assert cli.run(["report", str(tmp_path / "run"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["page"] == str(target)
    assert MARK in target.read_text()[:1000]
    target.write_text("my own notes")
    assert cli.run(["report", str(tmp_path / "run")]) == 2
    assert "choose another --output" in capsys.readouterr().err
    assert target.read_text() == "my own notes"


def test_folder_that_is_no_stitching_or_training_is_refused(tmp_path, capsys):
    Run.start(tmp_path / "other", "expert", {})
    assert cli.run(["report", str(tmp_path / "other")]) == 2
    assert "'expert'" in capsys.readouterr().err
    with pytest.raises(InputError, match="at least one"):
        write_page([], tmp_path / "page.html")


# Numbers and the map


def test_numbers_that_json_lacks_become_nothing():
    values = np.array([1.23456, np.nan, np.inf, -np.inf, 2.0])
    assert json.loads(script_json([short(values), float("nan")])) == [[1.235, None, None, None, 2], None]
    assert not re.search("[<>&]", script_json("</script><!-- & -->"))
    shown = {None: "–", 0.0: "0", -0.5: "−0.5", 1234.56: "1,235", 1e-9: "1e−09", 12.0: "12", 0.12345: "0.123"}
    assert {value: number(value) for value in shown} == shown


def test_map_of_two_columns_shows_them_as_they_are():
    states = np.random.default_rng(0).normal((300, -2), (5, 0.1), (500, 2)).astype(np.float32)
    made = StateMap.of(states, np.ones(2, bool))
    np.testing.assert_allclose(made.place(states), states, rtol=1e-5)
    assert made.axis_names(["heat", "tilt"]) == ["heat", "tilt"]


def test_columns_of_a_known_environment_have_names():
    data = named_log(["a", "b"])
    maze = replace(data.metadata, environment=spec_json("trajstitch/Maze-v0"), extra={})
    assert shown_names(replace(data, metadata=maze)) == ["x", "y"]
    assert shown_names(replace(data, metadata=replace(maze, environment=None))) == ["column 0", "column 1"]
    assert shown_names(data) == ["a", "b"]


@pytest.mark.parametrize(("task", "columns"), [("Hopper-v5", 11), ("Walker2d-v4", 17), ("HalfCheetah-v5", 17)])
def test_every_column_of_a_locomotion_task_has_a_name_of_its_own(task, columns):
    names = observation_names(Metadata("log", environment=spec_json(task)), columns)
    assert names is not None
    assert len(set(names)) == columns


@pytest.mark.parametrize("columns", [1, 3, 5])
def test_map_shows_the_directions_of_most_variance(columns):
    random = np.random.default_rng(0)
    states = random.normal(size=(500, columns)).astype(np.float32)
    if columns > 2:
        states[:, 2] = states[:, 1] + 0.1 * random.normal(size=500)
    made = StateMap.of(states, np.ones(columns, bool))
    place = made.place(states)
    assert place.shape == (500, 2)
    assert np.isfinite(place).all()
    assert 0 < made.explained <= 1 + 1e-9
    assert place[:, 0].var() >= place[:, 1].var()
    chosen = telling_columns(states, states[:, -1].astype(np.float64), np.ones(columns, bool))
    assert columns - 1 in chosen


# The card


def test_card_beside_the_data_says_what_it_is(stitched):
    text = (stitched.parent / "better.npz.card.md").read_text()
    assert read_entries([stitched])[0].card == text
    before, after = (trajstitch.load(f"npz:{stitched.parent}/{name}.npz") for name in ("log", "better"))
    assert before.fingerprint in text
    assert after.fingerprint in text
    assert f"| mean return | {number(before.returns.mean())} | {number(after.returns.mean())} |" in text
    assert "| forward dynamics |" in text
    assert "trajstitch stitch" in text or "pytest" in text  # the command that was typed


def test_card_of_a_minari_set_is_in_the_run_and_the_store_is_as_before(tmp_path, minari_store):
    save(named_log(["east", "north"]), f"npz:{tmp_path}/log.npz")
    words = ["stitch", f"npz:{tmp_path}/log.npz", "minari:lab/better-v0", "--run", str(tmp_path / "run")]
    assert cli.run([*words, "--columns.fixed", "0", "1"]) == 0  # each trajectory has a context of its own: no models
    assert (tmp_path / "run" / "card.md").read_text().startswith("<!-- data card")
    assert not [path for path in minari_store.rglob("*") if "card" in path.name]


def test_card_never_replaces_somebody_s_file(tmp_path, caplog):
    path = tmp_path / "better.npz.card.md"
    path.write_text("mine")
    write_card(path, "new")
    assert path.read_text() == "mine"
    assert "was not written" in caplog.text
    write_card(tmp_path / "missing" / ("x" * 300), "new")  # no name that long can be
    assert not (tmp_path / "missing").exists()


def test_card_shows_hostile_names_as_text():
    data = named_log(["a", "b"])
    facts = {"command": "a `b` | c\n# d", "config": {"source": f"npz:{HOSTILE}|x\n# y"}, "versions": {"python": "3"}}
    text = card(data, data, [], facts, uri=f"npz:{HOSTILE}\n# title")
    assert "<script>" not in text.replace("\\<", "")
    assert [line for line in text.splitlines() if line.startswith("# ")] == [text.splitlines()[1]]
