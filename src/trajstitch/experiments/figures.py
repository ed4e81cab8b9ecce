"""Figures for the documentation: transparent SVGs whose colours read in light and in dark mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trajstitch.evaluation.scores import Draws, Interval, interquartile_mean
from trajstitch.experiments.comparison import Table
from trajstitch.storage.atomic import replacing

INK = "#7a828c"
"""Of text and axes: readable on white and on black."""
COLOURS = ("#1a9e6e", "#5b7fe0", "#d97706", "#b565a7")
"""Of lines that are told apart by nothing else."""


class Look(NamedTuple):
    """How a method is drawn."""

    title: str
    colour: str
    marker: str
    filled: bool = True


@contextmanager
def svg(path: Path, panels: int, size: tuple[float, float], *, png: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its panels, side by side with one y axis, and save the figure: equal data, equal bits.

    With `png`, a PNG file is written beside the SVG.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: dict[str, Any] = {"svg.hashsalt": "trajstitch", **dict.fromkeys(inked, INK)}
    with plt.rc_context(style):  # pyright: ignore[reportArgumentType]
        figure, rows = plt.subplots(1, panels, figsize=size, sharey=True, layout="constrained", squeeze=False)
        axes = rows[0]
        for one in axes:
            one.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
            one.spines[["top", "right"]].set_visible(False)
        yield figure, axes
        with replacing(path, force=True) as fresh:
            figure.savefig(fresh, format="svg", transparent=True, metadata={"Date": None})
        if png:
            with replacing(path.with_suffix(".png"), force=True) as fresh:
                figure.savefig(fresh, format="png", dpi=150, metadata={"Software": None})
        plt.close(figure)


def draw_scores(table: Table, looks: dict[str, Look], path: Path) -> None:
    """Draw for each set (TASK/KIND, a panel per task) a dot per method, with its 95 % interval."""
    from matplotlib.lines import Line2D

    looks = {method: look for method, look in looks.items() if method in table.methods}
    tasks = tasks_of(table.sets)
    with svg(path, len(tasks), (11, 4), png=True) as (figure, panels):
        offsets = np.linspace(-0.32, 0.32, len(looks))
        for axes, (task, names) in zip(panels, tasks.items(), strict=True):
            for place in range(1, len(names), 2):
                axes.axvspan(place - 0.5, place + 0.5, color=INK, alpha=0.08, linewidth=0)
            for offset, (method, look) in zip(offsets, looks.items(), strict=True):
                for place, name in enumerate(names):
                    if (name, method) in table.last.scores:
                        found = interquartile_mean(table.last.scores[name, method])
                        if found.low is not None:
                            axes.plot([place + offset] * 2, found[1:], color=look.colour, linewidth=1.6)
                        axes.plot(place + offset, found.value, markersize=5.5, **_marker(look))
            axes.set_title(task, fontsize=11)
            axes.set_xticks(range(len(names)), [name.split("/")[-1].replace("-", "-\n") for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)
            axes.tick_params(length=0)
            axes.set_axisbelow(True)
            axes.spines["left"].set_visible(False)
        panels[0].set_ylabel("normalised score")
        shown = [Line2D([], [], **_marker(look)) for look in looks.values()]
        titles = [look.title for look in looks.values()]
        figure.legend(shown, titles, loc="outside upper center", ncols=len(looks), frameon=False, columnspacing=1.2)


def draw_totals(table: Table, titles: dict[str, str], mark: str, path: Path) -> None:
    """Draw a method per row, with its interquartile mean over the sets and 95 % interval; `mark` is the one compared
    with."""
    names = next(iter(table.totals), [])
    found: dict[str, Interval | None] = {method: table.last.total(method, names) for method in table.methods}
    with svg(path, 1, (8, 1 + 0.3 * len(table.methods)), png=True) as (_, (axes,)):
        reference = found.get(mark)
        if reference is not None:
            axes.axvline(reference.value, color=INK, linewidth=1, linestyle=":")
        for row, (method, total) in enumerate(found.items()):
            if total is not None:
                colour = "#1a9e6e" if method == mark else "#5b7fe0"
                if total.low is not None:
                    axes.plot(total[1:], [row] * 2, color=colour, linewidth=1.6)
                axes.plot(total.value, row, "o", color=colour, markersize=5.5)
        axes.set_yticks(range(len(found)), [titles[method] for method in found])
        axes.invert_yaxis()
        axes.set_xlabel(f"score: interquartile mean over {len(names)} sets")


Lines = dict[str, dict[str, list[tuple[float, Draws]]]]
"""For each panel, its lines by name: points of a number and scores."""


def draw_lines(lines: Lines, axis: str, path: Path, title: str = "normalised score", *, log: bool = False) -> None:
    """Draw the interquartile means of scores over a number, with their 95 % intervals."""
    with svg(path, len(lines), (11, 4), png=True) as (_, panels):
        for axes, (task, named) in zip(panels, lines.items(), strict=True):
            for (name, points), colour in zip(named.items(), cycle(COLOURS), strict=False):
                found = [(at, interquartile_mean(scores)) for at, scores in points]
                axes.plot([at for at, _ in found], [one.value for _, one in found], "o-", color=colour, label=name)
                for at, one in found:
                    if one.low is not None:
                        axes.plot([at] * 2, one[1:], color=colour, linewidth=1.2)
            axes.set(title=task, xlabel=axis)
            axes.legend(frameon=False, fontsize=8)
        panels[0].set_ylabel(title)
        if log:
            panels[0].set_yscale("log")


def tasks_of(sets: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the sets of each task, by the first part of their names."""
    tasks: dict[str, list[str]] = {}
    for name in sets:
        tasks.setdefault(name.split("/")[0] if "/" in name else "", []).append(name)
    return tasks


def _marker(look: Look) -> dict[str, Any]:
    inside = look.colour if look.filled else "none"
    return {"color": look.colour, "marker": look.marker, "markerfacecolor": inside, "linestyle": "none"}
