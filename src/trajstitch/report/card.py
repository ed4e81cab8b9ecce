"""The data card: what a stitched data set is, in Markdown, beside the file that holds it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError, clean
from trajstitch.formats import stored_file
from trajstitch.learning.fit_report import FitReport
from trajstitch.progress import logger
from trajstitch.report.values import number, percent
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import markdown_table
from trajstitch.storage.runs import Run

MARK = "<!-- data card by trajstitch -->"
"""The first line of a card: a file that starts otherwise is somebody else's and is never replaced."""


def card_path(uri: str, run: Run, where: str = "") -> Path:
    """Return where the card of a saved set goes: beside its file, or into the run if the set is a store's own folder.

    Nothing is added to a Minari store, whose folders belong to Minari. `where` is the seed's place in the run.
    """
    file = stored_file(uri)
    return run.path(f"{where}card.md") if file is None else file.with_name(f"{file.name}.card.md")


def write_card(path: Path, text: str) -> None:
    """Write a card, or warn why not: a file that is no card of ours stays, and no card is worth losing a data set."""
    try:
        if path.exists() and not _is_ours(path):
            logger.warning(f"{path} exists and is no card of ours: the data card was not written")
            return
        with replacing(path, force=True) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except (InputError, OSError) as error:
        logger.warning(f"the data card was not written: {error}")


def card(
    before: Trajectories,
    after: Trajectories,
    reports: Sequence[FitReport],
    facts: dict[str, Any],
    *,
    uri: str,
    reason: str | None = None,
) -> str:
    """Return the card of a stitched set: what it is, how it was made, how far to trust it, and what it is for.

    `facts` are the run's, as run.json says them.
    """
    config = {**facts.get("config", {}), **facts.get("job", {})}
    record = StitchRecord.of(after.metadata)
    stitched = 0 if after.provenance is None else int(after.provenance.stitched.sum())
    lines = [MARK, f"# {_plain(uri)}", ""]
    if reason is not None:
        lines += [f"Stitching left this data unchanged: {_plain(reason)}.", ""]
    lines += [
        f"Made by trajstitch from {_plain(str(config.get('source')))}: "
        f"{_plain(str(record)) if record else 'trajectories'}. Steps that are not logged but jumps between logged "
        f"states, with a predicted action and reward: {stitched:,} of {after.steps:,} "
        f"({percent(stitched / max(after.steps, 1))}).",
        "",
        markdown_table(("", "source", "this set"), _sizes(before, after)),
        "",
        "## How far to trust it",
        "",
    ]
    if reports:
        lines += [markdown_table(("model", "on held-out steps", "beats its baseline"), _models(reports)), ""]
    doubts = record.warnings if record is not None else ()
    lines += [f"- {_plain(doubt)}" for doubt in doubts] or ["- No warnings."]
    lines += [
        "- A stitched return is a sum of logged and predicted rewards: nobody has seen the trajectory.",
        "",
        "## What it is for",
        "",
        _use(record),
        "",
        "## Record",
        "",
        f"- command: {_code(str(facts.get('command')))}",
        f"- fingerprint of the source: {_plain(str(config.get('fingerprint')))}",
        f"- fingerprint of this set: {after.fingerprint}",
        f"- machine: {_plain(str(facts.get('machine')))}; started {_plain(str(facts.get('started')))}",
        f"- versions: {_plain(', '.join(f'{name} {one}' for name, one in facts.get('versions', {}).items()))}",
        "- licence and limits of use: those of the source data",
        "",
    ]
    return "\n".join(lines)


def _sizes(before: Trajectories, after: Trajectories) -> list[tuple[str, ...]]:
    def row(name: str, *values: float) -> tuple[str, ...]:
        return name, *map(number, values)

    sets = (before, after)
    return [
        row("trajectories", *map(len, sets)),
        row("transitions", *(data.steps for data in sets)),
        row("mean return", *(float(data.returns.mean()) for data in sets)),
        row("best return", *(float(data.returns.max()) for data in sets)),
        row("mean length", *(float(data.lengths.mean()) for data in sets)),
    ]


def _models(reports: Sequence[FitReport]) -> list[tuple[str, ...]]:
    rows = []
    for report in reports:
        metrics = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in report.metrics.items())
        rows.append((_plain(report.model), _plain(metrics), "yes" if report.beats_baseline else "NO"))
    return rows


def _use(record: StitchRecord | None) -> str:
    if record is not None and record.kept_original:
        return "It holds the original trajectories too: train a learner of values on it, such as IQL or TD3+BC."
    return "Better trajectories replace the original ones: clone it. A learner of values needs the worse ones too."


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is: on one line, and neither markup nor a table's column."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", clean(" ".join(text.split())))


def _code(text: str) -> str:
    text = clean(" ".join(text.split()))
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"
