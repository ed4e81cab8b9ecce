"""Every test has a Minari store of its own, leaves the user's alone and asks no remote."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def minari_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(store))
    monkeypatch.setattr("trajstitch.formats.minari._remote_answers", lambda: False)
    return store
