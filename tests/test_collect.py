"""The built-in sets: what is in them, and that the same seed gives the same bits."""

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch import sets
from trajstitch.environments import environment_id, normalised
from trajstitch.errors import InputError
from trajstitch.sets.collect import LANES, Collect, Part, _pieces, clean_episodes, collect, recipe
from trajstitch.sets.ladder import TASKS, load_ladder


@pytest.mark.parametrize("name", ["hopper/medium-replay", "hopper/noisy-expert-10"])
def test_same_seed_gives_the_same_bits_whatever_the_number_of_processes(name):
    alone = collect(Collect(name, transitions=3_000, processes=1))
    together = collect(Collect(name, transitions=3_000, processes=3))
    assert alone.equals(together)


def test_other_seed_gives_other_data():
    first, second = (collect(Collect("hopper/medium", transitions=200, seed=seed, processes=1)) for seed in (0, 1))
    assert not np.array_equal(first.observations[0], second.observations[0])


@pytest.mark.parametrize("task", TASKS)
def test_collected_steps_are_what_the_environment_does(task):
    """Replay the first episode's actions in a fresh environment: same states, rewards and end."""
    data = collect(Collect(f"{task}/medium-replay", transitions=300, processes=1))
    episode = data[0]
    environment = gymnasium.make(TASKS[task])
    stream = np.random.SeedSequence((0, 0, 0, 0, 0, 0))
    observation, _ = environment.reset(seed=int(stream.generate_state(1)[0]))
    np.testing.assert_array_equal(observation, episode.observations[0])
    for step, action in enumerate(episode.actions):
        observation, reward, terminated, truncated, _ = environment.step(action)
        np.testing.assert_array_equal(observation, episode.observations[step + 1])
        assert reward == episode.rewards[step]
        assert (terminated, truncated) == (episode.terminated[step], episode.truncated[step])
    assert terminated or truncated


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


@pytest.mark.parametrize("name", sets.NAMES)
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


def test_no_transitions_is_refused():
    with pytest.raises(InputError, match="--transitions"):
        collect(Collect("hopper/medium", transitions=0))
