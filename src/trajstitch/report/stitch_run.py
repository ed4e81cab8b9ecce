"""What the folder of a stitching holds, read for the page: the data before and after, jumps, models, times."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajstitch.benchmark.sources import reload_source
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.learning.fit_report import FitReport
from trajstitch.report.jumps import JumpTable, jump_table
from trajstitch.stitching.config import ColumnChoice
from trajstitch.stitching.guards import hidden_state
from trajstitch.stitching.layout import place, read_graph, read_result
from trajstitch.stitching.nearby import nearest_precedent
from trajstitch.stitching.precedent import NEAR
from trajstitch.stitching.result import assemble
from trajstitch.storage.runs import Run, damaged


@dataclass(frozen=True, eq=False)
class Stitching:
    """One stitching: its trajectories in the original's order, and the jumps in them."""

    data: Trajectories
    jumps: JumpTable
    seed: int


@dataclass(frozen=True, eq=False)
class StitchRun:
    """A finished stitching: the data before and after, and what is known about how it was made."""

    title: str
    facts: dict[str, Any]
    """What run.json says."""
    before: Trajectories | None
    """The source data; None if it can't be loaded again."""
    missing: str | None
    """Why the source data can't be loaded again."""
    after: Trajectories | None
    """The data set that was saved; None if the data was left unchanged."""
    stitchings: tuple[Stitching, ...] = ()
    roles: ColumnRoles | None = None
    """Which columns actions control; None without the source data."""
    reason: str | None = None
    """Why the data was left unchanged, if it was."""
    reports: tuple[FitReport, ...] = ()
    passes: tuple[dict[str, Any], ...] = ()
    seconds: dict[str, float] | None = None
    candidates: int | None = None
    """Possible jumps that were tested."""
    edges: int | None = None
    """Those that passed every test."""
    precedent: float | None = None
    """How far a jump's precedent may be, over its length."""
    simulator: dict[str, Any] | None = None
    """The simulator check's summary, if there is one."""

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the stitching."""
        return {**self.facts.get("config", {}), **self.facts.get("job", {})}.get("stitching", {})


def read_stitch_runs(run: Run, name: str | None = None) -> Iterator[StitchRun]:
    """Yield what a stitching's folder holds, once for each of its seeds; `name` is in place of the folder's."""
    first, seeds = run.fact("seed", int), run.fact("seeds", int)
    _check_facts(run)
    before, missing = None, None
    try:
        before = reload_source(run)
    except InputError as error:
        missing = str(error)
    for seed in range(first, first + seeds):
        title = (name or run.folder.resolve().name) + (f", seed {seed}" if seeds > 1 else "")
        yield _read(run, title, seed, before, missing)


def _check_facts(run: Run) -> None:
    """Raise if what a run says about its job is not as it was written."""
    for name in ("source", "fingerprint"):
        run.fact(name, str)
    settings = run.fact("stitching", dict)
    with damaged(run.path("run.json"), "start a new run"):
        for name, kind in (("tests", dict), ("rules", dict), ("columns", dict), ("stitchings", int)):
            if not isinstance(settings[name], kind):
                raise TypeError(f"its {name} is no {kind.__name__}")


def _read(run: Run, title: str, seed: int, before: Trajectories | None, missing: str | None) -> StitchRun:
    settings = run.fact("stitching", dict)
    count = settings["stitchings"]
    places = [(number, place(run, number)) for number in range(seed, seed + count)]
    finished = [(number, where) for number, where in places if run.has(f"{where.own}passes")]
    reports, seconds = [], {}
    for _, where in places:
        reports += _reports(run, where.shared)
        for stage, took in _seconds(run, where.shared).items():
            seconds[stage] = seconds.get(stage, 0.0) + took
    roles = None
    if before is not None:
        with damaged(run.path("run.json"), "start a new run"):
            roles = ColumnChoice(**settings["columns"]).roles(before)
    known: dict[str, Any] = {
        "title": title,
        "facts": run.facts,
        "before": before,
        "missing": missing,
        "roles": roles,
        "reports": tuple(reports),
        "seconds": seconds,
    }
    if not finished:
        return StitchRun(**known, after=None, reason=_reason(run, seed))
    stitchings, passes, counts, precedents = [], [], [], []
    for number, where in finished:
        data, made = _result(run, where.own, before)
        graph = None
        if before is not None and run.has(f"{where.shared}graph"):
            graph = read_graph(run, where.shared, before)
            counts.append((graph.candidates, len(graph.edges)))
            if (near := nearest_precedent(graph.logged)) is not None:
                precedents.append(max(NEAR, near))
        stitchings.append(Stitching(data, _jumps(run, where.own, before, data, graph), number))
        passes += [{"seed": number, **one} for one in made] if count > 1 else made
    complete = len(counts) == len(finished)
    tested = [tested for tested, _ in counts if tested is not None]
    simulator = finished[0][1].own + "simulator-check"
    return StitchRun(
        **known,
        after=_assembled(before, [one.data for one in stitchings], count - len(finished), settings, reports),
        stitchings=tuple(stitchings),
        passes=tuple(passes),
        candidates=sum(tested) if complete and len(tested) == len(counts) else None,
        edges=sum(kept for _, kept in counts) if complete else None,
        precedent=max(precedents, default=None),
        simulator=run.read_json(simulator) if run.path(f"{simulator}.json").is_file() else None,
    )


def _reason(run: Run, seed: int) -> str:
    """Return why the data was left unchanged; raise if stitching has not finished."""
    for name in ("summary", f"seed-{seed}/summary"):
        if run.has(name) and (reason := run.read_json(name).get("unchanged_because")):
            return str(reason)
    raise InputError(f"{run.folder}: is not finished: continue it with `resume=True`")


def _result(run: Run, where: str, before: Trajectories | None) -> tuple[Trajectories, list[dict[str, Any]]]:
    return read_result(run, where, before)


def _jumps(run: Run, where: str, before: Trajectories | None, data: Trajectories, graph: Any) -> JumpTable:
    path = run.path(f"{where}simulator-check.safetensors")
    misses = None
    if path.is_file():
        misses = run.read_tensors(f"{where}simulator-check")
        with damaged(path, "run `trajstitch simulate` again"):
            steps = misses["step"]
            if len(steps) != len(misses["ratio"]) or (len(steps) and not 0 <= steps.min() <= steps.max() < data.steps):
                raise ValueError("it is the check of other data")
    return jump_table(before, data, graph, misses)


def _assembled(
    before: Trajectories | None,
    stitched: list[Trajectories],
    unchanged: int,
    settings: dict[str, Any],
    reports: list[FitReport],
) -> Trajectories:
    """Return the data set as `stitch` saved it; without the source data, the changed trajectories in its place."""
    if before is None:
        return stitched[0]
    keep = settings.get("keep_original", False) or not settings.get("rules", {}).get("value_test", True)
    results = [*stitched, *[before] * unchanged]
    return assemble(before, results, keep_original=keep, doubts=hidden_state(reports))


def _reports(run: Run, where: str) -> list[FitReport]:
    path = run.path(f"{where}models.safetensors")
    if not path.is_file():
        return []
    _, facts = run.read(f"{where}models")
    with damaged(path):
        found = [FitReport.from_json(one) for one in json.loads(facts["reports"])]
        if not all(isinstance(value, int | float) for one in found for value in one.metrics.values()):
            raise TypeError("a metric is no number")
        for one in found:
            np.array(one.calibration, np.float64).reshape(-1, 4)
    return found


def _seconds(run: Run, where: str) -> dict[str, float]:
    if not run.has(f"{where}seconds"):
        return {}
    with damaged(run.path(f"{where}seconds.json")):
        return {str(stage): float(took) for stage, took in run.read_json(f"{where}seconds").items()}


def states_kept(before: Trajectories, after: Trajectories) -> float:
    """Return the share of the source data's states that steps of the result start from."""
    assert after.provenance is not None
    longest = int(before.lengths.max()) + 1
    visited = after.provenance.source_episode.astype(np.int64) * longest + after.provenance.source_step
    return len(np.unique(visited)) / max(before.steps, 1)
