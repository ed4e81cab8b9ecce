"""What an experiment is: methods on data sets, which are compared with which, and how the page shows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trajstitch.experiments.comparison import Table
from trajstitch.experiments.methods import Method


@dataclass(frozen=True)
class Experiment:
    """An experiment of `trajstitch reproduce`."""

    name: str
    title: str
    """Heading of the page."""
    about: str
    """What is compared and why, in a few sentences of Markdown."""
    methods: Mapping[str, Method]
    sets: tuple[str, ...]
    """Built-in sets that it is measured on if none are named."""
    pairs: tuple[tuple[str, str], ...]
    """Which method is compared with which."""
    draw: Callable[[Table, "Experiment", Path], None]
    """Draws its figure into an SVG file, and into a PNG file beside it."""
    more: Callable[[Table, "Experiment"], str | None] = lambda table, experiment: None
    """Returns a further section of its page, or None."""
    by_method: bool = False
    """Whether methods are the rows of the tables, and sets the columns."""
    paper: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The paper's own numbers, by set and method."""

    def label(self, method: str) -> str:
        """Return a method's name on the page."""
        return self.methods[method].title
