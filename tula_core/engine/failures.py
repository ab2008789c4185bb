"""Telling what ended a worker process: out of memory, a kill, wrong input, or an error of the user's code."""

from __future__ import annotations

import json
import signal
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tula_core.errors import DivergedError, InputError, OutOfMemoryError, RunError, StoppedError, TulaError
from tula_core.home import write_atomic

Kind = Literal["out_of_memory", "input", "diverged", "error", "killed", "peer", "stopped", "timeout"]

# The first real cause wins: a rank that lost its peer, or was told to stop, is only a consequence.
_PRECEDENCE: tuple[Kind, ...] = (
    "input", "diverged", "out_of_memory", "error", "killed", "timeout", "peer", "stopped"
)  # fmt: skip

# Allocators say "no memory" in many forms; each of these is what one of them really prints.
_MEMORY_TEXTS = (
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_not_supported. this error may appear if you passed in a non-contiguous input",
    "can't allocate memory",
    "cannot allocate memory",
    "defaultcpuallocator: not enough memory",
    "std::bad_alloc",
    # Only the path that has found no memory asks the driver for what it would report of it.
    "nvml_success == ",
    "cudnn_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "cufft_alloc_failed",
    # Every algorithm was tried and each had too little room for its workspace; a driver that does not match says the
    # same, but at every size, and then its own words are what is shown.
    "unable to find a valid cudnn algorithm to run convolution",
    "was unable to find an engine to execute this computation",
    # The library's own room could not be had. From calls with a handle it means another fault.
    "cublas_status_not_initialized when calling `cublascreate(",
    "cudnn_status_not_initialized when calling `cudnncreate(",
    "is killed by signal: killed",  # a loader worker
)
_PEER_TEXTS = (
    "connection closed by peer",
    "connection reset by peer",
    "connectfullmesh",
    "timed out waiting",
    "broken pipe",
    "nccl communicator was aborted",
    "socket closed",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a worker process ended without a result."""

    kind: Kind
    rank: int
    message: str
    traceback: str
    at_s: float  # seconds since the epoch, to find which came first
    signal_number: int | None = None

    def to_error(self) -> TulaError:
        """Return the exception the parent raises for this failure."""
        text = self.message
        if self.kind == "stopped":
            return StoppedError(text, self.signal_number or int(signal.SIGTERM))
        kinds: dict[str, type[TulaError]] = {
            "input": InputError, "diverged": DivergedError, "out_of_memory": OutOfMemoryError
        }  # fmt: skip
        return kinds.get(self.kind, RunError)(text)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` is one of the forms in which device or host memory runs out.

    Knows torch's own class, ``MemoryError`` and the texts of cuBLAS, cuDNN, the CPU allocator and the driver, also as
    the stated cause of another error. An error that only mentions memory, such as a wrong shape, is not one.
    """
    if error.__cause__ is not None and is_out_of_memory(error.__cause__):
        return True
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(part in text for part in _MEMORY_TEXTS)


def kind_of(error: BaseException) -> Kind:
    """Return the kind of failure that ``error`` is."""
    if isinstance(error, StoppedError):
        return "stopped"
    if isinstance(error, InputError):
        return "input"
    if isinstance(error, DivergedError):
        return "diverged"
    if is_out_of_memory(error):
        return "out_of_memory"
    if any(part in str(error).lower() for part in _PEER_TEXTS):
        return "peer"
    return "error"


def record_failure(folder: Path, rank: int, error: BaseException) -> Failure:
    """Write what ended this rank to its failure file and return it."""
    kind = kind_of(error)
    message = str(error) if isinstance(error, TulaError) else f"{type(error).__name__}: {error}"
    failure = Failure(
        kind=kind,
        rank=rank,
        message=message,
        traceback="".join(traceback.format_exception(error)),
        at_s=time.time(),
        signal_number=error.signal_number if isinstance(error, StoppedError) else None,
    )
    write_atomic(folder / f"failure-{rank}.json", json.dumps(asdict(failure)))
    return failure


def read_failure(folder: Path, exit_codes: dict[int, int | None]) -> Failure | None:
    """Return the first real cause among all ranks, None where every rank ended well.

    Parameters
    ----------
    exit_codes
        By rank; negative for a signal, None for a process the parent had to kill.
    """
    failures = [_failure_of(folder, rank, code) for rank, code in exit_codes.items() if code != 0]
    return min(failures, key=lambda f: (_PRECEDENCE.index(f.kind), f.at_s), default=None)


def _failure_of(folder: Path, rank: int, exit_code: int | None) -> Failure:
    path = folder / f"failure-{rank}.json"
    if path.exists():
        return Failure(**json.loads(path.read_text()))
    log = folder / f"rank-{rank}.log"
    tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    if exit_code is None:
        return Failure(kind="peer", rank=rank, message="ended with its peers", traceback=tail, at_s=time.time())
    if exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        message = f"process {rank} was killed (signal 9); the system does that when memory runs out"
        return Failure(kind="killed", rank=rank, message=message, traceback=tail, at_s=time.time())
    lines = [line for line in tail.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it left no message"
    message = f"process {rank} ended with {_exit(exit_code)}: {last}"
    kind: Kind = "out_of_memory" if is_out_of_memory(RuntimeError(tail)) else "error"
    return Failure(kind=kind, rank=rank, message=message, traceback=tail, at_s=time.time())


def _exit(code: int) -> str:
    """Return an exit code in words; a signal by its name, since -11 tells few people that memory was misused."""
    try:
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
