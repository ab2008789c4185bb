"""Holding a run's checkpoint against every other process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tula_core.engine.context import WorkerContext
from tula_core.errors import RunError

_LOCK_WAIT_S = 30.0


@contextlib.contextmanager
def sole_writer(context: WorkerContext, checkpoint: Path) -> Iterator[None]:
    """Hold the checkpoint's lock on rank 0; all processes go on when it is held.

    Workers whose parent was killed still write a last checkpoint: a resumed run waits for them, and two attempts at
    one run never train side by side.
    """
    lock = FileLock(checkpoint.with_suffix(".lock"))
    held = 1.0
    if context.rank == 0:
        try:
            lock.acquire(timeout=_LOCK_WAIT_S)
        except Timeout:
            held = 0.0
    try:
        if not context.broadcast(held):
            raise RunError(
                f"training: another process still trains into {str(checkpoint.parent)!r} after {_LOCK_WAIT_S:.0f} s. "
                "Wait for it or end it, then resume."
            )
        yield
    finally:
        if context.rank == 0:
            lock.release()
