"""Public reports of an orchestrator in the way of the work, P70, P71, P76 and P77; against a real Prefect server."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import make_job, make_profile

from tula_core import api
from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.progress import Event
from tula_core.records import save

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]

JOB = Job(workload="digits-cnn", name="digits-cnn").to_dict()


@pytest.fixture(scope="module")
def prefect_server() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A core that answers at once."""
    from flows_fakes import FakeCore

    fake = FakeCore()
    for name in ("profile", "plan", "train"):
        monkeypatch.setattr(api, name, getattr(fake, name))
    return fake


NETWORK = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({**JOB, "network": NETWORK}, "network: input should be a valid string"),
        ({**JOB, "dataset": threading.Lock()}, "dataset: input should be a valid string"),
        ({**JOB, "recipe": {"learning_rate": torch.tensor(0.1, requires_grad=True)}}, "recipe.learning_rate"),
        (NETWORK, "found Linear, expected keys and values"),
    ],
)
def test_p70_objects_are_refused_by_name_before_anything_is_sent(value: Any, words: str) -> None:
    # Elsewhere: a network is a task's input; its key is different each time, or cannot be computed at all.
    from flows import submit

    with pytest.raises(InputError) as caught:
        submit(value)
    assert words in str(caught.value)


def test_p70_equal_jobs_have_equal_keys_and_others_do_not() -> None:
    from flows.optimize import plan_key

    def key(job: Job, **profile: Any) -> str:
        return plan_key(None, {"job": job.to_dict(), "profile": profile})  # type: ignore[arg-type]

    one = Job(workload="digits-cnn", recipe={"epochs": 2}, seed=1)
    backwards = Job.from_mapping(dict(reversed(one.to_dict().items())))
    assert key(one, a=1, b=2) == key(backwards, b=2, a=1)
    assert len({key(one), key(one.model_copy(update={"seed": 2})), key(one, a=1)}) == 3


def test_p71_a_thread_that_speaks_is_heard(prefect_server: None, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: asking for the run's logger in a thread raises, and what was to be said is lost with the run.
    from flows.optimize import optimize

    failures: list[BaseException] = []

    def train(*given: Any, listener: Any, **rest: Any) -> Any:
        def speak() -> None:
            try:
                listener(Event(stage="train", message="from a thread", level="warning"))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=speak)
        thread.start()
        thread.join()
        return core.train(*given, listener=listener, **rest)

    monkeypatch.setattr(api, "train", train)
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    ear = Ear()
    logger = logging.getLogger("prefect.task_runs")
    logger.addHandler(ear)
    try:
        assert optimize(JOB)["status"] == "FINISHED"
    finally:
        logger.removeHandler(ear)
    assert failures == []
    assert "train: from a thread" in heard


def test_a_mistake_is_told_without_tracebacks(
    prefect_server: None, core: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Elsewhere: a module that the worker cannot import is buried in pages of the orchestrator's own frames.
    from flows.optimize import optimize

    core.profile_errors = [InputError("workload: importing 'mine' failed. Add its folder to PYTHONPATH.")] * 2
    loggers = [logging.getLogger(f"prefect.{name}") for name in ("flow_runs", "task_runs", "engine")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    try:
        with pytest.raises(InputError, match="Add its folder to PYTHONPATH"):
            optimize(JOB)
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    assert "Add its folder to PYTHONPATH" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_fault_of_the_program_keeps_its_traceback(
    prefect_server: None, core: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from flows.optimize import optimize

    core.profile_errors = [ZeroDivisionError("a fault")]
    logger = logging.getLogger("prefect.task_runs")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(ZeroDivisionError):
            optimize(JOB)
    finally:
        logger.removeHandler(caplog.handler)
    assert "Traceback" in caplog.text


def test_p76_planning_needs_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: on a cold machine the first server start takes longer than its own limit, and all work waits for it.
    from typer.testing import CliRunner

    from flows.cli import app

    monkeypatch.setitem(sys.modules, "prefect", None)  # importing it fails
    save(make_profile(job=make_job(workload="digits-cnn").to_dict()), tmp_path / "profile.json")
    arguments = [
        "plan",
        "digits-cnn",
        "--profile",
        str(tmp_path / "profile.json"),
        "--out",
        str(tmp_path / "plan.json"),
    ]
    arguments += ["--set", "cluster.processes_per_node=2", "--set", "target=none", "--set", "mitigation=auto"]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "plan.json").exists()


def test_p76_a_cold_start_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from flows.settings import configure

    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    before = dict(os.environ)
    try:
        assert configure()
        assert float(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"]) >= 120
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_p77_training_that_was_submitted_to_a_thread_trains(prefect_server: None, home: Path) -> None:
    # Elsewhere: signal handlers cannot be set outside the main thread, and a submitted task dies of it.
    from prefect import flow
    from train_helpers import hand_made_plan

    from flows.optimize import plain, train_task

    made = hand_made_plan("plain", processes=1)

    @flow
    def in_a_thread() -> dict[str, Any]:
        result: dict[str, Any] = train_task.submit(plain(made), "submitted", False).result()
        return result

    assert in_a_thread()["status"] == "FINISHED"
