"""What a page shows of one run: text and tables for the template, numbers for the charts."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trajstitch.report.trust import WORDS, Light, Reason, overall
from trajstitch.report.values import number

MOST_CONFIG = 20_000
"""Characters of a config that are shown, at most."""


@dataclass(frozen=True)
class Table:
    """A table of text; the first column names the row."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    lights: list[Light] = field(default_factory=list)
    """A light for each row, where rows have one."""


@dataclass(frozen=True)
class Entry:
    """One run on the page."""

    title: str
    kind: str
    """`stitch` or `train`."""
    what: str
    """What it was made from and how, in a few words."""
    headline: str
    """What was improved and by how much, in one sentence."""
    reasons: list[Reason]
    figures: list[tuple[str, str]]
    """Key numbers: what each is, and its value."""
    record: list[tuple[str, str]]
    config: str
    charts: dict[str, Any] = field(default_factory=dict)
    """What the page's script draws, by the chart's name."""
    tables: dict[str, Table] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """What is said below a chart, by the chart's name: how much of the data it shows."""
    card: str | None = None
    """The data card of a stitching."""
    scores: dict[str, Any] | None = None
    """The scores of a training, as `evaluate` stored them."""

    @property
    def light(self) -> Light:
        return overall(self.reasons)

    @property
    def verdict(self) -> str:
        return WORDS[self.kind][self.light]


def short_source(source: str) -> str:
    """Return the name of a data set without the folders that its file lies in."""
    _, _, place = source.partition(":")
    return Path(place).name if Path(place).is_absolute() else source


def record_of(facts: dict[str, Any], config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how a run was made: command, data, versions, machine, time."""
    versions = facts.get("versions")
    listed = ", ".join(f"{name} {one}" for name, one in versions.items()) if isinstance(versions, dict) else "–"
    rows = [
        ("Command", facts.get("command")),
        ("Source data", config.get("source")),
        ("Its fingerprint", config.get("fingerprint")),
        ("Its transitions", number(config["transitions"]) if isinstance(config.get("transitions"), int) else None),
        ("Started", facts.get("started")),
        ("Machine", facts.get("machine")),
        ("Versions", listed),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def config_text(config: dict[str, Any]) -> str:
    """Return a config as readable JSON, cut off if it is very long."""
    text = json.dumps(config, indent=1, default=str, ensure_ascii=False)
    return text if len(text) <= MOST_CONFIG else f"{text[:MOST_CONFIG]}\n… ({len(text):,} characters in run.json)"
