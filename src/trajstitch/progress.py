"""What a person sees while a job runs: the `trajstitch` logger, and progress with rate and time left.

A progress bar is drawn where stderr is a terminal; elsewhere progress is logged, a line now and then. Log lines show
where the caller has set logging up, as the command line does; warnings always show.
"""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from trajstitch.errors import clean, one_line, shortened

logger = logging.getLogger("trajstitch")


def _clean_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = shortened(one_line(record.getMessage())), ()
    return True


logger.addFilter(_clean_record)


class SafeConsole(Console):
    """A console that prints words as they are, brackets and colons too, but lets only our own styles through."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


PLAIN_FIRST_SECONDS = 2.0
PLAIN_EVERY_SECONDS = 10.0


_stage = ContextVar("stage", default="")


@contextmanager
def in_stage(number: int, of: int, name: str = "") -> Iterator[None]:
    """Say before all progress within which stage of how many it is; stages may hold stages of their own."""
    token = _stage.set(f"{_stage.get()}{number}/{of}{name and ' '}{name} › ")
    try:
        yield
    finally:
        _stage.reset(token)


class Advance(Protocol):
    """Report `count` more units done; keyword arguments are shown beside the bar, a `note` without its name."""

    def __call__(self, count: int = 1, /, **shown: float | str) -> None: ...


@contextmanager
def progress(description: str, total: int, unit: str = "steps") -> Iterator[Advance]:
    """Show progress with rate and time left: a live bar on a terminal, log lines elsewhere.

    Work that takes under two seconds is not logged.
    """
    description = _stage.get() + description
    if sys.stderr.isatty():
        with _live(description, total, unit) as advance:
            yield advance
    else:
        yield _Plain(description, total, unit)


@contextmanager
def _live(description: str, total: int, unit: str) -> Iterator[Advance]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}", markup=False),
    )
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, shown="")

        def advance(count: int = 1, /, **shown: float | str) -> None:
            if shown:
                bar.update(task, advance=count, shown=_format(shown))
            else:
                bar.update(task, advance=count)

        yield advance


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{_rate(task.speed)} {self.unit}/s" if task.speed else "")


class _Plain:
    def __init__(self, description: str, total: int, unit: str) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done = 0
        self.start = time.monotonic()
        self.next = self.start + PLAIN_FIRST_SECONDS

    def __call__(self, count: int = 1, /, **shown: float | str) -> None:
        self.done += count
        now = time.monotonic()
        if now < self.next and not (self.done >= self.total and self.next - self.start > PLAIN_FIRST_SECONDS):
            return
        self.next = now + PLAIN_EVERY_SECONDS
        rate = self.done / max(now - self.start, 1e-9)
        left = max(self.total - self.done, 0) / max(rate, 1e-9)
        parts = [
            f"{self.description}: {self.done:,}/{self.total:,} {self.unit}",
            f"{_rate(rate)} {self.unit}/s",
            f"{_clock(left)} left",
            *([_format(shown)] if shown else []),
        ]
        logger.info(", ".join(parts))


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _format(shown: dict[str, float | str]) -> str:
    return ", ".join(
        (f"{name.replace('_', ' ')} " if name != "note" else "")
        + (value if isinstance(value, str) else format(value, ",.4g"))
        for name, value in shown.items()
    )
