"""Write an experiment's page from its template in experiments/templates."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from trajstitch.progress import logger
from trajstitch.storage.atomic import replacing
from trajstitch.storage.markdown import safe_markdown


def render(template: str, **facts: Any) -> str:
    """Return a template of experiments/templates filled in; what is filled in may hold Markdown, but no HTML."""
    environment = Environment(
        loader=PackageLoader("trajstitch.experiments"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_finalise,
    )
    return environment.get_template(template).render(**facts)


def _finalise(value: Any) -> Any:
    return safe_markdown(value) if isinstance(value, str) else value


def write(path: Path, text: str) -> None:
    """Write a page, unless it already says that."""
    if not path.exists() or path.read_text() != text:
        with replacing(path, force=True) as fresh:
            fresh.write_text(text)


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Replace what is between two markers of a file, if the file is there."""
    if not path.exists():
        return
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    before = path.read_text()
    if not re.search(pattern, before, re.DOTALL):
        logger.warning(f"{path}: left as it is, since it has no {begin} and {end}")
    write(path, re.sub(pattern, lambda _: f"{begin}\n{text}\n{end}", before, flags=re.DOTALL))
