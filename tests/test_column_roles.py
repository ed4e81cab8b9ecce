"""Which columns actions control is found from the data, and claimed only where the data shows it."""

from dataclasses import replace

import numpy as np
import pytest

from small_graphs import logged
from trajstitch.data.column_roles import ColumnRoles, column_names, find_roles, fixed_columns
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.errors import InputError
from trajstitch.stitching.config import ColumnChoice
from worlds import WORLDS

EPISODES, LENGTH = 40, 30


def plant(*extra: np.ndarray, seed: int = 0, episodes: int = EPISODES, weight: float = 0.0) -> Trajectories:
    """A level that the action moves, paid by its height, and more columns (episode, time) beside it.

    `weight` is how much the first of them adds to each reward.
    """
    random = np.random.default_rng(seed)
    actions = random.uniform(-1, 1, (episodes, LENGTH, 1))
    level = random.normal(size=(episodes, 1)) + np.cumsum(0.3 * actions[..., 0], 1)
    level = np.concatenate((level[:, :1] - 0.3 * actions[:, 0], level), 1)
    columns = [level, *(column[:episodes] for column in extra)]
    rewards = level[:, 1:] + (weight * extra[0][:episodes, :-1] if extra else 0.0)
    return logged(np.stack(columns, 2), actions, rewards)


def noise(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(EPISODES, LENGTH + 1))


def drift(seed: int = 2) -> np.ndarray:
    return np.cumsum(0.1 * noise(seed), 1)


def context(unit: float = 1.0, values: int = EPISODES) -> np.ndarray:
    return np.repeat(unit * (np.arange(EPISODES) % values)[:, None], LENGTH + 1, 1)


CLOCK = np.tile(np.arange(LENGTH + 1.0), (EPISODES, 1))


def found(roles: ColumnRoles) -> dict[str, list[int]]:
    return {
        kind: np.flatnonzero(getattr(roles, kind)).tolist()
        for kind in ("fixed", "exogenous", "irrelevant", "controlled")
        if getattr(roles, kind).any()
    }


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1.0, 1e9])
def test_what_is_constant_within_episodes_is_a_context_in_any_unit(unit: float) -> None:
    assert found(find_roles(plant(context(unit, 3)))) == {"fixed": [1], "controlled": [0]}


def test_what_is_the_same_in_all_episodes_is_no_context() -> None:
    assert not fixed_columns(plant(np.full((EPISODES, LENGTH + 1), 7.0))).any()


def test_what_changes_once_in_one_episode_is_no_context() -> None:
    column = context()
    column[3, 7:] += 1e-3
    assert not fixed_columns(plant(column)).any()


@pytest.mark.parametrize("name", ["payload-tiny-unit", "set-point-tiny-unit"])
def test_contexts_of_worlds_are_found_in_tiny_units(name: str) -> None:
    roles = find_roles(WORLDS[name].collect(0))
    assert np.flatnonzero(roles.fixed).tolist() == [len(roles.fixed) - 1]
    assert not (roles.exogenous | roles.irrelevant).any()


@pytest.mark.parametrize("column", [noise(), drift()], ids=["noise", "drift"])
def test_what_moves_by_itself_is_exogenous_if_the_reward_depends_on_it(column: np.ndarray) -> None:
    assert found(find_roles(plant(column, weight=1.0))) == {"exogenous": [1], "controlled": [0]}


@pytest.mark.parametrize("column", [noise(), drift()], ids=["noise", "drift"])
def test_what_moves_by_itself_is_irrelevant_if_nothing_depends_on_it(column: np.ndarray) -> None:
    assert found(find_roles(plant(column))) == {"irrelevant": [1], "controlled": [0]}


def test_what_matters_through_another_column_is_exogenous() -> None:
    """The sun warms the air, and the air is what the reward depends on."""
    sun = noise()
    air = np.zeros_like(sun)
    for time in range(LENGTH):
        air[:, time + 1] = 0.7 * air[:, time] + sun[:, time]
    assert found(find_roles(plant(air, sun, weight=1.0))) == {"exogenous": [1, 2], "controlled": [0]}


def test_a_price_that_no_action_moves_is_exogenous() -> None:
    assert found(find_roles(WORLDS["exogenous"].collect(0))) == {"exogenous": [1], "controlled": [0]}


def test_a_clock_is_irrelevant_or_exogenous_by_whether_rewards_depend_on_it() -> None:
    assert found(find_roles(plant(CLOCK)))["irrelevant"] == [1]
    assert found(find_roles(plant(CLOCK, weight=1.0)))["exogenous"] == [1]
    assert found(find_roles(WORLDS["delayed-with-clock"].collect(0)))["exogenous"] == [2]


def test_many_columns_of_noise_are_all_irrelevant() -> None:
    columns = [noise(seed) for seed in range(10, 40)]
    assert found(find_roles(plant(*columns))) == {"irrelevant": [*range(1, 31)], "controlled": [0]}


def test_what_an_action_moves_through_another_column_is_controlled() -> None:
    """A force changes the velocity, and the velocity the position."""
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (EPISODES, LENGTH, 1))
    states = np.zeros((EPISODES, LENGTH + 1, 2))
    states[:, 0] = random.normal(size=(EPISODES, 2))
    for time in range(LENGTH):
        states[:, time + 1, 0] = states[:, time, 0] + 0.1 * states[:, time, 1]
        states[:, time + 1, 1] = states[:, time, 1] + 0.1 * actions[:, time, 0]
    assert found(find_roles(logged(states, actions, states[:, 1:, 0]))) == {"controlled": [0, 1]}


@pytest.mark.parametrize("name", ["pendulum", "mountain-car", "costs", "two-leg"])
def test_coordinates_that_actions_move_are_all_controlled(name: str) -> None:
    assert set(found(find_roles(WORLDS[name].collect(0)))) == {"controlled"}


def test_few_episodes_claim_nothing_but_contexts() -> None:
    roles = find_roles(plant(noise(), context(), episodes=9))
    assert found(roles) == {"fixed": [2], "controlled": [0, 1]}


def test_where_no_action_has_a_visible_effect_nothing_is_claimed() -> None:
    data = plant(noise())
    shuffled = replace(data, actions=np.random.default_rng(9).permutation(data.actions))
    assert set(found(find_roles(shuffled))) == {"controlled"}


@pytest.mark.parametrize(("column", "role"), [(context(), "fixed"), (noise(), "irrelevant")], ids=["context", "noise"])
def test_final_states_that_were_not_recorded_do_not_matter(column: np.ndarray, role: str) -> None:
    data = plant(column)
    rows = data.observations.copy()
    rows[data.first_rows + data.lengths] = np.nan
    assert found(find_roles(replace(data, observations=rows)))[role] == [1]


def test_units_do_not_matter() -> None:
    data = plant(noise(), drift(), weight=1.0)
    scaled = replace(data, observations=data.observations * np.array([1e-7, 1e6, 1e-3], np.float32))
    assert found(find_roles(scaled)) == found(find_roles(data))


# What the user says


NAMES = ["level", "wind", "goal"]
NAMED = replace(plant(noise(), context()), metadata=Metadata("named", extra={"observation_names": NAMES}))


def test_columns_are_chosen_by_name_and_by_number() -> None:
    assert column_names(NAMED) == NAMES
    for choice in (ColumnChoice(("wind",), ("level",)), ColumnChoice(("1",), ("0",))):
        assert found(choice.roles(NAMED)) == {"fixed": [1], "exogenous": [0], "controlled": [2]}


def test_data_without_names_has_columns_by_number() -> None:
    data = plant(noise())
    assert column_names(data) == ["0", "1"]
    assert found(ColumnChoice(fixed=("1",)).roles(data))["fixed"] == [1]


def test_a_name_comes_before_a_number() -> None:
    data = replace(NAMED, metadata=Metadata("numbers", extra={"observation_names": ["2", "1", "0"]}))
    assert found(ColumnChoice(fixed=("2",)).roles(data))["fixed"] == [0]


def test_none_says_that_no_column_is_of_a_kind() -> None:
    roles = ColumnChoice(fixed=("none",), exogenous=("none",)).roles(NAMED)
    assert found(roles) == {"controlled": [0, 1, 2]}


def test_a_kind_that_is_not_chosen_is_found() -> None:
    assert found(ColumnChoice(exogenous=("wind",)).roles(NAMED))["fixed"] == [2]
    assert found(ColumnChoice(fixed=("none",)).roles(NAMED))["irrelevant"] == [1]


@pytest.mark.parametrize(("kind", "name"), [("fixed", "gaol"), ("exogenous", "3"), ("fixed", "-1")])
def test_an_unknown_column_is_refused_with_what_there_is(kind: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"`columns.{kind}`: there is no observation column '{name}'.*from 0 to 2"):
        ColumnChoice(**{kind: (name,)}).roles(NAMED)


def test_a_misspelt_column_gets_the_right_spelling() -> None:
    with pytest.raises(InputError, match="'goal'"):
        ColumnChoice(fixed=("gaol",)).roles(NAMED)
