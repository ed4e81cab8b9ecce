"""Every test has a Minari store of its own and asks no remote, and none fails because the machine is slow."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def minari_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(store))
    monkeypatch.setattr("trajstitch.formats.minari._remote_answers", lambda: False)
    return store
