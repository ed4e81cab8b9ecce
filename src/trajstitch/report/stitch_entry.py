"""What the page shows of a stitching."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from trajstitch.data import ragged
from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.environments import normalised, reference
from trajstitch.data.trajectories import Trajectories
from trajstitch.report.card import card
from trajstitch.report.entry import Entry, Table, config_text, record_of, short_source
from trajstitch.report.gain import gain_interval
from trajstitch.report.state_map import StateMap, reward_to_come, shown_names, states_payload, telling_columns
from trajstitch.report.stitch_run import StitchRun, states_kept
from trajstitch.report.trust import stitching_reasons
from trajstitch.report.values import number, percent, short
from trajstitch.report.viewer import choose_trajectories, jumps_payload, trajectory_payload
from trajstitch.stitching.capacity import capacity
from trajstitch.storage.runs import damaged

SHOWN_ELSEWHERE = ("jumps_may_miss",)
ALSO = {
    "median_consistency": "half of the steps are missed by less than {} of their length",
    "90%_consistency": "90 % of them by less than {}",
    "told_by_the_step_before": "the step before would explain {} more",
    "told_by_its_change": "its change alone {}",
    "told_by_its_action": "its action alone {}",
}
"""Fit reports' other metrics, in words."""
BINS = 40
STATES, JUMPS, TRAJECTORIES = 5_000, 600, 24
"""States and jumps on the map, and trajectories in the viewer, of a page with one run."""


def stitch_entry(run: StitchRun, share: float = 1.0) -> Entry:
    """Return what the page shows of a stitching; `share` is this run's share of the page's room."""
    charts, tables, notes = {}, {}, {}
    data = run.after or run.before
    if data is not None:
        charts["returns"] = _histograms(run, "returns")
        charts["lengths"] = _histograms(run, "lengths")
    if run.reports:
        tables["models"] = _models(run)
        charts |= _doubt(run)
    if run.after is not None:
        tables["limits"] = _limits(run)
        tables["passes"] = _passes(run)
        drawn, notes = _map(run, share)
        charts |= drawn
        charts |= _consistency(run) | _calibration(run)
    seconds = run.seconds or {}
    times = ", ".join(f"{stage} {took:,.0f} s" for stage, took in seconds.items())
    record = record_of(run.facts, {**run.facts.get("config", {}), **run.facts.get("job", {})})
    if times:
        record.append(("Time taken", times))
    if run.after is not None:
        record.append(("Fingerprint of the result", run.after.fingerprint))
    return Entry(
        title=run.title,
        kind="stitch",
        what=f"stitching of {short_source(str(run.facts.get('config', {}).get('source')))}",
        headline=headline(run),
        reasons=stitching_reasons(run),
        figures=_figures(run),
        record=record,
        config=config_text(run.config),
        charts=charts,
        tables=tables,
        notes=notes,
        card=_card(run),
    )


def _card(run: StitchRun) -> str | None:
    """Return the data card, as `stitch` writes it beside what it saves; None without the source data."""
    if run.before is None:
        return None
    target = str({**run.facts.get("config", {}), **run.facts.get("job", {})}.get("target", run.title))
    return card(run.before, run.after or run.before, run.reports, run.facts, uri=target, reason=run.reason)


def headline(run: StitchRun) -> str:
    """Return in one sentence what was improved and by how much, with the interval over trajectories."""
    before, after = run.before, run.after
    if after is None:
        return f"Stitching left the data unchanged: {run.reason}."
    if before is None:
        mean = number(float(after.returns.mean()))
        return f"The stitched data has a mean return of {mean}; what it was before is unknown."
    old, new = float(before.returns.mean()), float(after.returns.mean())
    gain = f"{'+' if new >= old else ''}{number(new - old)}"
    if (interval := gain_interval(before, after)) is not None:
        gain += f"; 95 % interval {number(interval[0])} to {number(interval[1])}"
    if new == old:
        return f"Stitching changed no trajectory: the mean return stays {number(old)}."
    verb = "raised" if new > old else "lowered"
    return f"Stitching {verb} the data’s mean return from {number(old)} to {number(new)} ({gain})."


def _figures(run: StitchRun) -> list[tuple[str, str]]:
    found = []
    if run.before is not None:
        found.append(("logged trajectories", f"{len(run.before):,}"))
        found.append(("logged transitions", f"{run.before.steps:,}"))
    if run.after is None or run.after.provenance is None:
        return found
    stitched = run.after.provenance.stitched
    if run.before is not None and reference(run.after.metadata):
        means = (normalised(part.returns.mean(), run.after.metadata) for part in (run.before, run.after))
        found.append(("score (100: expert)", " → ".join(number(float(mean)) for mean in means)))
    changed = int((ragged.sums(stitched, run.after.lengths) > 0).sum())
    found.append(("trajectories rebuilt", f"{changed:,}"))
    found.append(("of steps are jumps", percent(float(stitched.mean()) if len(stitched) else 0.0)))
    if run.before is not None and run.before.provenance is None:
        found.append(("of states still visited", percent(states_kept(run.before, run.after))))
    return found


def _histograms(run: StitchRun, name: str) -> dict[str, Any]:
    """Return counts of before and after in the same bins, in shares of the trajectories."""
    sets = {"before": run.before, "after": run.after}
    values = {key: getattr(data, name).astype(np.float64) for key, data in sets.items() if data is not None}
    every = np.concatenate([*values.values()])
    low, high = float(every.min()), float(every.max())
    if name == "lengths" and high - low < BINS:
        edges = np.arange(low, high + 2) - 0.5
    else:
        room = 0.5 if low == high else 0.0
        edges = 4 * np.linspace((low - room) / 4, (high + room) / 4, BINS + 1)  # very large ranges overflow
    found: dict[str, Any] = {"edges": short(edges, 8)}
    for key, some in values.items():
        found[key] = {
            "share": short(np.histogram(some, edges)[0] / max(len(some), 1)),
            "mean": float(some.mean()),
            "count": len(some),
        }
    return found


def _models(run: StitchRun) -> Table:
    rows = []
    for report in run.reports:
        metrics = dict(report.metrics)
        baseline, explained = metrics.pop("baseline", None), metrics.pop("R²", None)
        name = next(iter(metrics), None)
        value = None if name is None else metrics.pop(name)
        more = "; ".join(_also(key, one) for key, one in metrics.items() if key not in SHOWN_ELSEWHERE)
        rows.append(
            (
                report.model,
                (name or "–").replace("_", " "),
                number(value),
                number(baseline),
                percent(explained),
                "NO" if not report.beats_baseline else "yes" if baseline is not None else "–",
                more or "–",
            )
        )
    return Table(("model", "measure", "held out", "baseline", "explained", "beats it", "also measured"), rows)


def _also(name: str, value: float) -> str:
    known = ALSO.get(name)
    return f"{name.replace('_', ' ')} {number(value)}" if known is None else known.format(percent(value))


def _limits(run: StitchRun) -> Table:
    """Return the limits that jumps and trajectories had to keep, and what they let through."""
    rows = []
    for report in run.reports:
        if "jumps_may_miss" in report.metrics:
            share = percent(report.metrics["jumps_may_miss"])
            rows.append(("A jump may miss its target by", f"{share} of its length", "from held-out logged steps"))
    if run.precedent is not None:
        near = f"{percent(run.precedent)} of its length"
        rows.append(("A logged step like the jump must be within", near, "from logged steps: one in ten has one"))
    most = run.config.get("plan", {}).get("max_visits")
    if isinstance(most, int | float) and run.before is not None:
        visits, uses = capacity(len(run.before), most)
        rows.append(("Trajectories that may visit a state", f"{visits:,}", "from the number of trajectories"))
        rows.append(("Trajectories that may make the same jump", f"{uses:,}", "from the number of trajectories"))
    doubt = run.config.get("plan", {}).get("doubt")
    if isinstance(doubt, int | float):
        rows.append(("Of what it gains, a walk may lose of one reward", percent(doubt), "setting"))
        count = sum(one.get("cut", 0) for one in run.passes)
        rows.append(("Trajectories that end before a reward they might miss", f"{count:,}", "counted"))
    for name, test in run.config.get("tests", {}).items():
        for key in ("limit", "margin"):
            if isinstance(test, dict) and isinstance(test.get(key), int | float):
                rows.append((f"Jump test “{name}”: {key}", number(test[key]), "setting"))
    if run.candidates:
        passed = f"{run.edges:,} of {run.candidates:,} ({percent((run.edges or 0) / run.candidates)})"
        rows.append(("Possible jumps that passed every test", passed, "counted"))
    elif run.edges is not None:
        rows.append(("Possible jumps that passed every test", f"{run.edges:,}", "counted"))
    rows.append(("Jumps made", f"{sum(len(one.jumps) for one in run.stitchings):,}", "counted"))
    if run.before is not None:
        rewards = run.before.rewards
        logged = f"{number(float(rewards.min()))} to {number(float(rewards.max()))}" if len(rewards) else "–"
        rows.append(("Rewards of jumps, at the widest", logged, "logged range"))
        names = np.array(shown_names(run.before))
        for kind in ("fixed", "exogenous", "irrelevant"):
            if run.roles is not None and (chosen := getattr(run.roles, kind)).any():
                rows.append((f"Columns that are {kind}", _listed(names[chosen].tolist()), "from the data"))
    if run.after is not None and run.after.provenance is not None and len(run.after):
        rows.append(("Longest trajectory", f"{int(run.after.lengths.max()):,} steps", "counted"))
    return Table(("limit", "value", "where from"), rows)


def _listed(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _passes(run: StitchRun) -> Table:
    rows = []
    for place, one in enumerate(run.passes, 1):
        title = f"seed {one['seed']}" if "seed" in one else f"pass {place}"
        counts = (f"{one[name]:,}" for name in ("proposed", "accepted", "jumps"))
        means = (number(one[name]) for name in ("mean_return", "top_return", "mean_length"))
        rows.append((title, *counts, *means, percent(one["states_kept"])))
    head = ("", "rebuilt", "accepted", "jumps", "mean return", "best 10 %", "mean length", "states kept")
    return Table(head, rows)


def _map(run: StitchRun, share: float) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the map's states and jumps and the viewer's trajectories, and notes on how many are shown."""
    first = run.stitchings[0]
    data = run.before if run.before is not None else first.data
    data = data.filled()
    if not data.steps or not data.observation_size:
        return {}, {}
    roles = run.roles or ColumnRoles.none(data.observation_size)
    states = data.observations[data.state_rows]
    made = StateMap.of(states, roles.controlled)
    value, names = reward_to_come(data), shown_names(data)
    columns = telling_columns(states, value, roles.controlled)
    points = states_payload(data, made, value, max(200, int(STATES * share)))
    jumps = jumps_payload(first.data, first.jumps, made, max(50, int(JUMPS * share)))
    which, gains = choose_trajectories(run.before, first.data, max(4, int(TRAJECTORIES * share)))
    total = int((ragged.sums(first.data.provenance.stitched, first.data.lengths) > 0).sum())  # pyright: ignore
    shown = [trajectory_payload(first.data, first.jumps, int(one), float(gains[one]), made, columns) for one in which]
    charts = {
        "map": {"states": points, "jumps": jumps, "names": _names(data, first.data, points, jumps, shown)},
        "viewer": {
            "names": [names[column] for column in columns],
            "trajectories": shown,
            "known": run.before is not None,
        },
    }
    of = f" of the stitching with seed {first.seed}" if len(run.stitchings) > 1 else ""
    drawn = (_sampled(len(points["x"]), points["of"], "state"), _sampled(len(jumps["from"]), jumps["of"], "jump"))
    axes = "The axes are the two main directions in which the columns that actions control vary"
    axes = f"{axes}: they show {percent(made.explained)} of the variance of {points['columns']} standardised columns."
    if points["columns"] <= 2:
        axes = "The axes are the columns themselves."
    viewed = f"{_sampled(len(shown), total, 'rebuilt trajectory')}{of}, from the largest gain to the smallest"
    if run.simulator is None:
        viewed += ". Where there is a simulator, trajstitch simulate adds each jump’s true miss"
    notes = {
        "map": f"{drawn[0]} and {drawn[1].lower()}{of}. {axes}",
        "viewer": f"{viewed}. The columns are those whose values tell most about the reward to come.",
    }
    return charts, notes


def _names(
    before: Trajectories,
    after: Trajectories,
    points: dict[str, Any],
    jumps: dict[str, Any],
    shown: Sequence[dict[str, Any]],
) -> dict[str, dict[int, str]]:
    """Return the log's own names of the logged episodes and of the trajectories that the page shows, if it has some."""
    # Sources of data that was stitched before are episodes of other data.
    sources = {stretch[2] for one in shown for stretch in one["stretches"]} if before.provenance is None else set()
    return {
        "logged": _named(before, set(points["episode"])),
        "sources": _named(before, sources),
        "trajectories": _named(after, {*jumps["trajectory"], *(one["episode"] for one in shown)}),
    }


def _named(data: Trajectories, episodes: set[int]) -> dict[int, str]:
    names = None if data.labels is None else data.labels.episodes
    return {} if names is None else {one: str(names[one]) for one in sorted(episodes) if one < len(names)}


def _sampled(shown: int, of: int, noun: str) -> str:
    """Return how many of something are shown, in words."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    if shown == of:
        return f"All {of:,} {several}" if of > 1 else f"{of:,} {noun if of else several}"
    return f"A sample of {shown:,} of {of:,} {several}"


def _consistency(run: StitchRun) -> dict[str, Any]:
    scores = [one.jumps.scores["consistency"] for one in run.stitchings if "consistency" in one.jumps.scores]
    values: Float[np.ndarray, " jumps"] = np.concatenate(scores) if scores else np.zeros(0)
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    tests = [test for test in run.config.get("tests", {}).values() if isinstance(test, dict) and "forward" in test]
    limits = [test["limit"] for test in tests if isinstance(test.get("limit"), int | float)]
    high = max([*limits, float(values.max())]) or 1.0
    edges = np.linspace(0, high, 21)
    return {
        "consistency": {
            "edges": short(edges),
            "share": short(np.histogram(values, edges)[0] / len(values)),
            "limit": min(limits) if limits else None,
            "count": len(values),
        }
    }


def _doubt(run: StitchRun) -> dict[str, Any]:
    """Return whether the forward ensemble errs on held-out steps where its members are apart."""
    found = next((report.calibration for report in run.reports if report.calibration), None)
    return {} if found is None else {"doubt": short(np.array(found, np.float64))}


def _calibration(run: StitchRun) -> dict[str, Any]:
    """Return the true error in each tenth of the possible jumps, by the score of the test."""
    tenths = (run.simulator or {}).get("tenths")
    if not isinstance(tenths, dict) or not isinstance(tenths.get("consistency"), list):
        return {}
    with damaged(Path(run.title) / "simulator-check.json", "run `trajstitch simulate` again"):
        rows = np.array(tenths["consistency"], np.float64).reshape(-1, 3)
    return {"calibration": short(rows)}
