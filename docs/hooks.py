"""What the site does to pages that GitHub shows too: links that lead out of docs/ are turned, or become plain text."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)*(?:examples|tests|src|benchmarks|peers|interop)[^)]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text with links that the site can follow."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri == "contributing.md":
        markdown = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    markdown = re.sub(r"\]\((?:\.\./)+CONTRIBUTING\.md", f"]({up}contributing.md", markdown)
    return OUTSIDE.sub(r"\1", markdown)
