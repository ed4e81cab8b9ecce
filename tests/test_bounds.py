"""Bounds stand on the fields of configs: they are checked wherever the config is, and the flags stay plain."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import tyro

from trajstitch.errors import InputError
from trajstitch.learning.bounds import Bounds, check_bounds


@dataclass(frozen=True)
class Model:
    learning_rate: Annotated[float, Bounds(0)] = 1e-3
    """Adam's step size."""


@dataclass(frozen=True)
class Config:
    discount: Annotated[float, Bounds(0, 1)] = 0.99
    """Discount of a reward one step later."""
    hidden: Annotated[tuple[int, ...], Bounds(1)] = (256, 256)
    """Widths."""
    patience: Annotated[int, Bounds(1)] | None = None
    """Steps to wait."""
    standardise: bool = True
    name: str | None = "x"
    dynamics: Model = Model()
    tests: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(discount=2), "`discount` must be at most 1, not 2"),
        (Config(discount=-0.5), "`discount` must be at least 0, not -0.5"),
        (Config(discount=float("nan")), "`discount` must be at least 0, not nan"),
        (Config(patience=10**5000), "`patience` must be at most 2147483647, not a number of 16,610 bits"),
        (
            Config(dynamics=Model(10**400)),
            "`dynamics.learning_rate` must be a finite number, not a number of 1,329 bits",
        ),
        (Config(hidden=(8, 0)), "`hidden` must be at least 1, not 0"),
        (Config(standardise=None), "`standardise` must be True or False, not None"),  # pyright: ignore[reportArgumentType]
        (Config(patience=0), "`patience` must be at least 1, not 0"),
        (Config(dynamics=Model(-1.0)), "`dynamics.learning_rate` must be at least 0, not -1"),
        (Config(tests={"forward": Model(-1.0)}), "`tests.forward.learning_rate` must be at least 0, not -1"),
    ],
)
def test_a_value_out_of_bounds_is_named_by_its_path(config: Config, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_bounds(config)
    assert str(error.value) == message


def test_the_bounds_themselves_are_allowed() -> None:
    check_bounds(Config(discount=1, hidden=(1,), patience=1, dynamics=Model(0)))
    check_bounds(Config())


def test_fields_with_bounds_are_plain_flags(capsys: pytest.CaptureFixture[str]) -> None:
    found = tyro.cli(Config, args=["--discount", "0.5", "--hidden", "8", "8", "--dynamics.learning-rate", "1"])
    assert found == Config(0.5, (8, 8), dynamics=Model(1.0))
    with pytest.raises(SystemExit):
        tyro.cli(Config, args=["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--discount FLOAT Discount of a reward one step later. (default: 0.99)" in shown
