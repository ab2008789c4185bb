"""A lock on this machine's devices, so that two jobs neither spoil each other's measurements nor share memory."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tula_core.progress import Event, Listener

_POLL_S = 0.1


def lock_path() -> Path:
    """Return the lock's file: one for each user and set of visible devices, the same whatever ``TULA_HOME`` is."""
    user = str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    devices = f"-{hashlib.sha256(visible.encode()).hexdigest()[:8]}" if visible else ""
    return Path(tempfile.gettempdir()) / f"tula-{user}-device{devices}.lock"


@contextlib.contextmanager
def device_lock(stage: str, listener: Listener) -> Iterator[None]:
    """Hold the devices; while another job measures or trains on them, say so and wait."""
    lock = FileLock(lock_path())
    try:
        lock.acquire(timeout=0)
    except Timeout:
        message = f"waiting for another job on this machine (lock {lock_path()})"
        listener(Event(stage=stage, message=message, level="info"))
        lock.acquire(poll_interval=_POLL_S)
    try:
        yield
    finally:
        lock.release()
