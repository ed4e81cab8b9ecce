"""The faults that `make mutants` puts in by hand stand in the code as it is."""

from pathlib import Path

import pytest

from mutants.nearest import NEAREST
from mutants.sabotages import SABOTAGES

ROOMS = ("stitching", "models", "learning", "policies")
PACKAGE = Path(__file__).resolve().parents[1] / "src" / "trajstitch"


@pytest.mark.parametrize(("path", "before", "after"), SABOTAGES)
def test_a_fault_chosen_by_hand_can_be_put_in(path: str, before: str, after: str) -> None:
    code = (PACKAGE / path).read_text()
    assert code.count(before) == 1, f"{path}: {before!r}"
    compile(code.replace(before, after), path, "exec")


def test_every_file_of_the_core_has_nearest_tests() -> None:
    core = {f"{room}/{file.name}" for room in ROOMS for file in (PACKAGE / room).glob("*.py")}
    assert core - set(NEAREST) == {f"{room}/__init__.py" for room in ROOMS}
    for path, tests in NEAREST.items():
        assert path in core
        for name in tests:
            file, _, test = name.partition("::")
            assert f"def {test}" in (PACKAGE.parents[1] / "tests" / file).read_text(), name
