"""The usual names of the parts of a log, and how flags that end an episode are read."""

from collections.abc import Collection

import numpy as np
from jaxtyping import Bool, UInt8

from trajstitch.data.trajectories import Finding
from trajstitch.errors import InputError

SPELLINGS: dict[str, tuple[str, ...]] = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "act"),
    "rewards": ("rewards", "reward", "rew"),
    "terminated": ("terminated", "terminations", "terminals", "terminal"),
    "truncated": ("truncated", "truncations", "timeouts", "timeout"),
    "done": ("done", "dones"),
    "next_observations": (
        "next_observations",
        "next_observation",
        "next_obs",
        "next_states",
        "next_state",
    ),
    "episodes": ("episode", "episodes", "episode_id", "episode_ids"),
}


def spelling_of(part: str, present: Collection[str], source: str) -> str | None:
    """Return the name of `part` among those present, if any; two are an error, since they may disagree."""
    found = [name for name in SPELLINGS[part] if name in present]
    if len(found) > 1:
        raise InputError(f"{source}: {' and '.join(map(repr, found))} both mean {part}: keep one of them")
    return found[0] if found else None


def as_flags(values: np.ndarray, where: str, first_row: int = 0) -> Bool[np.ndarray, " rows"]:
    """Return flags from booleans, or from numbers that are all 0 or 1; `where` names the array in errors."""
    if values.dtype == bool:
        require_booleans(values.view(np.uint8), where)
        return values
    if values.dtype.kind not in "iuf":
        raise InputError(f"{where} has dtype {values.dtype}: flags are booleans, or numbers that are 0 or 1")
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{where} is {values[row]} in row {row + first_row}: flags are booleans, or numbers that are 0 or 1"
        )
    return values == 1


def require_booleans(content: UInt8[np.ndarray, "..."], where: str) -> None:
    """Raise if the bytes of booleans are others than 0 and 1: NumPy counts wrongly, and writes where it must not."""
    if content.max(initial=0) > 1:
        raise InputError(f"{where} holds booleans that are neither true nor false: save them again")


def ends(
    terminated: Bool[np.ndarray, " rows"] | None,
    truncated: Bool[np.ndarray, " rows"] | None,
    done: Bool[np.ndarray, " rows"] | None,
    rows: int,
    source: str,
) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"], tuple[Finding, ...]]:
    """Return terminated and truncated flags from those that a log has, and notes for the user.

    `done` only says that an episode ended.
    """
    nowhere = np.zeros(rows, bool)
    if done is not None and terminated is None:
        if truncated is not None:
            # Some logs set done at time-outs too and some don't: this is right for both.
            return done & ~truncated, truncated, ()
        detail = "only 'done' is recorded: time-outs can't be told from terminations, so each end counts as terminated"
        return done, nowhere, (Finding("ends", "note", detail),)
    if done is not None and terminated is not None:
        contradicted = terminated & ~done
        if truncated is not None:
            contradicted |= done & ~(terminated | truncated)
        if contradicted.any():
            row = int(np.argmax(contradicted))
            raise InputError(f"{source}: done contradicts the other end flags, first in row {row}: keep the right ones")
        return terminated, done & ~terminated if truncated is None else truncated, ()
    if terminated is None and truncated is None:
        detail = "no end flags: no episode is known to have terminated or been truncated"
        return nowhere, nowhere, (Finding("ends", "note", detail),)
    return nowhere if terminated is None else terminated, nowhere if truncated is None else truncated, ()
