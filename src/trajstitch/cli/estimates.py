"""How a comparison of runs without an environment is asked for and printed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from trajstitch.benchmark.sources import load_original, reload_source
from trajstitch.cli.charts import number
from trajstitch.cli.output import stdout
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.scores import Interval
from trajstitch.storage.runs import Run


def original_data(folders: Sequence[Path], *, allow_large: bool = False) -> Trajectories:
    """Return what was logged: the original data of the first run that knows it."""
    problems = []
    for folder in folders:
        try:
            data = reload_source(Run.open(folder), allow_large=allow_large)
            return load_original(data, allow_large=allow_large)
        except InputError as error:
            problems.append(error)
    raise problems[0]


def print_estimates(result: dict[str, Any]) -> None:
    """Print one table of the runs beside the logged behaviour, and which one to deploy."""
    out = stdout()
    out.print(
        f"no rollouts, so no scores: ESTIMATES of the return over {result['horizon']:,} steps, from "
        f"{result['episodes']:,} logged episodes of {result['data']}",
        soft_wrap=True,
    )
    verdicts = {(one["name"], one["than"]): one["verdict"] for one in result["verdicts"]}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "return [95 %]", "outside", "distance", "action error", "than logged"):
        table.add_column(title, justify="right" if title else "left", no_wrap=title.startswith("return"))
    for one in result["estimates"]:
        table.add_row(
            one["name"],
            "unknown" if one["estimated"] is None else f"~ {_interval(one['estimated'])}",
            "" if one["outside"] is None else f"{one['outside']:.0%}",
            "" if one["distance"] is None else f"{one['distance']:.2f}",
            f"{one['action_error']:.3f}",
            verdicts[one["name"], "logged behaviour"],
        )
    table.add_row("logged behaviour", _interval(result["logged"]), "0%", "1.00", "", "")
    table.add_row("mean action", "", "", "", f"{result['constant_error']:.3f}", "")
    out.print(table)
    where = "of held-out episodes" if result["held_out"] else "of the data"
    out.print(
        "~: estimated; outside: share of the steps beyond the data; distance: to the nearest logged step (1: as "
        f"between logged episodes); action error: from the logged actions {where}, scaled to ±1",
        soft_wrap=True,
    )
    moving = [one["name"] for one in result["estimates"] if one["estimated"] is not None and not one["settled"]]
    if moving:
        out.print(f"NOT SETTLED, still moving with more data: {', '.join(moving)}", soft_wrap=True)
    for one in result["runs"]:
        if one["steps"] < one["of_steps"]:
            progress = f"trained for {one['steps']:,} of {one['of_steps']:,} steps so far"
            out.print(f"UNFINISHED: {one['name']} is {progress}", soft_wrap=True)
    out.print(result["sentence"], soft_wrap=True)


def _interval(part: dict[str, Any]) -> str:
    found = Interval(**part)
    bounds = "" if found.low is None or found.high is None else f" [{number(found.low)}, {number(found.high)}]"
    return f"{number(found.value)}{bounds}"
