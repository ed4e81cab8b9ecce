"""The error a user can act on: one line that says what is wrong, where, and what to do next."""

import difflib
import re
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input or bad usage. The command line prints its message alone and exits with code 2.

    Messages name parameters as Python does, in backticks: `force=True`, `seeds`. The command line shows them as flags.
    """


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return " (did you mean 'x'?)" with the known name that is most like `name`, or nothing if none is."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {match[0]!r}?)" if match else ""


_PARAMETER = re.compile(r"`([a-z][a-z0-9_.]*)(?:=([^`\s]+))?`")


def as_flags(message: str) -> str:
    """Return the message with parameters in backticks as flags: `force=True` becomes --force, `seeds` --seeds."""

    def flag(match: re.Match[str]) -> str:
        name, value = match[1].replace("_", "-"), match[2]
        if value == "False":
            head, dot, last = name.rpartition(".")
            return f"--{head}{dot}no-{last}"
        return f"--{name}" if value in (None, "True") else f"--{name} {value}"

    return _PARAMETER.sub(flag, message)
