"""Policies: what is trained (an `Algorithm`) and what is deployed (a `Policy`).

A new policy is one file with an algorithm and one line in the table below. It is then trained by `trajstitch.train`
and `trajstitch train NAME` (its fields are the flags), saved, loaded and evaluated like the others.
`policies/algorithm.py` says what an algorithm has to have.

TD3 is not in the table: it learns online, for the built-in sets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trajstitch.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from trajstitch.policies.algorithm import Algorithm

POLICIES = {
    "bc": "trajstitch.policies.bc:BC",
    "weighted-bc": "trajstitch.policies.bc:WeightedBC",
    "td3-bc": "trajstitch.policies.td3_bc:TD3BC",
    "iql": "trajstitch.policies.iql:IQL",
}
"""Name of each policy to the module and class of its algorithm, which is imported when it is first used."""


def algorithm_class(name: str) -> type[Any]:
    """Return the class of the algorithm with this name."""
    if name not in POLICIES:
        hint = did_you_mean(name, POLICIES)
        raise InputError(f"unknown policy {name!r}{hint}; the policies are {', '.join(POLICIES)}")
    module, _, kind = POLICIES[name].partition(":")
    return getattr(import_module(module), kind)


def name_of(algorithm: "Algorithm") -> str:
    """Return the algorithm's name in the table; its class's name if it isn't there."""
    kind = type(algorithm)
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, found in POLICIES.items() if found == place), kind.__name__)
