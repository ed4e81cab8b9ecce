"""Values as a page shows them: short numbers, JSON without NaN, and JSON that is safe inside a script tag."""

import json
import math
from typing import Any

import numpy as np
from jaxtyping import Shaped

from trajstitch.errors import clean

DIGITS = 4
"""Significant digits of a number that is only drawn."""


def number(value: Any) -> str:
    """Return a number for reading: three significant digits, all digits of whole ones, a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.3g}".replace("-", "−")
    whole = float(value).is_integer() or abs(value) >= 100
    text = f"{value:,.0f}" if whole else f"{float(f'{value:.3g}'):g}"
    return text.replace("-", "−")


def percent(share: float | None) -> str:
    """Return a share as a percentage."""
    if share is None or not math.isfinite(share):
        return "–"
    if 0 < share < 5e-4:
        return "less than 0.1 %"
    return f"{100 * share:.{1 if 0 < abs(share) < 0.1 else 0}f} %".replace("-", "−")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(values: Shaped[np.ndarray, "..."] | np.generic, digits: int = DIGITS) -> Any:
    """Return an array as nested lists of short numbers, or a number as a short one; None where it is not finite."""
    if values.dtype.kind in "iub":
        return values.tolist()

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [one(part) for part in value]
        if not math.isfinite(value):
            return None
        found = float(f"{value:.{digits}g}")
        return int(found) if found.is_integer() and abs(found) < 1e9 else found

    return one(values.tolist())


def finite(value: Any) -> Any:
    """Return JSON values as a page shows them: texts cleaned, and None for numbers that JSON has no word for."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(name)): finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def script_json(value: Any) -> str:
    """Return JSON that can stand inside a script tag: nothing in it ends the tag or starts another."""
    made = json.dumps(finite(value), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return made.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
