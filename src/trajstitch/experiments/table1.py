"""The first table: every method on every built-in set.

python -m trajstitch.experiments.table1 measure --sets hopper/medium --time-limit 540
python -m trajstitch.experiments.table1 report runs/table1

`measure` does the cells that its folder lacks. `report` adds the folder's results to docs/results/first-table.json,
which holds those that were measured before, and writes the page, the figure and the README's summary from them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from trajstitch.benchmark import sets
from trajstitch.errors import InputError, did_you_mean
from trajstitch.experiments import grid, pages
from trajstitch.experiments.cells import Cell, Data, Learner, Stitching, read_results, save_results
from trajstitch.experiments.command import run_command
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.figures import draw_scores
from trajstitch.experiments.table1_page import METHODS, SHOWN, TWELVE, Method, method_of, page, summary
from trajstitch.learning.bounds import Bounds
from trajstitch.stitching.config import PRESETS

BEGIN = "<!-- first-table: `python -m trajstitch.experiments.table1 report` writes this -->"
END = "<!-- /first-table -->"


@dataclass(frozen=True)
class Measure:
    """Measure the cells that have no result in the folder yet."""

    folder: Path = Path("runs/table1")
    """Holds the results and everything made on the way; several processes may share it."""
    time_limit: Annotated[float, Bounds(0)] | None = None
    """Stop after this many seconds; the same command resumes."""
    sets: tuple[str, ...] = TWELVE
    """Built-in sets, in the order of work."""
    methods: tuple[str, ...] = tuple(METHODS)
    """Methods, in the order of work."""
    transitions: int | None = None
    """Transitions of each set; if not given, its full size."""
    seeds: int = 5
    """Policies of each cell of the table."""
    episodes: int = 20
    """Episodes that each policy is evaluated in."""
    steps: int | None = None
    """Train each policy for at most this many gradient steps; if not given, for its algorithm's own number."""
    preset: str = "default"
    """Preset of TS; the columns of the paper's TS have theirs."""
    stitchings: int = 1
    """Stitch each set this many times, with seeds of its own; the policies are divided among them. With one stitching
    per policy, the spread over policies is that of stitchings too."""


def cells(asked: Measure) -> list[Cell]:
    """Return the cells of the table."""
    for name in asked.methods:
        if name not in METHODS:
            raise InputError(f"unknown method {name!r}{did_you_mean(name, METHODS)}: choose from {', '.join(METHODS)}")
    if asked.preset not in PRESETS:
        raise InputError(f"unknown preset {asked.preset!r}{did_you_mean(asked.preset, PRESETS)}")
    for name in ("transitions", "steps", "seeds", "episodes", "stitchings"):
        if (value := getattr(asked, name)) is not None and value < 1:
            raise InputError(f"`{name}` must be at least 1, not {value}")

    def learner(method: Method) -> Learner:
        limits = [name for name in ("steps", "value_steps") if asked.steps and hasattr(method.algorithm, name)]
        changes = {name: min(asked.steps or 0, getattr(method.algorithm, name)) for name in limits}
        return Learner(replace(method.algorithm, **changes), method.top)  # pyright: ignore[reportArgumentType]

    def stitching(method: Method, seed: int) -> Stitching | None:
        preset = asked.preset if method.preset == "default" else method.preset
        return None if preset is None else Stitching(preset, seed=seed % asked.stitchings)

    return [
        Cell(
            Data(sets.built_in(name).name, asked.transitions),
            learner(method),
            stitching(method, seed),
            seed,
            episodes=asked.episodes,
        )
        for method in map(METHODS.__getitem__, asked.methods)
        for name in asked.sets
        for seed in range(asked.seeds)
    ]


def measure(asked: Measure) -> None:
    if failures := grid.run(cells(asked), asked.folder, asked.time_limit):
        raise SystemExit("failed:\n" + "\n".join(failures))


@dataclass(frozen=True)
class Report:
    """Write the page, the figure and the README's summary."""

    folders: Positional[tuple[Path, ...]] = ()
    """Folders of `measure` whose results are added; of two results of one cell, the later counts."""
    to: Path = Path("docs/results/first-table.json")
    """All results so far; the page and the figure are put beside it."""
    readme: Path = Path("README.md")
    """The summary goes between its two comments about the first table."""


def report(asked: Report) -> None:
    places = [*([asked.to] if asked.to.exists() else []), *asked.folders]
    table = Table([result for place in places for result in read_results(place)], method_of, TWELVE)
    pages.write(asked.to.with_suffix(".md"), page(table, asked.to.stem))
    save_results([*table.replaced, *table.results], asked.to)
    draw_scores(table.scores.scores, TWELVE, SHOWN, asked.to.with_suffix(".svg"))
    pages.write_between(asked.readme, BEGIN, END, summary(table))
    print(asked.to.with_suffix(".md"))


def main() -> None:
    run_command({Measure: measure, Report: report})


if __name__ == "__main__":
    main()
