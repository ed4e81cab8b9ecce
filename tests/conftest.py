"""Every test has a Minari store of its own and leaves the user's alone."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def minari_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store = tmp_path / "minari"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(store))
    return store
