"""An experiment of your own: a grid of cells and a page.

    python examples/own_experiment.py

A cell is one policy: a data set, a stitching or none, a learner and a seed. `run` measures the cells that have no
result in the folder, so the script can be stopped and started again, or started on several machines that share the
folder. To add an experiment to trajstitch, put such a file into src/trajstitch/experiments/.
"""

from pathlib import Path

import numpy as np

from trajstitch import BC
from trajstitch.experiments.cells import Cell, Data, Learner, Result, read_results, score
from trajstitch.experiments.grid import run
from trajstitch.storage.markdown import markdown_table

SHARES = (1.0, 0.5, 0.25)


def cells(seeds: int = 2) -> list[Cell]:
    """Does cloning a better part of the data make up for less of it?"""
    data = Data("hopper/medium-replay", transitions=1_000)
    learners = [Learner(BC(steps=500), top=share) for share in SHARES]
    return [Cell(data, learner, seed=seed, episodes=2) for learner in learners for seed in range(seeds)]


def page(results: list[Result]) -> str:
    rows = []
    for share in SHARES:
        found = [score(result) for result in results if result["config"]["learner"]["top"] == share]
        rows.append([f"{share:.0%}", f"{np.mean(found):.1f}", f"{np.std(found):.1f}"])
    return markdown_table(["best part of the data", "score", "std over seeds"], rows)


def main(folder: Path = Path("runs/shares")) -> None:
    failures = run(cells(), folder)
    assert not failures, failures
    print(page(read_results(folder)))


if __name__ == "__main__":
    main()
