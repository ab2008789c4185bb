from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tula_core.tracking import store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty-store") / "mlflow.db"
    store.client(f"sqlite:///{path}")
    return path


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
