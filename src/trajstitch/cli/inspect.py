"""`trajstitch inspect URI`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from trajstitch.cli.charts import chart, number
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.data.summary import inspect
from trajstitch.errors import as_flags, one_line

WIDEST = 110
"""Characters: charts grow no wider on a wider terminal."""
MARKS = {"ok": ("✓", "green"), "note": ("•", "yellow"), "bad": ("✗", "bold red")}
COMMON = ("json",)


@dataclass(frozen=True)
class Command(ColumnFlags):
    """Show what is in a data set and the verdict of every check. Exits with code 2 if a check finds bad data.

    Example: trajstitch inspect minari:mujoco/hopper/medium-v0
    """

    uri: Annotated[Positional[str], arg(metavar="URI")]
    """The data set: a URI, or the name of a built-in set."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> int:
        report = inspect(self.load(self.uri, allow_nonfinite=True))
        if self.json:
            print_json(report)
        else:
            render(report, stdout())
        return 2 if any(check["verdict"] == "bad" for check in report["checks"]) else 0


def render(report: dict[str, Any], console: Console) -> None:
    """Print the facts that `inspect` returned."""
    console.print(Text.assemble((one_line(report["name"]), "bold"), "  ", (one_line(report["source"]), "dim")))
    console.print(
        f"{report['episodes']:,} episodes, {report['steps']:,} steps, {report['observation_size']} observation and "
        f"{report['action_size']} action dimensions, {decimal(report['bytes'])}\n"
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column()
    for name, text in _facts(report):
        facts.add_row(name, Text(one_line(text)))
    console.print(facts)
    width = min(console.width, WIDEST)
    for name in ("returns", "lengths"):
        lines = chart(report["histograms"][name], width)
        if lines:
            console.print()
            console.print(Text(f"{name.capitalize()} of the episodes", "cyan"))
            console.print(Text("\n".join(lines)), no_wrap=True)
    console.print()
    _render_checks(report["checks"], console)


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    ends = ", ".join(f"{count:,} {name}" for name, count in report["ends"].items() if count)
    facts = [
        ("Environment", report["environment"] or "not recorded"),
        ("Returns", _spread(report["returns"])),
        ("Lengths", _spread(report["lengths"])),
        ("Ends", ends),
        ("Reward / step", number(report["mean_reward"])),
    ]
    if report["score"]:
        low, high = report["reference"]
        score = (
            f"{number(report['score']['mean'], 1)} on average, {number(report['score']['max'], 1)} at best "
            f"(0 = {number(low)}, 100 = {number(high)})"
        )
        facts.insert(1, ("Score", score))
    if report["stitching"]:
        facts.append(("Consists of", report["stitching"]))
    stitched = report["provenance"]
    if stitched:
        text = (
            f"{stitched['stitched']:,} steps ({stitched['share']:.1%}), in {stitched['episodes_changed']:,} of "
            f"{report['episodes']:,} episodes"
        )
        facts.append(("Stitched", text))
        if "corrected_mean_return" in report:
            mean = number(report["corrected_mean_return"])
            facts.append(("  Mean return", f"{mean} with the costs that trajectories cut off early would still pay"))
        for name, title in (("margin", "Margin"), ("value_gain", "Value gain")):
            quartiles = stitched["quartiles"][name]
            if quartiles:
                low, middle, high = map(number, quartiles)
                facts.append((f"  {title}", f"median {middle}, half of the jumps between {low} and {high}"))
    facts += [("  Doubtful", warning) for warning in report["warnings"]]
    return facts


def _render_checks(checks: Sequence[dict[str, str]], console: Console) -> None:
    console.print(Text("Checks", "cyan"))
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for result in checks:
        mark, style = MARKS[result["verdict"]]
        detail = Text(one_line(as_flags(result["detail"])), "dim" if style == "green" else "")
        table.add_row(Text(mark, style), one_line(result["check"]), detail)
        if "advice" in result:
            table.add_row("", "", Text(f"→ {as_flags(result['advice'])}", "bold"))
    console.print(table)
    console.print()
    bad = [result["check"] for result in checks if result["verdict"] == "bad"]
    notes = sum(result["verdict"] == "note" for result in checks)
    if bad:
        console.print(Text(f"✗ Not fit to learn from: {', '.join(map(one_line, bad))}.", "bold red"))
    else:
        above = f"; {notes} note{'s' if notes > 1 else ''} above" if notes else ""
        console.print(Text(f"✓ Fit to learn from{above}.", "green"))


def _spread(values: dict[str, float | None]) -> str:
    mean, std, low, middle, high = (number(values[name]) for name in ("mean", "std", "min", "median", "max"))
    if low == high:
        return f"{low} each"
    return f"{mean} ± {std}, median {middle}, from {low} to {high}"
