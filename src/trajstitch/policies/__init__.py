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


PARTS = ("policy_class", "steps", "batch_size", "training_data", "init", "objectives", "deploy")
"""What the class of an algorithm has (see `algorithm.Algorithm`)."""


def algorithm_class(name: str) -> type[Any]:
    """Return the class of the algorithm with this name."""
    if name not in POLICIES:
        hint = did_you_mean(name, POLICIES)
        raise InputError(f"unknown policy {name!r}{hint}; the policies are {', '.join(POLICIES)}")
    module, _, kind = POLICIES[name].partition(":")
    try:
        found = getattr(import_module(module), kind)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"the line {name!r}: {POLICIES[name]!r} of `policies.POLICIES` names no MODULE:CLASS ({error})"
        ) from error
    missing = [part for part in PARTS if not hasattr(found, part)]
    if not isinstance(found, type) or missing:
        raise InputError(
            f"the line {name!r}: {POLICIES[name]!r} of `policies.POLICIES` names no algorithm: it lacks "
            f"{', '.join(missing) or 'a class'}"
        )
    return found


def name_of(algorithm: "Algorithm") -> str:
    """Return the algorithm's name in the table; its class's name if it isn't there."""
    kind = type(algorithm)
    place = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, found in POLICIES.items() if found == place), kind.__name__)
