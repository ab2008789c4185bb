"""Fixtures of MLflow stores and servers; a folder's conftest takes those that its tests ask for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import Server

from tula_core.tracking import store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh MLflow database; making one costs seconds, copying it nothing."""
    path = tmp_path_factory.mktemp("empty store") / "mlflow.db"
    store.client(f"sqlite:///{path}")
    return path


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder whose default store is ready, with a space in its path as users have."""
    folder = tmp_path / "tula home"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    monkeypatch.setenv("TULA_HOME", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Server]:
    """An MLflow server, started once."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()
