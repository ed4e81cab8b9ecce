"""Several data sets or seeds at once: each comes out as it would alone, to the bit (on the CPU)."""

from dataclasses import replace

import numpy as np
import pytest

from point import collect
from test_policies import one_step
from test_stitching import GREEDY, SMALL
from trajstitch.errors import InputError
from trajstitch.learning.buffer import buffer_size
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.policy import Policy
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import train, train_together
from trajstitch.stitching.config import Progress, StitchingTask, fit_models, improve, improve_together, keys_of, stitch
from trajstitch.stitching.graph import build
from trajstitch.stitching.paths import Paths

SETS = [collect(episodes, 20, seed) for episodes, seed in ((10, 0), (3, 1), (70, 2))]
BRIEF = {
    "bc": BC(steps=30, hidden=(8,)),
    "gaussian": BC(steps=30, hidden=(8,), gaussian=True, standardise=True),
    "weighted-bc": WeightedBC(steps=30, hidden=(8,), value_steps=20),
    "td3-bc": TD3BC(steps=31, hidden=(8,)),
    "iql": IQL(steps=30, hidden=(8,)),
}

SAMPLED = replace(SMALL, sample_latents=True)


def same(one: Policy, other: Policy) -> bool:
    arrays = [policy.tensors().values() for policy in (one, other)]
    return (one.seed, one.steps, one.config) == (other.seed, other.steps, other.config) and all(
        np.array_equal(a, b) for a, b in zip(*arrays, strict=True)
    )


@pytest.mark.parametrize("name", BRIEF)
def test_training_on_several_sets_at_once_gives_each_its_own_policies(name):
    together = train_together(SETS, BRIEF[name], seeds=2, seed=4)
    assert [[policy.seed for policy in policies] for policies in together] == [[4, 5]] * 3
    for data, policies in zip(SETS, together, strict=True):
        alone = train(data, BRIEF[name], seeds=2, seed=4)
        assert all(same(one, other) for one, other in zip(policies, alone, strict=True))
    assert not same(together[0][0], together[1][0])


def test_sets_of_different_sizes_can_not_train_together():
    with pytest.raises(InputError, match=r"one observation and action size, not \[\(1, 1\), \(2, 2\)\]"):
        train_together([SETS[0], one_step(20)], BRIEF["bc"])


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "planned with sampled latents"])
def test_each_of_several_stitching_seeds_gets_what_it_gets_alone(config):
    data = collect(episodes=40, length=30)
    several = stitch(data, config, seed=5, seeds=3)
    assert several[0].equals(stitch(data, config, seed=5))
    models, _ = fit_models(config, data, keys_of(5)[0])
    graph = build(data, models, config.near, config.reach)
    for number, one in enumerate(several):
        alone, _ = improve(config, data, models, graph, keys_of(5 + number)[1])
        assert one.equals(alone.trajectories())
    assert not several[1].equals(several[2])


@pytest.mark.parametrize("config", [GREEDY, SAMPLED], ids=["greedy", "planned with sampled latents"])
def test_each_of_several_sets_stitched_together_gets_what_it_gets_alone(config, capsys):
    sets = [collect(episodes, 30, seed) for episodes, seed in ((40, 0), (25, 1))]
    keys = [keys_of(seed) for seed in range(2)]
    grounds = []
    for data, (models_key, key) in zip(sets, keys, strict=True):
        models, _ = fit_models(config, data, models_key)
        grounds.append(StitchingTask(data, models, build(data, models, config.near, config.reach), key))
    together = improve_together(config, grounds)
    alone = [improve_together(config, [ground])[0] for ground in grounds]
    assert [len(course.summaries) for course in together] == [len(course.summaries) for course in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.summaries == other.summaries
        assert one.paths.trajectories().equals(other.paths.trajectories())
    assert "point, pass 1" in capsys.readouterr().err


def test_a_course_that_is_behind_the_others_catches_up():
    data = collect(episodes=40, length=30)
    models, _ = fit_models(GREEDY, data, keys_of(0)[0])
    graph = build(data, models, GREEDY.near, GREEDY.reach)
    grounds = [StitchingTask(data, models, graph, keys_of(seed)[1]) for seed in range(2)]
    so_far: list[list[Progress]] = []
    whole = improve_together(GREEDY, grounds, each=lambda courses: so_far.append(list(courses)))
    again = improve_together(GREEDY, grounds, begun=[so_far[0][0], Progress(Paths.of(data))])
    for one, other in zip(again, whole, strict=True):
        assert one.paths.trajectories().equals(other.paths.trajectories())


def test_passes_share_one_compiled_loop():
    from trajstitch.learning.fit import _chunk

    data = collect(episodes=36, length=30)
    models, _ = fit_models(GREEDY, data, keys_of(0)[0])
    graph = build(data, models, GREEDY.near, GREEDY.reach)
    programs, steps = [], []

    def each(courses):
        programs.append(_chunk._cached._cache_size())  # pyright: ignore
        steps.append(len(courses[0].paths.kind))

    improve_together(GREEDY, [StitchingTask(data, models, graph, keys_of(0)[1])], each=each)
    assert buffer_size(steps[0]) != buffer_size(data.steps), "D_1 must be shorter for the test to say anything"
    assert len(set(programs)) == 1


def test_seeds_that_could_not_differ_are_refused():
    with pytest.raises(InputError, match="every seed would give the same data"):
        stitch(SETS[0], SMALL, seeds=2)
    with pytest.raises(InputError, match="at least one seed"):
        stitch(SETS[0], GREEDY, seeds=0)
