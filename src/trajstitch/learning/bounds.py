"""Bounds of settings, kept on the fields of the configs that have them.

    @dataclass(frozen=True)
    class Method:
        discount: Annotated[float, Bounds(0, 1)] = 0.99

`check_bounds(Method(discount=2))` raises "`discount` must be at most 1, not 2".
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from trajstitch.errors import InputError

LARGEST = 2**31 - 1
"""Largest whole number where no larger bound is given: arrays and loops count in 32 bits."""


@dataclass(frozen=True)
class Bounds:
    """The least and the largest value of a field, or of each element of a tuple; both are allowed, `below` is not.

    What has bounds is finite.
    """

    low: float = -math.inf
    high: float = math.inf
    below: float = math.inf

    def check(self, name: str, value: Any, *, whole: bool = False) -> None:
        """Raise if the value of the parameter `name` is out of bounds, or no integer if it has to be `whole`.

        What is no number, such as None, is in bounds.
        """
        for one in _numbers(value):
            if not self.low <= one:
                limit = f"at least {_shown(self.low)}" if math.isfinite(self.low) else "a finite number"
            elif not one < self.below:
                limit = f"below {_shown(self.below)}" if math.isfinite(self.below) else "a finite number"
            elif not one <= self.high:
                limit = f"at most {_shown(self.high)}"
            elif _is_infinite(one, whole=whole):
                limit = "a finite number"
            elif whole and not isinstance(one, Integral):
                limit = "a whole number"
            elif whole and self.high == math.inf and int(one) > LARGEST:
                limit = f"at most {LARGEST}"
            else:
                continue
            raise InputError(f"`{name}` must be {limit}, not {_shown(one)}")


def _is_infinite(number: Any, *, whole: bool) -> bool:
    try:
        return math.isinf(number)
    except OverflowError:  # an integer that no float can hold
        return not whole


class SeedBounds(Bounds):
    """Bounds of seeds, which say of a negative one that it is negative."""

    def check(self, name: str, value: Any, *, whole: bool = False) -> None:
        if any(one < 0 for one in _numbers(value)):
            raise InputError(f"`{name}` must not be negative, not {_shown(value)}")
        super().check(name, value, whole=whole)


SEED = SeedBounds(0, 2**32 - 1)
"""Seeds: a larger one would be cut to 32 bits, and give the numbers of another."""


def check_seeds(seed: int, seeds: int = 1) -> None:
    """Raise unless `seeds` numbers from `seed` on are seeds."""
    for name, value, bounds in (("seeds", seeds, Bounds(1)), ("seed", seed, SEED)):
        if not _numbers(value):
            raise InputError(f"`{name}` must be a whole number, not {value!r}")
        bounds.check(name, value, whole=True)
    if seed + seeds - 1 > SEED.high:
        raise InputError(f"`seed={seed}` and the {seeds - 1} after it must be at most {SEED.high}")


def check_bounds(config: Any, prefix: str = "", unnamed: tuple[str, ...] = ()) -> None:
    """Raise if a field of the config, or of a config within it, is out of its bounds, or is NaN.

    Names in the message are dotted paths, without the names of fields in `unnamed`. If a config has bounds that
    concern several fields, its method `check_fields(prefix)` raises.
    """
    if isinstance(config, Mapping):
        for name, value in config.items():
            check_bounds(value, f"{prefix}{name}.")
    elif is_dataclass(config) and not isinstance(config, type):
        if hasattr(config, "check_fields"):
            config.check_fields(prefix)  # pyright: ignore[reportAttributeAccessIssue]
        types = _types(type(config))
        for field in fields(config):
            value, kind = getattr(config, field.name, None), types[field.name]
            _check_kind(f"{prefix}{field.name}", value, kind)
            for bounds in _bounds_of(kind):
                bounds.check(f"{prefix}{field.name}", value, whole=_is_whole(kind))
            if any(map(math.isnan, _numbers(value))):
                raise InputError(f"`{prefix}{field.name}` must be a number, not nan")
            check_bounds(value, prefix if field.name in unnamed else f"{prefix}{field.name}.")


def _check_kind(name: str, value: Any, annotation: Any) -> None:
    """Raise if a value is of another kind than its setting: text for a number, say, or an unknown choice.

    Settings with bounds are numbers or tuples of numbers; flags and choices (Literal) are told by their type.
    """
    parts = list(_parts(annotation))
    choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
    if value is None and (type(None) in parts or not (choices or any(_bounds_of(annotation)) or annotation is bool)):
        return
    wanted = None
    if annotation is bool:
        wanted = None if isinstance(value, bool) else "True or False"
    elif choices and all(isinstance(choice, str) for choice in choices):
        plain = {part for part in parts if isinstance(part, type)} - {type(None)}
        wanted = None if value in choices or plain else f"one of {', '.join(choices)}"
    elif any(_bounds_of(annotation)):
        several = any(part is tuple or get_origin(part) is tuple for part in parts)
        listed = value if isinstance(value, (tuple, list)) else (value,)
        if several != isinstance(value, (tuple, list)) or len(_numbers(listed)) != len(listed):
            wanted = "numbers, such as (256, 256)" if several else "a number"
    if wanted is not None:
        raise InputError(f"`{name}` must be {wanted}, not {value!r}")


def _numbers(value: Any) -> list[Any]:
    """Return the numbers among a value, or the elements of a tuple."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    return [one for one in several if isinstance(one, Real) and not isinstance(one, bool)]


def _types(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, also where they are written as text."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):  # names that are not known at run time
        return {field.name: field.type for field in fields(kind)}


def _bounds_of(annotation: Any) -> Iterator[Bounds]:
    """Yield the bounds within a type such as Annotated[int, Bounds(1)] | None."""
    for part in get_args(annotation):
        if isinstance(part, Bounds):
            yield part
        else:
            yield from _bounds_of(part)


def _is_whole(annotation: Any) -> bool:
    """Return whether a type's numbers are integers."""
    parts = list(_parts(annotation))
    return int in parts and float not in parts


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _shown(value: Any) -> str:
    if isinstance(value, Integral):
        return str(value) if int(value).bit_length() < 200 else f"a number of {int(value).bit_length():,} bits"
    return f"{value:g}"
