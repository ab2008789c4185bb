"""The Optuna study on disk, whatever ends the process that writes it and whoever writes beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

_TURN_S = 60.0


class _TurnIsTaken(JournalFileOpenLock):
    """No lock of Optuna's own: one that a killed process leaves would hold up the next for half a minute."""

    def acquire(self) -> bool:
        """Return at once: `appending` has taken the turn."""
        return True

    def release(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def appending(file: Path) -> Iterator[JournalStorage]:
    """Give a journal to write to, to one process at a time; the system takes the turn back from one that was killed.

    Raises
    ------
    OSError
        The file cannot be written, or others kept the turn for a minute (``Timeout`` of filelock).
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.turn", timeout=_TURN_S):
        _cut_torn_line(file)
        yield JournalStorage(JournalFileBackend(str(file), lock_obj=_TurnIsTaken(str(file))))


def replace_study(study: optuna.Study, file: Path) -> None:
    """Put ``study`` in the place of the one of its name; its trials are written complete, none is ever running."""
    with appending(file) as storage:
        with contextlib.suppress(KeyError):
            optuna.delete_study(study_name=study.study_name, storage=storage)
        optuna.copy_study(from_study_name=study.study_name, from_storage=study._storage, to_storage=storage)


def _cut_torn_line(file: Path) -> None:
    """Remove a last line that a kill cut short: what is appended to it would never be read again."""
    try:
        with file.open("rb+") as journal:
            size = journal.seek(0, os.SEEK_END)
            journal.seek(max(0, size - 1))
            if size == 0 or journal.read(1) == b"\n":
                return
            journal.seek(0)
            journal.truncate(journal.read().rfind(b"\n") + 1)
    except FileNotFoundError:
        return
