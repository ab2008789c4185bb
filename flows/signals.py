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


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError(f"stopped by {signal.Signals(number).name}.", number)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise `StoppedError` for each SIGINT and SIGTERM inside; outside the main thread this does nothing."""
    global _installed
    if threading.current_thread() is not threading.main_thread():
        yield
        return
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
