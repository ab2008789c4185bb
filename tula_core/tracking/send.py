"""`flush`: send what the spool holds to MLflow, in order, once, whatever fails on the way."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tula_core.errors import InputError, StoppedError
from tula_core.tracking import spool, store

LOCK_WAIT_S = 30.0
QUIET_S = 30.0  # after a failure, a call that is not urgent does not ask the store again for this long
MAX_TROUBLES = 3  # operations that the store cannot take just now, before the rest is left for later

_PERMANENT = {
    "BAD_REQUEST",
    "INVALID_PARAMETER_VALUE",
    "INVALID_STATE",
    "MALFORMED_REQUEST",
    "RESOURCE_ALREADY_EXISTS",
    "RESOURCE_DOES_NOT_EXIST",
}
_quiet_until: dict[str, float] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class FlushReport:
    """What a flush did: operations sent, left for later and set aside, and the first problem in words."""

    sent: int = 0
    left: int = 0
    rejected: tuple[str, ...] = ()
    problem: str | None = None


def flush(*, urgent: bool = True) -> FlushReport:
    """Send the spool to the store.

    A store that is down or slow costs at most a few seconds and loses nothing: what is left is sent by the next flush,
    of this or a later process. Processes that flush at once take turns.

    Parameters
    ----------
    urgent
        False gives up without a try where the store failed within the last half minute.

    Raises
    ------
    InputError
        ``MLFLOW_TRACKING_URI`` is no address of a store.
    """
    waiting = len(spool.pending())
    if not waiting:
        return FlushReport()
    uri = store.tracking_uri()
    if not urgent and time.monotonic() < _quiet_until.get(uri, 0.0):
        return FlushReport(left=waiting, problem=f"MLflow at {store.shown_uri(uri)} did not answer a moment ago")
    if not store.reachable(uri):
        _quiet_until[uri] = time.monotonic() + QUIET_S
        return FlushReport(left=waiting, problem=f"MLflow at {store.shown_uri(uri)} cannot be reached")
    try:
        with FileLock(store.lock_path("spool"), timeout=LOCK_WAIT_S):
            report = _Flush(uri).run()
    except Timeout:
        return FlushReport(left=waiting, problem="another process has been sending to MLflow for half a minute")
    if report.left:
        _quiet_until[uri] = time.monotonic() + QUIET_S
    return report


class _Flush:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.sent = 0
        self.rejected: list[str] = []
        self.troubles: list[str] = []
        self.held_back: set[Any] = set()  # jobs with an operation left behind: their later ones must not overtake it
        self.seen: set[Path] = set()

    def run(self) -> FlushReport:
        """Send until nothing new appears; other processes may write while this one sends."""
        while len(self.troubles) < MAX_TROUBLES:
            fresh = [path for path in spool.pending() if path not in self.seen]
            if not fresh:
                break
            for path in fresh:
                self.seen.add(path)
                self._handle(path)
                if len(self.troubles) >= MAX_TROUBLES:
                    break
        problem = next(iter([*self.troubles, *self.rejected]), None)
        return FlushReport(sent=self.sent, left=len(spool.pending()), rejected=tuple(self.rejected), problem=problem)

    def _handle(self, path: Path) -> None:
        try:
            operation = json.loads(path.read_bytes())
            job_id = operation["job_id"]
        except (ValueError, KeyError, TypeError) as error:
            self._reject(path, f"not an operation ({type(error).__name__}: {error})")
            return
        if job_id in self.held_back:
            return
        outside = sys.exception()
        try:
            self._apply(operation)
        except Exception as error:  # whatever it is, the job that is being tracked must not fail for it
            _raise_stop(error, outside)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"
            if _is_permanent(error):
                self._reject(path, reason)
                return
            self.troubles.append(f"MLflow at {store.shown_uri(self.uri)} did not take an operation ({reason})")
            self.held_back.add(job_id)
            if not store.reachable(self.uri):
                self.troubles += [self.troubles[0]] * MAX_TROUBLES
            return
        path.unlink(missing_ok=True)
        self.sent += 1

    def _apply(self, operation: dict[str, Any]) -> None:
        """Apply an operation; once more where it failed, since a kept connection may just have been closed."""
        outside = sys.exception()
        from tula_core.tracking.apply import Recorder

        client = store.client(self.uri)
        with store.write_lock(self.uri):
            try:
                Recorder(client, self.uri).apply(operation)
            except Exception as error:
                _raise_stop(error, outside)
                if not store.reachable(self.uri):
                    raise
                Recorder(client, self.uri).apply(operation)

    def _reject(self, path: Path, reason: str) -> None:
        spool.reject(path, reason)
        self.rejected.append(f"an operation was set aside in {path.parent / 'rejected' / path.name}: {reason}")


def _raise_stop(error: BaseException, outside: BaseException | None) -> None:
    """Raise the stop by a signal that led to ``error``, however it was wrapped, unless it led to ``outside`` too."""
    known = set()
    while outside is not None and id(outside) not in known:
        known.add(id(outside))
        outside = outside.__cause__ or outside.__context__
    found: BaseException | None = error
    while found is not None and id(found) not in known:
        if isinstance(found, StoppedError | KeyboardInterrupt):
            raise found
        known.add(id(found))
        found = found.__cause__ or found.__context__


def _is_permanent(error: Exception) -> bool:
    """Return whether sending again can never help.

    A bare status code is not enough: a proxy whose server is down answers 404 to everything.
    """
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code in _PERMANENT and not str(error).startswith("API request to")
    if isinstance(error, (OSError, json.JSONDecodeError)):  # no connection, a full disk, or an answer that is no JSON
        return False
    return isinstance(error, (InputError, KeyError, TypeError, AttributeError, AssertionError, ValueError))
