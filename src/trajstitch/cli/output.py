"""Where results and log lines go: results to stdout, everything else to stderr."""

import json
import logging
import sys
from typing import Any

from trajstitch.errors import as_flags
from trajstitch.progress import SafeConsole, logger


def stdout() -> SafeConsole:
    """Return a console on the current stdout."""
    return SafeConsole()


def print_json(value: Any) -> None:
    """Print a result for machines: one JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    print()


class _OnStderr(logging.Handler):
    """Prints log lines on the current stderr, above a live progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        SafeConsole(stderr=True).print(as_flags(self.format(record)), soft_wrap=True)


def show_log() -> None:
    """Show the log of `trajstitch` on stderr, once however often this is called."""
    if not any(isinstance(handler, _OnStderr) for handler in logger.handlers):
        logger.addHandler(_OnStderr())
    logger.setLevel(logging.INFO)
