"""What stitching gives: trajectories replaced or added, one stitching or several, and a record of which it is."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trajstitch
from point import collect
from strategies import trajectories
from test_stitching import GREEDY, SMALL
from trajstitch import cli
from trajstitch.data.stitch_record import StitchRecord, describe_stitching
from trajstitch.data.trajectories import Trajectories, concatenate
from trajstitch.errors import InputError
from trajstitch.learning.fit_report import FitReport
from trajstitch.stitching import config, pipeline
from trajstitch.stitching.acceptance import Rules
from trajstitch.stitching.guards import hidden_state
from trajstitch.stitching.result import assemble, changed
from trajstitch.storage.runs import LOCK
from trajstitch.workflow.calls import stitch


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return collect(episodes=40, length=30)


@pytest.fixture(scope="module")
def draws(data: Trajectories) -> list[Trajectories]:
    """Two stitchings, of seed 3 and seed 4."""
    return [stitch(data, SMALL, seed) for seed in (3, 4)]


def differing(data: Trajectories, better: Trajectories) -> list[int]:
    return [number for number in range(len(data)) if not data[number].equals(better[number])]


def record(data: Trajectories) -> StitchRecord:
    found = StitchRecord.of(data.metadata)
    assert found is not None
    return found


def test_the_original_comes_first_as_it_was_and_then_what_was_changed(data, draws):
    union = stitch(data, SMALL, 3, keep_original=True)
    which = differing(data, draws[0])
    assert 0 < len(which) < len(data), "the test needs changed and unchanged episodes"
    assert len(union) == len(data) + len(which)
    assert union[range(len(data))].equals(data)
    assert union[range(len(data), len(union))].equals(draws[0][which])
    source = {"source": data.metadata.source or data.metadata.name, "columns": None, "fingerprint": data.fingerprint}
    assert record(union) == StitchRecord(True, 1, len(data), len(union), len(which), source=source)
    assert record(draws[0]) == StitchRecord(False, 1, len(data), len(data), len(which), source=source)


def test_provenance_of_the_union_says_where_every_step_comes_from(data):
    union = stitch(data, SMALL, 3, keep_original=True)
    origin = union.provenance
    assert origin is not None
    source = data.first_rows[origin.source_episode] + origin.source_step
    np.testing.assert_array_equal(union.observations[union.state_rows], data.observations[source])
    assert not origin.stitched[: data.steps].any()
    np.testing.assert_array_equal(origin.source_episode[: data.steps], data.episode_of_step)
    added = np.bincount(union.episode_of_step, origin.stitched)[len(data) :]
    assert (added > 0).all()


def test_several_stitchings_are_those_of_the_seeds_one_after_the_other(data, draws):
    """Every trajectory is there once for each, so those that nothing improved keep their weight."""
    joined = stitch(data, SMALL, 3, stitchings=2)
    assert joined.equals(concatenate(draws))
    assert not draws[0].equals(draws[1])
    assert record(joined).stitchings == 2
    assert record(joined).changed == sum(len(differing(data, draw)) for draw in draws)


def test_with_several_stitchings_the_original_is_there_once(data, draws):
    union = stitch(data, SMALL, 3, stitchings=2, keep_original=True)
    parts = [draw[differing(data, draw)] for draw in draws]
    assert union.equals(concatenate((data, *parts)))


def test_several_greedy_stitchings_are_those_of_the_seeds(data):
    joined = stitch(data, GREEDY, stitchings=2)
    assert joined.equals(concatenate([stitch(data, GREEDY, seed) for seed in (0, 1)]))


@pytest.mark.parametrize("keep_original", [True, False])
def test_data_that_no_stitching_changes_comes_back_once(keep_original, caplog):
    one = collect(episodes=1, length=30)
    same = stitch(one, SMALL, stitchings=3, keep_original=keep_original)
    assert same.equals(one)
    assert same.provenance is not None
    assert record(same).changed == 0
    assert "there is one trajectory" in caplog.text
    assert "changed none" in str(describe_stitching(same))


def test_diversified_data_keeps_the_original_once_with_any_settings(data):
    diverse = replace(GREEDY, rules=Rules(value_test=False), passes=1)
    found = stitch(data, diverse)
    assert record(found).kept_original
    assert stitch(data, diverse, keep_original=True).equals(found)
    several = stitch(data, diverse, stitchings=2)
    assert several[range(len(found))].equals(found)
    assert several.provenance is not None
    unchanged = np.bincount(several.episode_of_step, several.provenance.stitched, len(several)) == 0
    assert unchanged.sum() == len(data)


def test_stitching_a_union_again_starts_from_all_of_it(data):
    union = stitch(data, SMALL, 3, keep_original=True)
    again = stitch(union, SMALL, keep_original=True)
    assert again[range(len(union))].equals(union)
    assert record(again).source_episodes == len(union)
    assert union.provenance is not None
    assert again.provenance is not None
    np.testing.assert_array_equal(again.provenance.stitched[: union.steps], union.provenance.stitched)


@given(trajectories(), st.data())
def test_an_episode_is_changed_if_any_bit_is(data: Trajectories, draw: st.DataObject):
    assert not changed(data, data).any()
    step = draw.draw(st.integers(0, data.steps - 1))
    name = draw.draw(st.sampled_from(("actions", "rewards", "truncated", "observations")))
    values = getattr(data, name).copy()
    row = data.state_rows[step] + 1 if name == "observations" else step
    values[row] = ~values[row] if name == "truncated" else np.where(values[row] == 1, 2, 1)
    found = changed(data, replace(data, **{name: values}))
    assert np.flatnonzero(found).tolist() == [data.episode_of_step[step]]


def test_stitchings_that_make_no_sense_are_refused(data):
    with pytest.raises(InputError, match="`stitchings` must be at least 1, not 0"):
        stitch(data, SMALL, stitchings=0)
    with pytest.raises(InputError, match="use one of the two"):
        stitch(data, GREEDY, stitchings=2, seeds=2)


# The record


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ((True, 1, 40, 75, 35), "the 40 original episodes and 35 added"),
        ((True, 3, 40, 110, 70), "the 40 original episodes and 70 added by 3 stitchings"),
        ((False, 1, 40, 40, 35), "35 of 40 episodes replaced"),
        ((False, 3, 40, 120, 95), "95 of 120 episodes replaced by 3 stitchings, each original one in 3 versions"),
        ((False, 1, 40, 40, 0), "stitching changed none of the 40 original episodes"),
    ],
)
def test_the_record_says_in_words_what_the_set_consists_of(facts, said):
    assert str(StitchRecord(*facts)) == said


@pytest.mark.parametrize("stored", [None, "yes", 3, {}, {"kept_original": True}])
def test_what_others_store_under_our_key_is_no_record(data, stored):
    foreign = replace(data, metadata=replace(data.metadata, extra={"trajstitch": stored}))
    assert describe_stitching(foreign) is None


def test_a_choice_of_episodes_is_called_one(data, draws):
    union = assemble(data, draws, keep_original=True)
    assert str(describe_stitching(union[range(5)])).startswith("5 chosen from: the 40 original episodes and")


@pytest.mark.parametrize("keep_original", [True, False])
@pytest.mark.parametrize("stitchings", [1, 2])
def test_a_set_without_metadata_is_recognised_by_its_provenance(tmp_path, data, draws, keep_original, stitchings):
    made = assemble(data, draws[:stitchings], keep_original=keep_original)
    trajstitch.save(made, f"table:{tmp_path}/made.csv")
    found = trajstitch.load(f"table:{tmp_path}/made.csv")
    assert found.metadata.extra == {}
    expected = str(describe_stitching(made))
    assert describe_stitching(found) == (expected.removesuffix(" by 2 stitchings") if keep_original else expected)
    assert describe_stitching(found[[1, 0, 5]]) is None
    assert describe_stitching(data) is None


# The command line


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Trajectories) -> str:
    monkeypatch.setitem(config.PRESETS, "quick", SMALL)
    monkeypatch.setitem(config.PRESETS, "paper", GREEDY)
    trajstitch.save(data, f"npz:{tmp_path}/data.npz")
    return f"npz:{tmp_path}/data.npz"


def run(source: str, target: str, folder: Path, *flags: str) -> int:
    return cli.run(["stitch", source, target, "--preset", "quick", "--run", str(folder), "--seed", "3", *flags])


@pytest.mark.parametrize(
    "target", ["npz:{}/more.npz", "d4rl:{}/more.hdf5", "table:{}/more.parquet", "minari:test/more-v0"]
)
def test_what_is_written_says_that_the_original_was_kept(source, tmp_path, capsys, data, target):
    target = target.format(tmp_path)
    assert run(source, target, tmp_path / "run", "--keep-original", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    more = trajstitch.load(target)
    assert more[range(len(data))].equals(data)
    assert record(more).kept_original
    assert facts["consists_of"] == describe_stitching(more)
    assert facts["after"]["episodes"] == len(more)
    assert cli.run(["inspect", target]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Consists of the 40 original episodes and {len(more) - 40} added" in shown


def test_training_says_what_it_learns_from(source, tmp_path, capsys):
    target = f"npz:{tmp_path}/more.npz"
    assert run(source, target, tmp_path / "run", "--keep-original") == 0
    assert f"trajstitch train iql {target}" in capsys.readouterr().out
    assert cli.run(["train", "bc", target, "--steps", "1", "--seeds", "1", "--run", str(tmp_path / "clone")]) == 0
    assert "stitched data: the 40 original episodes and" in capsys.readouterr().err


def test_every_stitching_is_kept_apart_and_none_is_made_twice(source, tmp_path, capsys, monkeypatch, draws):
    folder, target = tmp_path / "run", f"npz:{tmp_path}/better.npz"
    assert run(source, target, folder, "--stitchings", "2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert [one["seed"] for one in facts["passes"]] == [3, 4]
    assert len(facts["models"]) == 8
    assert trajstitch.load(target).equals(concatenate(draws))
    assert {path.name for path in folder.iterdir()} == {
        *(LOCK, "run.json", "summary.json", "saved.json", "stitching-3", "stitching-4")
    }
    for seed, draw in zip((3, 4), draws, strict=True):
        assert {path.name for path in (folder / f"stitching-{seed}").iterdir()} == {
            *("models.safetensors", "graph.safetensors", "passes.json", "result.npz", "seconds.json")
        }
        assert trajstitch.load(f"npz:{folder}/stitching-{seed}/result.npz").equals(draw)

    def again(*_: object, **__: object) -> None:
        raise AssertionError("this stage was done already")

    for stage in ("fit_model", "build_graph", "improve_together"):
        monkeypatch.setattr(pipeline, stage, again)
    assert run(source, target, folder, "--stitchings", "2", "--resume", "--force") == 0
    assert "seed 4, pass 1" in capsys.readouterr().out
    assert trajstitch.load(target).equals(concatenate(draws))
    assert cli.run(["simulate", str(folder), "--seed", "5"]) == 2
    assert "the seeds are 3 to 4" in capsys.readouterr().err
    assert cli.run(["simulate", str(folder), "--seed", "4"]) == 2
    assert "names no environment" in capsys.readouterr().err


def test_stitchings_that_stopped_midway_resume_with_the_second(source, tmp_path, monkeypatch, draws):
    folder, target, build, built = tmp_path / "run", f"npz:{tmp_path}/better.npz", pipeline.build_graph, []

    def stopping(*given: object) -> object:
        if built:
            raise KeyboardInterrupt
        built.append(1)
        return build(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(pipeline, "build_graph", stopping)
    assert run(source, target, folder, "--stitchings", "2") == 130
    built.clear()
    assert run(source, target, folder, "--stitchings", "2", "--resume") == 0
    assert built == [1], "the first stitching was made again"
    assert trajstitch.load(target).equals(concatenate(draws))


def test_hidden_state_is_told_of_stitched_data_and_not_of_unchanged_data(data, draws):
    doubts = hidden_state([FitReport("forward dynamics", True, {"told_by_the_step_before": 0.2})])
    assert "20% of the changes" in doubts[0]
    assert hidden_state([FitReport("reward", True, {"R²": 0.9})]) == []
    for keep in (True, False):
        assert doubts[0] in record(assemble(data, draws, keep_original=keep, doubts=doubts)).warnings
        assert record(assemble(data, [data], keep_original=keep, doubts=doubts)).warnings == ()
