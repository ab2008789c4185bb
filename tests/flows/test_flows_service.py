"""The flows as a service: a real Prefect server, a process work pool with a worker, and a job sent from Python."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
TINY = {
    "name": "tiny",
    "workload": "digits-cnn",
    "recipe": {"epochs": 2},
    "target": "none",
    "cluster": {"nodes": 1, "processes_per_node": 1},
    "probe": {"seconds": 5},
}
SUBMIT = """
import json, sys
from flows import submit
run = submit(json.loads(sys.argv[1]), wait=True)
print(json.dumps({"id": str(run.id), "state": run.state.type.value, "message": run.state.message}))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))}
    return own | {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "DO_NOT_TRACK": "true",
        "TULA_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def prefect(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-m", "prefect", *arguments]
    options: Any = {"capture_output": True, "text": True, "env": environment, "cwd": REPOSITORY, "timeout": 180}
    answer = subprocess.run(command, check=False, **options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return str(answer.stdout)


@contextmanager
def background(environment: dict[str, str], log: Path, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-m", "prefect", *arguments]
    with log.open("w") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=REPOSITORY)
        try:
            yield
        finally:
            child.terminate()
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def wait_for(url: str, log: Path, seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(log.read_text())


def test_a_job_sent_from_python_is_run_by_a_worker_and_recorded(environment: dict[str, str], tmp_path: Path) -> None:
    url, logs = environment["PREFECT_API_URL"], tmp_path
    port = url.split(":")[-1].split("/")[0]
    server = ("server", "start", "--host", "127.0.0.1", "--port", port)
    with background(environment, logs / "server.log", *server):
        wait_for(f"{url}/health", logs / "server.log")
        prefect(environment, "work-pool", "create", "tula", "--type", "process")
        deploy = ("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        prefect(environment, *deploy)
        weekly = json.loads(prefect(environment, "deployment", "inspect", "retrain/tula", "--output", "json"))
        assert [each["schedule"]["cron"] for each in weekly["schedules"]] == ["0 3 * * 1"]
        with background(environment, logs / "worker.log", "worker", "start", "--pool", "tula"):
            command = [sys.executable, "-c", SUBMIT, json.dumps(TINY)]
            options: Any = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path, "timeout": 400}
            sent = subprocess.run(command, check=False, **options)
            assert sent.returncode == 0, sent.stderr + (logs / "worker.log").read_text()
    run = json.loads(sent.stdout.splitlines()[-1])
    assert run["state"] == "COMPLETED", run["message"] + (logs / "worker.log").read_text()
    check_outcome(tmp_path / "home", run["id"])


def check_outcome(home: Path, job_id: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"tags.`tula.job_id` = '{job_id}'")
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert [run.info.status for run in parents] == ["FINISHED"]
    assert {"predicted/time_to_train_s", "actual/time_to_train_s"} <= set(parents[0].data.metrics)
