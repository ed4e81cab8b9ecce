"""Does stitching help? Clone the original and the stitched data of the built-in sets, and let both play.

python -m trajstitch.experiments.gain measure --sets hopper/medium-replay ...    adds to docs/results/gain.json
python -m trajstitch.experiments.gain report                                     writes docs/results/gain.md, .svg
"""

import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from trajstitch import console, sets
from trajstitch.formats.atomic import replacing
from trajstitch.runs import machine, versions
from trajstitch.scores import Interval, Summary, interquartile_mean, normalised, probability_of_improvement
from trajstitch.stitching import Preset

RESULTS = Path("docs/results/gain.json")
TWELVE = sets.NAMES[:12]
POLICIES = {"bc": "BC", "top": "10 % BC", "stitched": "TS + BC", "stitched_top": "TS + 10 % BC"}
"""What is compared: cloning all or the best tenth of the trajectories, of the original and of the stitched data."""


@dataclass(frozen=True)
class Measure:
    """Stitch each set, clone both data sets, evaluate the last checkpoint of every seed."""

    sets: tuple[str, ...] = TWELVE
    """The built-in sets."""
    transitions: int = 200_000
    """Of each set."""
    seed: int = 0
    """Of the data and of the stitching."""
    preset: Preset = "default"
    """Of the stitching."""
    steps: int = 100_000
    """Gradient steps of each policy."""
    seeds: int = 5
    """Policies cloned from each data set."""
    episodes: int = 20
    """Episodes that each of them plays."""
    to: Path = RESULTS
    """Results are added to this file, set by set; those that are there are not measured again."""


def measure(config: Measure) -> None:
    done = json.loads(config.to.read_text()) if config.to.exists() else []
    for name in config.sets:
        asked = {"set": name, **{key: value for key, value in asdict(config).items() if key not in ("sets", "to")}}
        if any(all(row[key] == value for key, value in asked.items()) for row in done):
            console.log(f"{name}: measured already")
            continue
        done.append({**asked, **measure_set(name, config)})
        with replacing(config.to, force=True) as fresh:
            fresh.write_text(json.dumps(done, indent=1) + "\n")


def measure_set(name: str, config: Measure) -> dict[str, Any]:
    """Everything about one set, as plain JSON values."""
    import jax

    from trajstitch.evaluation import evaluate
    from trajstitch.graph import build
    from trajstitch.paths import Paths
    from trajstitch.policies.bc import BC
    from trajstitch.sets.collect import Collect, collect
    from trajstitch.stitching import fit_models, improve, preset_for
    from trajstitch.training import train
    from trajstitch.truth import of_stitched

    seconds: dict[str, float] = {}
    start = time.monotonic()

    def took(stage: str) -> None:
        nonlocal start
        seconds[stage] = round(time.monotonic() - start, 1)
        start = time.monotonic()

    data = collect(Collect(name, config.transitions, config.seed))
    took("collect")
    stitching = preset_for(config.preset, data)
    keys = jax.random.split(jax.random.key(config.seed))
    models, worths = fit_models(stitching, data, keys[0])
    took("models")
    paths, passes = Paths.of(data), []
    if all(worth.learned for worth in worths):
        graph = build(data, models, stitching.near, stitching.reach)
        took("graph")
        paths, passes = improve(stitching, data, models, graph, keys[1])
        took("passes")
    after = paths.trajectories()
    truth = of_stitched(data, after).summary()
    took("truth")
    scores = {}
    for label, some in (
        ("bc", data),
        ("top", data.best(0.1)),
        ("stitched", after),
        ("stitched_top", after.best(0.1)),
    ):
        policies = train(some, BC(steps=config.steps), seeds=config.seeds)
        took(f"clone {label}")
        returns = evaluate(policies, data.metadata, config.episodes)
        scores[label] = normalised(returns, data.metadata).mean(1).tolist()
        took(f"evaluate {label}")
        console.log(f"{name} {label}: {Summary.of(np.array(scores[label]))}")
    return {
        "before": float(normalised(data.returns, data.metadata).mean()),
        "after": float(normalised(after.returns, data.metadata).mean()),
        "jumps": float(paths.trajectories().provenance.stitched.mean()),  # pyright: ignore[reportOptionalMemberAccess]
        "states_kept": passes[-1].states_kept if passes else 1.0,
        "truth": truth,
        "worths": [asdict(worth) for worth in worths],
        "scores": scores,
        "seconds": seconds,
        "machine": machine(),
        "versions": versions(),
    }


@dataclass(frozen=True)
class Report:
    """Write the page and the picture from the measurements."""

    source: Path = RESULTS
    """The measurements."""

    @property
    def page(self) -> Path:
        return self.source.with_suffix(".md")


def report(config: Report) -> None:
    rows = json.loads(config.source.read_text())
    with replacing(config.page, force=True) as fresh:
        fresh.write_text(page(rows, config.source.stem))
    draw(rows, config.source.with_suffix(".svg"))
    print(config.page)


def page(rows: list[dict[str, Any]], stem: str) -> str:
    """The results as Markdown: scores, what got worse, how real the jumps are, times."""
    first = rows[0]
    lines = [
        "# Does stitching help?",
        "",
        f"Policies cloned from the built-in sets ({first['transitions']:,} transitions each) before and after `stitch` "
        f"with the `{first['preset']}` preset: {first['seeds']} seeds of {first['steps']:,} steps, last checkpoint, "
        f"{first['episodes']} episodes each. Mean ± standard deviation over seeds of the normalised score, and the "
        "probability that a seed of TS + BC scores higher than one of BC, with its 95 % interval. Written by "
        "`python -m trajstitch.experiments.gain report` from the measurements beside it.",
        "",
        f"![Scores by set]({stem}.svg)",
        "",
        f"| set | {' | '.join(POLICIES.values())} | TS + BC better than BC |",
        f"|---|{'---|' * (len(POLICIES) + 1)}",
    ]
    for row in rows:
        cells = [str(Summary.of(np.array(row["scores"][label]))) for label in POLICIES]
        better = probability_of_improvement([np.array(row["scores"]["stitched"])], [np.array(row["scores"]["bc"])])
        lines.append(f"| {row['set']} | {' | '.join(cells)} | {_probability(better)} |")
    every = {label: [np.array(row["scores"][label]) for row in rows] for label in POLICIES}
    lines += [
        "",
        "Interquartile mean over all sets and seeds, with a stratified bootstrap 95 % interval: "
        + "; ".join(f"{title} {interquartile_mean(*every[label])}" for label, title in POLICIES.items())
        + ".",
        "",
        "Probability of improvement over all sets: TS + BC over BC "
        f"{_probability(probability_of_improvement(every['stitched'], every['bc']))}, TS + 10 % BC over 10 % BC "
        f"{_probability(probability_of_improvement(every['stitched_top'], every['top']))}.",
        "",
        _worse(rows),
        "",
        "## The data",
        "",
        "Mean score of the trajectories, the share of steps that are jumps, the share of the logged states that the "
        "result still visits, and the simulator's word on the jumps: median error over the step's own length (0 is "
        "real, 1 is as wrong as staying put) and median reward error.",
        "",
        "| set | before | after | jumps | states kept | error / length | reward error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        truth = row["truth"]
        told = f"{truth['median_ratio']:.3f} | {truth['median_reward_error']:.3f}" if truth["steps"] else "none | none"
        lines.append(
            f"| {row['set']} | {row['before']:.1f} | {row['after']:.1f} | {row['jumps']:.2%} | "
            f"{row['states_kept']:.0%} | {told} |"
        )
    lines += ["", "## Times", "", "Seconds on " + "; ".join(sorted({row["machine"] for row in rows})) + ".", ""]
    stages = ("collect", "models", "graph", "passes")
    lines += [f"| set | {' | '.join(stages)} | 5 clones |", f"|---|{'---|' * 5}"]
    for row in rows:
        cells = [f"{row['seconds'].get(stage, 0):.0f}" for stage in stages]
        lines.append(f"| {row['set']} | {' | '.join(cells)} | {row['seconds']['clone stitched']:.0f} |")
    found = "; ".join(
        dict.fromkeys(", ".join(f"{name} {number}" for name, number in row["versions"].items()) for row in rows)
    )
    return "\n".join([*lines, "", "Command:", "", f"    {_command(rows)}", "", f"Versions: {found}.", ""])


def _command(rows: list[dict[str, Any]]) -> str:
    """How to measure the same again."""
    given = [
        f" --{item.name} {rows[0][item.name]}"
        for item in fields(Measure)
        if item.name in rows[0] and rows[0][item.name] != item.default
    ]
    return (
        f"python -m trajstitch.experiments.gain measure --sets {' '.join(row['set'] for row in rows)}{''.join(given)}"
    )


def _probability(found: Interval) -> str:
    return f"{found.value:.2f}" + ("" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]")


def _worse(rows: list[dict[str, Any]]) -> str:
    """What got worse by more than chance, said first."""
    found = []
    for ours, theirs in (("stitched", "bc"), ("stitched_top", "top")):
        for row in rows:
            one = probability_of_improvement([np.array(row["scores"][ours])], [np.array(row["scores"][theirs])])
            if one.high is not None and one.high < 0.5:
                found.append(f"{POLICIES[ours]} than {POLICIES[theirs]} on {row['set']}")
    return f"Worse by more than chance: {'; '.join(found)}." if found else "Nothing got worse by more than chance."


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of BC and TS + BC by set, with every seed as a dot."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for offset, label, colour in ((-0.2, "bc", "#b8c0c8"), (0.2, "stitched", "#2a7f62")):
        places = np.arange(len(rows)) + offset
        scores = [np.array(row["scores"][label]) for row in rows]
        axes.bar(places, [one.mean() for one in scores], 0.38, color=colour, label=POLICIES[label])
        for place, one in zip(places, scores, strict=True):
            axes.plot(np.full(len(one), place), one, ".", color="#30363c", markersize=3, alpha=0.7)
    axes.set_xticks(range(len(rows)), [row["set"].replace("/", "\n") for row in rows], fontsize=8)
    axes.set_ylabel("normalised score")
    axes.set_title("Behavioural cloning of the logged and of the stitched data", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    asked = tyro.extras.subcommand_cli_from_dict({"measure": Measure, "report": Report})
    measure(asked) if isinstance(asked, Measure) else report(asked)


if __name__ == "__main__":
    main()
