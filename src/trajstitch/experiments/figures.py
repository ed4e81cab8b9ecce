"""Figures for the documentation: transparent SVGs whose colours read in light and in dark mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trajstitch.evaluation.scores import Seeds, interquartile_mean

INK = "#7a828c"
"""Of text and axes: readable on white and on black."""


class Look(NamedTuple):
    """How a method is drawn."""

    title: str
    colour: str
    marker: str
    filled: bool = True


@contextmanager
def svg(path: Path, panels: int, size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its panels, side by side with one y axis, and save the figure: equal data, equal bits."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: dict[str, Any] = {"svg.hashsalt": "trajstitch", **dict.fromkeys(inked, INK)}
    with plt.rc_context(style):  # pyright: ignore[reportArgumentType]
        figure, axes = plt.subplots(1, panels, figsize=size, sharey=True, layout="constrained")
        for one in axes:
            one.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
            one.spines[["top", "right"]].set_visible(False)
        yield figure, axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def draw_scores(
    scores: dict[tuple[str, str], Seeds], sets: tuple[str, ...], looks: dict[str, Look], path: Path
) -> None:
    """Draw for each set (TASK/KIND, a panel per task) a dot per method, with its 95 % interval."""
    from matplotlib.lines import Line2D

    tasks: dict[str, list[str]] = {}
    for name in sets:
        tasks.setdefault(name.split("/")[0], []).append(name)
    with svg(path, len(tasks), (11, 4)) as (figure, panels):
        offsets = np.linspace(-0.32, 0.32, len(looks))
        for axes, (task, names) in zip(panels, tasks.items(), strict=True):
            for place in range(1, len(names), 2):
                axes.axvspan(place - 0.5, place + 0.5, color=INK, alpha=0.08, linewidth=0)
            for offset, (method, look) in zip(offsets, looks.items(), strict=True):
                for place, name in enumerate(names):
                    if (name, method) not in scores:
                        continue
                    found = interquartile_mean(scores[name, method])
                    if found.low is not None and found.high is not None:
                        axes.plot([place + offset] * 2, [found.low, found.high], color=look.colour, linewidth=1.6)
                    axes.plot(place + offset, found.value, markersize=5.5, **_marker(look))
            axes.set_title(task, fontsize=11)
            axes.set_xticks(range(len(names)), [name.split("/")[1].replace("-", "-\n") for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)
            axes.tick_params(length=0)
            axes.set_axisbelow(True)
            axes.spines["left"].set_visible(False)
        panels[0].set_ylabel("normalised score")
        shown = [Line2D([], [], **_marker(look)) for look in looks.values()]
        titles = [look.title for look in looks.values()]
        figure.legend(shown, titles, loc="outside upper center", ncols=len(looks), frameon=False)


def _marker(look: Look) -> dict[str, Any]:
    inside = look.colour if look.filled else "none"
    return {"color": look.colour, "marker": look.marker, "markerfacecolor": inside, "linestyle": "none"}
