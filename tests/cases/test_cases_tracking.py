"""Public reports of what tracking lost, doubled or spoiled, P65 to P69 and P79; on a real MLflow server over HTTP."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from cases_proxy import losing_answers
from mlflow_server import Server

from tula_core.history.evidence import gather
from tula_core.history.sync import sync
from tula_core.records import QUANTITIES, Outcome, save
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import Tracker, close_dead_runs, flush, keys, spool, store
from tula_core.tracking.dead import attempt_path, is_running

pytestmark = [pytest.mark.service, pytest.mark.timeout(400)]


def tracker(name: str) -> Tracker:
    return Tracker(name, f"{name}-1", "abcd", "digits-cnn", "cpu-abc", BUILTIN.label)


def runs(name: str, role: str | None = None) -> list[Any]:
    client = store.client()
    experiment = client.get_experiment_by_name(name)
    found = [] if experiment is None else list(client.search_runs([experiment.experiment_id], max_results=1000))
    return [run for run in found if role is None or run.data.tags.get(keys.ROLE) == role]


@pytest.fixture
def name() -> str:
    """An experiment's name that no other test has: they share one server."""
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def small(home: Path) -> Any:
    """Small plans and outcomes."""
    import tracking_factories

    return tracking_factories


def test_p65_an_active_run_of_somebody_else_gets_none_of_it(home: Path, small: Any, name: str) -> None:
    # Elsewhere: the active run is each thread's own, and a metric lands in whatever run is active, or fails for it.
    import mlflow

    mlflow.set_tracking_uri(store.tracking_uri())
    mlflow.set_experiment("of the user")
    plan = small.make_plan(name=name)
    problems: list[object] = []

    def one_attempt(number: int) -> None:
        with mlflow.start_run(run_name=f"thread {number}", nested=True):
            own = tracker(name)
            problems.append(own.start(plan, plan.table[0], number).problem)
            own.log_progress([(64, {"train_loss": float(number)})])
            problems.append(own.finish(small.make_outcome(f"{name}-1", name=name, attempt=number)).problem)

    try:
        with mlflow.start_run(run_name="of the user"):
            threads = [threading.Thread(target=one_attempt, args=(number,)) for number in (1, 2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        mlflow.set_tracking_uri(None)
    flush()
    assert problems == [None] * 4
    assert all(not run.data.metrics for run in runs("of the user")), "nothing of Tula's is in the user's runs"
    losses = {run.data.tags[keys.ATTEMPT]: run.data.metrics["train_loss"] for run in runs(name, "train")}
    assert losses == {"1": 1.0, "2": 2.0}
    assert len(runs(name, "job")) == 1


def test_p66_a_retry_with_another_world_size_fails_nothing(server: Server, small: Any, name: str) -> None:
    # Elsewhere: a parameter may not change, so the retry's new world size makes logging fail, and the job with it.
    own, wide, narrow = tracker(name), small.make_row(nodes=2), small.make_row(nodes=1)
    plan = small.make_plan(wide, narrow, name=name)
    reports = [own.start(plan, wide, 1), own.start(plan, narrow, 2)]
    reports.append(own.finish(small.make_outcome(f"{name}-1", name=name, attempt=2)))
    assert [(report.left, report.rejected, report.problem) for report in reports] == [(0, (), None)] * 3
    [parent] = runs(name, "job")
    assert {run.data.tags[keys.ATTEMPT]: run.data.params["nodes"] for run in runs(name, "train")} == {
        "1": "2",
        "2": "1",
    }
    assert "nodes 2 -> 1" in parent.data.tags[keys.CHANGED]
    assert parent.data.metrics[keys.actual("step_time_s")] == pytest.approx(0.025)


@pytest.mark.parametrize("losses", [1, 2])
def test_p67_a_creation_whose_answer_is_lost_leaves_one_run(
    server: Server, small: Any, name: str, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Elsewhere: the server creates the run, the client sees a time-out and creates it again: a ghost for ever.
    own, plan = tracker(name), small.make_plan(name=name)
    with losing_answers(server.port, "runs/create", losses) as relay:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", relay.uri)
        own.start(plan, plan.table[0], 1)
        own.finish(small.make_outcome(f"{name}-1", name=name))
        while spool.pending():
            flush()
        assert relay.seen > losses
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    assert [len(runs(name, role)) for role in ("job", "profile", "search", "train")] == [1, 1, 1, 1]
    assert {run.info.status for run in runs(name)} == {"FINISHED"}


def test_p67_a_ghost_that_comes_late_is_put_away(home: Path, small: Any, name: str) -> None:
    # A server that was given up may carry out the creation after it was looked for and repeated.
    own, plan = tracker(name), small.make_plan(name=name)
    own.start(plan, plan.table[0], 1)
    client = store.client()
    [parent] = runs(name, "job")
    tags = {keys.JOB_ID: f"{name}-1", keys.ROLE: "job"}
    late = client.create_run(parent.info.experiment_id, start_time=parent.info.start_time + 5, tags=tags)
    own.finish(small.make_outcome(f"{name}-1", name=name))
    assert [run.info.run_id for run in runs(name, "job")] == [parent.info.run_id]
    assert client.get_run(late.info.run_id).info.lifecycle_stage == "deleted"


def test_p68_what_is_not_finite_never_reaches_the_store(server: Server, small: Any, name: str) -> None:
    # Elsewhere: an infinite cost is stored as 1.797e308 and drawn as that.
    infeasible = small.make_row(nodes=2, feasible=False, time_to_train_s=None, node_hours=None)
    own, plan = tracker(name), small.make_plan(infeasible, name=name)
    own.start(plan, infeasible, 1)
    own.log_progress([(64, {"train_loss": math.inf, "accuracy": math.nan, "learning_rate": 0.1})])
    actual = dict.fromkeys(QUANTITIES) | {"step_time_s": 1e-9, "time_to_train_s": 3.0}
    own.finish(small.make_outcome(f"{name}-1", name=name, actual=actual))
    assert not spool.pending()
    found = [value for run in runs(name) for value in run.data.metrics.values()]
    assert found and all(math.isfinite(value) and abs(value) < 1e300 for value in found)
    [parent], [train] = runs(name, "job"), runs(name, "train")
    assert "memory: needs 20 GiB" in parent.data.tags[keys.INFEASIBLE]
    assert keys.predicted("time_to_train_s") not in parent.data.metrics
    assert train.data.tags[keys.non_finite("train_loss")] == "inf at 64 samples"
    with pytest.raises(ValueError, match="not JSON compliant"):
        spool.append({"op": "progress", "value": math.inf})


HOLDER = """
import sys
from pathlib import Path
from tracking_factories import make_outcome, make_plan
from tula_core.records import save
from tula_core.tracking import close_attempt, open_attempt
name, folder = sys.argv[1], Path(sys.argv[2])
open_attempt(folder, make_plan(name=name), f"{name}-1", 1)
print("training", flush=True)
sys.stdin.readline()
save(make_outcome(f"{name}-1", name=name), folder / "outcome.json")
close_attempt(folder, 1, "FINISHED")
"""


def holder(name: str, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir(parents=True)
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, name, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "training\n"
    return child


def test_p79_a_run_that_gives_no_sign_of_life_is_not_dead(home: Path, small: Any, name: str) -> None:
    # Elsewhere: a step longer than the heartbeat has a live trial declared dead, and its late result refused.
    folder, own, plan = home / "runs" / f"{name}-1", tracker(name), small.make_plan(name=name)
    own.start(plan, plan.table[0], 1)
    with holder(name, folder) as child:
        os.kill(child.pid, signal.SIGSTOP)  # not a word, and not a step, for as long as one likes
        assert close_dead_runs() == []
        assert is_running(json.loads(attempt_path(folder, 1).read_text()))
        os.kill(child.pid, signal.SIGCONT)
        child.communicate("\n", timeout=60)
    assert child.returncode == 0
    own.finish(small.make_outcome(f"{name}-1", name=name))
    assert [run.info.status for run in runs(name, "job")] == ["FINISHED"]
    assert [outcome.status for outcome in sync()] == ["FINISHED"]


def test_p78_a_killed_run_is_closed_and_is_no_evidence_of_slowness(home: Path, small: Any, name: str) -> None:
    # Elsewhere: what was killed stays RUNNING for ever, or its hours count as what the work takes.
    plan = small.make_plan(name=name)
    tracker(name).start(plan, plan.table[0], 1)
    with holder(name, home / "runs" / f"{name}-1") as child:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert [run.info.status for run in runs(name, "train")] == ["RUNNING"]
    assert close_dead_runs() == [f"{name}-1"]
    assert {run.info.status for role in ("job", "train") for run in runs(name, role)} == {"KILLED"}
    [outcome] = sync()
    assert outcome.status == "KILLED"
    evidence = gather([outcome], lambda label: BUILTIN)
    assert (evidence.outcomes, evidence.failed) == (0, 1)


def elsewhere(small: Any, **changes: Any) -> Outcome:
    found: Outcome = small.make_outcome(hardware="other", planned_hardware="cpu-abc", **changes)
    return found


def test_a_run_on_another_machine_is_recorded_as_one_and_teaches_nothing_of_time(
    home: Path, small: Any, name: str
) -> None:
    own, plan = tracker(name), small.make_plan(name=name)
    own.start(plan, plan.table[0], 1)
    own.finish(elsewhere(small, job_id=f"{name}-1", name=name))
    [parent] = runs(name, "job")
    assert (parent.data.tags[keys.HARDWARE], parent.data.tags[keys.PLANNED_HARDWARE]) == ("other", "cpu-abc")
    [outcome] = sync()
    assert (outcome.hardware, outcome.planned_hardware) == ("other", "cpu-abc")
    evidence = gather([outcome], lambda label: BUILTIN)
    learnt = {quantity for quantity, by_job in evidence.log_ratios.items() if by_job}
    assert (evidence.elsewhere, learnt) == (1, {"epochs", "accuracy"})


def test_an_outcome_of_an_earlier_release_names_no_other_machine(home: Path, small: Any) -> None:
    path = home / "outcome.json"
    save(small.make_outcome(), path)
    data = json.loads(path.read_text())
    del data["planned_hardware"]
    path.write_text(json.dumps(data))
    from tula_core.records import load

    assert load(Outcome, path).planned_hardware is None
