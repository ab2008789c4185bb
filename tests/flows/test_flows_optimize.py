"""The flows against a real Prefect server, started once for this module, and a core that answers at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flows_samples as samples
import pytest
from flows_fakes import FakeCore

from tula_core.errors import DivergedError, InfeasibleError, InputError, OutOfMemoryError, RunError, StoppedError
from tula_core.home import tula_home
from tula_core.job import Job
from tula_core.progress import Event
from tula_core.records import Plan

pytestmark = pytest.mark.service

REPOSITORY = Path(__file__).parents[2]
JOB = Job(workload="digits-cnn", name="digits-cnn").to_dict()


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import optimize

    monkeypatch.setattr(optimize.train_task, "retry_delay_seconds", 0)
    monkeypatch.setattr(optimize.profile_task, "retry_delay_seconds", 0)


class Ear:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.plans: list[Plan] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)


def artifacts(key: str) -> list[Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/filter", json={"artifacts": {"key": {"any_": [key]}}})
    return list(found.json())


def test_the_chain_is_profile_plan_train(core: FakeCore) -> None:
    from flows.optimize import optimize
    from flows.watch import watching

    ear = Ear()
    with watching(ear):
        outcome = optimize(JOB)
    assert [name for name, _ in core.calls] == ["profile", "plan", "train"]
    assert core.named("plan")[0]["profile"] == samples.profile()
    trained = core.named("train")[0]
    assert trained["plan"].choice.candidate == samples.plan().choice.candidate
    assert outcome["job_id"] == trained["job_id"]
    assert len(trained["job_id"]) == 36  # the flow run's id
    assert [event.stage for event in ear.events] == ["profile", "search", "train", "train"]
    assert [plan.choice_index for plan in ear.plans] == [1]
    assert not ear.plans[0].probe.cached
    table = artifacts("digits-cnn-forecast")[0]
    assert table["type"] == "table"
    assert "61.7 s" in table["data"]
    text = artifacts("digits-cnn-plan")[0]
    assert text["type"] == "markdown"
    assert samples.plan().reason in text["data"]


def test_a_plan_is_cached_until_the_predictor_changes(core: FakeCore) -> None:
    from flows.optimize import optimize

    optimize(JOB)
    optimize(JOB)
    assert len(core.named("plan")) == 1
    assert len(core.named("profile")) == 2
    assert len(core.named("train")) == 2
    assert len({call["job_id"] for call in core.named("train")}) == 2
    (tula_home() / "champion.json").write_text('{"version": 2}')
    optimize(JOB)
    assert len(core.named("plan")) == 2


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # One server serves all tests of this module: each test gets cached plans of its own.
    from flows import optimize

    monkeypatch.setattr(optimize, "source_digest", lambda: str(tmp_path))


def test_a_process_that_died_is_tried_again_as_the_same_logical_run(core: FakeCore) -> None:
    from flows.optimize import optimize

    core.train_errors = [RunError("process 1 was killed (signal 9)"), RunError("and again")]
    outcome = optimize(JOB, job_id="the-run")
    assert outcome["status"] == "FINISHED"
    assert [(call["job_id"], call["resume"]) for call in core.named("train")] == [
        ("the-run", False),
        ("the-run", True),
        ("the-run", True),
    ]


@pytest.mark.parametrize(
    "error",
    [
        InputError("label 12 is outside 0 to 9"),
        OutOfMemoryError("20 GiB of 8"),
        DivergedError("at every rate"),
        StoppedError("stopped by SIGTERM.", 15),
        OSError(28, "No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_retry_cannot_mend_is_raised_at_once_as_it_is(core: FakeCore, error: Exception) -> None:
    from flows.optimize import optimize

    core.train_errors = [error]
    with pytest.raises(type(error)) as caught:
        optimize(JOB)
    assert caught.value is error
    assert len(core.named("train")) == 1


def test_nothing_feasible_is_an_error_with_the_plan_in_the_artifacts(core: FakeCore) -> None:
    from flows.optimize import optimize

    core.the_plan = samples.plan(feasible=False)
    with pytest.raises(InfeasibleError):
        optimize({**JOB, "name": "too tight"})
    assert core.named("train") == []
    assert any("nothing is feasible" in each["data"] for each in artifacts("digits-cnn-plan"))


def test_resume_takes_up_the_unfinished_run_with_its_plan(core: FakeCore) -> None:
    from flows.optimize import optimize

    optimize(JOB, resume=True)
    assert [name for name, _ in core.calls] == ["train"]
    [call] = core.named("train")
    assert (call["job_id"], call["resume"]) == ("run-before", True)


def test_a_wrong_job_is_an_input_error(core: FakeCore) -> None:
    from flows.optimize import optimize

    with pytest.raises(InputError, match="recipee"):
        optimize({**JOB, "recipee": {}})


def test_retrain_leaves_its_verdict(core: FakeCore) -> None:
    from flows.retrain import retrain

    report = retrain()
    assert report["promoted"] is False
    assert "one job is not enough" in artifacts("retrain")[0]["data"]


def test_submit_checks_the_job_and_the_deployment() -> None:
    from flows import submit

    with pytest.raises(InputError, match="digits-cnn"):
        submit("digits-cmn")
    with pytest.raises(InputError, match="prefect --no-prompt deploy"):
        submit("digits-cnn")


def test_submit_names_a_server_that_does_not_answer(tmp_path: Path) -> None:
    code = "from flows import submit; submit('digits-cnn')"
    environment = os.environ | {"PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    last = answer.stderr.strip().splitlines()[-1]
    assert "RunError: PREFECT_API_URL: the server http://127.0.0.1:9/api does not answer" in last


RUN = """
import os, sys, time
from tula_core import api
from flows_fakes import FakeCore
fake = FakeCore()
def train(*a, **k):
    try:
        print("training", flush=True)
        time.sleep(60)
    finally:
        print("put away", flush=True)
for name in ("profile", "plan", "retrain", "resume_plan"):
    setattr(api, name, getattr(fake, name))
api.train = fake.train if sys.argv.pop(1) == "finish" else train
from flows.cli import main
main()
"""


def start_run(mode: str, tmp_path: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    environment["PYTHONPATH"] = f"{REPOSITORY}:{Path(__file__).parent}"
    command = [sys.executable, "-c", RUN, mode, "run", "digits-cnn", "--out", "p.json"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=tmp_path)


def test_tula_run_with_its_own_server_is_quiet_and_complete(tmp_path: Path, home: Path) -> None:
    child = start_run("finish", tmp_path)
    out, err = child.communicate(timeout=250)
    assert child.returncode == 0, err
    order = [
        "Machine: 2 cores",
        "Forecast for digits-cnn",
        "Choice: row 1",
        "Predicted and actual",
        "Next: tula history",
    ]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    assert "prefect" not in (out + err).lower().replace("starting prefect", "")
    assert "Traceback" not in err
    assert (home / "prefect").is_dir()
    assert (tmp_path / "p.json").exists()


def test_sigterm_during_tula_run_ends_the_training_and_exits_143(tmp_path: Path) -> None:
    child = start_run("stop", tmp_path)
    assert child.stdout is not None
    for line in child.stdout:
        if line == "training\n":
            break
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=200)
    assert "put away" in out
    assert child.returncode == 143
    assert "Go on with: tula run digits-cnn --resume" in err
    assert "Traceback" not in err
