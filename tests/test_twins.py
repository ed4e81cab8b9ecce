"""Sets of SAC ladders: sampled policies, the replay of a run in proportion, and the choice of what is nearest."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from trajstitch import cli
from trajstitch.benchmark import sets
from trajstitch.benchmark.collect import Collect, collect, recipe, replay
from trajstitch.benchmark.d4rl_facts import D4RL, SetFacts, distance, misses
from trajstitch.benchmark.ladder import Checkpoint, Ladder, load_ladder, save_ladder
from trajstitch.benchmark.selection import RANDOM, TWIN_CHECKPOINTS, TWIN_UP_TO_MEDIUM, Asked, Played, choose, twins
from trajstitch.errors import InputError
from trajstitch.experiments.full_size import experts_alone
from trajstitch.policies.policy import sampled


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    """Untrained stochastic policies of Hopper."""
    random = np.random.default_rng(0)
    policies = [
        [(random.normal(0, 0.3, shape).astype("f4"), np.zeros(shape[1], "f4")) for shape in ((11, 8), (8, 6))]
        for _ in range(4)
    ]
    checkpoints = tuple(
        Checkpoint(steps, float(steps), 1.0, 20, layers)
        for steps, layers in zip((10_000, 30_000, 60_000, 200_000), policies, strict=True)
    )
    return Ladder("hopper", "Hopper-v5", checkpoints, 3, algorithm="sac", random_steps=10_000, chosen_medium=2)


@pytest.fixture(scope="module")
def file(ladder: Ladder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ladders") / "hopper-sac.safetensors"
    save_ladder(ladder, path)
    return path


def test_what_a_ladder_is_for_survives_its_file(ladder: Ladder, file: Path) -> None:
    loaded = load_ladder(file)
    assert (loaded.algorithm, loaded.random_steps, loaded.medium_index) == ("sac", 10_000, 2)
    assert loaded.medium.steps == ladder.medium.steps == 60_000


def test_replay_is_in_proportion_to_the_run_from_its_first_random_step(ladder: Ladder) -> None:
    stages = replay(ladder)
    assert [None if one is None else one.steps for one, _ in stages] == [None, 10_000, 30_000, 60_000]
    assert [steps for _, steps in stages] == [10_000, 10_000, 25_000, 15_000]
    parts = recipe(sets.built_in("hopper/medium-replay"), ladder, 6_000)
    assert [part.steps for part in parts] == [1_000, 1_000, 2_500, 1_500]
    assert parts[0].layers == []
    late = replace(ladder, random_steps=40_000)
    assert [steps for _, steps in replay(late)] == [40_000, 0, 5_000, 15_000]


def test_actions_are_sampled_and_the_first_ones_random(ladder: Ladder, file: Path) -> None:
    data = collect(Collect("hopper/medium-replay", 1_200, ladder=file, processes=1))
    again = collect(Collect("hopper/medium-replay", 1_200, ladder=file, processes=2))
    assert data.equals(again)
    assert data.metadata.extra["algorithm_name"] == "SAC"
    early = data.actions[:150]
    assert abs(early.std() - 1 / np.sqrt(3)) < 0.05
    medium = collect(Collect("hopper/medium", 300, ladder=file, processes=1))
    mode = sampled(load_ladder(file).medium.layers, medium.observations[: medium.steps], np.zeros((medium.steps, 3)))
    assert (np.abs(medium.actions[: len(mode)] - mode) > 1e-3).mean() > 0.9


def test_own_ladders_need_a_place_and_the_right_task(file: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.run(["collect", "hopper/medium", "--ladder", str(file)]) == 2
    assert "--to must be given with --ladder" in capsys.readouterr().err
    with pytest.raises(InputError, match="a ladder of hopper, not of walker2d"):
        collect(Collect("walker2d/medium", 100, ladder=file))
    with pytest.raises(InputError, match="TD3 expert"):
        collect(Collect("hopper/noisy-expert-10", 100, ladder=file))


def test_medium_expert_is_both_of_d4rls_sets_together() -> None:
    medium, expert = (np.random.default_rng(i).normal(mean, 3, 50) for i, mean in enumerate((10, 30)))
    both = SetFacts.of(medium, 100) + SetFacts.of(expert, 100)
    whole = SetFacts.of(np.concatenate([medium, expert]), 200)
    for name in ("trajectories", "transitions", "mean", "sd", "worst", "best"):
        assert getattr(both, name) == pytest.approx(getattr(whole, name))
    assert D4RL["hopper/medium-expert"].trajectories == 3213


def test_distance_counts_each_miss_in_its_tolerance() -> None:
    original = SetFacts(100, 1000, 200.0, 50.0, 0.0, 400.0)
    ours = replace(original, mean=210.0, sd=35.0)
    assert misses(ours, original, "mean", "sd") == pytest.approx({"mean": 0.05, "sd": -0.3})
    assert distance(ours, original) == pytest.approx(2.0)
    assert distance(original, original) == 0


def test_twins_are_the_checkpoints_nearest_to_d4rls_sets() -> None:
    medium, expert = D4RL["hopper/medium"], D4RL["hopper/expert"]

    def curve(top: float, length: int) -> list[tuple[int, float, float]]:
        rising = np.linspace(0, top, length)
        return [(10_000 * (i + 1), float(value), 350.0) for i, value in enumerate(rising)]

    curves = {0: curve(2_000, 100), 1: curve(3_600, 100)}
    random = np.random.default_rng(0)

    def play(asked: Sequence[Asked]) -> list[Played]:
        found = []
        for seed, at, steps in asked:
            mean, std = (20.0, 5.0) if at == RANDOM else next(row[1:] for row in curves[seed] if row[0] == at)
            length = 457  # of D4RL's medium set; the run's are given no lengths of their own
            found.append(Played(random.normal(mean, std, steps // length).tolist(), [length] * (steps // length)))
        return found

    seed, steps, at = twins("hopper", 10_000, curves, play)
    assert seed == 1  # the other one never comes near to the expert
    assert at is not None
    means = {row[0]: row[1] for row in curves[1]}
    assert abs(means[steps[at]] / medium.mean - 1) < 0.2
    assert abs(means[steps[-1]] / expert.mean - 1) < 0.1
    assert len(steps) == TWIN_CHECKPOINTS + 1
    assert at == TWIN_UP_TO_MEDIUM - 1
    assert np.diff(steps[: at + 1]).max() <= 20_000


def test_all_ladders_together_stay_under_sixteen_megabytes(tmp_path: Path) -> None:
    """Those of SAC at their full number of checkpoints, and TD3's experts."""
    for task, (observations, actions) in {"hopper": (11, 3), "walker2d": (17, 6), "halfcheetah": (17, 6)}.items():
        sizes = (observations, 256, 256, 2 * actions)
        layers = [(np.zeros(shape, "f4"), np.zeros(shape[1], "f4")) for shape in pairwise(sizes)]
        whole = tuple(Checkpoint(1_000_000, 1234.5678, 123.4567, 20, layers) for _ in range(TWIN_CHECKPOINTS + 1))
        curves = {seed: [(10_000 * step, 1234.5678) for step in range(300)] for seed in range(5)}
        save_ladder(Ladder(task, "v5", whole, 0, curves, algorithm="sac"), tmp_path / f"{task}-sac.safetensors")
        alone = experts_alone(load_ladder(task))
        save_ladder(alone, tmp_path / f"{task}.safetensors")
        kept = load_ladder(tmp_path / f"{task}.safetensors").expert.layers
        assert all((one[0] == other[0]).all() for one, other in zip(kept, load_ladder(task).expert.layers, strict=True))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 16_000_000


def test_ladder_up_to_a_medium_that_is_given_is_spaced_evenly() -> None:
    picked = choose([(i, float(i)) for i in range(100)], 50, up_to_medium=26, checkpoints=30)
    assert picked[25] == 50
    assert set(np.diff(picked[:26])) == {2}
    assert len(picked) == 31
