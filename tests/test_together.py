"""Training on several data sets at once: each comes out as it would alone, to the bit (on the CPU)."""

import numpy as np
import pytest

from point import collect
from test_policies import one_step
from trajstitch.errors import InputError
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.policy import Policy
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import train, train_together

SETS = [collect(episodes, 20, seed) for episodes, seed in ((10, 0), (3, 1), (70, 2))]
BRIEF = {
    "bc": BC(steps=30, hidden=(8,)),
    "gaussian": BC(steps=30, hidden=(8,), gaussian=True, standardise=True),
    "weighted-bc": WeightedBC(steps=30, hidden=(8,), value_steps=20),
    "td3-bc": TD3BC(steps=31, hidden=(8,)),
    "iql": IQL(steps=30, hidden=(8,)),
}


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
