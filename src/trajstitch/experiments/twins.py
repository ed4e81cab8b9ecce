"""The page about the built-in sets beside D4RL's.

python -m trajstitch.experiments.twins measure
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from trajstitch.benchmark import sets
from trajstitch.benchmark.collect import Collect, collect
from trajstitch.benchmark.d4rl_facts import D4RL, TOLERANCES, SetFacts, misses, scaled
from trajstitch.benchmark.ladder import Ladder, load_ladder, shipped
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.scores import Summary
from trajstitch.experiments import pages
from trajstitch.experiments.cells import is_stale, read_results, rounded, score
from trajstitch.experiments.command import run_command
from trajstitch.experiments.comparison import NONE
from trajstitch.experiments.figures import COLOURS, INK, svg, tasks_of
from trajstitch.experiments.provenance import now, this_call
from trajstitch.learning.bounds import Bounds
from trajstitch.progress import logger
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.runs import write_json

BINS = 40
"""Of the histograms, which reach from the least to a tenth above the best return of the task's sets in D4RL; returns
beyond are counted in the outermost."""
SETS = sets.LIKE_D4RL
"""The sets that D4RL has too, in the page's order."""
LEARNERS = {"bc": "BC", "top-bc": "10 % BC", "td3-bc": "TD3+BC", "iql": "IQL"}
_PUBLISHED = {
    "bc": {"hopper": (53.5, 29.8, 52.3), "halfcheetah": (42.4, 35.7, 56.0), "walker2d": (63.2, 21.8, 99.0)},
    "top-bc": {"hopper": (55.5, 70.4, 111.2), "halfcheetah": (42.5, 23.6, 90.1), "walker2d": (67.3, 54.4, 108.7)},
    "td3-bc": {"hopper": (60.4, 64.4, 101.2), "halfcheetah": (48.1, 44.8, 90.8), "walker2d": (82.7, 85.6, 110.0)},
    "iql": {"hopper": (67.5, 97.4, 107.4), "halfcheetah": (48.3, 44.5, 94.7), "walker2d": (80.9, 82.2, 111.7)},
}
PUBLISHED = {
    (f"{task}/{kind}", method): value
    for method, tasks in _PUBLISHED.items()
    for task, values in tasks.items()
    for kind, value in zip(("medium", "medium-replay", "medium-expert"), values, strict=True)
}
"""Scores of the last checkpoint on D4RL v2, as CORL publishes them."""


@dataclass(frozen=True)
class Measure:
    """Collect the built-in sets and write the page. Sets that it holds already, of the same size, are kept."""

    transitions: Annotated[int, Bounds(1)] | None = None
    """Transitions of each set; its full size if not given."""
    ladders: tuple[Path, ...] = ()
    """Ladder files to collect with, at most one a task, in place of the shipped ones."""
    table1: Path = Path("docs/results/full-size/table1.json")
    """Results of `trajstitch reproduce table1`, for the scores of learners on these sets."""
    to: Path = Path("docs/results/sets.md")
    """The page; its numbers and its figure are put beside it."""


def measure(asked: Measure) -> None:
    call, results = this_call(), asked.to.with_suffix(".json")
    known = json.loads(results.read_text()) if results.exists() else {}
    own = {load_ladder(path).task: path for path in asked.ladders}
    for name in SETS:
        which = sets.built_in(name)
        path = own.get(which.task, shipped(which.task, which.algorithm))
        ladder = load_ladder(path)
        facts = {"transitions": asked.transitions, "ladder": about(ladder)}
        if name in known and all(known[name]["asked"][key] == value for key, value in facts.items()):
            logger.info(f"{name}: measured already")
            continue
        data = collect(Collect(name, asked.transitions, ladder=path))
        known[name] = described(name, data) | {"asked": facts, "call": call, "measured": now()}
        write_json(results, known)
    pages.write(asked.to, page(known, asked))
    draw(known, asked.to.with_suffix(".svg"))
    print(asked.to)


def about(ladder: Ladder) -> dict[str, Any]:
    """Return which policies a ladder has sets made with."""
    return {
        "algorithm": ladder.algorithm,
        "seed": ladder.seed,
        "medium": ladder.medium.steps,
        "expert": ladder.expert.steps,
        "command": ladder.command,
    }


def described(name: str, data: Trajectories) -> dict[str, Any]:
    """Return the facts of a set and the histogram of its returns, as JSON values."""
    of_task = [facts for other, facts in D4RL.items() if other.split("/")[0] == name.split("/")[0]]
    low, high = min(one.worst for one in of_task), 1.1 * max(one.best for one in of_task)
    counts, edges = np.histogram(np.clip(data.returns, low, high), BINS, (low, high))
    facts = asdict(SetFacts.of(data.returns, data.steps))
    return {"facts": rounded(facts), "counts": counts.tolist(), "edges": rounded(edges.tolist())}


def page(known: dict[str, Any], asked: Measure) -> str:
    calls = [one["call"] for one in known.values()]
    return pages.render(
        "sets.md.j2",
        sets=set_table(known),
        outside=[line for name in SETS for line in outside(name, known[name])],
        reduced=sorted({one["asked"]["transitions"] for one in known.values() if one["asked"]["transitions"]}),
        algorithms=sorted({one["asked"]["ladder"]["algorithm"] for one in known.values()}),
        ladders=ladder_table(known),
        learners=learner_table(asked.table1),
        table1=os.path.relpath(asked.table1.with_suffix(".md"), asked.to.parent),
        tolerances=TOLERANCES,
        figure=asked.to.with_suffix(".svg").name,
        commands=sorted({call["command"] for call in calls}),
        commits=sorted({call["commit"] for call in calls}),
        machines=sorted({call["machine"] for call in calls}),
        versions=sorted({", ".join(f"{name} {one}" for name, one in call["versions"].items()) for call in calls}),
    )


def set_table(known: dict[str, Any]) -> str:
    rows = []
    for name in SETS:
        original, ours = D4RL[name], SetFacts(**known[name]["facts"])
        whole = scaled(ours, original)
        off = misses(whole, original)
        of_size = f"{off['transitions']:+.0%}" if whole == ours else NONE
        for whose, one in (("D4RL's", original), ("ours", ours)):
            numbers = (one.trajectories, one.transitions, one.mean, one.sd, one.worst, one.best)
            rows.append([name, whose, *(f"{number:,.0f}" for number in numbers)])
        rows.append(["", "off by", f"{off['trajectories']:+.0%}", of_size])
        rows[-1] += [f"{off['mean']:+.0%}", f"{off['sd']:+.0%}", "", f"{off['best']:+.0%}"]
    return markdown_table(["set", "", "trajectories", "transitions", "mean return", "sd", "min", "max"], rows)


def outside(name: str, one: dict[str, Any]) -> list[str]:
    """Return in words which facts of a set are beyond their tolerance, if any are."""
    off = misses(scaled(SetFacts(**one["facts"]), D4RL[name]), D4RL[name])
    far = [f"{fact} {miss:+.0%}" for fact, miss in off.items() if abs(miss) > TOLERANCES[fact]]
    return [f"{name}: {', '.join(far)}"] if far else []


def ladder_table(known: dict[str, Any]) -> str:
    ladders = {name.split("/")[0]: one["asked"]["ladder"] for name, one in known.items()}
    rows = [
        [
            task,
            one["algorithm"].upper(),
            str(one["seed"]),
            f"{one['medium']:,}",
            f"{one['expert']:,}",
            f"`{one['command']}`",
        ]
        for task, one in ladders.items()
    ]
    return markdown_table(["task", "algorithm", "seed", "medium after steps", "expert after steps", "command"], rows)


def learner_table(results: Path) -> str | None:
    """Return the published scores of learners on D4RL beside ours on ours, or None if none are measured."""
    if not results.exists():
        return None
    scores: dict[tuple[str, str], list[float]] = {}
    for one in (one for one in read_results(results) if not is_stale(one)):
        scores.setdefault((one["set"], one["method"]), []).append(score(one))
    if not scores:
        return None

    def ours(name: str, method: str) -> str:
        some = scores.get((name, method))
        return NONE if some is None else str(Summary.of(np.array(some)))

    names = list(dict.fromkeys(name for name, _ in PUBLISHED))
    rows = [
        [name, *(text for method in LEARNERS for text in (f"{PUBLISHED[name, method]:.1f}", ours(name, method)))]
        for name in names
    ]
    return markdown_table(
        ["set", *(f"{title}, {whose}" for title in LEARNERS.values() for whose in ("D4RL", "ours"))], rows
    )


def draw(known: dict[str, Any], path: Path) -> None:
    """Draw the histogram of each set's returns, with the mean, standard deviation, least and best of D4RL's."""
    tasks = tasks_of(SETS)
    with svg(path, len(tasks), (11, 5), png=True) as (_, panels):
        for axes, (task, some) in zip(panels, tasks.items(), strict=True):
            for row, (name, colour) in enumerate(zip(some, COLOURS, strict=False)):
                counts, edges = np.array(known[name]["counts"]), np.array(known[name]["edges"])
                heights = 0.7 * counts / max(counts.max(), 1)
                axes.stairs(heights + row, edges, baseline=row, fill=True, color=colour, alpha=0.8)
                original = D4RL[name]
                axes.plot([original.worst, original.best], [row - 0.1] * 2, color=INK, linewidth=0.8)
                spread = [original.mean - original.sd, original.mean + original.sd]
                axes.plot(spread, [row - 0.1] * 2, color=INK, linewidth=3)
                axes.plot(original.mean, row - 0.1, "|", color=INK, markersize=10)
            axes.set_yticks(range(len(some)), [name.split("/")[1] for name in some])
            axes.set(title=task, xlabel="return")


if __name__ == "__main__":
    run_command({Measure: measure})
