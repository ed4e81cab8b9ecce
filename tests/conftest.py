"""Every test has a Minari store of its own and asks no remote, and none fails because the machine is slow.

The types and array shapes that trajstitch declares are checked at every call, result and dataclass field.
"""

import signal
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# The hook works on modules imported after it.
install_import_hook("trajstitch", "typechecker.check")

# A shell starts jobs in the background with Ctrl-C ignored, and what tests start would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def minari_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(store))
    monkeypatch.setattr("trajstitch.formats.minari._remote_answers", lambda: False)
    return store


@pytest.fixture(autouse=True, scope="module")
def room_for_programs() -> None:
    """The programs of thousands of tests would take more memory maps than a process may have."""
    from trajstitch.learning.compiled import forget_if_many

    forget_if_many()


@pytest.fixture
def wrong_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test give arguments of wrong types or shapes, as users may; the error they get is what it tests."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
