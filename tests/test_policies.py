"""One contract for every policy: it learns a known optimum, is exact about seeds, resumes, exports, and is picky.

The problem has one step: s uniform in ±1, the logged action u = s/2 + noise uniform in ±1/2 (in units of its bounds),
and the reward −(u − s)². So a clone does s/2, the best is s, and advantage-weighted cloning lies between, where an
integral puts it.
"""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium.spaces import Box

from point import collect
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.errors import InputError
from trajstitch.learning.fit import State, fit
from trajstitch.policies import algorithm_class
from trajstitch.policies.algorithm import Algorithm
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.bc import Sample as BCSample
from trajstitch.policies.iql import IQL
from trajstitch.policies.policy import (
    NetworkPolicy,
    Policy,
    PolicyNormaliser,
    _require_finite,
    load_policies,
    load_policy,
    save_policies,
)
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import deploy, initial_state, train
from trajstitch.policies.training_data import Sizes, policy_normaliser
from trajstitch.storage.runs import Run
from trajstitch.storage.trees import tensors_of

LOW, HIGH = -2.0, 4.0
SPACE = Metadata("one-step", action_space=Box(LOW, HIGH, (1,), np.float32))
STEPS, EVERY = 900, 300
SMALL: dict[str, Any] = {"steps": STEPS, "hidden": (32, 32), "learning_rate": 3e-3, "batch_size": 128}


def one_step(rows: int = 4000, seed: int = 0) -> Trajectories:
    random = np.random.default_rng(seed)
    state = random.uniform(-1, 1, (rows, 1))
    unit = state / 2 + random.uniform(-0.5, 0.5, (rows, 1))
    return Trajectories(
        observations=np.repeat(state, 2, axis=0).astype(np.float32),
        actions=(1 + 3 * unit).astype(np.float32),
        rewards=-np.square(unit - state)[:, 0].astype(np.float32),
        terminated=np.ones(rows, bool),
        truncated=np.zeros(rows, bool),
        offsets=np.arange(rows + 1),
        metadata=SPACE,
    )


def chain(cut: bool, reward: float = 1.0) -> Trajectories:
    """Two steps, −1 to 0 to 1, the second rewarded; or, cut off after two, the same reward in one state for ever."""
    rows = 200
    ends = np.tile([False, True], rows)
    return Trajectories(
        observations=np.tile([[-1.0], [0.0], [1.0]] if not cut else [[0.0]] * 3, (rows, 1)).astype(np.float32),
        actions=np.random.default_rng(0).uniform(-1, 1, (2 * rows, 1)).astype(np.float32),
        rewards=np.full(2 * rows, reward) if cut else np.tile([0.0, reward], rows),
        terminated=np.zeros_like(ends) if cut else ends,
        truncated=ends if cut else np.zeros_like(ends),
        offsets=2 * np.arange(rows + 1),
        metadata=Metadata("chain", action_space=Box(-1, 1, (1,), np.float32)),
    )


def cloned(state: np.ndarray) -> np.ndarray:
    return state / 2


def best(state: np.ndarray) -> np.ndarray:
    return state


def weighted_by_advantage(state: np.ndarray, temperature: float = 5.0) -> np.ndarray:
    """E[w u] / E[w] with w = exp(temperature × Q(s, u)); V(s) cancels."""
    unit = state / 2 + np.linspace(-0.5, 0.5, 1001)
    weight = np.exp(-temperature * np.square(unit - state))
    return (weight * unit).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Case:
    algorithm: Algorithm
    optimum: Any
    within: float = 0.08


CASES = {
    "bc": Case(BC(**SMALL), cloned),
    "gaussian bc": Case(BC(**SMALL, gaussian=True), cloned),
    "weighted-bc": Case(WeightedBC(**SMALL, value_steps=100), cloned),
    "td3-bc": Case(TD3BC(**SMALL, alpha=10.0), best, 0.2),
    "iql": Case(IQL(**SMALL, temperature=5.0, scale_rewards=False, target_rate=0.05), weighted_by_advantage, 0.1),
}


@dataclass(frozen=True)
class Trained:
    case: Case
    data: Trajectories
    training_data: Any
    states: list[State]
    """After each chunk, seeds 3 and 4 together."""

    @property
    def policies(self) -> list[Policy]:
        return deploy(self.case.algorithm, self.states[-1], self.training_data, [3, 4], {"policy": "test"})


@pytest.fixture(scope="module", params=CASES)
def trained(request: pytest.FixtureRequest) -> Trained:
    case, data = CASES[request.param], one_step()
    training_data, states = case.algorithm.training_data(data), []
    begun = initial_state(case.algorithm, data, [3, 4])
    fit(case.algorithm, begun, training_data.samples, every=EVERY, each=lambda state, _: states.append(state))
    return Trained(case, data, training_data, states)


def same(a: Any, b: Any) -> bool:
    a, b = tensors_of(a), tensors_of(b)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_it_learns_the_known_optimum(trained: Trained) -> None:
    state = np.linspace(-0.8, 0.8, 33, dtype=np.float32)[:, None]
    for policy in trained.policies:
        unit = (policy.act(state) - 1) / 3
        assert float(np.abs(unit - trained.case.optimum(state)).max()) < trained.case.within


def test_same_seed_gives_the_same_bits_through_an_interruption_and_a_file(trained: Trained, tmp_path) -> None:
    algorithm, samples = trained.case.algorithm, trained.training_data.samples
    run = Run.start(tmp_path / "run", "train", {})

    def interrupt(state: State, metrics: dict[str, float]) -> None:
        run.write_tree("state", state)
        raise KeyboardInterrupt

    begun = initial_state(algorithm, trained.data, [3, 4])
    with pytest.raises(KeyboardInterrupt):
        fit(algorithm, begun, samples, every=EVERY, each=interrupt)
    resumed = run.read_tree("state", like=begun)
    assert int(resumed.step) == EVERY
    assert same(fit(algorithm, resumed, samples, every=EVERY).model, trained.states[-1].model)


def test_a_seed_learns_the_same_bits_alone_as_in_company(trained: Trained) -> None:
    algorithm = trained.case.algorithm

    def first_chunk(state: State, metrics: dict[str, float]) -> None:
        alone.append(state)
        raise KeyboardInterrupt

    alone: list[State] = []
    begun = initial_state(algorithm, trained.data, [4])
    with pytest.raises(KeyboardInterrupt):
        fit(algorithm, begun, trained.training_data.samples, every=EVERY, each=first_chunk)
    together = jax.tree.map(lambda leaf: leaf[1:], trained.states[0].model)
    assert same(alone[0].model, together)
    assert not same(together, jax.tree.map(lambda leaf: leaf[:1], trained.states[0].model))


def test_numpy_acts_as_the_trained_network_does(trained: Trained) -> None:
    state = np.random.default_rng(1).normal(size=(50, 1)).astype(np.float32)
    seen = trained.training_data.normaliser.observe(state)
    expected = jax.vmap(lambda actor: actor(jnp.asarray(seen)))(trained.states[-1].model.actor)[..., :1]
    for policy, unit in zip(trained.policies, expected, strict=True):
        np.testing.assert_allclose(policy.act(state), 1 + 3 * np.asarray(unit), atol=1e-5)
        np.testing.assert_allclose(policy.act(state[7]), policy.act(state)[7], atol=1e-5)
        assert policy.act(state).dtype == np.float32


def test_it_is_saved_and_loaded(trained: Trained, tmp_path) -> None:
    save_policies(trained.policies, tmp_path / "policy.safetensors")
    state = np.linspace(-1, 1, 5)[:, None]
    for before, after in zip(trained.policies, load_policies(tmp_path / "policy.safetensors"), strict=True):
        np.testing.assert_array_equal(before.act(state), after.act(state))
        assert (after.seed, after.steps, after.config) == (before.seed, STEPS, {"policy": "test"})
    assert load_policy(tmp_path / "policy.safetensors", seed=4).seed == 4
    with pytest.raises(InputError, match="no policy of seed 5"):
        load_policy(tmp_path / "policy.safetensors", seed=5)


@pytest.mark.parametrize("place", ["checkpoints/the-best", "of-a-run/policy"])
def test_policies_that_are_no_run_s_checkpoints_have_any_name(place: str, tmp_path) -> None:
    Run.start(tmp_path / "of-a-run", "train", {})
    zero, one = np.zeros(1), np.ones(1)
    policy = NetworkPolicy([(np.ones((1, 1), np.float32), zero)], PolicyNormaliser(zero, one, -one, one), 0, 30)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    save_policies([policy], tmp_path / f"{place}.safetensors")
    assert load_policy(tmp_path / f"{place}.safetensors").steps == 30


@pytest.mark.parametrize("name", CASES)
def test_unusable_data_is_refused(name: str) -> None:
    algorithm, data = CASES[name].algorithm, one_step(3)
    actions = data.actions.copy()
    actions[1] = 4.5
    with pytest.raises(InputError, match=r"action 0 is 4.5 in episode 1, outside its bounds -2..4"):
        algorithm.training_data(replace(data, actions=actions))
    actions[1] = np.nan
    with pytest.raises(InputError, match="NaN or infinite value in episode 1"):
        algorithm.training_data(replace(data, actions=actions))
    none = np.zeros(0, bool)
    empty = Trajectories(np.zeros((1, 2)), np.zeros((0, 1)), np.zeros(0), none, none, np.zeros(2, int))
    with pytest.raises(InputError, match="holds no steps"):
        algorithm.training_data(empty)


def test_data_that_is_refused_is_named_by_its_source_or_else_by_its_name() -> None:
    data = replace(one_step(3), actions=np.full((3, 1), 4.5))
    with pytest.raises(InputError, match=r"^one-step: action 0"):
        policy_normaliser(data, True)
    with pytest.raises(InputError, match=r"^npz:log.npz: action 0"):
        policy_normaliser(replace(data, metadata=replace(data.metadata, source="npz:log.npz")), True)


def test_observations_of_another_size_are_refused() -> None:
    algorithm = BC(hidden=(4,))
    data = one_step(3)
    policy = deploy(algorithm, initial_state(algorithm, data, [0]), algorithm.training_data(data), [0], {})[0]
    with pytest.raises(InputError, match="observations of 1 numbers, not 3"):
        policy.act(np.zeros((2, 3)))


# What each method adds


def test_gaussian_policy_knows_its_spread() -> None:
    """By maximum likelihood it is that of the noise, 1/√12, and the density integrates to 1."""
    algorithm, data = BC(**SMALL, gaussian=True), one_step()
    training_data = algorithm.training_data(data)
    state = fit(algorithm, initial_state(algorithm, data, [3, 4]), training_data.samples, every=EVERY)
    policy = deploy(algorithm, state, training_data, [3, 4], {})[0]
    assert isinstance(policy, NetworkPolicy)
    action = np.linspace(-12, 14, 2001)[:, None]
    density = np.exp(policy.log_density(np.zeros((2001, 1)), action))
    step = action[1, 0] - action[0, 0]
    assert density.sum() * step == pytest.approx(1, abs=1e-3)
    mean = (density * action[:, 0]).sum() * step
    spread = np.sqrt((density * np.square(action[:, 0] - mean)).sum() * step)
    assert spread == pytest.approx(3 / np.sqrt(12), rel=0.1)
    plain = BC(hidden=(4,))
    certain = deploy(plain, initial_state(plain, data, [0]), training_data, [0], {})[0]
    assert isinstance(certain, NetworkPolicy)
    with pytest.raises(InputError, match="deterministic"):
        certain.log_density(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize(("raw", "log_std"), [(-20, -5), (0, -2), (20, 1)])
def test_a_gaussian_policy_s_spread_is_from_e_to_the_minus_5_to_e(raw: float, log_std: float) -> None:
    """For actions within ±1: the network's second output says where in between."""
    layers = [(np.zeros((1, 2), np.float32), np.array([0, raw], np.float32))]
    zero, one = np.zeros(1), np.ones(1)
    policy = NetworkPolicy(layers, PolicyNormaliser(zero, one, -one, one))
    expected = -log_std - 0.5 * np.log(2 * np.pi)
    assert policy.log_density(zero[None], zero[None])[0] == pytest.approx(expected)
    assert "0/0/weight" in policy.tensors(), "of seed 0, if not given"


def test_weights_follow_the_value_and_average_one() -> None:
    """Of two states with rewards 1 and 3 for ever after, the second weighs three times as much."""
    rows = 400
    state = np.tile([-1.0, 1.0], rows // 2)
    data = replace(
        one_step(rows),
        observations=np.repeat(state, 2)[:, None],
        rewards=(2 + state).astype(np.float32),
    )
    algorithm = WeightedBC(value_steps=400)
    weight = np.asarray(algorithm.training_data(data).samples.weight)
    np.testing.assert_allclose(weight, (2 + state) / 2, atol=0.1)


def test_iql_scales_returns_to_span_1000() -> None:
    data = one_step(50)
    reward = np.asarray(IQL().training_data(data).samples.reward)
    assert reward.max() - reward.min() == pytest.approx(1000, rel=1e-4)
    with pytest.raises(InputError, match="`scale_rewards=False`"):
        IQL().training_data(replace(data, rewards=np.ones(50)))


def test_all_policies_standardise_td3_bc_as_published_and_bc_and_iql_need_not() -> None:
    data = one_step(500)
    followed = data.observations.copy()
    followed[data.state_rows + 1] += 5
    data = replace(data, observations=followed)
    seen = np.asarray(TD3BC().training_data(data).samples.observation)
    raw = data.observations[data.state_rows]
    expected = (raw - raw.mean()) / (raw.std() + 1e-3)
    np.testing.assert_allclose(seen, expected, atol=1e-5)
    for algorithm in (BC, IQL):
        seen = algorithm().training_data(data).samples.observation
        np.testing.assert_allclose(seen, (raw - raw.mean()) / raw.std(), atol=1e-5)
        np.testing.assert_array_equal(algorithm(standardise=False).training_data(data).samples.observation, raw)


QUICK: dict[str, Any] = {"steps": 800, "hidden": (16,), "learning_rate": 3e-3, "discount": 0.5, "target_rate": 0.05}


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "terminated"])
@pytest.mark.parametrize(
    "algorithm", [TD3BC(**QUICK, standardise=False), IQL(**QUICK, scale_rewards=False)], ids=["td3-bc", "iql"]
)
def test_values_are_bellman_s(algorithm: Any, cut: bool) -> None:
    """γ = 1/2: nothing follows a termination, so a reward at the second of two steps is worth 1/2 and 1; a truncation
    is no end, so one at each step is worth 2."""
    data = chain(cut)
    samples = algorithm.training_data(data).samples
    trained = fit(algorithm, initial_state(algorithm, data, [0]), samples).model
    model = jax.tree.map(lambda leaf: leaf[0], trained)
    found = model.critics(samples.observation[:2], samples.action[:2])
    np.testing.assert_allclose(found, [[2, 2]] * 2 if cut else [[0.5, 1]] * 2, atol=0.06)


def test_td3_bc_moves_the_actor_and_the_targets_every_second_step() -> None:
    algorithm, data = TD3BC(steps=7, hidden=(4,)), one_step(20)
    begun = initial_state(algorithm, data, [0])
    done = fit(algorithm, begun, algorithm.training_data(data).samples)
    critic, actor = (int(optax.tree_utils.tree_get(state, "count")[0]) for state in done.optimisers)
    assert (critic, actor) == (7, 3)
    once = replace(algorithm, steps=1)
    after_one = fit(once, begun, once.training_data(data).samples)
    assert same(after_one.model.target_critics, begun.model.target_critics)
    assert not same(done.model.target_critics, begun.model.target_critics)


def test_td3_bc_smooths_the_target_action() -> None:
    data = one_step(64)
    batch = TD3BC().training_data(data).samples._replace(terminated=jnp.zeros(64, bool))
    model = TD3BC().init(jax.random.key(0), Sizes.of(data))
    for noise, differ in ((0.2, True), (0.0, False)):
        losses = {float(TD3BC(target_noise=noise).critic_loss(model, batch, jax.random.key(k))[0]) for k in range(3)}
        assert (len(losses) == 3) is differ


def test_td3_bc_pulls_as_far_as_alpha_says() -> None:
    """Its loss is the cloning error where Q is left out, and −α sign(Q) more with it."""
    data = one_step(64)
    model = TD3BC().init(jax.random.key(0), Sizes.of(data))
    batch = TD3BC().training_data(data).samples
    alone, metrics = TD3BC(alpha=0).actor_loss(model, batch, jax.random.key(1))
    both, _ = TD3BC(alpha=2.5).actor_loss(model, batch, jax.random.key(1))
    value = model.critics.first(batch.observation, model.actor(batch.observation))
    assert float(alone) == pytest.approx(float(metrics["action_error"]))
    assert float(both - alone) == pytest.approx(float(-2.5 * value.mean() / jnp.abs(value).mean()), rel=1e-4)


def test_iql_value_is_the_expectile() -> None:
    """Of returns 0 and 1, as likely as each other, the τ-expectile is τ."""
    data = one_step()
    data = replace(data, observations=np.zeros_like(data.observations), rewards=(data.actions[:, 0] > 1).astype(float))
    algorithm = IQL(expectile=0.9, scale_rewards=False, **SMALL)
    model = fit(algorithm, initial_state(algorithm, data, [0]), algorithm.training_data(data).samples).model
    value = jax.tree.map(lambda leaf: leaf[0], model.value)
    assert float(value(jnp.zeros((1, 1)))[0, 0]) == pytest.approx(0.9, abs=0.05)


def test_iql_weights_by_advantage_up_to_100() -> None:
    data = one_step(64)
    algorithm = IQL(temperature=1e4, scale_rewards=False)
    model = algorithm.init(jax.random.key(0), Sizes.of(data))
    batch = algorithm.training_data(data).samples
    above = np.asarray(model.advantage(batch))
    assert (above > 0).any()
    error = np.asarray(model.actor(batch.observation) - batch.action)[:, 0]
    density = -0.5 * error**2 - 0.5 * np.log(2 * np.pi)
    weight = np.minimum(np.exp(np.minimum(1e4 * above, 50)), 100)
    assert float(algorithm.actor_loss(model, batch, jax.random.key(1))[0]) == pytest.approx(
        -(weight * density).mean(), rel=1e-3
    )


def test_iql_bounds_its_spread_and_lets_the_actor_s_steps_die_out() -> None:
    data = one_step(64)
    algorithm = IQL(steps=100, scale_rewards=False)
    model = algorithm.init(jax.random.key(0), Sizes.of(data))
    batch = algorithm.training_data(data).samples

    def at(log_std: float) -> float:
        narrow = eqx.tree_at(lambda model: model.log_std, model, jnp.full(1, log_std))
        return float(algorithm.actor_loss(narrow, batch, jax.random.key(1))[0])

    assert at(-20.0) == at(-5.0) != at(-4.0)
    assert at(20.0) == at(2.0) != at(1.0)
    value, actor, critic = (objective.optimiser for objective in algorithm.objectives())
    for optimiser, last in ((value, 3e-4), (actor, 0.0), (critic, 3e-4)):
        weight, moved = jnp.zeros(1), []
        state = optimiser.init(weight)
        for _ in range(101):
            change, state = optimiser.update(jnp.ones(1), state)
            moved.append(-float(np.asarray(change)[0]))
        assert moved[0] == pytest.approx(3e-4, rel=1e-3)
        assert moved[-1] == pytest.approx(last, rel=1e-3, abs=1e-8)


def test_weighted_samples_count_by_their_weight() -> None:
    """Two samples of one state with actions ±1/2: the clone lies between them, by weight."""
    algorithm = BC(steps=300, hidden=(16,), learning_rate=3e-3)
    data = one_step(2)
    weight = jnp.array([3.0, 1.0])
    samples = BCSample(jnp.zeros((2, 1)), jnp.array([[0.5], [-0.5]]), weight)
    state = fit(algorithm, initial_state(algorithm, data, [0]), samples)
    actor = jax.tree.map(lambda leaf: leaf[0], state.model.actor)
    assert float(actor(jnp.zeros((1, 1)))[0, 0]) == pytest.approx(0.25, abs=0.03)


def test_actions_stay_within_bounds_that_rounding_would_leave() -> None:
    random = np.random.default_rng(0)
    low = random.uniform(-2, 0, (1000, 3)).astype(np.float32)
    high = random.uniform(0, 2, (1000, 3)).astype(np.float32)
    for a, b in zip(low, high, strict=True):
        normaliser = PolicyNormaliser(np.zeros(1), np.ones(1), a, b)
        assert (normaliser.from_unit(np.ones(3)) <= b).all()
        assert (normaliser.from_unit(-np.ones(3)) >= a).all()


@pytest.mark.parametrize("name", ["bc", "weighted-bc", "td3-bc", "iql"])
@pytest.mark.parametrize(("unit", "origin"), [(1, 5e6), (1e-7, 0), (1, 1.7e9)])
def test_states_far_from_zero_or_in_tiny_units_are_learned_from(name: str, unit: float, origin: float) -> None:
    plain = collect(episodes=20, length=20)
    moved = replace(plain, observations=unit * plain.observations.astype(np.float64) + origin)
    brief = {"steps": 10, **({"value_steps": 10} if name == "weighted-bc" else {})}
    policy = train(moved, algorithm_class(name)(**brief), seeds=1)[0]
    assert isinstance(policy, NetworkPolicy)
    observed = policy.normaliser.observe(moved.observations)
    np.testing.assert_allclose(observed.mean(0), 0, atol=1e-2)
    np.testing.assert_allclose(observed.std(0), 1, atol=1e-2)
    assert np.ptp(policy.act(moved.observations), axis=0).min() > 0
    assert policy_normaliser(plain, standardise=False).mean.dtype == np.float32


@pytest.mark.parametrize("bound", [1e6, float(np.finfo(np.float32).max), np.inf])
def test_bounds_that_say_nothing_are_taken_from_the_data(bound: float) -> None:
    data = one_step(200)
    wide = replace(data, metadata=Metadata("wide", action_space=Box(-bound, bound, (1,), np.float32)))
    made = BC().training_data(wide).normaliser
    np.testing.assert_allclose([made.low, made.high], [data.actions.min(0), data.actions.max(0)])


@pytest.mark.parametrize(
    ("names", "said"), [(["height", "speed"], "number 1, speed"), (["height"], "number 1"), (None, "number 1")]
)
def test_a_column_that_holds_no_number_is_named_if_its_name_is_known(names, said) -> None:
    with pytest.raises(InputError) as told:
        _require_finite(np.array([[0.0, 1.0], [2.0, np.nan]]), names)
    assert f"(row 1, {said}; 1 such values)" in str(told.value)
