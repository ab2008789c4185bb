import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import lives

from tula_core.engine.failures import is_out_of_memory, kind_of
from tula_core.engine.launch import LaunchResult, WorkerTask, _await_end, _EventReader, launch
from tula_core.errors import InputError, OutOfMemoryError, RunError


def run(
    folder: Path, entry: str, processes: int = 2, timeout_s: float | Callable[[], float] = 120, **payload: Any
) -> LaunchResult:
    task = WorkerTask(
        entry=f"engine_entries:{entry}",
        payload=payload,
        folder=folder,
        processes_per_node=processes,
        timeout_s=timeout_s,
    )
    return launch(task, lambda event: None)


def test_workers_agree_and_answer(tmp_path: Path) -> None:
    result = run(tmp_path / "task", "collectives", 3, colour="red")
    assert dict(result.unwrap()) == {
        "sum": [3.0, 3.0],
        "max": [2.0],
        "broadcast": 5.0,
        "threads": 1,
        "payload": {"colour": "red"},
    }
    assert result.start_up_s is not None and 0 < result.start_up_s <= result.seconds


def test_a_process_can_be_started_through_another_command(tmp_path: Path) -> None:
    task = WorkerTask(
        entry="engine_entries:environment",
        payload={"name": "TULA_TEST_PLACE"},
        folder=tmp_path / "task",
        prefixes=(("env", "TULA_TEST_PLACE=there"),),
        timeout_s=120,
    )
    assert launch(task, lambda event: None).unwrap() == {"value": "there"}


def test_any_split_of_a_global_batch_trains_the_same(tmp_path: Path) -> None:
    """Mean-of-means, dropped tails and padded evaluation each make one of these differ."""
    one = run(tmp_path / "one", "exact_steps", 1, layouts=[["whole", 24, 1], ["accumulated", 8, 3]]).unwrap()
    two = run(tmp_path / "two", "exact_steps", 2, layouts=[["halves", 12, 1], ["quarters", 6, 2]]).unwrap()
    reference = one["whole"]
    for other in (one["accumulated"], two["halves"], two["quarters"]):
        np.testing.assert_allclose(other["losses"], reference["losses"], rtol=1e-10)
        np.testing.assert_allclose(other["weights"], reference["weights"], rtol=1e-9)
        assert other["ranks_agree"]
        assert other["metric"] == reference["metric"]
        assert other["evaluated"] == 101


def test_the_communication_hook_reads_both_norms(tmp_path: Path) -> None:
    result = run(tmp_path / "task", "noise", 2).unwrap()
    assert result["estimates"] == 12
    assert result["close"]
    assert result["trace"] > 0


@pytest.mark.parametrize(
    ("how", "kind", "error"),
    [
        ("memory", "out_of_memory", OutOfMemoryError),
        ("input", "input", InputError),
        ("error", "error", RunError),
        ("kill", "killed", RunError),
        ("exit", "error", RunError),
    ],
)
def test_the_first_real_cause_is_told(tmp_path: Path, how: str, kind: str, error: type[Exception]) -> None:
    """One process fails while the other waits for it in a collective; the waiting one must not hide the cause."""
    began = time.monotonic()
    result = run(tmp_path / "task", "fail", 2, rank=1, how=how)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.rank) == (kind, 1)
    with pytest.raises(error):
        result.unwrap()
    assert time.monotonic() - began < 240  # a process that waits for the other waits ten minutes


@pytest.mark.parametrize("timeout_s", [0.5, lambda: 0.5])
def test_a_time_limit_ends_the_workers(tmp_path: Path, timeout_s: float | Callable[[], float]) -> None:
    result = run(tmp_path / "task", "wait", 1, timeout_s=timeout_s, linger_s=100.0)
    assert result.failure is not None and result.failure.kind == "timeout"


def test_an_interrupt_lets_workers_end_cleanly_and_leaves_none(tmp_path: Path) -> None:
    heard: list[str] = []
    workers: list[int] = []

    def interrupt(event: Mapping[str, Any]) -> None:
        heard.append(event["kind"])
        if event["kind"] == "ready":
            workers.append(event["pid"])
            raise KeyboardInterrupt

    task = WorkerTask(entry="engine_entries:wait", payload={}, folder=tmp_path / "task", processes_per_node=1)
    with pytest.raises(KeyboardInterrupt):
        launch(task, interrupt)
    assert heard == ["ready", "stopped_cleanly"]
    assert not lives(workers[0])


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from tula_core.engine.launch import WorkerTask, launch\n"
        f"task = WorkerTask(entry='engine_entries:wait', payload={{}}, folder=Path({str(tmp_path / 'task')!r}))\n"
        "launch(task, lambda event: print(event.get('pid'), flush=True))\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 40  # a busy machine may stretch the grace of some seconds
    while lives(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not lives(worker)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_every_form_of_no_memory_is_known(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert kind_of(error) == "out_of_memory"


def test_a_wrong_shape_is_not_taken_for_memory() -> None:
    assert not is_out_of_memory(RuntimeError("shape '[4, 5]' is invalid for input of size 6"))
    assert kind_of(IndexError("Target 12 is out of bounds.")) == "error"


def test_torchrun_can_start_the_worker(tmp_path: Path) -> None:
    config = {
        "entry": "engine_entries:collectives",
        "payload": {"colour": "blue"},
        "nodes": 1,
        "processes_per_node": 2,
        "rendezvous": "",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], root]), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = ["-m", "tula_core.engine.worker", str(tmp_path / "config.json")]
    subprocess.run([*torchrun, *worker], env=environment, check=True, capture_output=True, timeout=120)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["sum"], result["payload"]) == ([1.0, 2.0], {"colour": "blue"})


def test_the_last_words_of_workers_that_have_ended_are_heard(tmp_path: Path) -> None:
    heard: list[str] = []
    events = tmp_path / "events.jsonl"
    events.write_text('{"kind": "stopped_cleanly", "at_s": 1.0}\n')
    _await_end([], 1.0, _EventReader(events, lambda event: heard.append(event["kind"])))
    assert heard == ["stopped_cleanly"]
