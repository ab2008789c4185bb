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
from tula_core.tracking.spent import attempt_folder, attempt_layout, seconds_by_nodes, spent

LAUNCHED_S = 1_700_000_000.0
EVENTS = [
    {"kind": "progress", "at_s": LAUNCHED_S + 30.0, "samples": 500},
    {"kind": "progress", "at_s": LAUNCHED_S + 80.0, "samples": 2500},
    {"kind": "evaluation", "at_s": LAUNCHED_S + 90.0},
]


def write_events(folder: Path, attempt: int, *events: dict) -> None:
    """Leave what the workers of an attempt leave, with a last line cut short."""
    task = attempt_folder(folder, attempt)
    task.mkdir(parents=True, exist_ok=True)
    (task / "config.json").write_text("{}")
    os.utime(task / "config.json", (LAUNCHED_S, LAUNCHED_S))
    lines = [json.dumps(event) for event in events]
    (task / "events.jsonl").write_text("\n".join([*lines, '{"kind": "progress", "at_s": 1']))


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
    write_events(folder, 1, *EVENTS)
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


def test_what_earlier_attempts_spent_is_counted_too(tmp_path: Path) -> None:
    assert spent(tmp_path, 1) == (None, None)
    write_events(tmp_path, 1, *EVENTS)
    assert spent(tmp_path, 1) == (90.0, 2500)
    write_events(tmp_path, 2, {"kind": "resumed", "at_s": LAUNCHED_S + 5.0, "samples": 2000})
    assert spent(tmp_path, 2) == (95.0, 2000)
    assert spent(tmp_path, 3) == (95.0, 2000)  # killed before it said anything


def test_what_was_spent_is_known_by_the_nodes_of_each_attempt(tmp_path: Path) -> None:
    """A run that goes on elsewhere is paid for where it ran."""
    for attempt, nodes in ((1, 4), (2, 2), (3, 2)):
        write_events(tmp_path, attempt, *EVENTS)
        config = attempt_folder(tmp_path, attempt) / "config.json"
        task = {"local_batch": 8, "accumulation": 1}
        config.write_text(json.dumps({"nodes": nodes, "processes_per_node": 1, "payload": task}))
        os.utime(config, (LAUNCHED_S, LAUNCHED_S))
    write_events(tmp_path, 4, *EVENTS)  # one that does not say how many it had
    assert seconds_by_nodes(tmp_path, 4, 1) == {4: 90.0, 2: 180.0, 1: 90.0}
    assert attempt_layout(attempt_folder(tmp_path, 1)) == (4, 1, 8, 1)
    assert attempt_layout(attempt_folder(tmp_path, 4)) is attempt_layout(attempt_folder(tmp_path, 5)) is None


def test_a_killed_run_that_had_changed_its_methods_says_which_ran(home: Path) -> None:
    folder = home / "runs" / "job-1"
    folder.mkdir(parents=True)
    plan = make_plan()
    open_attempt(folder, plan, "job-1", 1)
    path = attempt_path(folder, 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "process_started": "long ago"}))
    write_events(folder, 1, *EVENTS)
    change = {
        "samples": 1000,
        "epochs": 1.0,
        "seen_at_samples": 2000,
        "dropped": ["linear-lr"],
        "taken": ["growth"],
        "dropped_batch": 64,
        "taken_batch": 64,
        "cause": "below forecast",
        "because": "accuracy was 0.5",
    }
    second = {**plan.table[0].to_dict(), "mitigation": ["growth"]}
    told = {"rows": [plan.table[0].to_dict(), second], "changes": [change], "checkpoint": "good.pt"}
    (folder / "changes.json").write_text(json.dumps(told))
    assert close_dead_runs() == ["job-1"]
    [outcome] = [recorded.outcome for recorded in recorded_outcomes()]
    assert (outcome.status, outcome.mitigation) == ("KILLED", ("growth",))
    assert [made.words() for made in outcome.method_changes] == [
        "from 1,000 samples on growth at global batch 64 instead of linear-lr at global batch 64: accuracy was 0.5"
    ]
    assert outcome.predicted["accuracy"] is None and outcome.predicted["time_to_train_s"] is not None
