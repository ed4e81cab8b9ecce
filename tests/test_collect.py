"""The built-in sets: what is in them, and that the same seed gives the same bits."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.benchmark import sets
from trajstitch.benchmark.behaviour import behave
from trajstitch.benchmark.collect import LANES, Collect, Part, _pieces, clean_episodes, collect, recipe
from trajstitch.benchmark.ladder import TASKS, Checkpoint, Ladder, load_ladder, save_ladder, shipped
from trajstitch.benchmark.lanes import Lanes
from trajstitch.data.environments import environment_id, normalised
from trajstitch.errors import InputError


@pytest.mark.parametrize("name", ["hopper/medium-replay", "hopper/noisy-expert-10"])
def test_same_seed_gives_the_same_bits_whatever_the_number_of_processes(name):
    alone = collect(Collect(name, transitions=3_000, processes=1))
    together = collect(Collect(name, transitions=3_000, processes=3))
    assert alone.equals(together)


def test_other_seed_gives_other_data():
    first, second = (collect(Collect("hopper/medium", transitions=200, seed=seed, processes=1)) for seed in (0, 1))
    assert not np.array_equal(first.observations[0], second.observations[0])


@pytest.mark.parametrize("checkpoint", [0, 4, -1])
@pytest.mark.parametrize("task", TASKS)
def test_lanes_do_what_the_environment_does_bit_for_bit(task, checkpoint):
    """Falls, a weak policy's flailing and an expert's run, each beside Gymnasium's own environment."""
    layers = load_ladder(shipped(task, "sac")).checkpoints[checkpoint].layers
    lanes = Lanes(TASKS[task], 2)
    beside = [gymnasium.make(TASKS[task]) for _ in range(2)]
    random = np.random.default_rng(0)
    for round_ in range(3):
        seeds = [10 * round_, 10 * round_ + 1]
        current = np.stack([lanes.reset(lane, seed) for lane, seed in enumerate(seeds)])
        np.testing.assert_array_equal(
            current, [env.reset(seed=seed)[0] for env, seed in zip(beside, seeds, strict=True)]
        )
        alive = [0, 1]
        for _ in range(120):
            noise = random.normal(0, 0.3, (2, len(lanes.low)))
            actions = behave(layers, current, noise, lanes.high)
            found = lanes.step(alive, actions[alive])
            for row, lane in enumerate(alive):
                observation, reward, terminated, _, _ = beside[lane].step(actions[lane])
                np.testing.assert_array_equal(found.observations[row], observation)
                assert found.rewards[row] == reward
                assert found.terminated[row] == terminated
            current[alive] = found.observations
            alive = [lane for lane, ended in zip(alive, found.terminated, strict=True) if not ended]
            if not alive:
                break


@pytest.mark.parametrize("task", TASKS)
def test_collected_episode_is_what_its_actions_do(task):
    """Replay the first episode's actions in a fresh environment: same states, rewards and end."""
    data = collect(Collect(f"{task}/expert", transitions=300, processes=1))
    episode = data[0]
    environment = gymnasium.make(TASKS[task])
    stream = np.random.SeedSequence((0, 0, 0, 0, 0, 0))
    observation, _ = environment.reset(seed=int(stream.generate_state(1)[0]))
    np.testing.assert_array_equal(observation, episode.observations[0])
    ends = (False, False)
    for step, action in enumerate(episode.actions):
        assert ends == (False, False)
        observation, reward, *ends, _ = environment.step(action)
        np.testing.assert_array_equal(observation, episode.observations[step + 1])
        assert reward == episode.rewards[step]
        ends = tuple(ends)
        assert ends == (episode.terminated[step], episode.truncated[step])
    assert any(ends)


def test_collected_set_knows_its_environment_and_its_scale():
    data = collect(Collect("walker2d/expert", transitions=100, processes=1))
    assert environment_id(data.metadata) == "Walker2d-v5"
    assert data.metadata.action_space is not None
    assert (np.abs(data.actions) <= 1).all()
    score = normalised(data.returns.mean(), data.metadata)
    assert score is not None
    assert score > 50


@pytest.mark.parametrize("task", TASKS)
def test_quality_rises_from_replay_to_expert(task):
    means = {
        kind: collect(Collect(f"{task}/{kind}", transitions=4_000, processes=2)).returns.mean()
        for kind in ("medium-replay", "medium", "expert")
    }
    assert means["medium-replay"] < means["medium"] < means["expert"]


@pytest.mark.parametrize("percent", [0.1, 10, 40])
def test_clean_expert_trajectories_make_up_the_named_percentage(percent):
    which = sets.built_in(f"hopper/noisy-expert-{percent:g}")
    noisy = 2_000
    clean = clean_episodes(which, noisy)
    assert abs(clean / (clean + noisy) - percent / 100) < 1e-3


def test_expert_fraction_zero_has_no_clean_trajectory():
    assert clean_episodes(sets.built_in("hopper/noisy-expert-0"), 1_000) == 0


@pytest.mark.parametrize("name", sorted({*sets.NAMES} - {sets.MAZE}))
def test_every_recipe_adds_up_to_the_transitions_asked_for(name):
    which = sets.built_in(name)
    parts = recipe(which, load_ladder(which.task), 10_000)
    assert sum(part.steps for part in parts) == pytest.approx(10_000)


@settings(deadline=None)
@given(steps=st.integers(1, 3_000_000), episodes=st.integers(0, 100))
def test_pieces_cover_their_part(steps, episodes):
    part = Part([], 0.0, 0 if episodes else steps, episodes)
    pieces = _pieces(part)
    assert sum(piece.episodes for piece in pieces) == episodes
    assert sum(piece.steps for piece in pieces) == pytest.approx(part.steps)
    assert all(piece.episodes <= LANES for piece in pieces)


def test_unknown_set_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'hopper/medium-replay'"):
        collect(Collect("hoper/medium-replay"))


def test_policies_of_another_size_are_one_line(tmp_path):
    random = [(np.zeros((3, 2), np.float32), np.zeros(2, np.float32))]
    ladder = Ladder("hopper", "Hopper-v5", (Checkpoint(1, 0.0, 0.0, 1, random),), 0)
    save_ladder(ladder, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="its policies take 3 numbers and give 2; Hopper-v5 has observations of 11"):
        collect(Collect("hopper/medium", transitions=10, ladder=tmp_path / "a.safetensors", processes=1))


def test_no_transitions_is_refused():
    with pytest.raises(InputError, match="`transitions`"):
        collect(Collect("hopper/medium", transitions=0))


def test_script_without_a_main_guard_collects(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import trajstitch\n"
        "print('started')\n"
        "data = trajstitch.collect(trajstitch.Collect('hopper/medium', transitions=100, processes=2))\n"
        "print(data.steps >= 100)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "started\nTrue\n"
