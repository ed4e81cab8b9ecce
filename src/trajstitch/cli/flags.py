"""Parameters as flags: the library's messages name parameters as Python does, the command line as flags."""

import re

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
