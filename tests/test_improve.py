"""Stitching several data sets or seeds at once: each comes out as it would alone, to the bit (on the CPU)."""

from dataclasses import replace

import pytest

from point import collect
from test_stitching import GREEDY, SMALL
from trajstitch.errors import InputError
from trajstitch.learning.buffer import buffer_size
from trajstitch.stitching import pipeline
from trajstitch.stitching.improve import Progress, StitchingTask, improve_together
from trajstitch.stitching.paths import Paths
from trajstitch.stitching.pipeline import Stages, StitchJob, fit_models_together, split_key, stitch_together
from trajstitch.storage.runs import Run
from trajstitch.workflow.calls import stitch

SAMPLED = replace(SMALL, sample_latents=True)


def task(data, config=GREEDY, seed=0) -> StitchingTask:
    return Stages(StitchJob(data, config, seed)).tasks()[0]


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "planned with sampled latents"])
def test_each_of_several_seeds_gets_what_it_gets_alone(config):
    data = collect(episodes=40, length=30)
    several = stitch(data, config, seed=5, seeds=3)
    assert several[0].equals(stitch(data, config, seed=5))
    first = task(data, config, seed=5)
    for number, one in enumerate(several):
        alone = improve_together(config, [replace(first, key=split_key(5 + number)[1])])[0]
        assert one.equals(alone.paths.trajectories())
    assert not several[1].equals(several[2])


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "planned with sampled latents"])
def test_each_of_several_sets_gets_what_it_gets_alone(config, caplog):
    caplog.set_level("INFO", "trajstitch")
    jobs = [StitchJob(collect(episodes, 30, seed), config, seed) for episodes, seed in ((40, 0), (25, 1))]
    together = [one for (one,) in stitch_together(jobs)]
    assert "point, pass 1" in caplog.text
    for one, job in zip(together, jobs, strict=True):
        (alone,) = stitch_together([job])[0]
        assert one.passes == alone.passes
        assert one.after.equals(alone.after)


def test_models_of_several_jobs_are_fitted_together_as_many_as_memory_has_room_for(tmp_path, monkeypatch):
    data, made, fit_together = collect(episodes=40, length=30), [], pipeline.together
    jobs = [StitchJob(data, SMALL, seed, run=Run.start(tmp_path / str(seed), "stitch", {})) for seed in range(3)]
    monkeypatch.setattr(pipeline, "TOGETHER", 3 * data.steps)
    monkeypatch.setattr(pipeline, "together", lambda tasks: made.append(len(tasks)) or fit_together(tasks))
    fit_models_together(jobs)
    fit_models_together(jobs)
    assert made == [2, 1]
    assert all(job.run is not None and job.run.has("models") for job in jobs)


def test_a_task_that_is_behind_the_others_catches_up():
    data = collect(episodes=40, length=30)
    first = task(data)
    tasks = [replace(first, key=split_key(seed)[1]) for seed in range(2)]
    so_far: list[list[Progress]] = []
    whole = improve_together(GREEDY, tasks, after_pass=lambda several: so_far.append(list(several)))
    again = improve_together(GREEDY, tasks, begun=[so_far[0][0], Progress(Paths.of(data))])
    for one, other in zip(again, whole, strict=True):
        assert one.paths.trajectories().equals(other.paths.trajectories())


def test_passes_share_one_compiled_loop():
    from trajstitch.learning.fit import _chunk

    data = collect(episodes=35, length=30)
    programs, steps = [], []

    def after_pass(several):
        programs.append(_chunk.program._cache_size())  # pyright: ignore
        steps.append(len(several[0].paths.kind))

    improve_together(GREEDY, [task(data)], after_pass=after_pass)
    assert buffer_size(steps[0]) != buffer_size(data.steps), "D_1 must be shorter for the test to say anything"
    assert len(set(programs)) == 1


def test_seeds_that_could_not_differ_are_refused():
    data = collect(10, 20)
    with pytest.raises(InputError, match="every seed would give the same data"):
        stitch(data, SMALL, seeds=2)
    with pytest.raises(InputError, match="`seeds` must be at least 1"):
        stitch(data, GREEDY, seeds=0)
