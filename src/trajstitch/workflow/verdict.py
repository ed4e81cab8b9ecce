"""Whether stitching pays: clones of the stitched data beside clones of the original and of its best tenth.

All are trained by the same settings. Which clones are compared is fixed in advance, so that no luck is picked, and the
two comparisons share the chance of an error.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from trajstitch.evaluation.scores import CONFIDENCE, Interval, mean_difference

STITCHED = "ts-bc"
ORIGINAL = {"bc": "the original", "best-tenth": "its best tenth"}
"""The methods that the clone of stitched data is compared with, and what they are cloned from."""

Verdict = tuple[str, Interval | None]
"""Better, worse or can't tell; and by how much, where it was measured."""


def by_rollouts(scores: Mapping[str, Float[np.ndarray, "seeds episodes"]], unit: str) -> str | None:
    """Return the verdict in a sentence; None where nothing was stitched."""
    found = {name: _measured(scores[STITCHED], scores[name]) for name in ORIGINAL if {name, STITCHED} <= scores.keys()}
    return _sentence(found, unit)


def by_estimates(comparison: Mapping[str, Any], unit: str) -> str | None:
    """Return the verdict of a comparison on logged data (`compare_runs`) in a sentence; None as above."""
    pairs = {one["than"]: one["verdict"] for one in comparison["verdicts"] if one["name"] == STITCHED}
    return _sentence({name: (pairs[name], None) for name in ORIGINAL if name in pairs}, unit)


def _measured(ours: np.ndarray, theirs: np.ndarray) -> Verdict:
    difference = mean_difference(ours, theirs, 1 - (1 - CONFIDENCE) / len(ORIGINAL))
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return "can't tell", difference
    return "better" if difference.low > 0 else "worse", difference


def _sentence(found: Mapping[str, Verdict], unit: str) -> str | None:
    if not found:
        return None
    verdicts = [word for word, _ in found.values()]
    original = found["bc"][0] if "bc" in found else None
    if "worse" in verdicts:
        head = "Stitching does not pay here"
    elif set(verdicts) == {"better"}:
        head = "Stitching pays"
    elif original == "better":
        head = "Stitching pays in part"
    else:
        head = "Whether stitching pays can't be told"
    sides = {word: [name for name, one in found.items() if one[0] == word] for word in verdicts}
    words = {"better": "better than", "worse": "worse than", "can't tell": "not surely other than"}
    said = " and ".join(f"{words[word]} one of {_listed(found, names)}" for word, names in sides.items())
    return f"{head}: by its {unit}, a clone of the stitched data is {said}."


def _listed(found: Mapping[str, Verdict], names: list[str]) -> str:
    return " and of ".join(ORIGINAL[name] + _by(found[name][1]) for name in names)


def _by(difference: Interval | None) -> str:
    if difference is None:
        return ""
    bounds = "" if difference.low is None else f" [{difference.low:+.1f}, {difference.high:+.1f}]"
    return f" ({difference.value:+.1f}{bounds})"
