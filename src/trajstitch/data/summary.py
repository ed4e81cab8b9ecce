"""What is in a data set, for a person and for a machine: the facts, how returns and lengths spread, every check."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from trajstitch.data import environments
from trajstitch.data.checks import ADVICE, check
from trajstitch.data.trajectories import Provenance, Trajectories

BINS = 48
"""Bins of a histogram: divides well into the widths of terminals."""
CHART_HEIGHT = 5
CHART_MARGIN = 12
"""Characters kept for the labels of a chart."""
WIDEST_COLUMN = 6
EIGHTHS = " ▁▂▃▄▅▆▇█"
MARKS = {"ok": ("✓", "green"), "note": ("•", "yellow"), "bad": ("✗", "bold red")}


def inspect(data: Trajectories) -> dict[str, Any]:
    """Everything `trajstitch inspect` shows, as JSON values; what is not a finite number is None."""
    with np.errstate(invalid="ignore", over="ignore"):
        summary = data.summary()
    reference = environments.reference(data.metadata)
    score = {name: float(environments.normalised(summary["returns"][name], data.metadata)) for name in ("mean", "max")}
    terminated, truncated = data.episode_terminated, data.episode_truncated
    return _jsonable(
        {
            **summary,
            "environment": environments.environment_id(data.metadata),
            "score": score if reference else None,
            "reference": reference,
            "ends": {
                "terminated": int((terminated & ~truncated).sum()),
                "truncated": int((truncated & ~terminated).sum()),
                "both": int((terminated & truncated).sum()),
                "neither": int((~terminated & ~truncated).sum()),
            },
            "histograms": {
                "returns": _histogram(data.returns, whole=False),
                "lengths": _histogram(data.lengths, whole=True),
            },
            "provenance": None if data.provenance is None else _stitched(data, data.provenance),
            "checks": [
                {
                    "check": finding.check,
                    "verdict": finding.verdict,
                    "detail": finding.detail,
                    **(
                        {"advice": ADVICE[finding.check]}
                        if finding.verdict == "bad" and finding.check in ADVICE
                        else {}
                    ),
                }
                for finding in check(data)
            ],
        }
    )


def _histogram(values: np.ndarray, *, whole: bool) -> dict[str, Any]:
    """Counts of equal bins; whole numbers get a bin each where that gives no more than BINS."""
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return {"low": None, "high": None, "edges": [], "counts": []}
    low, high = float(values.min()), float(values.max())
    if whole and high - low < BINS:
        edges = np.arange(low, high + 2) - 0.5
    else:  # scaled down, since the range of very large numbers is no number
        edges = 4 * np.linspace(low / 4, high / 4, BINS + 1 if high > low else 2)
    counts = np.histogram(values, edges)[0] if high > low else np.array([len(values)])
    return {"low": low, "high": high, "edges": edges.tolist(), "counts": counts.tolist()}


def _stitched(data: Trajectories, provenance: Provenance) -> dict[str, Any]:
    stitched = provenance.stitched
    changed = len(np.unique(data.episode_of_step[stitched]))
    quartiles = {}
    for name in ("margin", "value_gain"):
        values = getattr(provenance, name)[stitched]
        values = values[np.isfinite(values)].astype(np.float64)
        quartiles[name] = np.quantile(values, (0.25, 0.5, 0.75)).tolist() if len(values) else None
    return {
        "stitched": int(stitched.sum()),
        "share": float(stitched.mean()) if len(stitched) else 0.0,
        "episodes_changed": changed,
        "quartiles": quartiles,
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(report: dict[str, Any], console: Console) -> None:
    """Print what `inspect` found."""
    console.print(Text.assemble((report["name"], "bold"), "  ", (report["source"], "dim")))
    console.print(
        f"{report['episodes']:,} episodes, {report['steps']:,} steps, {report['observation_size']} observation and "
        f"{report['action_size']} action dimensions, {decimal(report['bytes'])}\n"
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column()
    for name, text in _facts(report):
        facts.add_row(name, Text(text))
    console.print(facts)
    width = min(console.width, 110)
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
        ("Reward a step", _number(report["mean_reward"])),
    ]
    if report["score"]:
        low, high = report["reference"]
        score = (
            f"{_number(report['score']['mean'], 1)} on average, {_number(report['score']['max'], 1)} at best "
            f"(0 = {_number(low)}, 100 = {_number(high)})"
        )
        facts.insert(1, ("Score", score))
    stitched = report["provenance"]
    if stitched:
        text = (
            f"{stitched['stitched']:,} steps ({stitched['share']:.1%}), in {stitched['episodes_changed']:,} of "
            f"{report['episodes']:,} episodes"
        )
        facts.append(("Stitched", text))
        for name, title in (("margin", "Margin"), ("value_gain", "Value gain")):
            quartiles = stitched["quartiles"][name]
            if quartiles:
                low, middle, high = map(_number, quartiles)
                facts.append((f"  {title}", f"median {middle}, half of the jumps between {low} and {high}"))
    return facts


def chart(histogram: dict[str, Any], width: int) -> list[str]:
    """A histogram as lines of text no wider than `width`: columns of blocks over an axis with its ends."""
    if len(histogram["counts"]) < 2:
        return []
    counts = _rebinned(histogram["counts"], width - CHART_MARGIN)
    top = f"{max(counts):,}"
    margin = len(top) + 2
    column = max(1, min((width - margin) // len(counts), 2 * (BINS // len(counts)), WIDEST_COLUMN))
    heights = [math.ceil(8 * CHART_HEIGHT * count / max(counts)) for count in counts]
    lines = []
    for level in reversed(range(CHART_HEIGHT)):
        label = top if level == CHART_HEIGHT - 1 else ""
        bars = "".join(EIGHTHS[min(max(height - 8 * level, 0), 8)] * column for height in heights)
        lines.append(f"{label:>{margin - 2}} │{bars}".rstrip())
    span = column * len(counts)
    low, high = _number(histogram["low"]), _number(histogram["high"])
    lines.append(f"{0:>{margin - 2}} └{'─' * span}")
    lines.append(f"{'':{margin}}{low}{high:>{max(span - len(low), len(high) + 1)}}")
    return lines


def _rebinned(counts: Sequence[int], width: int) -> list[int]:
    """Neighbouring bins together until they fit."""
    together = math.ceil(len(counts) / max(width, 1))
    return [sum(counts[start : start + together]) for start in range(0, len(counts), together)]


def _render_checks(checks: Sequence[dict[str, str]], console: Console) -> None:
    console.print(Text("Checks", "cyan"))
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for result in checks:
        mark, style = MARKS[result["verdict"]]
        table.add_row(Text(mark, style), result["check"], Text(result["detail"], "" if style != "green" else "dim"))
        if "advice" in result:
            table.add_row("", "", Text(f"→ {result['advice']}", "bold"))
    console.print(table)
    console.print()
    bad = [result["check"] for result in checks if result["verdict"] == "bad"]
    notes = sum(result["verdict"] == "note" for result in checks)
    if bad:
        console.print(Text(f"✗ Not fit to learn from: {', '.join(bad)}.", "bold red"))
    else:
        above = f"; {notes} note{'s' if notes > 1 else ''} above" if notes else ""
        console.print(Text(f"✓ Fit to learn from{above}.", "green"))


def _spread(values: dict[str, float | None]) -> str:
    mean, std, low, middle, high = (_number(values[name]) for name in ("mean", "std", "min", "median", "max"))
    if low == high:
        return f"{low} each"
    return f"{mean} ± {std}, median {middle}, from {low} to {high}"


def _number(value: float | None, digits: int | None = None) -> str:
    """A number as people write it: 1,234, 12.3, 0.0012."""
    if value is None:
        return "not a number"
    if digits is None:
        digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 2
    if 0 < abs(value) < 0.01 or abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"
