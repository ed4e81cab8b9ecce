"""Several runs side by side: one table, one sentence, and every seed's score."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trajstitch.evaluation.scores import probability_of_improvement
from trajstitch.report.entry import Entry, Table
from trajstitch.report.trust import Light
from trajstitch.report.values import number, percent, short

CONDITIONS = ("environment", "environment_spec", "reference", "episodes", "first_seed")
"""What scores must agree in to be compared."""


def sentence(entries: Sequence[Entry]) -> str:
    """Return which run does best, in one sentence."""
    scored = [(entry, entry.scores) for entry in entries if entry.scores is not None]
    if len(scored) < 2:
        known = [
            (entry.title, entry.charts["returns"]) for entry in entries if "after" in entry.charts.get("returns", {})
        ]
        means = [f"{_means(returns)} in {title}" for title, returns in known]
        estimates = [entry.notes["estimate"] for entry in entries if "estimate" in entry.notes]
        if estimates or not means:
            return estimates[0] if estimates else f"{len(entries)} runs, none with scores."
        return f"Mean return of the data: {', '.join(means)}."
    if not comparable([scores for _, scores in scored]):
        return "These runs were evaluated under different conditions, so their scores can't be compared."
    ranked = sorted(scored, key=lambda pair: -pair[1]["last"]["iqm"]["value"])
    (best, ours), (other, theirs) = ranked[0], ranked[-1]
    unit = "return" if ours.get("reference") is None else "score"
    better = probability_of_improvement(*([np.array(scores["last"]["scores"])] for scores in (ours, theirs)))
    ranking = (
        f"{best.title} has the highest {unit}, {number(ours['last']['iqm']['value'])}; {other.title} has "
        f"{number(theirs['last']['iqm']['value'])}."
    )
    if better.low is None:
        pairs = f"in {percent(better.value)} of the pairs of seeds"
        return f"{ranking} A policy of the first beats one of the other {pairs}: too few seeds to tell from chance."
    chance = ", which may be chance" if better.low <= 0.5 else ""
    return (
        f"{ranking} A policy of the first beats one of the other with a probability of {percent(better.value)} "
        f"(95 % interval {percent(better.low)} to {percent(better.high)}){chance}."
    )


def comparable(several: Sequence[dict[str, Any]]) -> bool:
    """Return whether scores were measured under the same conditions."""
    return all(scores.get(name) == several[0].get(name) for scores in several for name in CONDITIONS)


def table(entries: Sequence[Entry]) -> Table:
    """Return the runs, one a row."""
    rows = []
    for entry in entries:
        returns, score = _means(entry.charts.get("returns", {})), "–"
        if entry.scores is not None:
            iqm = entry.scores["last"]["iqm"]
            score = number(iqm["value"]) + (
                "" if iqm["low"] is None else f" [{number(iqm['low'])}, {number(iqm['high'])}]"
            )
        jumps = dict(entry.figures).get("of steps are jumps", "–")
        rows.append((entry.title, score, entry.verdict, entry.what, returns or "–", jumps))
    head = ("run", "policies’ interquartile mean [95 %]", "verdict", "what it is", "mean return of the data", "jumps")
    known = [at for at in range(len(head)) if any(row[at] != "–" for row in rows)]
    lights: list[Light] = [entry.light for entry in entries]
    return Table(tuple(head[at] for at in known), [tuple(row[at] for at in known) for row in rows], lights)


def _means(returns: dict[str, Any]) -> str:
    return " → ".join(number(returns[key]["mean"]) for key in ("before", "after") if key in returns)


def chart(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Return every seed's last score of each run that has some; None if fewer than two have, or can't be compared."""
    scored = [entry for entry in entries if entry.scores is not None]
    if len(scored) < 2 or not comparable([entry.scores for entry in scored if entry.scores is not None]):
        return None
    rows = []
    for entry in scored:
        assert entry.scores is not None
        last = entry.scores["last"]
        rows.append(
            {
                "name": entry.title,
                "scores": short(np.array(last["scores"], np.float64)),
                "iqm": last["iqm"],
                "data": float(entry.scores["data"]["score"]),
            }
        )
    return {"runs": rows, "unit": "return" if scored[0].scores.get("reference") is None else "score"}  # pyright: ignore
