"""Every loss has the value of its formula in plain NumPy; every optimiser is Adam as stated, on what it should move.

The networks of a model are all different here, so that a loss which takes another one is seen.
"""

from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plain
from plain import array, network, one_of, shaken, standardised, undone
from random_data import random_data
from trajstitch.data.transitions import Transitions
from trajstitch.learning.fit import Objective
from trajstitch.learning.losses import log_density
from trajstitch.learning.networks import normaliser_of
from trajstitch.models.dynamics import Dynamics
from trajstitch.models.forward import ForwardDynamics, score_steps, untrained_forward
from trajstitch.models.inverse import InverseDynamics
from trajstitch.models.reward import GenerativeReward, RegressionReward
from trajstitch.models.value import TwinValue
from trajstitch.policies.bc import BC, Sample
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3 import TD3, Batch
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.training_data import Sizes

ROWS, STATE, ACTION = 6, 3, 2
KEY = jax.random.key(7)
SIZES = Sizes(STATE, ACTION)
H: dict[str, Any] = {"hidden": (5, 4)}


@pytest.fixture(scope="module")
def batch() -> Transitions:
    random = np.random.default_rng(1)

    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    return Transitions(
        observation=normal(ROWS, STATE),
        action=jnp.asarray(random.uniform(-1, 1, (ROWS, ACTION)), jnp.float32),
        reward=normal(ROWS),
        next_observation=normal(ROWS, STATE),
        terminated=jnp.asarray([True, False, False, True, False, False]),
    )


@pytest.fixture(scope="module")
def data() -> Any:
    """Data that gives models their shapes."""
    made = random_data(np.random.default_rng(0), coarse=False)
    wide = np.column_stack((made.observations, made.observations[:, 0] ** 2)).astype(np.float32)
    return replace(made, observations=wide, actions=np.column_stack((made.actions, -(made.actions**2))))


def joined(*parts: Any) -> np.ndarray:
    return np.concatenate([array(part) for part in parts], -1)


def actor(model: Any, observation: Any) -> np.ndarray:
    return np.tanh(network(model.network.layers, array(observation)))


def critics(model: Any, observation: Any, action: Any) -> np.ndarray:
    pair = joined(observation, action)
    return np.stack([network(one_of(model.networks, number), pair)[:, 0] for number in range(2)])


def value_of(loss: Any, *given: Any) -> tuple[Any, Any]:
    """A loss and its metrics, compiled: that is faster than operation by operation."""
    return eqx.filter_jit(lambda *given: loss(*given))(*given)


def check(loss: Any, model: Any, batch: Any, expected: Any) -> dict[str, Any]:
    found, metrics = value_of(loss, model, batch, KEY)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    return metrics


# Policies


def test_cloning_is_the_squared_error_of_the_action(batch: Transitions) -> None:
    model = shaken(BC(**H).init(KEY, SIZES))
    error = np.square(actor(model.actor, batch.observation) - array(batch.action)).mean(1)
    sample = Sample(batch.observation, batch.action)
    assert float(check(BC(**H).loss, model, sample, error.mean())["action_error"]) == pytest.approx(
        error.mean(), rel=1e-4
    )
    weight = np.arange(1.0, ROWS + 1)
    sample = sample._replace(weight=jnp.asarray(weight, jnp.float32))
    metrics = check(BC(**H).loss, model, sample, (weight * error).mean())
    assert float(metrics["action_error"]) == pytest.approx(error.mean(), rel=1e-4)


def test_a_gaussian_clone_maximises_the_likelihood_of_the_action(batch: Transitions) -> None:
    """Its log standard deviation goes from -5 to 1 as the network's output goes from -1 to 1."""
    config = BC(**H, gaussian=True)
    model = shaken(config.init(KEY, SIZES))
    found = actor(model.actor, batch.observation)
    std = np.exp(-5 + 6 * (found[:, ACTION:] + 1) / 2)
    likelihood = plain.log_density(array(batch.action), found[:, :ACTION], std)
    check(config.loss, model, Sample(batch.observation, batch.action), -likelihood.mean())


def test_td3_learns_the_lower_target_critic_at_the_smoothed_target_action(batch: Transitions) -> None:
    config = TD3BC(**H, discount=0.9, target_noise=0.6, target_noise_clip=0.3)
    model = shaken(config.init(KEY, SIZES))
    noise = np.clip(0.6 * array(jax.random.normal(KEY, (ROWS, ACTION))), -0.3, 0.3)
    assert (np.abs(noise) == 0.3).any()
    following = np.clip(actor(model.target_actor, batch.next_observation) + noise, -1, 1)
    value = critics(model.target_critics, batch.next_observation, following).min(0)
    target = array(batch.reward) + 0.9 * np.where(np.asarray(batch.terminated), 0, value)
    found = critics(model.critics, batch.observation, batch.action)
    metrics = check(config.critic_loss, model, batch, np.square(found - target).mean(1).sum())
    assert float(metrics["value"]) == pytest.approx(target.mean(), rel=1e-4)


def test_td3_bc_raises_the_first_critic_beside_cloning(batch: Transitions) -> None:
    config = TD3BC(**H, alpha=1.7)
    model = shaken(config.init(KEY, SIZES))
    action = actor(model.actor, batch.observation)
    value = critics(model.critics, batch.observation, action)[0]
    error = np.square(action - array(batch.action)).mean()
    check(config.actor_loss, model, batch, error - 1.7 / np.abs(value).mean() * value.mean())


def test_online_td3_has_the_same_target_and_raises_the_first_critic(batch: Transitions) -> None:
    config = TD3(**H, discount=0.8)
    state = shaken(config.init(KEY, STATE, (1.0,) * ACTION))
    one = Batch(*batch)._replace(terminated=batch.terminated.astype(jnp.float32))
    noise = np.clip(0.2 * array(jax.random.normal(KEY, (ROWS, ACTION))), -0.5, 0.5)
    following = np.clip(actor(state.target_actor, batch.next_observation) + noise, -1, 1)
    value = critics(state.target_critics, batch.next_observation, following).min(0)
    expected = array(batch.reward) + 0.8 * np.where(np.asarray(batch.terminated), 0, value)
    np.testing.assert_allclose(eqx.filter_jit(config.target)(state, one, KEY), expected, rtol=1e-4)
    action = actor(state.actor, batch.observation)
    found = float(eqx.filter_jit(config.actor_loss)(state.actor, state.critics, one))
    assert found == pytest.approx(-critics(state.critics, batch.observation, action)[0].mean(), rel=1e-4)


def advantage(model: Any, batch: Transitions) -> np.ndarray:
    """The lower target critic of the logged action less the value of its state."""
    lower = critics(model.target_critics, batch.observation, batch.action).min(0)
    return lower - network(model.value.layers, array(batch.observation))[:, 0]


@pytest.fixture(scope="module")
def iql() -> tuple[IQL, Any]:
    config = IQL(**H, expectile=0.8, temperature=2.0, discount=0.9)
    model = shaken(config.init(KEY, SIZES))
    lower = model.value.layers[-1][1] - 2  # so that some advantages are positive
    return config, eqx.tree_at(lambda model: model.value.layers[-1][1], model, lower)


def test_iql_value_is_an_expectile_of_the_lower_target_critic(iql: tuple[IQL, Any], batch: Transitions) -> None:
    config, model = iql
    above = advantage(model, batch)
    assert 0 < (above > 0).sum() < ROWS
    weight = np.abs(0.8 - (above < 0))
    check(config.value_loss, model, batch, (weight * above**2).mean())


def test_iql_clones_by_the_advantage_of_the_target_critics(iql: tuple[IQL, Any], batch: Transitions) -> None:
    config, model = iql
    weight = np.minimum(np.exp(2 * advantage(model, batch)), 100)
    assert len(np.unique(weight)) == ROWS
    std = np.exp(np.clip(array(model.log_std), -5, 2))
    likelihood = plain.log_density(array(batch.action), actor(model.actor, batch.observation), std)
    check(config.actor_loss, model, batch, -(weight * likelihood).mean())


def test_iql_critics_learn_the_value_of_the_next_state(iql: tuple[IQL, Any], batch: Transitions) -> None:
    config, model = iql
    following = network(model.value.layers, array(batch.next_observation))[:, 0]
    target = array(batch.reward) + 0.9 * np.where(np.asarray(batch.terminated), 0, following)
    found = critics(model.critics, batch.observation, batch.action)
    check(config.critic_loss, model, batch, np.square(found - target).mean(1).sum())


# Models


def test_dynamics_maximise_the_likelihood_of_the_change(batch: Transitions) -> None:
    config = Dynamics(**H)
    one = normaliser_of(np.zeros((1, STATE)))
    model = shaken(config.init(KEY, one, one))
    change = standardised(model.change, array(batch.next_observation) - array(batch.observation))
    found = network(model.network.layers, standardised(model.scale, batch.observation))
    mean, log_std = found[:, :STATE], found[:, STATE:]
    log_std = 2 - plain.softplus(2 - log_std)
    std = np.exp(-6 + plain.softplus(log_std + 6))
    check(config.loss, model, batch, -plain.log_density(change, mean, std).mean())


def test_a_density_is_that_of_a_gaussian() -> None:
    value, mean, log_std = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    expected = plain.log_density(array(value), array(mean), np.exp(array(log_std)))
    np.testing.assert_allclose(log_density(*map(jnp.asarray, (value, mean, log_std))), expected, rtol=1e-4)


def test_inverse_dynamics_lower_the_action_error_and_the_divergence(batch: Transitions, data: Any) -> None:
    config = InverseDynamics(**H, divergence_weight=0.3)
    model = shaken(config.init(KEY, data))
    low, high = jnp.array([-1.0, -2.0]), jnp.array([3.0, 1.0])
    model = eqx.tree_at(lambda model: (model.low, model.high), model, (low, high))
    change = array(batch.next_observation) - array(batch.observation)
    pair = joined(standardised(model.scale, batch.observation), standardised(model.change, change))
    middle, width = (array(high) + array(low)) / 2, (array(high) - array(low)) / 2
    code = network(model.encoder.layers, joined(pair, (array(batch.action) - middle) / width))
    mean, log_std = code[:, : 2 * ACTION], np.clip(code[:, 2 * ACTION :], -4, 15)
    latent = mean + np.exp(log_std) * array(jax.random.normal(KEY, (ROWS, 2 * ACTION)))
    action = middle + width * np.tanh(network(model.decoder.layers, joined(pair, latent)))
    error = np.square((action - array(batch.action)) / width).mean()
    divergence = (-log_std + (np.exp(2 * log_std) + mean**2 - 1) / 2).mean()  # of N(mean, std²) from N(0, 1)
    check(config.loss, model, batch, error + 0.3 * divergence)
    plausible = middle + width * np.tanh(network(model.decoder.layers, joined(pair, np.zeros((ROWS, 2 * ACTION)))))
    found = eqx.filter_jit(model)(batch.observation, batch.next_observation)
    np.testing.assert_allclose(found, plausible, rtol=1e-4, atol=1e-5)


def step_of(model: Any, batch: Transitions, *more: Any) -> np.ndarray:
    """What a reward model sees of a step."""
    change = array(batch.next_observation) - array(batch.observation)
    return joined(
        standardised(model.observation, batch.observation),
        standardised(model.action, batch.action),
        standardised(model.change, change),
        *more,
    )


def test_regression_reward_lowers_the_squared_error_and_sees_the_end(batch: Transitions, data: Any) -> None:
    config = RegressionReward(**H)
    model = shaken(config.init(KEY, data))
    found = network(model.generator.layers, step_of(model, batch, np.asarray(batch.terminated)[:, None]))[:, 0]
    error = found - standardised(model.reward, np.asarray(batch.reward)[:, None])[:, 0]
    check(config.loss, model, batch, np.square(error).mean())
    predicted = eqx.filter_jit(model)(batch.observation, batch.action, batch.next_observation, batch.terminated)
    np.testing.assert_allclose(predicted, undone(model.reward, found[:, None])[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [0.0, 10.0])
def test_the_gan_s_critic_tells_rewards_apart_with_a_slope_of_one(batch: Transitions, data: Any, weight: float) -> None:
    """The loss of Gulrajani et al. (2017): D of what is made less D of what was logged, and λ (|slope| - 1)²."""
    config = GenerativeReward(**H, slope_penalty=weight)
    model = shaken(config.init(KEY, data))
    latent_key, mix_key = jax.random.split(KEY)
    step = step_of(model, batch)
    real = standardised(model.reward, np.asarray(batch.reward)[:, None])
    made = network(model.generator.layers, joined(step, jax.random.normal(latent_key, (ROWS, 2))))
    mix = array(jax.random.uniform(mix_key, (ROWS, 1)))
    between = joined(step, mix * real + (1 - mix) * made)
    penalty = np.square(np.abs(plain.slope_in_last_input(model.critic.layers, between)) - 1).mean()
    score = [network(model.critic.layers, joined(step, reward)).mean() for reward in (made, real)]
    metrics = check(config.critic_loss, model, batch, score[0] - score[1] + weight * penalty)
    assert float(metrics["distance"]) == pytest.approx(score[1] - score[0], rel=1e-4)
    assert float(metrics["slope_penalty"]) == pytest.approx(penalty, rel=1e-4)


def test_the_gan_s_generator_raises_what_the_critic_says_of_it(batch: Transitions, data: Any) -> None:
    config = GenerativeReward(**H)
    model = shaken(config.init(KEY, data))
    step = step_of(model, batch)
    made = network(model.generator.layers, joined(step, jax.random.normal(KEY, (ROWS, 2))))
    metrics = check(config.generator_loss, model, batch, -network(model.critic.layers, joined(step, made)).mean())
    error = np.square(made - standardised(model.reward, np.asarray(batch.reward)[:, None])).mean()
    assert float(metrics["reward_error"]) == pytest.approx(error, rel=1e-4)


def test_forward_dynamics_lower_the_error_of_change_and_reward(batch: Transitions) -> None:
    config = ForwardDynamics(**H)
    scales = [normaliser_of(np.zeros((1, size))) for size in (STATE, ACTION, STATE, 1)]
    model = shaken(config.init(KEY, scales))
    pair = joined(standardised(model.observation, batch.observation), standardised(model.action, batch.action))
    change = standardised(model.change, array(batch.next_observation) - array(batch.observation))
    aim = joined(change, standardised(model.reward, np.asarray(batch.reward)[:, None]))
    check(config.loss, model, batch, np.square(network(model.network.layers, pair) - aim).mean())


def test_a_jump_is_scored_by_the_worst_member_and_paid_by_the_lowest(batch: Transitions) -> None:
    ensemble = shaken(untrained_forward(ForwardDynamics(members=3, **H), STATE, ACTION, KEY))
    weight, exogenous = np.array([1.0, 0.3, 0.0]), np.array([0.0, 0.0, 1.0])
    ensemble = eqx.tree_at(
        lambda one: (one.weight, one.exogenous), ensemble, (jnp.asarray(weight, jnp.float32), jnp.asarray(exogenous))
    )
    logged = array(batch.next_observation)[::-1]
    score = eqx.filter_jit(score_steps)
    step = (batch.observation, batch.action, batch.next_observation)
    found = score(ensemble, *step, jnp.asarray(logged, jnp.float32))
    errors, rewards = [], []
    std = array(ensemble.members.observation.std[0])
    for number in range(3):
        member = jax.tree.map(lambda leaf, number=number: leaf[number], ensemble.members)
        pair = joined(standardised(member.observation, batch.observation), standardised(member.action, batch.action))
        out = network(member.network.layers, pair)
        miss = array(batch.observation) + undone(member.change, out[:, :STATE]) - array(batch.next_observation)
        errors.append((weight * np.square(miss / std)).sum(1))
        rewards.append(undone(member.reward, out[:, STATE:])[:, 0])
    assert set(np.argmax(errors, 0)) != {0}
    assert set(np.argmin(rewards, 0)) != {0}
    apart = np.square((array(batch.next_observation) - logged) / std)[:, 2]
    change = (array(batch.next_observation) - array(batch.observation)) / std
    length = np.sqrt((weight * change**2).sum(1))
    np.testing.assert_allclose(found.error, np.sqrt(np.max(errors, 0) + apart), rtol=1e-4)
    np.testing.assert_allclose(found.length, length, rtol=1e-4)
    np.testing.assert_allclose(found.reward, np.min(rewards, 0), rtol=1e-4)
    np.testing.assert_allclose(found.relative, np.sqrt(np.max(errors, 0) + apart) / length, rtol=1e-4)
    own = score(ensemble, *step)
    np.testing.assert_allclose(own.error, np.sqrt(np.max(errors, 0)), rtol=1e-4)


def test_values_learn_the_lower_target_network(batch: Transitions, data: Any) -> None:
    config = TwinValue(**H, discount=0.9)
    model = shaken(config.init(KEY, data))

    def both(networks: Any, observation: Any) -> np.ndarray:
        rows = standardised(model.scale, observation)
        return np.stack([network(one_of(networks, number), rows)[:, 0] for number in range(2)])

    lower = undone(model.returns, both(model.target, batch.next_observation).min(0))
    target = array(batch.reward) + 0.9 * np.where(np.asarray(batch.terminated), 0, lower)
    online = both(model.online, batch.observation)
    errors = np.square(online - standardised(model.returns, target)).mean(1)
    check(config.loss, model, batch, errors.sum())
    np.testing.assert_allclose(
        eqx.filter_jit(model)(batch.observation), undone(model.returns, online.min(0)), rtol=1e-4
    )


# What is moved, by which Adam


def changes_of(objective: Objective, gradients: np.ndarray, value: float) -> np.ndarray:
    """The changes that the optimiser makes of a weight that keeps its value."""
    weight = jnp.asarray(value)

    def step(state: Any, gradient: Any) -> tuple[Any, Any]:
        change, state = objective.optimiser.update(gradient, state, weight)
        return state, change

    scanned = jax.jit(lambda given: jax.lax.scan(step, objective.optimiser.init(weight), given)[1])
    return np.asarray(scanned(jnp.asarray(gradients, jnp.float32)))


def first_steps(objective: Objective, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of one weight that stays at 0, and the changes that the optimiser makes for them."""
    gradients = np.random.default_rng(3).normal(size=count)
    return gradients, changes_of(objective, gradients, 0.0)


STEPS = 12
FALLING = 0.5 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))
"""A cosine from 1 to 0 over the steps."""
OBJECTIVES: dict[str, tuple[Any, list[tuple[str, np.ndarray | float, tuple[float, float], int]]]] = {
    "bc": (BC(**H, learning_rate=2e-3), [("", 2e-3, (0.9, 0.999), 1)]),
    "td3-bc": (
        TD3BC(**H, learning_rate=2e-3, policy_delay=3),
        [("critics", 2e-3, (0.9, 0.999), 1), ("actor", 2e-3, (0.9, 0.999), 3)],
    ),
    "iql": (
        IQL(**H, learning_rate=2e-3, steps=STEPS),
        [
            ("value", 2e-3, (0.9, 0.999), 1),
            ("actor log_std", 2e-3 * FALLING, (0.9, 0.999), 1),
            ("critics", 2e-3, (0.9, 0.999), 1),
        ],
    ),
    "dynamics": (Dynamics(**H, learning_rate=2e-3), [("network", 2e-3, (0.9, 0.999), 1)]),
    "inverse": (InverseDynamics(**H, learning_rate=2e-3), [("encoder decoder", 2e-3, (0.9, 0.999), 1)]),
    "forward": (
        ForwardDynamics(**H, learning_rate=2e-3, steps=STEPS),
        [("network", 2e-3 * FALLING, (0.9, 0.999), 1)],
    ),
    "regression": (RegressionReward(**H, learning_rate=2e-3), [("generator", 2e-3, (0.9, 0.999), 1)]),
    "gan": (
        GenerativeReward(**H, learning_rate=2e-3, critic_steps=4),
        [("critic", 2e-3, (0.5, 0.999), 1), ("generator", 2e-3, (0.5, 0.999), 4)],
    ),
    "value": (TwinValue(**H, learning_rate=2e-3), [("online", 2e-3, (0.9, 0.999), 1)]),
}


def made(name: str, config: Any, data: Any) -> Any:
    one = normaliser_of(np.zeros((1, STATE)))
    scales = [normaliser_of(np.zeros((1, size))) for size in (STATE, ACTION, STATE, 1)]
    if name in ("bc", "td3-bc", "iql"):
        return shaken(config.init(KEY, SIZES))
    if name == "dynamics":
        return shaken(config.init(KEY, one, one))
    return shaken(config.init(KEY, scales if name == "forward" else data))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_optimiser_is_the_stated_adam_and_moves_its_part_alone(name: str, data: Any) -> None:
    config, expected = OBJECTIVES[name]
    model = made(name, config, data)
    objectives = config.objectives()
    assert len(objectives) == len(expected)
    for objective, (parts, rate, betas, every) in zip(objectives, expected, strict=True):
        moved = objective.moves(model)
        named = [getattr(model, part) for part in parts.split()] or [model]
        found = moved if isinstance(moved, tuple) and len(named) > 1 else (moved,)
        assert [id(part) for part in found] == [id(part) for part in named]
        gradients, changes = first_steps(objective, STEPS)
        np.testing.assert_allclose(changes, plain.adam(gradients, rate * np.ones(STEPS), *betas), rtol=1e-3, atol=1e-9)
        assert objective.every == every


def test_the_gan_s_critic_alone_is_regularised() -> None:
    """L2 regularisation adds its share of the weight to the gradient."""
    config = GenerativeReward(**H, decay=0.25)
    gradients = np.array([0.1, -0.3])
    for objective, added in zip(config.objectives(), (0.25 * 2, 0), strict=True):
        expected = plain.adam(gradients + added, 1e-4 * np.ones(2), 0.5, 0.999)
        np.testing.assert_allclose(changes_of(objective, gradients, 2.0), expected, rtol=1e-4)


FOLLOWS: dict[str, tuple[Any, int, dict[str, str]]] = {
    "td3-bc": (TD3BC(**H, target_rate=0.25), 1, {"target_actor": "actor", "target_critics": "critics"}),
    "iql": (IQL(**H, target_rate=0.25), 2, {"target_critics": "critics"}),
    "value": (TwinValue(**H, target_rate=0.25), 0, {"target": "online"}),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_targets_move_a_share_of_the_way_and_nothing_else_moves(name: str, data: Any) -> None:
    config, number, targets = FOLLOWS[name]
    model = made(name, config, data)
    for index, objective in enumerate(config.objectives()):
        after = eqx.filter_jit(objective.then)(model)
        follows: dict[str, str] = targets if index == number else {}
        for part in (one.name for one in fields(model)):
            before, found = (jax.tree.leaves(getattr(one, part)) for one in (model, after))
            online = jax.tree.leaves(getattr(model, str(follows.get(part, part))))
            for old, new, trained in zip(before, found, online, strict=True):
                expected = old if part not in follows else 0.75 * array(old) + 0.25 * array(trained)
                np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-6)
