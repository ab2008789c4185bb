"""Who is told what a flow does. Tasks take only plain values, so the watcher is found here and not passed along."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tula_core.progress import Event
from tula_core.records import Plan

LOG_EVERY_S = 10.0


class Watcher(Protocol):
    """Is told the events of the stages, and the plan as soon as there is one."""

    def event(self, event: Event) -> None:
        """Take an event of a stage."""

    def planned(self, plan: Plan) -> None:
        """Take the plan, before anything is trained."""


class LogWatcher:
    """Writes to a log, for runs that nobody watches; progress at most every `LOG_EVERY_S` seconds.

    The logger is handed in: Prefect's run logger can be asked for only in the thread that runs the task.
    """

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger = logger
        self._last_s = 0.0

    def event(self, event: Event) -> None:
        """Log an event."""
        now_s = time.monotonic()
        if event.level == "progress" and now_s - self._last_s < LOG_EVERY_S:
            return
        self._last_s = now_s
        level = logging.WARNING if event.level == "warning" else logging.INFO
        self._logger.log(level, "%s: %s", event.stage, event.message)

    def planned(self, plan: Plan) -> None:
        """Log the reason."""
        self._logger.info("%s", plan.reason)


_watcher: Watcher | None = None


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Make ``watcher`` the one that is told, in this process, while inside."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before


def watcher_or_log(logger: logging.Logger | logging.LoggerAdapter[Any]) -> Watcher:
    """Return the present watcher, or one that writes to ``logger``."""
    return _watcher if _watcher is not None else LogWatcher(logger)
