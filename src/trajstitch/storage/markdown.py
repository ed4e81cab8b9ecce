"""Markdown tables, for every page that the project writes."""

from collections.abc import Iterable, Sequence

from trajstitch.errors import clean, one_line


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown, without a newline at its end. Cells may hold Markdown, but no HTML."""
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in (head, ["---"] * len(head), *rows))


def safe_markdown(text: str) -> str:
    """Return Markdown without control characters and with HTML tags shown as they are written."""
    return clean(text).replace("<", "&lt;")


def _cell(text: str) -> str:
    return safe_markdown(one_line(text))
