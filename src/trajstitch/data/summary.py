"""The facts about a data set that `trajstitch inspect` shows: sizes, returns, histograms and every check."""

import math
from typing import Any

import numpy as np

from trajstitch.data import environments
from trajstitch.data.checks import ADVICE, check, column_names
from trajstitch.data.stitch_record import StitchRecord, describe_stitching
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.errors import one_line

BINS = 48
"""Bins of a histogram: divides well into the widths of terminals."""


def inspect(data: Trajectories) -> dict[str, Any]:
    """Return everything that `trajstitch inspect` shows, as JSON values; NaN and infinite numbers become None."""
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
            "stitching": describe_stitching(data),
            "warnings": list(record.warnings) if (record := StitchRecord.of(data.metadata)) else [],
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


def three_lines(data: Trajectories) -> str:
    """Return a data set's size, columns and episodes as three lines, for `print(data)`."""
    with np.errstate(invalid="ignore", over="ignore"):
        returns = data.returns
        mean, low, high = returns.mean(), returns.min(), returns.max()
    about = data.metadata
    where = f" ({about.source})" if about.source and about.source != about.name else ""
    columns = []
    for part, size in (("observation", data.observation_size), ("action", data.action_size)):
        names = column_names(data, part)
        columns.append(f"{size} {part}{'' if size == 1 else 's'}" + (f" ({_shortened(names)})" if names else ""))
    labels = data.labels
    named = [] if labels is None or labels.episodes is None else labels.episodes.tolist()
    lengths = data.lengths
    steps = f"{lengths.min():,}" if lengths.min() == lengths.max() else f"{lengths.min():,} to {lengths.max():,}"
    return "\n".join(
        (
            f"{one_line(about.name + where)}: {len(data):,} episodes, {data.steps:,} steps",
            ", ".join(columns),
            f"episodes{f' {_shortened(named)}' if named else ''} of {steps} steps, with returns of {mean:.5g} "
            f"(from {low:.5g} to {high:.5g})",
        )
    )


def _shortened(names: list[str], most: int = 6) -> str:
    return one_line(", ".join(names if len(names) <= most else [*names[: most - 2], "...", names[-1]]))


def _histogram(values: np.ndarray, *, whole: bool) -> dict[str, Any]:
    """Return the counts of bins of equal width; integers (`whole`) get a bin each if these are at most BINS."""
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return {"low": None, "high": None, "edges": [], "counts": []}
    low, high = float(values.min()), float(values.max())
    if whole and high - low < BINS:
        edges = np.arange(low, high + 2) - 0.5
    else:  # scaled down, since the range of very large numbers overflows
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
