from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tracking_factories import make_outcome, make_plan

from tula_core.errors import StoppedError
from tula_core.records import Outcome
from tula_core.tracking import Tracker, flush, keys, send, spool, store
from tula_core.tracking.read import pending_outcomes, recorded_outcomes


def make_tracker(job_id: str, name: str) -> Tracker:
    return Tracker(name, job_id, "abcd", "digits-cnn", "cpu-abc", "tula-predictor v1 (built-in)")


def test_files_keep_their_order_when_the_clock_is_set_back(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = spool.append({"op": "start", "job_id": "a"})
    monkeypatch.setattr(time, "time_ns", lambda: 10)
    second = spool.append({"op": "finish", "job_id": "a"})
    assert spool.pending() == [first, second]
    assert [operation["op"] for operation in spool.operations()] == ["start", "finish"]


def test_a_number_that_is_not_finite_is_never_written(home: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        spool.append({"value": float("inf")})
    assert spool.pending() == []


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ("{ cut short", "not an operation"),
        ("[1, 2]", "not an operation"),
        (json.dumps({"op": "dance", "job_id": "x"}), "'dance' is unknown"),
        (json.dumps({"op": "finish", "job_id": "x", "outcome": {"schema_version": 9}}), "schema_version is 9"),
    ],
)
def test_a_file_that_can_never_be_sent_is_set_aside_and_holds_up_nothing(
    home: Path, document: str, reason: str
) -> None:
    path = home / "spool" / "00000000000000000001-1-000000.json"
    path.parent.mkdir()
    path.write_text(document)
    plan = make_plan()
    report = make_tracker("a", "small").start(plan, plan.table[0], 1)
    assert (report.sent, report.left, len(report.rejected)) == (1, 0, 1)
    assert report.problem is not None and reason in report.problem
    rejected = home / "spool" / "rejected"
    assert (rejected / path.name).read_text() == document
    assert reason in (rejected / f"{path.stem}.reason.txt").read_text()


def test_what_the_store_cannot_take_now_stays_and_other_jobs_go_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tula_core.tracking.apply import Recorder

    plan, real = make_plan(), Recorder.apply

    def sick_for_a(recorder: Recorder, operation: dict) -> None:
        if operation["job_id"] == "a":
            raise OSError("No space left on device")
        real(recorder, operation)

    monkeypatch.setattr(Recorder, "apply", sick_for_a)
    report = make_tracker("a", "small").start(plan, plan.table[0], 1)
    assert (report.sent, report.left) == (0, 1) and "No space left" in str(report.problem)
    assert make_tracker("a", "small").finish(make_outcome("a")).left == 2
    report = make_tracker("b", "small").start(plan, plan.table[0], 1)
    assert (report.sent, report.left) == (1, 2)
    monkeypatch.setattr(Recorder, "apply", real)
    assert flush().sent == 2 and spool.pending() == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_stop_while_an_operation_is_sent_ends_the_sending(
    home: Path, monkeypatch: pytest.MonkeyPatch, wrapped: bool
) -> None:
    """It is no trouble of the store: taken for one it would be lost, and the run would train on."""
    from tula_core.tracking.apply import Recorder

    def stopped(self: Recorder, operation: dict[str, Any]) -> None:
        stop = StoppedError("stopped by SIGTERM.", 15)
        if wrapped:
            raise OSError("no answer") from stop
        raise stop

    plan = make_plan()
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "apply", stopped)
        with pytest.raises(StoppedError):
            make_tracker("a", "small").start(plan, plan.table[0], 1)
    assert len(spool.pending()) == 1
    assert flush().sent == 1


def test_a_stop_from_before_does_not_keep_what_is_put_away_from_being_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tula_core.tracking.apply import Recorder

    def fails(self: Recorder, operation: dict[str, Any]) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(Recorder, "apply", fails)
    try:
        raise StoppedError("stopped by SIGTERM.", 15)
    except StoppedError:
        report = make_tracker("a", "small").start(make_plan(), make_plan().table[0], 1)
    assert report.left == 1 and "no answer" in str(report.problem)


def test_a_server_that_is_down_costs_no_minutes_and_loses_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_quiet_until", {})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    tracker, plan, began = make_tracker("a", "small"), make_plan(), time.monotonic()
    assert "cannot be reached" in str(tracker.start(plan, plan.table[0], 1).problem)
    tracker.log_progress([(64, {"train_loss": 2.0})])
    assert tracker.finish(make_outcome("a")).left == 3
    assert time.monotonic() - began < 30
    assert [outcome.job_id for outcome in pending_outcomes()] == ["a"]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert flush().sent == 3
    assert [found.outcome.job_id for found in recorded_outcomes()] == ["a"]
    assert list(pending_outcomes()) == []


@pytest.mark.service
def test_a_real_server_that_hangs_and_comes_back(server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_quiet_until", {})
    plan, client = make_plan(name="over-http"), store.client()
    tracker = make_tracker("http-1", "over-http")
    assert tracker.start(plan, plan.table[0], 1) == send.FlushReport(sent=1)
    server.pause()
    began = time.monotonic()
    tracker.log_progress([(samples, {"train_loss": 1.0 / samples}) for samples in range(1, 1501)])
    assert tracker.finish(make_outcome("http-1", name="over-http")).left == 2
    assert time.monotonic() - began < 30
    server.resume()
    until = time.monotonic() + 60
    while not store.reachable() and time.monotonic() < until:
        time.sleep(0.2)
    next_plan = make_plan(name="over-http")
    assert make_tracker("http-2", "over-http").start(next_plan, plan.table[0], 1).sent == 3
    experiment = client.get_experiment_by_name("over-http").experiment_id
    runs = {run.data.tags.get(keys.JOB_ID): run for run in client.search_runs([experiment])}
    assert runs["http-1"].info.status == "FINISHED" and runs["http-2"].info.status == "RUNNING"
    assert runs["http-1"].data.metrics["error_pct/step_time_s"] == pytest.approx(-20)
    train = client.search_runs(
        [experiment], f"tags.`{keys.PARENT}` = '{runs['http-1'].info.run_id}' and tags.`{keys.ROLE}` = 'train'"
    )[0]
    assert len(client.get_metric_history(train.info.run_id, "train_loss")) == 1500
    outcomes: list[Outcome] = [found.outcome for found in recorded_outcomes()]
    assert [outcome.job_id for outcome in outcomes] == ["http-1"]
    assert outcomes[0] == make_outcome("http-1", name="over-http")
