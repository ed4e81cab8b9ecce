"""Bounds of settings, kept on the fields of the configs that have them.

    @dataclass(frozen=True)
    class Method:
        discount: Annotated[float, Bounds(0, 1)] = 0.99

`check_bounds(Method(discount=2))` raises "`discount` must be at most 1, not 2".
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args

from trajstitch.errors import InputError


@dataclass(frozen=True)
class Bounds:
    """The least and the largest value of a field, or of each element of a tuple; both are allowed."""

    low: float = -math.inf
    high: float = math.inf

    def check(self, name: str, value: Any) -> None:
        """Raise if the value of the parameter `name` is out of bounds; what is no number, such as None, is not."""
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(one, (int, float)) and not self.low <= one <= self.high:
                bound = f"at most {self.high:g}" if one > self.high else f"at least {self.low:g}"
                raise InputError(f"`{name}` must be {bound}, not {one:g}")


def check_bounds(config: Any, prefix: str = "") -> None:
    """Raise if a field of the config, or of a config within it, is out of its bounds; names are dotted paths."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            check_bounds(value, f"{prefix}{name}.")
    elif is_dataclass(config):
        for field in fields(config):
            value = getattr(config, field.name)
            for bounds in _bounds_of(field.type):
                bounds.check(f"{prefix}{field.name}", value)
            check_bounds(value, f"{prefix}{field.name}.")


def _bounds_of(annotation: Any) -> Iterator[Bounds]:
    """Yield the bounds within a type such as Annotated[int, Bounds(1)] | None."""
    for part in get_args(annotation):
        if isinstance(part, Bounds):
            yield part
        else:
            yield from _bounds_of(part)
