"""One file a verb: a `Command` class whose fields are the flags and whose `execute` does the job."""

import json
import sys
from typing import Any


def print_json(value: Any) -> None:
    """A result for machines: one JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    print()
