"""SIGINT and SIGTERM as `StoppedError` in the main thread, so that every stage below can end cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tula_core.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_installed = False
_received: StoppedError | None = None


def _stop(number: int, frame: FrameType | None) -> None:
    global _received
    _received = StoppedError(f"stopped by {signal.Signals(number).name}.", number)
    raise _received


def stop_received() -> StoppedError | None:
    """Return the latest stop by a signal since the outermost `stop_on_signals` was entered, None where there was none.

    What was interrupted may fail in another way while it is put away, and then that is not what ended the program.
    """
    return _received


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise `StoppedError` for each SIGINT and SIGTERM inside; outside the main thread this does nothing."""
    global _installed, _received
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _installed:
        _received = None
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    outer, _installed = _installed, True
    try:
        yield
    finally:
        _installed = outer
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def keep_stopping_on_signals() -> Iterator[None]:
    """Put the handlers back where something in between replaced them; nothing where they were never installed.

    Prefect's flow engine takes SIGTERM for itself. That is right in a worker, where it carries a cancellation from the
    server, and wrong at a shell, where the exit code and the message are ours.
    """
    if _installed:
        with stop_on_signals():
            yield
    else:
        yield
