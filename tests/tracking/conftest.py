from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import Server

from tula_core.tracking import store


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh database; making one costs seconds, copying it nothing."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    store.client(f"sqlite:///{path}")
    return path


@pytest.fixture
def home(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder whose default store is ready, with a space in its path as users have."""
    folder = tmp_path / "tula home"
    folder.mkdir()
    shutil.copy(template, folder / "mlflow.db")
    monkeypatch.setenv("TULA_HOME", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(template, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(mlflow_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The running server, with an empty state folder beside it."""
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    yield mlflow_server
    mlflow_server.resume()
