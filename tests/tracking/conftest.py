from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import Server
from store_fixtures import empty_store, home, mlflow_server

__all__ = ["empty_store", "home", "mlflow_server", "server"]


@pytest.fixture
def server(mlflow_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The running server, with an empty state folder beside it."""
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a busy machine is no hanging server
    yield mlflow_server
    mlflow_server.resume()
