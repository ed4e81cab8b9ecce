"""What the page shows of a training and its evaluation."""

from typing import Any

import numpy as np

from trajstitch.errors import InputError
from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.scores import Interval, Summary
from trajstitch.policies.policy import checkpoints
from trajstitch.report.entry import Entry, Table, config_text, record_of, short_source
from trajstitch.report.trust import own_verdict, training_reasons
from trajstitch.report.values import number, percent, short
from trajstitch.storage.runs import Run, damaged

CURVE = 400
"""Points of a learning curve, at most."""


def train_entry(run: Run, title: str) -> Entry:
    """Return what the page shows of a training; with scores or estimates, if `evaluate` stored some."""
    found = checkpoints(run.folder)
    if not found:
        raise InputError(f"{run.folder}: holds no checkpoints yet; continue its training with `resume=True`")
    scores, errors, estimate = _scores(run), _errors(run), _estimate(run)
    charts: dict[str, Any] = {}
    if curves := _curves(run.metrics()):
        charts["curves"] = curves
    if scores is not None:
        charts["scores"] = _checkpoints(scores)
    tables = {"policies": _table(scores, errors)} if scores or errors else {}
    if estimate is not None:
        tables["estimates"] = _estimates(estimate)
    config = {name: value for name, value in run.config.items() if name not in ("columns",)}
    record = record_of(run.facts, run.config)
    if run.has("seconds"):
        with damaged(run.path("seconds.json")):
            record.append(("Time taken", f"training {float(run.read_json('seconds')['training']):,.0f} s"))
    return Entry(
        title=title,
        kind="train",
        what=f"{run.config.get('policy', 'policy')} of {_learned_from(run)}",
        headline=headline(run, scores, estimate),
        reasons=training_reasons(errors, scores, estimate),
        figures=_figures(run, scores, errors, len(found)),
        record=record,
        config=config_text(config),
        charts=charts,
        tables=tables,
        notes={} if estimate is None else {"estimate": str(estimate["sentence"])},
        scores=scores,
    )


def headline(run: Run, scores: dict[str, Any] | None, estimate: dict[str, Any] | None) -> str:
    """Return in one sentence what the policies achieve."""
    policy, learned = run.config.get("policy", "policy"), _learned_from(run)
    if scores is not None:
        unit = "return" if scores.get("reference") is None else "score"
        iqm = scores["last"]["iqm"]
        interval = "" if iqm["low"] is None else f" (95 % interval {number(iqm['low'])} to {number(iqm['high'])})"
        return (
            f"Policies trained by {policy} on {learned} reach a {unit} of {number(iqm['value'])}{interval}; "
            f"the mean of what they learned from is {number(scores['data']['score'])}."
        )
    if estimate is not None:
        return f"Policies were trained by {policy} on {learned}. {estimate['sentence']}"
    return f"Policies were trained by {policy} on {learned}; `trajstitch evaluate` has not scored them yet."


def _learned_from(run: Run) -> str:
    source, top = short_source(str(run.config.get("source", "the data"))), run.config.get("top", 1.0)
    return source if top == 1.0 else f"the best {percent(top)} of {source}"


def _scores(run: Run) -> dict[str, Any] | None:
    if not run.has("scores"):
        return None
    again = f"run `trajstitch evaluate {run.folder}` again"
    found = run.read_json("scores", advice=again)
    with damaged(run.path("scores.json"), again):
        for part in (found["last"], *found["checkpoints"], *([found["best"]] if "best" in found else [])):
            summary = Summary.from_json(part)
            for value in (summary.mean, summary.iqm.value, *(v for v in summary.iqm[1:] if v is not None)):
                float(value)
        float(found["data"]["score"])
        if not all(isinstance(part["steps"], int) for part in found["checkpoints"]):
            raise TypeError("a checkpoint's steps are no number")
        if not all(isinstance(found[name], int) for name in ("steps", "of_steps", "episodes")):
            raise TypeError("its steps are no number")
        list(map(int, found["seeds"]))
    return found


def _errors(run: Run) -> dict[str, Any] | None:
    if not run.has("action-error"):
        return None
    found = run.read_json("action-error")
    with damaged(run.path("action-error.json")):
        list(map(float, [*found["action_error"], found["baseline"]]))
        list(map(int, found["no_better_than_constant"]))
        bool(found["held_out"])
    return found


def _estimate(run: Run) -> dict[str, Any] | None:
    if not run.has("estimate"):
        return None
    again = f"run `trajstitch evaluate {run.folder}` again"
    found = run.read_json("estimate", advice=again)
    with damaged(run.path("estimate.json"), again):
        _estimates(found)
        own_verdict(found)
        str(found["sentence"])
    return found


def _estimates(found: dict[str, Any]) -> Table:
    """Return what logged data alone tells about the returns of the runs that were compared."""
    verdicts = {(one["name"], one["than"]): one["verdict"] for one in found["verdicts"]}
    rows = []
    for one in found["estimates"]:
        known = "unknown" if one["estimated"] is None else _interval(one["estimated"])
        shares = percent(one["outside"]), number(one["action_error"])
        rows.append((str(one["name"]), known, *shares, str(verdicts[one["name"], LOGGED])))
    rows.append((LOGGED, _interval(found["logged"]), percent(0.0), "–", "–"))
    rows.append(("always the mean action", "–", "–", number(found["constant_error"]), "–"))
    head = (
        f"over {found['horizon']:,} steps",
        "estimated return [95 %]",
        "beyond the data",
        "action error",
        "than logged",
    )
    return Table(head, rows)


def _interval(part: dict[str, Any]) -> str:
    found = Interval(**part)
    return number(found.value) + ("" if found.low is None else f" [{number(found.low)}, {number(found.high)}]")


def _figures(
    run: Run, scores: dict[str, Any] | None, errors: dict[str, Any] | None, count: int
) -> list[tuple[str, str]]:
    seeds = run.config.get("seeds")
    found = [("policies (seeds)", f"{seeds}"), ("checkpoints", f"{count:,}")]
    if scores is not None:
        found.append(("episodes of each", f"{scores['episodes']:,}"))
        found.append(("environment", f"{scores.get('environment')}"))
    if errors is not None:
        mean = float(np.mean(errors["action_error"]))
        found.append(("action error", number(mean)))
        found.append(("error of the mean action", number(float(errors["baseline"]))))
    return found


def _curves(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics by step, thinned out; only those that are numbers in every line."""
    lines = [line for line in metrics if isinstance(line.get("step"), int)]
    if len(lines) > CURVE:
        lines = [lines[at] for at in np.linspace(0, len(lines) - 1, CURVE).round().astype(int)]
    names = [name for name in (lines[0] if lines else {}) if name != "step"]
    names = [name for name in names if all(isinstance(line.get(name), int | float) for line in lines)]
    if len(lines) < 2 or not names:
        return {}
    steps = [line["step"] for line in lines]
    return {"steps": steps, "metrics": {name: short(np.array([float(line[name]) for line in lines])) for name in names}}


def _checkpoints(scores: dict[str, Any]) -> dict[str, Any]:
    """Return every seed's score at every checkpoint."""
    return {
        "unit": "return" if scores.get("reference") is None else "score",
        "seeds": [int(seed) for seed in scores["seeds"]],
        "steps": [part["steps"] for part in scores["checkpoints"]],
        "scores": [short(np.array(part["scores"], np.float64)) for part in scores["checkpoints"]],
        "iqm": [part["iqm"] for part in scores["checkpoints"]],
        "data": float(scores["data"]["score"]),
    }


def _table(scores: dict[str, Any] | None, errors: dict[str, Any] | None) -> Table:
    rows = []
    if scores is not None:
        for name, key in (("last checkpoint (methods are ranked by it)", "last"), ("best of each seed", "best")):
            if key in scores:
                part = Summary.from_json(scores[key])
                rows.append((name, str(part), str(part.iqm), _listed(part.scores)))
        rows.append(("mean of what they learned from", f"{scores['data']['score']:.1f}", "–", "–"))
    if errors is not None:
        where = "held-out" if errors["held_out"] else "training"
        values = [float(value) for value in errors["action_error"]]
        rows.append((f"action error, {where} steps", number(float(np.mean(values))), "–", _listed(tuple(values))))
        rows.append(("action error of always the mean action", number(float(errors["baseline"])), "–", "–"))
    unit = "" if scores is None else "return" if scores.get("reference") is None else "score"
    return Table((unit, "mean ± std", "interquartile mean [95 %]", "each seed"), rows)


def _listed(values: tuple[float, ...], most: int = 10) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(number(value) for value in values[:most]) + more
