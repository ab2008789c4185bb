"""Public reports of a cancelled flow and of a mistake sent to a worker, P72; a real Prefect server, pool and worker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from families import command, still_there

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
SUBMIT = """
import json, sys
from flows import submit
run = submit(json.loads(sys.argv[1]), wait=sys.argv[2] == "wait")
print(json.dumps({"id": str(run.id), "state": run.state.type.value, "message": run.state.message}))
"""
# The stack is started once: a server takes ten seconds, and so does a worker's first flow run.
DEPLOY = """
from flows.optimize import optimize
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
import sys
with get_client(sync_client=True) as client:
    client.create_work_pool(WorkPoolCreate(name="tula", type="process"))
optimize.from_source(source=sys.argv[1], entrypoint="flows/optimize.py:optimize").deploy(
    name="tula", work_pool_name="tula", print_next_steps=False
)
"""


class Stack:
    """A server with a pool, a worker on it, and a deployed flow."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.port}/api"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW"))}
        self.environment = own | {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "DO_NOT_TRACK": "true",
            "TULA_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *(path for path in sys.path if path)]),
        }

    def submit(self, job: dict[str, Any], *, wait: bool) -> dict[str, Any]:
        done = self.python(SUBMIT, json.dumps(job), "wait" if wait else "go on")
        answer: dict[str, Any] = json.loads(done.splitlines()[-1])
        return answer

    def python(self, code: str, *arguments: str) -> str:
        options: Any = {"capture_output": True, "text": True, "env": self.environment, "cwd": self.folder}
        done = subprocess.run([sys.executable, "-c", code, *arguments], check=False, timeout=300, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    def call(self, path: str, data: dict[str, Any] | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def said(self, flow_run: str) -> str:
        filters = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "limit": 200}
        return "\n".join(entry["message"] for entry in self.call("/logs/filter", filters))

    @contextmanager
    def background(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "prefect", *arguments]
        with (self.folder / f"{name}.log").open("w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, cwd=REPOSITORY)
            try:
                yield child
            finally:
                child.terminate()
                try:
                    child.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, psutil.Process]]:
    made = Stack(tmp_path_factory.mktemp("stack"))
    for helpers in (REPOSITORY / "tests" / "support",):
        made.environment["PYTHONPATH"] += os.pathsep + str(helpers)
    with made.background("server", "server", "start", "--host", "127.0.0.1", "--port", str(made.port)):
        until(lambda: healthy(made), 180)
        made.python(DEPLOY, str(REPOSITORY))
        with made.background("worker", "worker", "start", "--pool", "tula") as worker:
            yield made, psutil.Process(worker.pid)


def healthy(stack: Stack) -> bool:
    try:
        return bool(stack.call("/health"))
    except OSError:
        return False


def until(holds: Any, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError):  # no answer yet
            if found := holds():
                return found
        time.sleep(0.3)
    raise AssertionError(f"not within {seconds:g} s")


def job(workload: str) -> dict[str, Any]:
    return {
        "name": "cases",
        "workload": workload,
        "target": "none",
        "cluster": {"processes_per_node": 2},
        "probe": {"seconds": 30},
    }


def test_a_workload_that_the_worker_cannot_import_is_told_in_a_few_lines(stack: tuple[Stack, psutil.Process]) -> None:
    # Elsewhere: the one line that says what to do is buried in pages of the orchestrator's own frames.
    made, _ = stack
    run = made.submit(job("not_on_the_worker:make"), wait=True)
    assert run["state"] == "FAILED"
    assert "add its folder to PYTHONPATH" in run["message"]
    said = made.said(run["id"])
    assert "add its folder to PYTHONPATH" in said
    assert "Traceback" not in said


def test_p72_a_flow_that_is_cancelled_while_it_measures_leaves_nothing(stack: tuple[Stack, psutil.Process]) -> None:
    # Elsewhere: children go on holding the device after the flow was cancelled, and the run is never marked.
    made, worker = stack
    run = made.submit(job("fault_workloads:waits_for_ever"), wait=False)

    def measuring() -> list[psutil.Process]:
        family = worker.children(recursive=True)
        hanging = [each for each in family if "time.sleep(600)" in " ".join(command(each))]
        return family if hanging else []

    family = until(measuring, 240)
    cancel = {"state": {"type": "CANCELLING"}, "force": True}
    made.call(f"/flow_runs/{run['id']}/set_state", cancel)
    until(lambda: made.call(f"/flow_runs/{run['id']}")["state"]["type"] == "CANCELLED", 180)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert [command(each) for each in still_there(alive)] == []
