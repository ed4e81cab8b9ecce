"""The page: one HTML file that shows one run or several, with everything it needs inside and no network."""

import base64
import hashlib
import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path

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
from trajstitch.storage.runs import Run

ASSETS = Path(__file__).parent / "assets"
MARK = '<meta name="generator" content="trajstitch report">'
"""What a page of ours says near its start: such a file may be replaced by a newer page."""


def write_page(folders: Sequence[Path], target: Path, sentence: str | None = None) -> Path:
    """Write the page of the runs in these folders; return the file. Only a page of ours is replaced.

    The page begins with `sentence`; if not given, with what a comparison of the runs says.
    """
    require_replaceable(target)
    page = render(read_entries(folders), sentence)
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
    """Return what the page shows of each run; the more runs, the fewer states and trajectories of each."""
    folders = list(dict.fromkeys(folders))
    if not folders:
        raise InputError("name at least one folder of a run")
    runs = [Run.open(folder) for folder in folders]
    for run in runs:
        if run.facts.get("kind") not in ("stitch", "train"):
            raise InputError(f"{run.folder}: is a {run.facts.get('kind')!r} run; a page shows stitchings and trainings")
    count = sum(run.fact("seeds", int) if run.facts["kind"] == "stitch" else 1 for run in runs)
    entries = []
    for run in runs:
        if run.facts["kind"] == "stitch":
            entries += [stitch_entry(one, 1 / count) for one in read_stitch_runs(run)]
        else:
            entries.append(train_entry(run))
    return entries


def render(entries: Sequence[Entry], sentence: str | None = None) -> str:
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
        compared=compare.table(entries) if several else None,
        compared_scores=data["compare"] is not None,
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
