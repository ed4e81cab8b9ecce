"""Histograms and numbers as text for the terminal."""

import math
from collections.abc import Sequence
from typing import Any

from trajstitch.data.summary import BINS

HEIGHT = 5
"""Lines of a chart's bars."""
MARGIN = 12
"""Characters reserved for the labels of a chart."""
WIDEST_COLUMN = 6
EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(histogram: dict[str, Any], width: int) -> list[str]:
    """Return a histogram as lines of text no wider than `width`: bars over an axis that shows the lowest and highest
    value; no lines for fewer than two bins."""
    if len(histogram["counts"]) < 2:
        return []
    counts = _rebinned(histogram["counts"], width - MARGIN)
    top = f"{max(counts):,}"
    margin = len(top) + 2
    column = max(1, min((width - margin) // len(counts), 2 * (BINS // len(counts)), WIDEST_COLUMN))
    heights = [math.ceil(8 * HEIGHT * count / max(counts)) for count in counts]
    lines = []
    for level in reversed(range(HEIGHT)):
        label = top if level == HEIGHT - 1 else ""
        bars = "".join(EIGHTHS[min(max(height - 8 * level, 0), 8)] * column for height in heights)
        lines.append(f"{label:>{margin - 2}} │{bars}".rstrip())
    span = column * len(counts)
    low, high = number(histogram["low"]), number(histogram["high"])
    lines.append(f"{0:>{margin - 2}} └{'─' * span}")
    lines.append(f"{'':{margin}}{low}{high:>{max(span - len(low), len(high) + 1)}}")
    return lines


def _rebinned(counts: Sequence[int], width: int) -> list[int]:
    """Merge neighbouring bins until they fit into `width` characters."""
    together = math.ceil(len(counts) / max(width, 1))
    return [sum(counts[start : start + together]) for start in range(0, len(counts), together)]


def number(value: float | None, digits: int | None = None) -> str:
    """Return a number as people write it: 1,234, 12.3, 0.0012."""
    if value is None:
        return "not a number"
    if digits is None:
        digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 100 else 2
    if 0 < abs(value) < 0.01 or abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.{digits}f}"
