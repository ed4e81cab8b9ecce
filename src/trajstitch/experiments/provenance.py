"""How a result was made: the command, the commit of the code, the machine and the versions of packages."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from trajstitch.storage.circumstances import command_line, machine, versions

PACKAGE = Path(__file__).parents[1]


def this_call() -> dict[str, Any]:
    """Return what is recorded with every result of this process, without paths of the machine's own.

    Call it early: the command line is hidden while worker processes start.
    """
    command = " ".join(Path(word).name if word.startswith("/") else word for word in command_line().split())
    return {"commit": commit(), "command": command, "machine": machine(), "versions": versions()}


def commit() -> str:
    """Return the commit of the running code: TRAJSTITCH_COMMIT if set, else git's, with a plus if files differ."""
    if given := os.environ.get("TRAJSTITCH_COMMIT"):
        return given[:10]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=PACKAGE, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE))
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def now() -> str:
    """Return the time in UTC, in an order that sorts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
