"""Errors that were raised on purpose, in Prefect's logs without tracebacks: their message says all that there is."""

from __future__ import annotations

import logging

from flows.failures import meant_error

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


class PlainErrors(logging.Filter):
    """Takes the traceback from the record of an error that was meant; all records pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Put the error's message in place of its traceback."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        meant = None if error is None else meant_error(error)
        if meant is not None:
            text = record.getMessage()
            record.msg = "%s" if str(meant) in text else "%s: %s"
            record.args = (text,) if str(meant) in text else (text, str(meant))
            record.exc_info = record.exc_text = None
        return True


_PLAIN = PlainErrors()


def install() -> None:
    """Let every log of Prefect's that tells of a flow run's error be plain; again is harmless."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_PLAIN)
