"""The errors a user can meet, each with the exit code the command line gives it.

Every message names the field, the value found, what is allowed and the remedy. Each class also derives from a builtin,
so that callers who know nothing of Tula can catch it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TulaError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is what the command line returns."""

    exit_code = 4


class InputError(TulaError, ValueError):
    """The job, a file or an argument is wrong; the user can mend it."""

    exit_code = 2


class InfeasibleError(TulaError, RuntimeError):
    """No candidate satisfies every constraint."""

    exit_code = 3


class RunError(TulaError, RuntimeError):
    """A measuring or training process failed; carries the first real cause."""

    exit_code = 4


class OutOfMemoryError(RunError, MemoryError):
    """A process ran out of device or host memory."""


class DivergedError(RunError, ArithmeticError):
    """The loss stayed non-finite or grew without bound after every permitted reduction of the learning rate."""


class StoppedError(TulaError):
    """The run was ended by a signal after a clean checkpoint.

    Parameters
    ----------
    signal_number
        The signal received, for example 2 (SIGINT) or 15 (SIGTERM).
    """

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a remedy sentence that lists the known names, the closest first if one is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}."
