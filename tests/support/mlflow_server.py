"""A real MLflow server on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tula_core.tracking import store


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
        deadline = time.monotonic() + 240
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
