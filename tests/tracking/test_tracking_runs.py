from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tracking_factories import make_outcome, make_plan, make_row

from tula_core.errors import InputError
from tula_core.records import MethodChange, Plan, from_json
from tula_core.tracking import Tracker, flush, keys, spool, store


def make_tracker(job_id: str = "job-1", name: str = "small") -> Tracker:
    return Tracker(name, job_id, "abcd", "digits-cnn", "cpu-abc", "tula-predictor v1 (built-in)")


def all_runs(name: str = "small") -> list:
    client = store.client()
    experiment = client.get_experiment_by_name(name)
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id], max_results=1000))


def by_role(name: str = "small") -> dict:
    found: dict = {}
    for run in all_runs(name):
        found.setdefault(run.data.tags[keys.ROLE], []).append(run)
    return found


def test_a_whole_job_is_one_parent_with_its_children(home: Path) -> None:
    tracker, plan = make_tracker(), make_plan()
    assert tracker.start(plan, plan.table[0], 1).problem is None
    running = by_role()
    assert [running["job"][0].info.status, running["train"][0].info.status] == ["RUNNING", "RUNNING"]
    tracker.log_progress([(64, {"train_loss": 2.0, "accuracy": 0.2}), (128, {"train_loss": 1.5, "accuracy": 0.4})])
    report = tracker.finish(make_outcome())
    assert (report.left, report.rejected, spool.pending()) == (0, (), [])

    runs = by_role()
    assert {role: len(found) for role, found in runs.items()} == {"job": 1, "profile": 1, "search": 1, "train": 1}
    assert {run.info.status for run in all_runs()} == {"FINISHED"}
    parent, train = runs["job"][0], runs["train"][0]
    assert all(
        run.data.tags[keys.PARENT] == parent.info.run_id
        for role in ("profile", "search", "train")
        for run in runs[role]
    )
    metrics = parent.data.metrics
    assert metrics["predicted/step_time_s"] == 0.02
    assert metrics["predicted/step_time_s.low"] == pytest.approx(0.016)
    assert metrics["actual/step_time_s"] == 0.025
    assert metrics["error_pct/step_time_s"] == pytest.approx(-20)
    assert "predicted/cost_usd" not in metrics and "actual/cost_usd" not in metrics
    tags = parent.data.tags
    assert [tags[key] for key in (keys.JOB_ID, keys.JOB_HASH, keys.ATTEMPT)] == ["job-1", "abcd", "1"]
    assert [tags[key] for key in (keys.HARDWARE, keys.WORKLOAD)] == ["cpu-abc", "digits-cnn"]
    assert parent.data.params["nodes"] == "1" and parent.data.params["job.workload"] == "digits-cnn"
    assert parent.info.end_time == 1772359200000
    history = store.client().get_metric_history(train.info.run_id, "train_loss")
    assert sorted((point.step, point.value) for point in history) == [(64, 2.0), (128, 1.5)]


def test_a_change_of_method_is_a_tag_of_the_job_and_of_its_training(home: Path) -> None:
    tracker, plan = make_tracker(), make_plan()
    tracker.start(plan, plan.table[0], 1)
    change = MethodChange(
        samples=2000,
        epochs=2.0,
        seen_at_samples=3000,
        dropped=("linear-lr", "warmup"),
        taken=(),
        dropped_batch=512,
        taken_batch=64,
        cause="below forecast",
        because="accuracy was 0.5 after epoch 3, forecast 0.8 (0.7 to 0.9)",
    )
    tracker.finish(make_outcome(method_changes=(change,)))
    tags = [by_role()[role][0].data.tags[keys.METHOD_CHANGES] for role in ("job", "train")]
    assert (
        tags
        == [
            "from 2,000 samples on no method at global batch 64 instead of linear-lr + warmup at global batch 512: "
            "accuracy was 0.5 after epoch 3, forecast 0.8 (0.7 to 0.9)"
        ]
        * 2
    )


def test_artifacts_hold_the_plan_the_table_and_the_outcome(home: Path, tmp_path: Path) -> None:
    tracker, plan = make_tracker(), make_plan()
    tracker.start(plan, plan.table[0], 1)
    tracker.finish(make_outcome())
    folder = Path(store.client().download_artifacts(by_role()["job"][0].info.run_id, "", str(tmp_path)))
    assert from_json(Plan, (folder / "plan.json").read_bytes(), source="x").to_json() == plan.to_json()
    lines = (folder / "forecast.csv").read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("row,nodes,") and "memory: needs 20 GiB" in lines[2]
    assert json.loads((folder / "outcome.json").read_text())["job_id"] == "job-1"
    assert (home / "mlartifacts").is_dir()


def test_starting_twice_makes_one_run(home: Path) -> None:
    plan = make_plan()
    make_tracker().start(plan, plan.table[0], 1)
    make_tracker().start(plan, plan.table[0], 1)
    assert {role: len(found) for role, found in by_role().items()} == {"job": 1, "profile": 1, "search": 1, "train": 1}


def test_a_retry_with_other_settings_keeps_the_job_and_fails_nothing(home: Path) -> None:
    plan = make_plan(make_row(nodes=2), make_row(nodes=1))
    make_tracker().start(plan, plan.table[0], 1)
    make_tracker().finish(make_outcome(status="FAILED", failure="worker died", nodes=2))
    assert by_role()["job"][0].info.status == "FAILED"
    report = make_tracker().start(plan, plan.table[1], 2)
    assert (report.problem, report.rejected) == (None, ())
    assert by_role()["job"][0].info.status == "RUNNING"
    make_tracker().finish(make_outcome(attempt=2))

    runs = by_role()
    parent = runs["job"][0]
    assert (len(runs["job"]), parent.info.status, parent.data.tags[keys.ATTEMPT]) == (1, "FINISHED", "2")
    trains = {run.data.tags[keys.ATTEMPT]: run for run in runs["train"]}
    assert {attempt: run.data.params["nodes"] for attempt, run in trains.items()} == {"1": "2", "2": "1"}
    assert {attempt: run.info.status for attempt, run in trains.items()} == {"1": "FAILED", "2": "FINISHED"}
    assert trains["1"].data.tags[keys.FAILURE] == "worker died"
    assert parent.data.params["nodes"] == "2" and "nodes 2 -> 1" in parent.data.tags[keys.CHANGED]


def test_a_late_outcome_of_an_earlier_attempt_touches_only_its_own_run(home: Path) -> None:
    plan = make_plan()
    make_tracker().start(plan, plan.table[0], 1)
    make_tracker().start(plan, plan.table[0], 2)
    make_tracker().finish(make_outcome(attempt=2))
    make_tracker().finish(make_outcome(attempt=1, status="FAILED", failure="late"))
    runs = by_role()
    assert runs["job"][0].info.status == "FINISHED"
    assert {run.data.tags[keys.ATTEMPT]: run.info.status for run in runs["train"]} == {"1": "FAILED", "2": "FINISHED"}


def test_sending_everything_again_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tula_core.tracking.spool.Path.unlink", lambda path, missing_ok=False: None)
    tracker, plan = make_tracker(), make_plan()
    tracker.start(plan, plan.table[0], 1)
    tracker.log_progress([(64, {"train_loss": 2.0})])
    tracker.finish(make_outcome())
    before = {run.info.run_id: (run.data.metrics, run.data.params, run.info.status) for run in all_runs()}
    assert flush().sent == 3
    after = {run.info.run_id: (run.data.metrics, run.data.params, run.info.status) for run in all_runs()}
    for run in (*before.values(), *after.values()):
        run[0].pop(keys.RECORDED_AT, None)
    assert before == after
    train = by_role()["train"][0].info.run_id
    assert len(store.client().get_metric_history(train, "train_loss")) == 1


def test_numbers_that_are_not_finite_become_tags(home: Path) -> None:
    tracker, plan = make_tracker(), make_plan(make_row(feasible=False))
    tracker.start(plan, plan.table[0], 1)
    tracker.log_progress([(64, {"train_loss": math.nan}), (128, {"train_loss": math.inf, "lr @ top": 0.1})])
    tracker.finish(make_outcome(status="FAILED", failure="the loss is not finite"))
    runs = by_role()
    train = runs["train"][0]
    assert "train_loss" not in train.data.metrics and train.data.metrics["lr _ top"] == 0.1
    assert train.data.tags[keys.non_finite("train_loss")] == "nan at 64 samples"
    assert runs["job"][0].data.tags[keys.INFEASIBLE].startswith("memory: needs")
    assert all(math.isfinite(value) and value < 1e300 for run in all_runs() for value in run.data.metrics.values())


def test_two_threads_write_to_their_own_jobs_and_to_one(home: Path) -> None:
    plan = make_plan()

    def work(job_id: str, attempt: int, loss: float) -> None:
        tracker = make_tracker(job_id)
        tracker.start(plan, plan.table[0], attempt)
        tracker.log_progress([(64, {"train_loss": loss})])
        tracker.finish(make_outcome(job_id, attempt=attempt))

    todo = [("one", 1, 1.0), ("one", 2, 2.0), ("two", 1, 3.0)]
    threads = [threading.Thread(target=work, args=arguments) for arguments in todo]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = by_role()
    jobs = {run.info.run_id: run.data.tags[keys.JOB_ID] for run in runs["job"]}
    assert sorted(jobs.values()) == ["one", "two"]
    losses = {
        (jobs[run.data.tags[keys.PARENT]], int(run.data.tags[keys.ATTEMPT])): run.data.metrics["train_loss"]
        for run in runs["train"]
    }
    assert losses == {(job, attempt): loss for job, attempt, loss in todo}


def test_an_experiment_that_was_deleted_comes_back(home: Path) -> None:
    plan = make_plan()
    make_tracker("a").start(plan, plan.table[0], 1)
    client = store.client()
    client.delete_experiment(client.get_experiment_by_name("small").experiment_id)
    assert make_tracker("b").start(plan, plan.table[0], 1).problem is None
    assert "b" in {run.data.tags[keys.JOB_ID] for run in by_role()["job"]}


def test_an_odd_job_id_is_refused() -> None:
    with pytest.raises(InputError, match='job_id: "a\'b"'):
        make_tracker("a'b")


def test_importing_tracking_loads_no_mlflow() -> None:
    code = "import sys, tula_core.tracking; sys.exit('mlflow' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


WRITERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import mlflow  # once, for all of them
from tracking_factories import make_outcome, make_plan
from tula_core.tracking import Tracker

def write(process):
    plan = make_plan()
    for number in range(5):
        job_id = f"p{process}-{number}"
        tracker = Tracker("small", job_id, "abcd", "digits-cnn", "cpu-abc", "v1")
        for report in (tracker.start(plan, plan.table[0], 1), tracker.finish(make_outcome(job_id))):
            assert not report.rejected, report  # an operation may wait for its turn

for process in range(8):
    if os.fork() == 0:
        write(process)
        os._exit(0)
sys.exit(any(os.wait()[1] for _ in range(8)))
"""


@pytest.mark.service
def test_eight_processes_with_five_outcomes_each_on_a_fresh_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TULA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    command = [sys.executable, "-c", WRITERS, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "locked" not in done.stderr, done.stderr
    assert flush().left == 0
    jobs = by_role()["job"]
    assert len(jobs) == 40 and {run.info.status for run in jobs} == {"FINISHED"}
    assert not os.listdir(tmp_path / "home" / "spool")


def test_another_precision_is_a_parameter_of_the_run(home: Path) -> None:
    row = make_row()
    row = replace(row, candidate=replace(row.candidate, options={"precision": "bf16"}))
    assert make_tracker().start(make_plan(row), row, 1).problem is None
    runs = by_role()
    assert runs["job"][0].data.params["options.precision"] == "bf16"
    assert runs["train"][0].data.params["options.precision"] == "bf16"
