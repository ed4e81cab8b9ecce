"""What applies a function to the parts of something, here or elsewhere, and gives back the results in order."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

Result = TypeVar("Result")


@runtime_checkable
class Workers(Protocol):
    """Applies a function to parts."""

    @property
    def rows(self) -> int | None:
        """Rows of a part that is worth sending; None if parts are not sent anywhere."""
        ...

    def map(self, function: Callable[[Any, Any], Result], shared: Any, parts: Iterable[Any]) -> Iterator[Result]:
        """Yield `function(shared, part)` for each part, in order; `shared` is sent once."""
        ...


class Local:
    """Applies functions in this process, one part after the other."""

    rows = None

    def map(self, function: Callable[[Any, Any], Result], shared: Any, parts: Iterable[Any]) -> Iterator[Result]:
        return (function(shared, part) for part in parts)


LOCAL = Local()


def cores() -> int:
    """Return how many cores this process may use: fewer than the machine has, where it is confined to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
