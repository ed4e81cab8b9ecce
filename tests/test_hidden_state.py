"""Hidden state: models see the step before where it tells what the observation hides, and nowhere else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from small_graphs import logged
from test_zoo import BRIEF
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.models.hidden_state import (
    SEES_ACTION,
    SEES_CHANGE,
    TOLD,
    TOLD_BY_ACTION,
    TOLD_BY_CHANGE,
    TOLD_UNSEEN,
    StepBefore,
)
from trajstitch.stitching import pipeline
from trajstitch.stitching.guards import hidden_state
from trajstitch.stitching.pipeline import Stages, Stitched, StitchJob, stitch_together
from trajstitch.storage.runs import Run
from trajstitch.storage.tensors import read_tensors
from worlds import ALL

LATE = "glider-late"
NO_VELOCITY = "glider-no-velocity"


def told(everything: float, change: float, action: float) -> dict[str, float]:
    return {TOLD: everything, TOLD_BY_CHANGE: change, TOLD_BY_ACTION: action}


@pytest.mark.parametrize(
    ("metrics", "change", "action"),
    [
        (told(0.04, 0.04, 0.04), False, False),
        (told(0.2, 0.19, 0.1), True, False),
        (told(0.2, 0.05, 0.18), False, True),
        (told(0.2, 0.1, 0.1), True, True),
        ({"reward_error": 1.0}, False, False),
    ],
    ids=["little", "change", "action", "both", "another model"],
)
def test_models_see_no_more_of_the_step_before_than_tells_them_something(metrics, change, action) -> None:
    needed = StepBefore.needed(metrics)
    assert (needed.change, needed.action) == (change, action)


def test_models_have_seen_what_their_metrics_say() -> None:
    assert StepBefore.seen_by({"reward_error": 1.0}) == StepBefore()
    assert StepBefore.seen_by({SEES_CHANGE: 1.0, TOLD_UNSEEN: 0.3}) == StepBefore(change=True, told=0.3)
    assert StepBefore.seen_by({SEES_ACTION: 1.0, TOLD_UNSEEN: 0.2}) == StepBefore(action=True, told=0.2)


def test_what_models_see_of_the_step_before_is_named() -> None:
    change, action = "the change since the step before", "the last action"
    named = {(False, False): "", (True, False): change, (False, True): action, (True, True): f"{change} and {action}"}
    assert {seen: str(StepBefore(*seen)) for seen in named} == named


def three_columns() -> tuple[Trajectories, ColumnRoles]:
    """Return data of a place, a goal that never changes and a price that takes its own course."""
    states = np.zeros((2, 4, 3))
    states[0, :, 0], states[1, :, 0] = (0, 1, 3, 6), (5, 5, 4, 4)
    states[:, :, 1] = (1,), (2,)
    states[:, :, 2] = np.arange(4) ** 2
    actions = np.arange(12.0).reshape(2, 3, 2)
    is_goal, is_price = np.eye(3, dtype=bool)[1:]
    return logged(states, actions), ColumnRoles(is_goal, is_price, np.zeros(3, bool))


def test_the_step_before_has_columns_of_its_own() -> None:
    data, roles = three_columns()
    shown, wider = StepBefore(change=True, action=True).shown(data, roles)
    assert shown.observations[:, :3].tolist() == data.observations.tolist()
    assert shown.observations[:, 3].tolist() == [0, 1, 2, 3, 0, 0, -1, 0], "of the place alone, which actions control"
    mean = [5.0, 6.0]
    assert shown.observations[:, 4:].tolist() == [mean, [0, 1], [2, 3], [4, 5], mean, [6, 7], [8, 9], [10, 11]]
    assert wider.fixed.tolist() == [False, True, False, False, False, False]
    assert wider.exogenous.tolist() == [False, False, True, False, False, False]
    assert wider.irrelevant.tolist() == [False, False, False, False, True, True], "an action is no place to land on"


def test_a_final_state_that_was_not_recorded_stays_unknown() -> None:
    data, roles = three_columns()
    observations = data.observations.copy()
    observations[3] = np.nan
    shown, _ = StepBefore(change=True, action=True).shown(replace(data, observations=observations), roles)
    assert shown.unknown_rows.tolist() == [3]
    assert np.isfinite(np.delete(shown.observations, 3, axis=0)).all()


def test_nothing_is_shown_where_nothing_is_hidden() -> None:
    data, roles = three_columns()
    shown, same = StepBefore().shown(data, roles)
    assert shown is data
    assert same is roles


def stitched(name: str, seed: int = 0) -> Stitched:
    return stitch_together([StitchJob(ALL[name].collect(seed), BRIEF)])[0][0]


def too_much(name: str, done: Stitched) -> float:
    """Return what stitched data claims beyond the truth, as a share of the span of returns."""
    true = ALL[name].true_returns(done.after).mean()
    return float((done.after.returns.mean() - true) / np.ptp(done.before.returns))


@pytest.mark.parametrize("name", [LATE, NO_VELOCITY])
def test_jumps_lead_where_they_say_although_part_of_the_state_is_hidden(name, monkeypatch) -> None:
    seeing = stitched(name)
    assert seeing.reason is None
    assert seeing.after.observation_size == seeing.before.observation_size, "the data has no other columns"
    gain = seeing.after.returns.mean() - seeing.before.returns.mean()
    assert gain > 0.2 * np.ptp(seeing.before.returns)
    assert too_much(name, seeing) < 0.05
    monkeypatch.setattr(StepBefore, "needed", lambda metrics: StepBefore())
    assert too_much(name, stitched(name)) > too_much(name, seeing)


def test_stitched_data_says_what_models_were_shown() -> None:
    done = stitched(NO_VELOCITY)
    (said,) = hidden_state(done.reports)
    assert said.startswith("part of the state is hidden: the change since the step before tells ")
    assert said.endswith("a policy sees it only if it is added to the observations")


@pytest.mark.parametrize("name", ["glider", "pole", "two-leg", "slippery", "pendulum"])
def test_where_all_is_seen_models_see_no_step_before(name) -> None:
    stages = Stages(StitchJob(ALL[name].collect(0), BRIEF))
    _, report = pipeline.fit_model(BRIEF, "consistency", stages.recorded, stages.models_key, stages.roles)
    assert report is not None
    assert not StepBefore.needed(report.metrics)


def test_a_job_killed_at_any_model_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch) -> None:
    data, fit_model = ALL[LATE].collect(0), pipeline.fit_model
    fitted: list[str] = []

    def counted(config, name, *given):
        fitted.append(name)
        return fit_model(config, name, *given)

    def models(where: str, *, resume: bool = False) -> dict[str, np.ndarray]:
        run = Run.start(tmp_path / where, "stitch", {}, resume=resume)
        Stages(StitchJob(data, BRIEF, run=run)).models()
        return read_tensors(tmp_path / where / "models.safetensors", run.place("models"))[0]

    monkeypatch.setattr(pipeline, "fit_model", counted)
    whole = models("whole")
    assert fitted == ["precedent", "consistency", "precedent", "consistency", "inverse", "reward"]
    for number in range(1, len(fitted)):
        left = number

        def killed(*given):
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return fit_model(*given)

        monkeypatch.setattr(pipeline, "fit_model", killed)
        with pytest.raises(KeyboardInterrupt):
            models(f"killed-{number}")
        monkeypatch.setattr(pipeline, "fit_model", fit_model)
        again = models(f"killed-{number}", resume=True)
        assert again.keys() == whole.keys()
        assert all(np.array_equal(again[name], whole[name]) for name in whole)


def test_a_finished_run_is_read_with_what_its_models_saw(tmp_path: Path, monkeypatch) -> None:
    run = Run.start(tmp_path / "run", "stitch", {})
    job = StitchJob(ALL[NO_VELOCITY].collect(0), BRIEF, run=run)
    (done,) = stitch_together([job])[0]
    for name in ("passes.json", "result.npz"):
        (run.folder / name).unlink()
    monkeypatch.setattr(pipeline, "fit_model", None)
    (again,) = stitch_together([job])[0]
    assert again.after.equals(done.after)
    assert again.reports == done.reports


def test_models_that_were_kept_before_any_saw_it_have_seen_nothing(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", "stitch", {})
    job = StitchJob(ALL["two-leg"].collect(0), BRIEF, run=run)
    models, reports = Stages(job).models()
    tensors, facts = run.read("models")
    run.write_tensors("models", tensors, reports=facts["reports"])
    again = Stages(job)
    assert again.models()[1] == reports
    assert not again.step_before
    assert again.models()[0].inverse.low.tolist() == models.inverse.low.tolist()
