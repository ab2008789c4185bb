"""Stores and servers that the cases share: each is started once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import Server

from tula_core.tracking import store

TESTS = Path(__file__).parents[1]
HELPERS = (Path(__file__).parent, TESTS, *(TESTS / name for name in ("tracking", "search", "flows", "training")))
"""Where helper modules are, the small plans, outcomes and predictors of other tests among them."""


@pytest.fixture(autouse=True)
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests, and the processes they start, import the helper modules."""
    for path in HELPERS:
        monkeypatch.syspath_prepend(str(path))


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh MLflow database; making one costs seconds, copying it nothing."""
    path = tmp_path_factory.mktemp("empty store") / "mlflow.db"
    store.client(f"sqlite:///{path}")
    return path


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder whose store is ready."""
    folder = tmp_path / "tula home"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    monkeypatch.setenv("TULA_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Server]:
    """An MLflow server."""
    folder = tmp_path_factory.mktemp("server of the cases")
    shutil.copy(empty_store, folder / "mlflow.db")
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(mlflow_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, as the store that Tula uses."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    return mlflow_server
