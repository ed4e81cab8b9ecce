"""The results table as a picture: for each set a dot a method, with its interval.

Nothing is painted behind it and every colour lies between black and white, so it reads in light and in dark mode.
"""

from pathlib import Path

import numpy as np

from trajstitch.evaluation.scores import Seeds, interquartile_mean
from trajstitch.experiments.table_results import METHODS, TWELVE

INK = "#7a828c"
LOOKS = {
    "bc": ("#8b949e", "o", True),
    "top-bc": ("#8b949e", "D", False),
    "paper-ts-bc": ("#b565a7", "o", True),
    "ts-bc": ("#1a9e6e", "o", True),
    "ts-top-bc": ("#1a9e6e", "D", False),
    "td3-bc": ("#d97706", "s", True),
    "iql": ("#5b7fe0", "^", True),
}
"""What is shown: colour, marker, whether it is filled. The same data has the same colour; hollow is its best tenth."""


def draw(scores: dict[tuple[str, str], Seeds], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    tasks = {name.split("/")[0]: [one for one in TWELVE if one.startswith(name.split("/")[0])] for name in TWELVE}
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with plt.rc_context({"svg.hashsalt": "trajstitch", **dict.fromkeys(inked, INK)}):  # pyright: ignore[reportArgumentType]
        figure, panels = plt.subplots(1, len(tasks), figsize=(11, 4), sharey=True, layout="constrained")
        offsets = np.linspace(-0.32, 0.32, len(LOOKS))
        for axes, (task, names) in zip(panels, tasks.items(), strict=True):
            for place in range(1, len(names), 2):
                axes.axvspan(place - 0.5, place + 0.5, color=INK, alpha=0.08, linewidth=0)
            for offset, (method, (colour, marker, filled)) in zip(offsets, LOOKS.items(), strict=True):
                for place, name in enumerate(names):
                    if (name, method) not in scores:
                        continue
                    found = interquartile_mean(scores[name, method])
                    if found.low is not None and found.high is not None:
                        axes.plot([place + offset] * 2, [found.low, found.high], color=colour, linewidth=1.6)
                    inside = colour if filled else "none"
                    axes.plot(place + offset, found.value, marker, color=colour, markerfacecolor=inside, markersize=5.5)
            axes.set_title(task, fontsize=11)
            axes.set_xticks(range(len(names)), [name.split("/")[1].replace("-", "-\n") for name in names])
            axes.set_xlim(-0.5, len(names) - 0.5)
            axes.tick_params(length=0)
            axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right", "left"]].set_visible(False)
        panels[0].set_ylabel("normalised score")
        shown = [
            Line2D([], [], color=colour, marker=marker, markerfacecolor=colour if filled else "none", linestyle="none")
            for colour, marker, filled in LOOKS.values()
        ]
        titles = [METHODS[method].title for method in LOOKS]
        figure.legend(shown, titles, loc="outside upper center", ncols=len(LOOKS), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
