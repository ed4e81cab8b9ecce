"""Stitch a built-in data set, clone the logged and the stitched data, and compare the policies.

    python examples/demo.py [TRANSITIONS] [STEPS]

`make demo` does the same at a larger size, with a figure and intervals.
"""

import logging
import sys

import trajstitch
from trajstitch import BC, Collect


def main(transitions: int = 20_000, steps: int = 5_000) -> None:
    logging.basicConfig(format="%(message)s", level=logging.INFO)

    # Half of the episodes are an expert's, half a mediocre policy's.
    logged = trajstitch.collect(Collect("hopper/medium-expert", transitions))
    stitched = trajstitch.stitch(logged, "quick")

    # Each step knows whether it was logged or is a jump between two trajectories.
    assert stitched.provenance is not None
    print(f"{stitched.provenance.stitched.mean():.2%} of the steps are jumps")
    print(f"mean return of the data: {logged.returns.mean():.0f} -> {stitched.returns.mean():.0f}")

    for name, data in (("logged", logged), ("stitched", stitched)):
        policies = trajstitch.train(data, BC(steps=steps), seeds=2)
        returns = trajstitch.evaluate(policies, logged.metadata, episodes=5)
        print(f"return of a policy cloned from the {name} data: {returns.mean():.0f}")
    trajstitch.save(stitched, "npz:stitched.npz", force=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
