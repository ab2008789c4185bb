"""Stores and servers that the cases share: each is started once."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow_server import Server
from store_fixtures import empty_store, home, mlflow_server

__all__ = ["empty_store", "helpers", "home", "mlflow_server", "server"]

TESTS = Path(__file__).parents[1]
HELPERS = (Path(__file__).parent, TESTS, *(TESTS / name for name in ("tracking", "search", "flows", "training")))
"""Where helper modules are, the small plans, outcomes and predictors of other tests among them."""


@pytest.fixture(autouse=True)
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests, and the processes they start, import the helper modules."""
    for path in HELPERS:
        monkeypatch.syspath_prepend(str(path))


@pytest.fixture
def server(mlflow_server: Server, home: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, as the store that Tula uses."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    return mlflow_server
