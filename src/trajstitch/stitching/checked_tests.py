"""Call jump tests, which may be a user's own, and check what they return: one line instead of a failure far away."""

from typing import Any

import numpy as np
from jaxtyping import Bool

from trajstitch.errors import InputError
from trajstitch.stitching.jump_tests import Candidates, JumpTest, Scores


def score(name: str, test: JumpTest, model: Any, candidates: Candidates) -> Candidates:
    """Return the candidates with the test's scores."""
    found: Any = test.score(model, candidates)
    if not isinstance(found, Candidates) or len(found) != len(candidates):
        raise InputError(
            f"`tests`: `score` of {name!r} must return the candidates that it was given, with scores added, not "
            f"{_described(found)}"
        )
    _require_scores(name, "score", found.scores, len(candidates))
    return found


def score_logged(name: str, test: JumpTest, model: Any, steps: Candidates) -> Scores:
    """Return the test's scores of logged steps."""
    found: Any = test.score_logged(model, steps)
    _require_scores(name, "score_logged", found, len(steps))
    return found


def passes(name: str, test: JumpTest, scores: Scores, replaced: Scores, count: int) -> Bool[np.ndarray, " pairs"]:
    """Return which of `count` jumps pass the test."""
    found: Any = test.passes(scores, replaced)
    if not isinstance(found, np.ndarray) or found.dtype != bool or found.shape != (count,):
        raise InputError(
            f"`tests`: `passes` of {name!r} must return a bool for each of {count} jumps, not {_described(found)}"
        )
    return found


def _require_scores(name: str, method: str, scores: Any, count: int) -> None:
    if not isinstance(scores, dict):
        raise InputError(f"`tests`: `{method}` of {name!r} must give a dict of scores, not {_described(scores)}")
    for key, values in scores.items():
        if not isinstance(values, np.ndarray) or values.shape != (count,) or values.dtype.kind != "f":
            raise InputError(
                f"`tests`: `{method}` of {name!r} must give a float for each of {count} jumps as {key!r}, not "
                f"{_described(values)}"
            )


def _described(value: Any) -> str:
    """Return what a value is, as text."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"{len(value)} {type(value).__name__}" if isinstance(value, Candidates) else f"a {type(value).__name__}"
