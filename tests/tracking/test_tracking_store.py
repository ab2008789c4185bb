from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tula_core.errors import InputError
from tula_core.tracking import flush, reachable, shown_uri, spool, tracking_uri
from tula_core.tracking.store import artifact_location


def test_the_default_store_is_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "state"))
    assert tracking_uri() == f"sqlite:///{tmp_path / 'state' / 'mlflow.db'}"
    assert artifact_location(tracking_uri(), "a job") == (tmp_path / "state" / "mlartifacts" / "a job").as_uri()
    assert artifact_location("http://host", "a job") is None


def test_a_relative_database_does_not_move_with_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here/m.db")
    assert tracking_uri() == f"sqlite:///{tmp_path}/here/m.db"
    assert reachable()


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "/tmp/mlruns", "sqlite://", "sqlite:///:memory:"])
def test_addresses_that_cannot_hold_a_store_are_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI: .* [Uu]se sqlite:///PATH"):
        tracking_uri()


def test_passwords_are_not_shown() -> None:
    assert shown_uri("https://me:secret@host:5000/x") == "https://host:5000/x"
    assert shown_uri("sqlite:////a/b.db") == "sqlite:////a/b.db"


def test_a_server_that_takes_connections_and_never_answers_is_not_reachable() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        began = time.monotonic()
        assert not reachable(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.3)
        assert time.monotonic() - began < 10
    assert not reachable("http://no host at all", timeout_s=0.3)


@pytest.mark.parametrize("uri", ["foo://bar", "postgresql://host/base"])
def test_a_store_that_cannot_be_opened_costs_nothing_that_waits(
    home: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    spool.append({"op": "start", "job_id": "a"})
    report = flush()
    assert (report.sent, report.left, report.rejected) == (0, 1, ())
    assert report.problem is not None and f"MLflow cannot open '{uri}'" in report.problem


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://[bad")
    with pytest.raises(InputError, match="is no address"):
        tracking_uri()
