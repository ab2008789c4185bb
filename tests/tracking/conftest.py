from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


class Server:
    """An MLflow server on loopback that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = {
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--backend-store-uri": f"sqlite:///{self.folder / 'mlflow.db'}",
            "--artifacts-destination": str(self.folder / "artifacts"),
            "--workers": "1",
        }
        command = [sys.executable, "-m", "mlflow", "server", *(word for pair in options.items() for word in pair)]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder, env=_server_environment()
            )
        deadline = time.monotonic() + 90
        while not store.reachable(self.uri, timeout_s=1.0):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
            time.sleep(0.2)

    def pause(self) -> None:
        """Let it take connections and answer none."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _server_environment() -> dict[str, str]:
    return {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


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
