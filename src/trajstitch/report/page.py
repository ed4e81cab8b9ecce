"""The page: one HTML file that shows one run or several, with everything it needs inside and no network."""

import base64
import hashlib
import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trajstitch.errors import InputError, clean
from trajstitch.report import compare
from trajstitch.report.entry import Entry
from trajstitch.report.stitch_entry import stitch_entry
from trajstitch.report.stitch_run import read_stitch_runs
from trajstitch.report.train_entry import train_entry
from trajstitch.report.values import number, script_json
from trajstitch.storage.atomic import replacing
from trajstitch.storage.runs import Run, damaged

ASSETS = Path(__file__).parent / "assets"
MARK = '<meta name="generator" content="trajstitch report">'
"""What a page of ours says near its start: such a file may be replaced by a newer page."""


def write_page(folders: Sequence[Path], target: Path, sentence: str | None = None, more: str | None = None) -> Path:
    """Write the page of the runs in these folders; return the file. Only a page of ours is replaced.

    The page begins with `sentence`, below which `more` is said; if not given, with what `learn` has found, or what a
    comparison of the runs says.
    """
    require_replaceable(target)
    if sentence is None and len(folders) == 1:
        sentence, more = _found(Run.open(folders[0]))
    page = render(read_entries(folders), sentence, more)
    with replacing(target, force=True) as fresh:
        fresh.write_text(page, encoding="utf-8")
    return target


def default_target(folders: Sequence[Path]) -> Path:
    """Return where the page goes if nobody says: into the run's folder, or for several runs into this one."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")


def require_replaceable(target: Path) -> None:
    """Raise if something that is no page of ours is in the target's place."""
    if target.is_dir():
        raise InputError(f"{target} is a folder: name a file with `output`")
    if target.exists():
        with target.open("rb") as file:
            if MARK.encode() not in file.read(1000):
                raise InputError(f"{target} exists and is no page of ours: choose another `output`")


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """Return what the page shows of each run; the more stitchings, the fewer states and trajectories of each.

    A run of `learn` stands for the stitching and the trainings in it.
    """
    if not folders:
        raise InputError("name at least one folder of a run")
    runs = [part for folder in dict.fromkeys(folders) for part in _parts(Run.open(folder))]
    titles = _titles([run.folder for run in runs])
    count = sum(run.fact("seeds", int) for run in runs if run.facts["kind"] == "stitch")
    entries = []
    for run, title in zip(runs, titles, strict=True):
        if run.facts["kind"] == "stitch":
            entries += [stitch_entry(one, 1 / count) for one in read_stitch_runs(run, title)]
        else:
            entries.append(train_entry(run, title))
    return entries


def _parts(run: Run) -> list[Run]:
    """Return the stitchings and trainings of a run: itself, or those that `learn` keeps in it."""
    kind = run.facts.get("kind")
    if kind in ("stitch", "train"):
        return [run]
    if kind != "learn":
        raise InputError(f"{run.folder}: is a {kind!r} run; a page shows stitchings, trainings and runs of `learn`")
    stored = _result(run)
    with damaged(run.path("result.json")):
        names = [str(row["name"]) for row in stored["table"]]
    inside = {path.parent.name: path.parent for path in run.folder.glob("*/run.json")}
    return [Run.open(inside[name]) for name in ("stitch", *names) if name in inside]


def _found(run: Run) -> tuple[str | None, str | None]:
    """Return what a run of `learn` has found: its verdict on stitching, and its choice."""
    if run.facts.get("kind") != "learn":
        return None, None
    stored = _result(run)
    with damaged(run.path("result.json")):
        found = [str(stored[name]) for name in ("verdict", "why") if stored[name] is not None]
        return found[0], " ".join(found[1:]) or None


def _result(run: Run) -> dict[str, Any]:
    if not run.has("result"):
        raise InputError(f"{run.folder}: is not finished: continue it with `trajstitch learn ... --resume`")
    return run.read_json("result")


def _titles(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own, with as many of those it lies in as tell it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    found = []
    for own in parts:
        length = next(
            (length for length in range(1, len(own)) if sum(own[-length:] == one[-length:] for one in parts) == 1),
            len(own),
        )
        found.append("/".join(own[-length:]))
    return found


def render(entries: Sequence[Entry], sentence: str | None = None, more: str | None = None) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=PackageLoader("trajstitch.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if type(value) is str else value,  # not Markup, which is our own
    )
    environment.filters["number"] = number
    several = len(entries) > 1
    data = {"entries": [entry.charts for entry in entries], "compare": compare.chart(entries) if several else None}
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in ("echarts.common.min.js", "page.js")]
    return environment.get_template("page.html.j2").render(
        entries=entries,
        title=entries[0].title if not several else f"{len(entries)} runs",
        sentence=sentence or (compare.sentence(entries) if several else None),
        more=more,
        alone=sum(entry.kind == "stitch" for entry in entries) == 1,
        compared=compare.table(entries) if several else None,
        compared_scores=len(data["compare"]["runs"]) if data["compare"] else 0,
        style=Markup((ASSETS / "page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts),
        data=Markup(script_json(data)),
        mark=Markup(MARK),
        version=importlib.metadata.version("trajstitch"),
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    )


def _policy(scripts: Sequence[str]) -> str:
    """Return the content security policy: no network, and no script but these."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
