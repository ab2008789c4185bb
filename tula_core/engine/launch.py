"""Starting worker processes from a config file and hearing their events until they end.

The parent holds no device memory and pickles nothing: a worker reads ``config.json``, writes ``events.jsonl`` and
``result.json`` (rank 0) and ``failure-<rank>.json``, all in one folder. Whatever ends the parent's wait, no worker is
left behind: workers also watch their parent and end when it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tula_core.engine.failures import Failure, read_failure
from tula_core.home import write_atomic

EventHandler = Callable[[Mapping[str, Any]], None]

_POLL_S = 0.05
_PEER_GRACE_S = 2.0  # for the other ranks to write their own failure after one has ended


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTask:
    """What to run in the workers.

    Attributes
    ----------
    entry
        ``module:function``, called in each worker as ``function(context, payload)``; rank 0's return value, a
        mapping of plain JSON values, is the result.
    payload
        Plain JSON values.
    folder
        Where config, logs, events and result go; made if absent.
    threads
        Intra-op threads of each process, set before it starts.
    timeout_s
        The workers are ended after this many seconds, which may change as they are heard; None waits for ever.
    grace_s
        How long workers may take to end cleanly, writing a checkpoint, after they are told to stop.
    prefixes
        Words before the command of each process, by rank, such as ``("nice",)``; none where empty. They have to become
        the worker in place, as ``env`` and ``ip netns exec`` do: it is watched and ended by its process number.
    """

    entry: str
    payload: Mapping[str, Any]
    folder: Path
    nodes: int = 1
    processes_per_node: int = 1
    threads: int = 1
    timeout_s: float | Callable[[], float] | None = None
    grace_s: float = 30.0
    prefixes: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchResult:
    """How the workers ended: exactly one of ``result`` and ``failure`` is set."""

    result: Mapping[str, Any] | None
    failure: Failure | None
    start_up_s: float | None  # launch to the workers' "ready" event, None if they never were
    seconds: float

    def unwrap(self) -> Mapping[str, Any]:
        """Return the result, or raise the failure as an error with the first real cause."""
        if self.failure is not None:
            raise self.failure.to_error()
        assert self.result is not None
        return self.result


def launch(task: WorkerTask, on_event: EventHandler) -> LaunchResult:
    """Run ``task`` in nodes x processes_per_node local processes and return how it ended.

    ``on_event`` gets each of rank 0's events in order. If it, or a signal handler, raises, the workers are told to
    stop, given ``grace_s`` to end, then killed, and the exception goes on.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    started = time.monotonic()
    started_at = time.time()
    processes = _start(task)
    events = _EventReader(task.folder / "events.jsonl", on_event)
    timed_out_s: float | None = None
    try:
        while any(process.poll() is None for process in processes):
            events.read()
            if any(process.poll() not in (None, 0) for process in processes):
                _await_end(processes, _PEER_GRACE_S, events)
                break
            limit_s = task.timeout_s() if callable(task.timeout_s) else task.timeout_s
            if limit_s is not None and time.monotonic() - started > limit_s:
                timed_out_s = limit_s
                break
            time.sleep(_POLL_S)
    except BaseException:
        _stop(processes, task.grace_s, events)
        raise
    exit_codes = {rank: process.poll() for rank, process in enumerate(processes)}
    _stop(processes, 5.0, events)
    events.read()
    failure = read_failure(task.folder, exit_codes)
    if timed_out_s is not None and (failure is None or failure.kind in ("peer", "stopped")):
        message = f"the processes did not end within {timed_out_s:.0f} s"
        failure = Failure(kind="timeout", rank=0, message=message, traceback="", at_s=time.time())
    result_file = task.folder / "result.json"
    return LaunchResult(
        result=json.loads(result_file.read_text()) if failure is None else None,
        failure=failure,
        start_up_s=None if events.ready_at is None else max(0.0, events.ready_at - started_at),
        seconds=time.monotonic() - started,
    )


def _start(task: WorkerTask) -> list[subprocess.Popen[bytes]]:
    task.folder.mkdir(parents=True, exist_ok=True)
    for stale in ("events.jsonl", "result.json", *(p.name for p in task.folder.glob("failure-*.json"))):
        (task.folder / stale).unlink(missing_ok=True)
    config = {
        "entry": task.entry,
        "payload": task.payload,
        "nodes": task.nodes,
        "processes_per_node": task.processes_per_node,
        "rendezvous": str(task.folder / f".rendezvous-{uuid.uuid4().hex}"),
    }
    write_atomic(task.folder / "config.json", json.dumps(config))
    command = [sys.executable, "-P", "-m", "tula_core.engine.worker", str(task.folder / "config.json")]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(task.nodes * task.processes_per_node):
            prefix = task.prefixes[rank] if task.prefixes else ()
            with (task.folder / f"rank-{rank}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [*prefix, *command],
                        env=_environment(task, rank),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # a Ctrl-C in the terminal reaches the parent, which tells the workers
                    )
                )
    except BaseException:
        _kill(processes)
        raise
    return processes


def _environment(task: WorkerTask, rank: int) -> dict[str, str]:
    environment = dict(os.environ)
    for name in [name for name in environment if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))]:
        del environment[name]
    root = str(Path(__file__).resolve().parents[2])
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if root not in paths and Path(root).name not in ("site-packages", "dist-packages"):
        paths.append(root)
    world = task.nodes * task.processes_per_node
    return environment | {
        "PYTHONPATH": os.pathsep.join(paths),
        # Data may be listed in the order of a set, which otherwise differs from process to process.
        "PYTHONHASHSEED": "0",
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),  # every process is on this machine, whatever node it stands for
        "LOCAL_WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": str(task.threads),
        "MKL_NUM_THREADS": str(task.threads),
        "OPENBLAS_NUM_THREADS": str(task.threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        # glibc otherwise returns and maps large tensors anew at each step.
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**30),
        "GLOO_SOCKET_IFNAME": environment.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0"),
        "TULA_PARENT": str(os.getpid()),
    }


def _await_end(processes: list[subprocess.Popen[bytes]], seconds: float, events: _EventReader | None) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        if events is not None:
            events.read()
        time.sleep(_POLL_S)
    if events is not None:
        events.read()  # what they said after the last look, and then ended


def _stop(processes: list[subprocess.Popen[bytes]], grace_s: float, events: _EventReader) -> None:
    """End what is still alive: a request first, a kill after ``grace_s``."""
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.send_signal(signal.SIGTERM)
    try:
        with contextlib.suppress(Exception):  # a listener's failure must not hide why the workers are stopped
            _await_end(alive, grace_s, events)
        _await_end(alive, grace_s, None)
    finally:
        _kill(processes)


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        code = process.poll()
        if code is None or code < 0:
            # The worker leads its own session, so this reaches its loader workers and whatever else it started, also
            # where a signal ended it before it could do so itself.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _EventReader:
    """Reads whole lines that rank 0 has appended since the last call."""

    def __init__(self, path: Path, handler: EventHandler) -> None:
        self._path = path
        self._handler = handler
        self._offset = 0
        self.ready_at: float | None = None

    def read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].splitlines():
            event = json.loads(line)
            if event["kind"] == "ready" and self.ready_at is None:
                self.ready_at = event["at_s"]
            self._handler(event)
