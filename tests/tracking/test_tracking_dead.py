from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tracking_factories import make_outcome, make_plan

from tula_core.records import save
from tula_core.tracking import Tracker, close_attempt, close_dead_runs, keys, open_attempt, store
from tula_core.tracking.dead import attempt_path, is_running
from tula_core.tracking.read import recorded_outcomes
from tula_core.tracking.spent import spent

EVENTS = [
    {"kind": "ready", "at_s": 1010.0},
    {"kind": "progress", "at_s": 1030.0, "samples": 500},
    {"kind": "note", "at_s": 1080.0},
    {"kind": "progress", "at_s": 1090.0, "samples": 2500},
]


def write_events(attempt: Path, *events: dict) -> None:
    """Leave what a worker leaves that was launched at second 1000 and killed while it wrote."""
    attempt.mkdir(parents=True, exist_ok=True)
    (attempt / "config.json").write_text("{}")
    os.utime(attempt / "config.json", (1000, 1000))
    lines = [json.dumps(event) for event in events]
    (attempt / "events.jsonl").write_text("\n".join([*lines, '{"kind": "progress", "at_s": 2']))


RUNNER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tracking_factories import make_plan
from tula_core.tracking import Tracker, open_attempt
plan = make_plan(price=6.0)
open_attempt(Path(sys.argv[2]), plan, "job-1", 1)
tracker = Tracker("small", "job-1", plan.job.digest, "digits-cnn", "cpu-abc", plan.predictor)
print(tracker.start(plan, plan.table[0], 1).problem, flush=True)
time.sleep(300)
"""


def test_a_killed_run_is_closed_with_its_partial_cost_at_the_next_start(home: Path) -> None:
    folder = home / "runs" / "job-1"
    command = [sys.executable, "-c", RUNNER, str(Path(__file__).parent), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline().strip() == "None"
        assert close_dead_runs() == []  # it lives
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    write_events(folder / "attempt-1", *EVENTS)
    assert close_dead_runs() == ["job-1"]
    assert close_dead_runs() == []
    assert json.loads(attempt_path(folder, 1).read_text())["status"] == "KILLED"

    client = store.client()
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    status = {run.data.tags[keys.ROLE]: run.info.status for run in runs}
    assert status == {"job": "KILLED", "train": "KILLED", "profile": "FINISHED", "search": "FINISHED"}
    metrics = next(run for run in runs if run.data.tags[keys.ROLE] == "job").data.metrics
    assert metrics["actual/time_to_train_s"] == 90.0
    assert metrics["actual/node_hours"] == pytest.approx(90 / 3600)
    assert metrics["actual/cost_usd"] == pytest.approx(120 / 3600 * 6.0)  # billed by the minute
    assert metrics["actual/epochs"] == 2.5
    (found,) = recorded_outcomes()
    assert (found.outcome.status, found.outcome.actual["step_time_s"]) == ("KILLED", None)
    assert found.outcome.predicted["step_time_s"] == 0.02


def as_dead(folder: Path, **changes: object) -> None:
    path = attempt_path(folder, 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "alive"),
    [
        ({}, True),
        ({"process_started": "12"}, False),  # the number went to another process
        ({"boot_id": "before-the-last-boot"}, False),
        ({"host": "elsewhere", "boot_id": "x"}, True),  # cannot be known from here
        ({"status": "FINISHED"}, False),
    ],
)
def test_whether_an_attempt_runs(home: Path, changes: dict, alive: bool) -> None:
    folder = home / "runs" / "job-1"
    open_attempt(folder, make_plan(), "job-1", 1)
    as_dead(folder, **changes)
    assert is_running(json.loads(attempt_path(folder, 1).read_text())) is alive


def test_an_attempt_that_ended_is_left_alone(home: Path) -> None:
    folder = home / "runs" / "job-1"
    open_attempt(folder, make_plan(), "job-1", 1)
    record = json.loads(attempt_path(folder, 1).read_text())
    assert (record["pid"], record["host"], record["plan_digest"]) == (
        os.getpid(),
        socket.gethostname(),
        make_plan().digest,
    )
    close_attempt(folder, 1, "FAILED")
    assert close_dead_runs() == []
    assert json.loads(attempt_path(folder, 1).read_text())["status"] == "FAILED"
    close_attempt(folder, 7, "FAILED")
    assert not attempt_path(folder, 7).exists()


def test_a_result_that_was_written_before_the_end_counts(home: Path) -> None:
    folder, plan = home / "runs" / "job-1", make_plan()
    open_attempt(folder, plan, "job-1", 1)
    Tracker("small", "job-1", "abcd", "digits-cnn", "cpu-abc", plan.predictor).start(plan, plan.table[0], 1)
    save(make_outcome(), folder / "outcome.json")
    as_dead(folder, boot_id="before-the-last-boot")
    assert close_dead_runs() == ["job-1"]
    assert json.loads(attempt_path(folder, 1).read_text())["status"] == "FINISHED"
    assert [found.outcome.status for found in recorded_outcomes()] == ["FINISHED"]


def test_a_late_result_is_stored_over_a_wrongly_declared_death(home: Path) -> None:
    folder, plan = home / "runs" / "job-1", make_plan()
    tracker = Tracker("small", "job-1", "abcd", "digits-cnn", "cpu-abc", plan.predictor)
    open_attempt(folder, plan, "job-1", 1)
    tracker.start(plan, plan.table[0], 1)
    as_dead(folder, process_started="12")
    close_dead_runs()
    assert [found.outcome.status for found in recorded_outcomes()] == ["KILLED"]
    tracker.finish(make_outcome())
    assert [found.outcome.status for found in recorded_outcomes()] == ["FINISHED"]


def test_a_death_that_is_noticed_late_does_not_undo_a_recorded_result(home: Path) -> None:
    folder, plan = home / "runs" / "job-1", make_plan()
    tracker = Tracker("small", "job-1", "abcd", "digits-cnn", "cpu-abc", plan.predictor)
    open_attempt(folder, plan, "job-1", 1)
    tracker.start(plan, plan.table[0], 1)
    tracker.finish(make_outcome())
    as_dead(folder, process_started="12")
    close_dead_runs()
    assert [found.outcome.status for found in recorded_outcomes()] == ["FINISHED"]


def test_the_seconds_of_all_attempts_are_added_up(tmp_path: Path) -> None:
    assert spent(tmp_path) == (None, None)
    write_events(tmp_path / "attempt-1", *EVENTS)
    assert spent(tmp_path) == (90.0, 2500)
    write_events(tmp_path / "attempt-2", {"kind": "resumed", "at_s": 1020.0, "samples": 2500})
    (tmp_path / "attempt-2.json").write_text("{}")
    assert spent(tmp_path) == (110.0, 2500)
    write_events(tmp_path / "attempt-10", {"kind": "progress", "at_s": 1005.0, "samples": 3000})
    assert spent(tmp_path) == (115.0, 3000)
