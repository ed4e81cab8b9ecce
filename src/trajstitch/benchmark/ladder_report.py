"""The results page of the ladders: each policy's return, the training curves, the machine and the versions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trajstitch.benchmark.ladder import Ladder, load_ladder
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table, safe_markdown

AIMS = {"hopper": 3_300, "walker2d": 4_500, "halfcheetah": 10_000}
"""The return that each task's expert should reach, where it is not to be like D4RL's."""


def write_report(ladders: Sequence[str | Path], path: Path) -> None:
    """Write the page and, beside it, a figure of each ladder's training curves."""
    loaded = [load_ladder(ladder) for ladder in ladders]
    for ladder in loaded:
        draw(ladder, path.with_name(figure(ladder)))
    with replacing(path, force=True) as fresh:
        fresh.write_text(safe_markdown(ladder_report(loaded)))


def ladder_report(ladders: Sequence[Ladder]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# The shipped ladders",
        "",
        "Policies saved along training runs, from which `trajstitch collect` makes the built-in sets: those that "
        "follow D4RL's recipes with SAC's policies, the noisy-expert ones with TD3's. This page is written by "
        "`python -m trajstitch.experiments.ladders report`. A return is the mean ± standard deviation over episodes of "
        "the policy as shipped, rounded to half precision, sampled if it is stochastic and without noise otherwise; "
        "those episodes were not used to choose it. How near SAC's policies are to those behind D4RL's sets: "
        "[sets.md](sets.md).",
        "",
    ]
    rows = []
    for ladder in ladders:
        aim, reached = aim_of(ladder), plus_minus(ladder.expert.mean_return, ladder.expert.std_return)
        aims = ["", ""] if aim is None else [f"≥ {aim:,}", "yes" if ladder.expert.mean_return >= aim else "no"]
        seeds = str(len(ladder.curves)), str(ladder.seed)
        rows.append([ladder.task, ladder.algorithm.upper(), ladder.environment, reached, *aims, *seeds])
    head = ("task", "trained with", "environment", "expert's return", "aim", "reached", "seeds trained", "seed taken")
    lines.append(markdown_table(head, rows))
    for ladder in ladders:
        lines += ["", f"## {ladder.task}, {ladder.algorithm.upper()}", "", *section(ladder)]
    return "\n".join(lines) + "\n"


def section(ladder: Ladder) -> list[str]:
    """Return the lines of one ladder's section."""
    ends = {seed: np.mean([value for _, value in curve[-10:]]) for seed, curve in sorted(ladder.curves.items())}
    lines = [
        f"![Training curves of every {ladder.task} seed of {ladder.algorithm.upper()}]({figure(ladder)})",
        "",
    ]
    rows = []
    for index, checkpoint in enumerate(ladder.checkpoints):
        role = "expert" if checkpoint is ladder.expert else "medium" if index == ladder.medium_index else ""
        value = plus_minus(checkpoint.mean_return, checkpoint.std_return)
        rows.append([f"{checkpoint.steps:,}", value, str(checkpoint.episodes), role])
    return [
        *lines,
        markdown_table(("steps", "return", "episodes", ""), rows),
        "",
        "Mean return over each seed's last ten evaluations: "
        + ", ".join(f"seed {seed}: {value:,.0f}" for seed, value in ends.items())
        + ".",
        "",
        f"- Command: `{ladder.command}`",
        f"- Machine: {ladder.machine or 'not recorded'}",
        "- Versions: " + ", ".join(f"{name} {version}" for name, version in ladder.versions.items()),
    ]


def draw(ladder: Ladder, path: Path) -> None:
    """Draw the return of every seed over training, with the ladder's own policies marked."""
    import matplotlib.figure

    canvas = matplotlib.figure.Figure(figsize=(6, 3), layout="constrained")
    axes = canvas.subplots()
    for seed, curve in sorted(ladder.curves.items()):
        steps, values = np.array(curve).T
        own = seed == ladder.seed
        axes.plot(steps, values, linewidth=1.5 if own else 0.8, label=f"seed {seed}", zorder=2 + own)
    steps = [checkpoint.steps for checkpoint in ladder.checkpoints]
    returns = [checkpoint.mean_return for checkpoint in ladder.checkpoints]
    axes.plot(steps, returns, "k.", markersize=5, label="ladder", zorder=4)
    if (aim := aim_of(ladder)) is not None:
        axes.axhline(aim, color="0.6", linewidth=0.8, linestyle="--", label="aim")
    axes.set(xlabel="environment steps", ylabel="return", title=f"{ladder.environment}, {ladder.algorithm.upper()}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    axes.legend(fontsize="x-small", frameon=False)
    with replacing(path, force=True) as fresh:
        canvas.savefig(fresh, metadata={"Date": None})


def figure(ladder: Ladder) -> str:
    """Return the name of the ladder's figure."""
    return f"ladder-{ladder.task}{'' if ladder.algorithm == 'td3' else f'-{ladder.algorithm}'}.svg"


def aim_of(ladder: Ladder) -> int | None:
    """Return what the expert should reach, if anything."""
    return AIMS.get(ladder.task) if ladder.algorithm == "td3" else None


def plus_minus(mean: float, deviation: float) -> str:
    """Return "mean ± deviation"."""
    return f"{mean:,.0f} ± {deviation:,.0f}"
