from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store_fixtures import empty_store, mlflow_server

__all__ = ["empty_store", "home", "mlflow_server", "state"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty state folder, without a database."""
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def home(state: Path, empty_store: Path) -> Path:
    """A state folder with an empty database."""
    shutil.copy(empty_store, state / "mlflow.db")
    return state
