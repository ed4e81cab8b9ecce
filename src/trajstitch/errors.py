"""The error a user can act on: one line that says what is wrong, where, and what to do next."""

import difflib
import re
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input or bad usage. The command line prints its message alone and exits with code 2.

    Messages name parameters as Python does, in backticks: `force=True`, `seeds`. The command line shows them as flags.
    A message is one line, and safe to print whatever file its words came from.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(one_line(str(message))))


class JobError(RuntimeError):
    """Something happened to a job that its input is no reason for. The command line prints its message alone, and exits
    with code 1.

    What can be done without is left out where its input is bad, but never for this.
    """


# What commands a terminal (C0, DEL, C1), and what reorders, hides or breaks text: bidirectional controls, zero-width
# characters, line separators, tags, lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_BREAK = re.compile(r"\s*[\r\n\x0b\x0c\x85\u2028\u2029]\s*")


def clean(text: str) -> str:
    """Return the text with everything that could command or deceive a terminal shown as its code, as in \\x1b[31m.

    What comes from a file goes through here on its way to a screen, a log or a page. Newlines and tabs stay.
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def one_line(text: str) -> str:
    """Return the text cleaned and on one line, so that words of a file can't pass for lines of ours."""
    return clean(_BREAK.sub(" ", text).strip("\n"))


LONGEST_LINE = 2000
"""Characters of a line that is shown: a name in a file may have millions."""


def shortened(text: str) -> str:
    """Return a line without its middle if it is very long: it starts with what is wrong and ends with what to do."""
    if len(text) <= LONGEST_LINE:
        return text
    end = LONGEST_LINE // 4
    return f"{text[: LONGEST_LINE - end]} ... ({len(text):,} characters) ... {text[-end:]}"


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
