"""A worker's place among the others: rank, device, the collectives control flow needs, its voice to the parent."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from tula_core.engine.ending import end_process
from tula_core.errors import InputError

_PARENT_POLL_S = 0.5
_ORPHAN_GRACE_S = 7.0  # with the poll and the end itself, nothing is left ten seconds after the parent


def local_device() -> torch.device:
    """Return this process's accelerator, or the CPU where the machine has none.

    Raises
    ------
    InputError
        There are accelerators, but fewer than processes on this machine: none is shared, none is left out silently.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    processes, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if processes > devices:
        raise InputError(
            f"cluster: {processes} processes on this machine need as many accelerators, it has {devices}. "
            "Lower cluster.processes_per_node or cluster.nodes, or hide the accelerators (CUDA_VISIBLE_DEVICES=) "
            "to use the CPU."
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


class WorkerContext:
    """What an entry function is given.

    Attributes
    ----------
    rank, processes, nodes, processes_per_node
        This process and how many there are; ``processes`` = nodes x processes per node.
    device
        ``cuda:<local rank>`` where there is one for each local process, else ``cpu``.
    folder
        The task's folder.
    stop_signal
        The number of the signal that asked this worker to end, None while none has. Only this rank knows: decide
        on it after `all_reduce_max`.
    """

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self.rank = int(os.environ.get("RANK", "0"))
        self.processes = int(os.environ.get("WORLD_SIZE", "1"))
        self.nodes = int(config["nodes"])
        self.processes_per_node = int(config["processes_per_node"])
        self.stop_signal: int | None = None
        self.device = local_device()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._events = (folder / "events.jsonl").open("a") if self.rank == 0 else None
        self._listen_to_signals()
        if self.processes > 1:
            self._join(config["rendezvous"])

    def _join(self, rendezvous: str) -> None:
        # A file needs no port, so two jobs on one host cannot clash; torchrun across hosts brings its own address.
        method = "env://" if "TORCHELASTIC_RUN_ID" in os.environ else f"file://{rendezvous}"
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            init_method=method,
            rank=self.rank,
            world_size=self.processes,
            timeout=datetime.timedelta(minutes=10),
        )

    def _listen_to_signals(self) -> None:
        def remember(number: int, frame: FrameType | None) -> None:
            self.stop_signal = number

        signal.signal(signal.SIGTERM, remember)
        signal.signal(signal.SIGINT, remember)
        parent = int(os.environ.get("TULA_PARENT", "0"))
        if parent:
            threading.Thread(target=self._watch_parent, args=(parent,), daemon=True).start()

    def _watch_parent(self, parent: int) -> None:
        # The parent may have been killed: nobody reads on, so end with a checkpoint, or without one if that hangs.
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        self.stop_signal = int(signal.SIGTERM)
        time.sleep(_ORPHAN_GRACE_S)
        end_process(128 + signal.SIGTERM)

    def emit(self, kind: str, **data: Any) -> None:
        """Append an event to rank 0's stream; other ranks stay silent. ``data`` must be plain JSON values."""
        if self._events is not None:
            self._events.write(json.dumps({"kind": kind, "at_s": time.time(), **data}) + "\n")
            self._events.flush()

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sum over all processes, in float64."""
        return self._all_reduce(values, dist.ReduceOp.SUM)

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over all processes, in float64."""
        return self._all_reduce(values, dist.ReduceOp.MAX)

    def _all_reduce(self, values: Sequence[float], operation: Any) -> list[float]:
        if self.processes == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=operation)
        return [float(value) for value in tensor.tolist()]

    def broadcast(self, value: float) -> float:
        """Return rank 0's ``value`` on every process."""
        return self.all_reduce_sum([value if self.rank == 0 else 0.0])[0]

    def barrier(self) -> None:
        """Wait for every process."""
        self.all_reduce_sum([0.0])

    def synchronise(self) -> None:
        """Wait until the device has done all it was given; needed before a clock is read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Leave the process group and close the event stream."""
        if self._events is not None:
            self._events.close()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
