"""Operations on their way to MLflow: files in the state folder, kept until the store has taken them.

Every operation is written here first and sent from here, so there is one path whether the server is up or down. A
file holds one JSON document that can be applied again without harm. Files are sent in the order they were written;
one that the store can never take is moved to ``rejected`` together with the reason and does not hold up the others.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tula_core.home import state_folder, write_atomic

_order_lock = threading.Lock()
_counter = itertools.count()
_last_ns = 0


def append(operation: Mapping[str, Any]) -> Path:
    """Write one operation atomically behind those already there.

    Raises
    ------
    ValueError
        The operation holds a number that is not finite.
    OSError
        The disk is full or the state folder is not writable.
    """
    global _last_ns
    text = json.dumps(operation, allow_nan=False)
    with _order_lock:
        _last_ns = max(_last_ns + 1, time.time_ns())  # the clock may be set back while a run writes
        name = f"{_last_ns:020d}-{os.getpid()}-{next(_counter):06d}.json"
    path = state_folder("spool") / name
    write_atomic(path, text)
    return path


def pending() -> list[Path]:
    """Return the files that wait, in the order they were written."""
    return sorted(path for path in state_folder("spool").glob("*.json") if not path.name.startswith("."))


def operations() -> Iterator[dict[str, Any]]:
    """Yield the documents that wait, skipping files that another process has just sent or that hold no document."""
    for path in pending():
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(document, dict):
            yield document


def reject(path: Path, reason: str) -> None:
    """Move a file to ``rejected`` and write the reason beside it."""
    folder = state_folder("spool", "rejected")
    write_atomic(folder / f"{path.stem}.reason.txt", reason + "\n")
    os.replace(path, folder / path.name)
