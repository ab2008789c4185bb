"""Public reports of processes that doubled, lied or outlived their parent: P54, P61, P63, P64, P69 and P71 to P75."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from factories import make_facts, make_job
from families import command, still_there
from fault_plans import plan_for

import tula_core
import tula_core.profiling.measure
from tula_core import api
from tula_core.engine.context import _ORPHAN_GRACE_S, _PARENT_POLL_S
from tula_core.engine.failures import Failure
from tula_core.engine.hardware import inspect_hardware
from tula_core.engine.launch import LaunchResult, WorkerTask, launch
from tula_core.errors import InputError, RunError
from tula_core.history.evidence import gather
from tula_core.history.sync import sync
from tula_core.job import Cluster
from tula_core.progress import Event
from tula_core.records.corrections import BUILTIN
from tula_core.tracking import keys, store

pytestmark = pytest.mark.timeout(180)


def recorded(role: str, title: str) -> list[Any]:
    client = store.client()
    experiment = client.get_experiment_by_name(title)
    found = [] if experiment is None else client.search_runs([experiment.experiment_id], max_results=100)
    return [run for run in found if run.data.tags[keys.ROLE] == role]


def test_p54_evaluations_are_in_the_bill_and_not_in_the_speed(tmp_path: Path) -> None:
    # Elsewhere: the pause of an evaluation is counted into the throughput of the steps around it.
    from tula_core.training.run import Attempt, run_attempt

    plan = plan_for("slow_to_evaluate")
    speeds: list[float] = []
    attempt = Attempt(plan=plan, row=plan.table[0], job_id="run", number=1, folder=tmp_path, resume=False)

    def heard(samples: int, figures: Any) -> None:
        speeds.extend([figures["images_per_s"]] if "images_per_s" in figures else [])

    outcome, error = run_attempt(attempt, lambda event: None, heard)
    assert error is None
    step_s, total_s = outcome.actual["step_time_s"], outcome.actual["time_to_train_s"]
    assert step_s is not None and total_s is not None
    assert total_s > 4 * 2.0
    assert step_s < 0.15, "an evaluation of 2 s in one step of thirteen would make it more"
    assert min(speeds[3:]) > 16 / 2.0, "no window holds an evaluation"


def ranks(task_folder: Path, entry: str, processes: int, **payload: Any) -> LaunchResult:
    task = WorkerTask(entry=entry, payload=payload, folder=task_folder, processes_per_node=processes, timeout_s=120)
    return launch(task, lambda event: None)


def test_p61_uneven_shares_weigh_by_their_samples(tmp_path: Path) -> None:
    # Elsewhere: the mean of the ranks' means counts a sample of the small share double.
    alone = ranks(tmp_path / "1", "fault_entries:shares", 1, shares=[18]).unwrap()
    uneven = ranks(tmp_path / "2", "fault_entries:shares", 2, shares=[6, 12]).unwrap()
    assert uneven["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    assert uneven["weights"] == pytest.approx(alone["weights"], rel=1e-9, abs=1e-12)


def test_p63_when_every_size_fails_each_reason_is_told_and_the_first_traceback_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Elsewhere: "no optimal configuration", and why each was ruled out is nowhere.
    from flows.failures import report

    def fail(task: WorkerTask, on_event: Any) -> LaunchResult:
        size = task.payload["sizes"][0]
        on_event({"kind": "ready", "at_s": time.time()})
        on_event({"kind": "trying", "at_s": time.time(), "local_batch": size})
        kind, why = ("killed", "was killed (signal 9)") if size < 6 else ("out_of_memory", f"{size} GiB wanted")
        failure = Failure(kind=kind, rank=0, message=why, traceback=f"Traceback:\n  tried {size}", at_s=0.0)  # type: ignore[arg-type]
        return LaunchResult(result=None, failure=failure, start_up_s=0.1, seconds=0.1)

    measure_module = sys.modules["tula_core.profiling.measure"]  # the package has a function of that name
    monkeypatch.setattr(measure_module, "launch", fail)
    job = make_job(recipe=make_job().recipe.model_copy(update={"batch_size": 24}))
    facts = make_facts(train_samples=2000)
    with pytest.raises(RunError) as caught:
        measure_module.measure(job, facts, inspect_hardware(Cluster()), folder=tmp_path)
    assert report(caught.value) == 4
    told = capfd.readouterr().err
    tried = [line for line in told.splitlines() if line.startswith("Before that: local batch")]
    assert len(tried) == 2
    assert "local batch 6 on 1 process: 6 GiB wanted" in tried[0]
    assert "was killed (signal 9)" in told
    kept = Path(told.rsplit("The traceback is in ", 1)[1].strip()).read_text()
    assert "tried 6" in kept


def test_p64_four_ranks_are_one_run_and_p71_what_they_say_is_kept(home: Path) -> None:
    # Elsewhere: one run per rank; and a logger that is missing in child processes and threads ends them.
    plan = plan_for("talkative", processes=4, local_batch=8)
    outcome = api.train(plan)
    assert outcome.status == "FINISHED"
    assert [len(recorded(role, plan.job.title)) for role in ("job", "train")] == [1, 1]
    logs = [Path(outcome.run_folder) / "attempt-1" / f"rank-{rank}.log" for rank in range(4)]
    for rank, log in enumerate(logs):
        said = log.read_text()
        assert f"rank {rank} speaks\n" in said
        assert f"rank {rank} speaks from a thread\n" in said
        assert f"rank {rank} has loaded []" in said, "neither prefect nor mlflow is in a worker"


def test_the_hardware_of_a_run_is_where_it_was(home: Path) -> None:
    # A plan of another machine: its forecast of time must not be judged, or corrected, by what this one does.
    said: list[Event] = []
    outcome = api.train(plan_for("talkative"), listener=said.append)
    assert outcome.hardware == inspect_hardware(Cluster(processes_per_node=2)).fingerprint
    assert outcome.planned_hardware == "cpu-test"
    assert any("other hardware than the plan's" in event.message for event in said)


@pytest.fixture
def dies_twice(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tula_core.Plan:
    monkeypatch.setenv("TULA_TEST_DEATHS", str(tmp_path / "deaths"))
    return plan_for("dies_twice")


def test_p69_attempts_are_one_logical_job_with_one_outcome_and_all_time_billed(dies_twice: tula_core.Plan) -> None:
    # Elsewhere: a retry is a new run, its side effects happen again, and the lost attempts are billed to nobody.
    for again in (False, True):
        with pytest.raises(RunError, match="was killed"):
            api.train(dies_twice, job_id="one", resume=again)
    outcome = api.train(dies_twice, job_id="one", resume=True)
    assert (outcome.attempt, outcome.status, outcome.actual["epochs"]) == (3, "FINISHED", 3.0)
    title = dies_twice.job.title
    assert [run.info.status for run in recorded("job", title)] == ["FINISHED"]
    attempts = {run.data.tags[keys.ATTEMPT]: run.info.status for run in recorded("train", title)}
    assert attempts == {"1": "KILLED", "2": "KILLED", "3": "FINISHED"}
    assert [one.attempt for one in sync()] == [3]
    spent = [attempt_s(Path(outcome.run_folder), number) for number in (1, 2, 3)]
    assert outcome.actual["time_to_train_s"] == pytest.approx(sum(spent), rel=0.3)
    assert min(spent) > 0
    learnt = gather(sync(), lambda label: BUILTIN).log_ratios
    assert learnt["time_to_train_s"] == {}, "time that holds lost attempts is no evidence of what a run takes"

    said: list[Event] = []
    assert api.train(dies_twice, job_id="one", listener=said.append) == outcome, "handed out twice"
    assert any("nothing is trained" in event.message for event in said)
    assert len(recorded("train", title)) == 3


def attempt_s(folder: Path, number: int) -> float:
    from tula_core.tracking.spent import attempt_folder, attempt_seconds

    return attempt_seconds(attempt_folder(folder, number))


PROBE = """
import sys
from pathlib import Path
from tula_core.engine.launch import WorkerTask, launch
from tula_core.job import Job
from tula_core.profiling.describe import describe
from tula_core.profiling.measure import measure
from factories import make_facts
from tula_core.engine.hardware import inspect_hardware
from tula_core.job import Cluster
job = Job(workload="fault_workloads:waits_for_ever", cluster={"processes_per_node": 2})
from tula_core.workloads.load import load_workload
loaded = load_workload(job)
job = job.resolved(loaded.recipe, None)
measure(job, make_facts(train_samples=203), inspect_hardware(Cluster()), folder=Path(sys.argv[1]))
"""


def descendants(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_p72_nothing_outlives_a_probe_that_is_cancelled(tmp_path: Path, number: signal.Signals) -> None:
    # Elsewhere: children, and theirs, go on holding the device after the flow was cancelled.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    parent = subprocess.Popen([sys.executable, "-c", PROBE, str(tmp_path)], env=environment, stderr=subprocess.DEVNULL)
    try:
        family = wait_for_grandchild(psutil.Process(parent.pid))
        parent.send_signal(number)
        parent.wait(timeout=30)
        # The limit is ten seconds. It is held by the grace, not by this wait, which a busy machine may stretch.
        assert _PARENT_POLL_S + _ORPHAN_GRACE_S <= 8
        _, alive = psutil.wait_procs(family, timeout=25)
        assert still_there(alive) == []
    finally:
        parent.kill()
        parent.wait()


def wait_for_grandchild(parent: psutil.Process, seconds: float = 90.0) -> list[psutil.Process]:
    """Return all descendants once a worker has started a process of its own."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):  # an earlier worker, which ended while it was looked at
            if any(worker.children() for worker in parent.children()):
                return descendants(parent)
        time.sleep(0.1)
    raise AssertionError("no worker began")


HOLD = """
import sys, time
from tula_core.engine.device_lock import device_lock
def hold():
    with device_lock("train", lambda event: None):
        print(f"+{time.monotonic()}", flush=True)
        time.sleep(0.3)
        print(f"-{time.monotonic()}", flush=True)
hold()
time.sleep(float(sys.argv[1]))  # a retry waits, and the device is free meanwhile
hold()
"""


def test_p73_two_jobs_never_share_the_device_also_across_a_retry(tmp_path: Path) -> None:
    # Elsewhere: the slot's lease runs out while a retry waits, and two jobs are on one device.
    environment = os.environ | {"TULA_LOCKS": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, delay], env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path
        )
        for delay in ("0.5", "0.1", "0.2")
    ]
    marks = []
    for job in jobs:
        out, _ = job.communicate(timeout=90)
        assert job.returncode == 0
        marks += [(float(line[1:]), line[0]) for line in out.split()]
    assert len(marks) == 12
    assert [sign for _, sign in sorted(marks)] == ["+", "-"] * 6


def test_p74_a_transform_that_cannot_be_pickled_trains_on_two_ranks(home: Path) -> None:
    # Elsewhere: processes are forked or spawned from the notebook, and a lambda in the data set cannot go along.
    assert api.train(plan_for("with_lambda", processes=2, local_batch=8)).status == "FINISHED"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("__main__:make", "Move make to a module of its own"),
        ("no_such_module_of_mine:make", "add its folder to PYTHONPATH"),
        ("fault_workloads:no_such_function", "has no 'no_such_function'. It has: "),
    ],
)
def test_p74_what_a_worker_cannot_import_is_told_in_one_line(path: str, words: str) -> None:
    from tula_core.workloads.load import load_workload

    with pytest.raises(InputError) as caught:
        load_workload(tula_core.Job(workload=path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_p75_two_jobs_on_one_host_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Elsewhere: both take the same port, and the second dies or joins the first one's group.
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")  # what another launcher left behind must not matter either

    def one(number: int) -> Sequence[float]:
        return ranks(tmp_path / str(number), "engine_entries:collectives", 2, number=number).unwrap()["sum"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, (1, 2))) == [[1.0, 2.0]] * 2


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    left = [command(child) for child in descendants(psutil.Process())]
    assert not [words for words in left if "tula_core.engine.worker" in json.dumps(words)]
