"""Reproduce an experiment: measure what its folder lacks, and write its page from what is measured.

The results of a call go to NAME.json, from which `write` makes NAME.md, NAME.csv, NAME.tex, NAME.svg and NAME.png.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from trajstitch.engines.ray_cluster import RaySettings
from trajstitch.errors import InputError, did_you_mean
from trajstitch.experiments import ablation, expert_fraction, grid, iterations, pages, table1
from trajstitch.experiments.cells import Result, digest, read_results, save_results
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.methods import Asked, Grid, cells_of
from trajstitch.experiments.report import as_csv, as_latex, facts, summary_facts
from trajstitch.experiments.stitched import World
from trajstitch.learning.bounds import Bounds, check_bounds

EXPERIMENTS = {one.EXPERIMENT.name: one.EXPERIMENT for one in (table1, ablation, iterations, expert_fraction)}


@dataclass(frozen=True, kw_only=True)
class Reproduce(Asked):
    """Where an experiment is measured and reported, beside what of it."""

    folder: Path | None = None
    """Holds the results and everything made on the way; several processes may share it. By default runs/NAME."""
    engine: Literal["local", "ray"] = "local"
    """Where cells are measured: in this process, or in tasks on a Ray cluster whose machines share `folder`
    (docs/cluster.md)."""
    ray: RaySettings = field(default_factory=RaySettings)
    """What tasks on the cluster are given."""
    time_limit: Annotated[float, Bounds(0)] | None = None
    """Stop after this many seconds; the same command resumes."""
    known: tuple[Path, ...] = ()
    """Files of results (NAME.json beside a page) that earlier calls wrote, perhaps elsewhere: what is in them is not
    measured again."""
    until: grid.Until = "end"
    """What to make last: the logged data, the models of all stitchings, the stitched data, or all of the experiment.
    Several processes that make the same stitchings divide them."""
    to: Path | None = None
    """Folder of the page, the figure and the tables; by default pages in `folder`."""
    readme: Path | None = None
    """Put a summary between this file's two comments about the experiment."""


def experiment_named(name: str) -> Experiment:
    """Return an experiment; raise with the nearest name if there is none."""
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise InputError(f"no experiment {name!r}{did_you_mean(name, EXPERIMENTS)}: choose from {known}")
    return EXPERIMENTS[name]


def reproduce(
    experiment: Experiment, asked: Reproduce, worlds: Mapping[str, World] | None = None
) -> tuple[Path | None, list[str]]:
    """Measure the cells that an experiment lacks and write its page; return its path, and what failed.

    No page is written while nothing is complete. With `worlds`, sets may be named that are collected there.
    """
    check_bounds(asked)
    folder = asked.folder or Path("runs") / experiment.name
    cells = cells_of(asked, experiment.methods, experiment.sets, worlds or ())
    due = [cell for some in cells.values() for cell in some]
    for file in asked.known:
        grid.adopt(read_results(file), due, folder)
    engine = grid.on_ray(asked.ray) if asked.engine == "ray" else grid.local
    failures = grid.run(due, folder, asked.time_limit, engine, worlds, asked.until)
    if asked.until != "end":
        return None, failures
    results = measured(cells, folder)
    if not results:
        return None, failures
    to = asked.to or folder / "pages"
    save_results(results, to / f"{experiment.name}.json")
    return write(experiment, to, asked.readme), failures


def measured(cells: Grid, folder: Path) -> list[Result]:
    """Return the results of every set and method all of whose cells are measured, with the names of both."""
    known = {digest(result["config"]): result for result in read_results(folder)}
    return [
        known[cell.key] | {"set": place, "method": method}
        for (place, method), some in cells.items()
        if all(cell.key in known for cell in some)
        for cell in some
    ]


def write(experiment: Experiment, folder: Path, readme: Path | None = None) -> Path:
    """Write an experiment's page, tables and figure from its results in the folder; return the page.

    With `readme`, a summary is put between that file's comments about the experiment.
    """
    source = folder / f"{experiment.name}.json"
    results, page = read_results(source), source.with_suffix(".md")
    table = Table(results, tuple(experiment.methods))
    known = facts(table, experiment) | {"experiment": experiment}
    pages.write(page, pages.render("reproduce.md.j2", **known))
    pages.write(source.with_suffix(".csv"), as_csv(results, experiment))
    pages.write(source.with_suffix(".tex"), as_latex(table, experiment))
    experiment.draw(table, experiment, source.with_suffix(".svg"))
    if readme is not None:
        begin, end = markers(experiment)
        short = pages.render("reproduce-summary.md.j2", **known, **summary_facts(table, experiment))
        pages.write_between(readme, begin, end, short.strip())
    return page


def markers(experiment: Experiment) -> tuple[str, str]:
    """Return the two comments of a file between which an experiment's summary is put."""
    name = experiment.name
    return f"<!-- {name}: `trajstitch reproduce {name}` writes this -->", f"<!-- /{name} -->"
