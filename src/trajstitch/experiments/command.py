"""The command line of an experiment: `python -m trajstitch.experiments.NAME VERB [flags]`."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import tyro

from trajstitch.errors import InputError, as_flags
from trajstitch.learning.bounds import check_bounds
from trajstitch.progress import logger


def run_command(verbs: dict[type, Callable[[Any], None]]) -> None:
    """Run one of the verbs, each a config whose fields are its flags; bad input is one line and exit code 2."""
    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    asked = tyro.extras.subcommand_cli_from_dict({kind.__name__.lower(): kind for kind in verbs})
    try:
        check_bounds(asked)
        verbs[type(asked)](asked)
    except InputError as error:
        print(f"error: {as_flags(str(error))}", file=sys.stderr)
        sys.exit(2)
