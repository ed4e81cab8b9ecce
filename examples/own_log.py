"""From a CSV log of your own to a policy, without an environment.

    python examples/own_log.py

The log here is made up: operators drive a slide to a mark by a motor, some well and some badly.
"""

import csv
from pathlib import Path

import numpy as np

import trajstitch
from trajstitch import BC, Columns


def write_log(path: Path, shifts: int = 60, seconds: int = 40) -> None:
    """Write one row a second: where the slide is, its speed, the motor's force, and the cost of being off the mark."""
    random = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["shift", "second", "position_mm", "speed", "force", "gain"])
        for shift in range(shifts):
            position, speed, skill = random.uniform(-1, 1), 0.0, random.uniform(0, 1)
            for second in range(seconds):
                force = np.clip(-skill * position - speed + 0.3 * random.normal(), -1, 1)
                writer.writerow([shift, second, 1000 * position, speed, force, -abs(position)])
                position, speed = position + 0.2 * speed, speed + 0.2 * force


def main() -> None:
    write_log(Path("slide.csv"))
    columns = Columns(
        episode=("shift",),
        step="second",
        observations=("position_mm", "speed"),
        actions=("force",),
        reward="gain",
        action_low=(-1.0,),
        action_high=(1.0,),
    )
    data = trajstitch.load("table:slide.csv", columns=columns)
    for check in trajstitch.inspect(data)["checks"]:
        print(f"{check['verdict']:4}  {check['check']}: {check['detail']}")
    better = trajstitch.stitch(data, "quick")
    print(f"mean return of the data: {data.returns.mean():.2f} -> {better.returns.mean():.2f}")
    trajstitch.save(better, "table:slide-better.csv", force=True)
    policy = trajstitch.train(better, BC(steps=2_000), seeds=1)[0]
    print("force at +500 mm and at -500 mm:", policy.act(np.array([[500.0, 0.0], [-500.0, 0.0]])).ravel())


if __name__ == "__main__":
    main()
