"""The traffic light: whether to trust a result, with the reasons."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trajstitch.data.stitch_record import StitchRecord
from trajstitch.evaluation.compare import LOGGED
from trajstitch.report.gain import gain_interval
from trajstitch.report.stitch_run import StitchRun, states_kept
from trajstitch.report.values import number, percent, plural
from trajstitch.stitching.guards import FEW_STATES

Light = Literal["green", "amber", "red"]

LIGHTS: tuple[Light, ...] = ("green", "amber", "red")
WORDS: dict[str, dict[Light, str]] = {
    "stitch": {"green": "Trust it", "amber": "Check it first", "red": "Do not trust it yet"},
    "train": {"green": "Better than its data", "amber": "Not certain", "red": "Worse than its data"},
}
"""What each light means, of a stitching and of a training."""

EXPLAINS = 0.5
"""R² above which a model is good: it removes more than half of its baseline's squared error."""
MISSES = (0.2, 0.5)
"""Share of its length that a jump may miss by, in the simulator or beyond what is usual: good, and acceptable."""
MAY_MISS = (0.3, 0.5)
"""Share of its length that the limit lets a jump miss by in all: good, and acceptable."""
KEPT = 0.25
"""Share of states kept that is good; below FEW_STATES it is bad."""
PREDICTED = (0.1, 0.5)
"""Share of the gain that comes from predicted rewards: good, and acceptable."""


@dataclass(frozen=True)
class Reason:
    """One reason to trust a result, or not to."""

    light: Light
    text: str


def overall(reasons: Sequence[Reason]) -> Light:
    """Return the light of all reasons together: the worst of them."""
    return LIGHTS[max((LIGHTS.index(reason.light) for reason in reasons), default=1)]


def stitching_reasons(run: StitchRun) -> list[Reason]:
    """Return what speaks for and against trusting stitched data."""
    if run.after is None:
        return [Reason("amber", f"The data was left unchanged: {run.reason}."), *_models(run)]
    found = [*_models(run), *_consistency(run), *_simulator(run), *_states(run), *_predicted(run), *_chance(run)]
    record = StitchRecord.of(run.after.metadata)
    if run.before is None:
        found.append(Reason("amber", f"The source data can't be compared: {run.missing}."))
    elif record is not None:
        found += [Reason("amber", f"{text[:1].upper()}{text[1:]}.") for text in record.warnings]
    return found


def own_verdict(estimate: dict[str, Any]) -> str:
    """Return how the run that an estimate is kept in compares with the logged behaviour: better, worse, can't tell."""
    name = estimate["runs"][0]["name"]
    return next(one["verdict"] for one in estimate["verdicts"] if (one["name"], one["than"]) == (name, LOGGED))


def training_reasons(
    errors: dict[str, Any] | None, scores: dict[str, Any] | None, estimate: dict[str, Any] | None = None
) -> list[Reason]:
    """Return what speaks for and against trusting trained policies: scores, or else estimates from logged data."""
    found = []
    if errors is not None:
        seeds, bad = len(errors["action_error"]), len(errors["no_better_than_constant"])
        where = "held-out steps" if errors["held_out"] else "the steps they learned from"
        if bad:
            text = f"{bad} of {seeds} policies predict actions no better than always the mean action ({where})."
            found.append(Reason("red" if bad == seeds else "amber", text))
        else:
            text = "The policies of all seeds predict actions better than always the mean action does"
            found.append(Reason("green", f"{text} ({where})."))
    if scores is None and estimate is not None:
        verdict = own_verdict(estimate)
        light: Light = "green" if verdict == "better" else "red" if verdict == "worse" else "amber"
        text = f"Compared with the logged behaviour, by logged data alone: {verdict}."
        return [*found, Reason(light, text)]
    if scores is None:
        found.append(Reason("amber", "The policies have not been rolled out: there are no scores."))
        return found
    last, data = scores["last"], scores["data"]["score"]
    mean = f"the mean of what they learned from, {number(data)}"
    low, high = last["iqm"]["low"], last["iqm"]["high"]
    if low is None:
        found.append(Reason("amber", f"{_seeds(len(last['scores']))} too little about chance: train more."))
    elif low > data:
        found.append(Reason("green", f"Even the interval's low end, {number(low)}, is above {mean}."))
    elif high < data:
        found.append(Reason("red", f"The policies score below {mean}."))
    else:
        text = f"The interval, {number(low)} to {number(high)}, includes {mean}"
        found.append(Reason("amber", f"{text}: more seeds or episodes would tell."))
    if scores.get("steps", 0) < scores.get("of_steps", 0):
        found.append(Reason("amber", f"Training is unfinished: {scores['steps']:,} of {scores['of_steps']:,} steps."))
    return found


def _models(run: StitchRun) -> Iterable[Reason]:
    if not run.reports and run.after is not None:
        yield Reason("amber", "How well the models predict held-out steps is not on record.")
    failed = [report.model for report in run.reports if not report.beats_baseline]
    if failed:
        yield Reason("red", f"No better than a baseline on held-out steps: {', '.join(failed)}.")
    known = [(report.metrics["R²"], report.model) for report in run.reports if "R²" in report.metrics]
    if known and not failed:
        worst, model = min(known)
        text = f"On held-out steps every model beats its baseline; the weakest, {model}, explains {percent(worst)}."
        yield Reason("green" if worst >= EXPLAINS else "amber", text)
    elif run.reports and not failed:
        yield Reason("green", "On held-out steps every model beats its baseline.")


def _consistency(run: StitchRun) -> Iterable[Reason]:
    scores = [one.jumps.scores["consistency"] for one in run.stitchings if "consistency" in one.jumps.scores]
    values = np.concatenate(scores) if scores else np.zeros(0)
    values = values[np.isfinite(values)]
    limits = [report.metrics["jumps_may_miss"] for report in run.reports if "jumps_may_miss" in report.metrics]
    if limits:
        light = _graded(max(limits), MAY_MISS)
        typical = (
            f"; half of the jumps made miss by less than {percent(float(np.median(values)))}" if len(values) else ""
        )
        beyond = " beyond what is usual" if typical else ""
        text = f"By the forward ensemble a jump may miss its target by {percent(max(limits))} of its length"
        yield Reason(light, f"{text}{typical}{beyond}.")


def _simulator(run: StitchRun) -> Iterable[Reason]:
    jumps = (run.simulator or {}).get("jumps") or {}
    known = isinstance(jumps, dict) and isinstance(jumps.get("steps"), int) and jumps["steps"] > 0
    if known and isinstance(jumps.get("median_ratio"), int | float):
        miss = float(jumps["median_ratio"])
        text = f"In the simulator, half of {plural(int(jumps['steps']), 'jump')} miss by less than {percent(miss)}"
        yield Reason(_graded(miss, MISSES), f"{text} of their length.")


def _chance(run: StitchRun) -> Iterable[Reason]:
    interval = None if run.before is None or run.after is None else gain_interval(run.before, run.after)
    if interval is not None and interval[0] <= 0:
        yield Reason("amber", "The gain rests on few trajectories: its interval includes 0.")


def _states(run: StitchRun) -> Iterable[Reason]:
    if run.before is None or run.after is None or run.before.provenance is not None:
        return
    kept = states_kept(run.before, run.after)
    light: Light = "green" if kept >= KEPT else "amber" if kept >= FEW_STATES else "red"
    yield Reason(light, f"{percent(kept)} of the logged states are still visited.")


def _predicted(run: StitchRun) -> Iterable[Reason]:
    share = predicted_share(run)
    if share is not None:
        amount = percent(share)
        text = f"{amount[:1].upper()}{amount[1:]} of the gain is predicted reward of jumps; the rest was logged."
        if share <= 0:
            text = "Predicted rewards of jumps add nothing to the gain: all of it was logged."
        yield Reason(_graded(share, PREDICTED), text)


def predicted_share(run: StitchRun) -> float | None:
    """Return the share of the gain that rests on predicted rewards.

    This is what jumps are paid beyond the reward that was logged in the same states, over the whole gain; None where
    nothing was gained or the source data is not known.
    """
    if run.before is None or not run.stitchings:
        return None
    gain = extra = 0.0
    for one in run.stitchings:
        if len(one.data) < len(run.before):
            return None
        gain += float(one.data.returns[: len(run.before)].sum() - run.before.returns.sum())
        known = np.isfinite(one.jumps.logged_reward)
        extra += float((one.jumps.reward - np.where(known, one.jumps.logged_reward, 0)).sum())
    return extra / gain if gain > 0 else None


def _graded(value: float, limits: tuple[float, float]) -> Light:
    good, acceptable = limits
    return "green" if value <= good else "amber" if value <= acceptable else "red"


def _seeds(count: int) -> str:
    return "One seed tells" if count == 1 else f"{count} seeds tell"
