"""Distances to an expert equal their formulas, and are nothing for the expert itself."""

import numpy as np
import pytest
from scipy import stats

from trajstitch.errors import InputError
from trajstitch.experiments.expert_distance import STD, ExpertSteps, beside_expert, distances, expert_steps
from trajstitch.policies.policy import LOG_STD, NetworkPolicy, PolicyNormaliser, act

LOW, HIGH = np.array([-1.0, -2.0]), np.array([1.0, 4.0])


@pytest.fixture
def policy() -> NetworkPolicy:
    """A Gaussian policy of one linear layer."""
    weight = np.random.default_rng(0).normal(0, 0.3, (3, 4)).astype("f4")
    normaliser = PolicyNormaliser(np.zeros(3), np.ones(3), LOW, HIGH)
    return NetworkPolicy([(weight, np.zeros(4, "f4"))], normaliser, config={"gaussian": True})


@pytest.fixture
def expert() -> ExpertSteps:
    random = np.random.default_rng(1)
    return ExpertSteps(random.normal(size=(40, 3)), random.uniform(LOW, HIGH, (40, 2)))


def test_divergence_is_that_of_two_normal_distributions(policy: NetworkPolicy, expert: ExpertSteps) -> None:
    outputs = act(policy.layers, expert.observations)
    half = (HIGH - LOW) / 2
    mean = (HIGH + LOW) / 2 + half * outputs[:, :2]
    std = half * np.exp(LOG_STD[0] + (LOG_STD[1] - LOG_STD[0]) / 2 * (outputs[:, 2:] + 1))
    each = np.log(std / STD) + (STD**2 + (expert.actions - mean) ** 2) / (2 * std**2) - 0.5
    found = distances(policy, expert)
    np.testing.assert_allclose(found["kl"], each.sum(1).mean(), rtol=1e-4)
    np.testing.assert_allclose(found["action_error"], np.square(mean - expert.actions).mean(), rtol=1e-4)


def test_divergence_is_what_sampled_actions_of_the_expert_give(policy: NetworkPolicy, expert: ExpertSteps) -> None:
    random = np.random.default_rng(2)
    few = ExpertSteps(expert.observations[:5], expert.actions[:5])
    states = np.repeat(few.observations, 20_000, 0)
    centre = np.repeat(few.actions, 20_000, 0)
    actions = random.normal(centre, STD)
    sampled = stats.norm.logpdf(actions, centre, STD).sum(1) - policy.log_density(states, actions)
    np.testing.assert_allclose(
        distances(policy, few)["kl"], sampled.mean(), atol=4 * sampled.std() / len(sampled) ** 0.5
    )


def test_deterministic_policies_have_no_divergence(policy: NetworkPolicy, expert: ExpertSteps) -> None:
    layers = [(policy.layers[0][0][:, :2], policy.layers[0][1][:2])]
    assert set(distances(NetworkPolicy(layers, policy.normaliser), expert)) == {"action_error"}


def test_the_experts_own_actions_have_no_error_and_other_data_has_no_expert() -> None:
    from trajstitch.benchmark.ladder import load_ladder

    found = expert_steps("hopper")
    layers = load_ladder("hopper").expert.layers
    size = found.observations.shape[1]
    normaliser = PolicyNormaliser(np.zeros(size), np.ones(size), -np.ones(3), np.ones(3))
    policy = NetworkPolicy(layers, normaliser)
    assert beside_expert(policy, "hopper/noisy-expert-10")["action_error"] < 1e-10
    assert len(found.observations) > 5_000
    with pytest.raises(InputError, match="built-in sets"):
        beside_expert(policy, "npz:other.npz")
