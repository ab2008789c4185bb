"""A signal to the whole process group, as a terminal and a batch scheduler send it: real jobs, real servers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[2]
ONE_BATCH = ("cluster.processes_per_node=1", "constraints.max_local_batch=32", "target=none", "mitigation=none")
JOB = (
    "digits-cnn",
    *(word for each in (*ONE_BATCH, "probe.seconds=4", "recipe.epochs=40") for word in ("--set", each)),
)


Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a run in a group of its own, what it prints in a file of its own; none outlives the test."""
    runs = []

    def start(*more: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
        with (tmp_path / "stdout.txt").open("w") as out:
            run = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "run", *JOB, *more],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                env=environment | {"PYTHONPATH": str(REPOSITORY)},
                cwd=tmp_path,
                start_new_session=True,
            )
        runs.append(run)
        return run

    yield start
    for run in runs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def stopped(run: subprocess.Popen[str], number: signal.Signals, once: str) -> list[str]:
    """Send a signal to the group once a line says that a stage is under way; return what is printed after it."""
    assert run.stderr is not None
    for line in run.stderr:
        if re.match(once, line):
            os.killpg(run.pid, number)
            break
    return run.communicate(timeout=200)[1].splitlines()


def servers_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TULA_HOME") == str(home) and "uvicorn" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def said(lines: list[str]) -> list[str]:
    """Leave the progress of the stages out."""
    return [line for line in lines if not re.match(r"(profile|fit|search|train|track) +\d* ", line)]


def test_a_run_that_trains_is_stopped_in_two_lines_and_goes_on_where_it_was(
    begin: Begin, tmp_path: Path, home: Path
) -> None:
    run = begin()
    lines = stopped(run, signal.SIGTERM, once=r"train .*images")
    assert run.returncode == 143, lines
    go_on, last = said(lines)[-2:]
    assert go_on == f"Go on with: tula run {' '.join(JOB)} --resume"
    assert last == "stopped by SIGTERM."
    assert not re.search(r"Traceback|ConnectError|Error:", "\n".join(lines))
    assert servers_of(home) == []

    run = begin("--resume")
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert "attempt 2" in (tmp_path / "stdout.txt").read_text()


def test_a_run_that_measures_is_stopped_in_two_lines(begin: Begin, home: Path) -> None:
    run = begin()
    lines = stopped(run, signal.SIGINT, once=r"profile ")
    assert run.returncode == 130, lines
    assert said(lines)[-2:] == [f"Go on with: tula run {' '.join(JOB)}", "stopped by SIGINT."]
    assert not re.search(r"Traceback|ConnectError|Error:", "\n".join(lines))
    assert servers_of(home) == []
