"""How a verb of the command line ends: one clear block on stderr and the exit code that is promised."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import typer

from flows.signals import stop_on_signals, stop_received
from tula_core.errors import StoppedError, TulaError
from tula_core.home import state_folder

P = ParamSpec("P")

RUN_FAILED = 4

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_DISK_REMEDY = "Free disk space, or set TULA_HOME to a folder on a disk with space that you can write to."


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """Wrap the function of a verb: signals stop it cleanly, every error becomes a message and an exit code."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with stop_on_signals():
                function(*args, **kwargs)
                sys.stdout.flush()
        except BrokenPipeError:
            silence_stdout()
            if (stop := stop_received()) is not None:
                raise typer.Exit(report(stop)) from None
        except (typer.Exit, typer.Abort, SystemExit):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BaseException as error:
            raise typer.Exit(report(_ending(error))) from None

    return wrapped


def _ending(error: BaseException) -> BaseException:
    """Return what ended a verb: an error that was raised on purpose, else a signal before it, else the error."""
    return error if meant_error(error) is not None else stop_received() or error


def silence_stdout() -> None:
    """Send what is still to be printed nowhere: whoever read it, ``head`` for example, has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: BaseException) -> int:
    """Print ``error`` for a person and return the exit code it stands for."""
    meant = meant_error(error)
    if meant is not None:
        print(str(meant) if isinstance(meant, StoppedError) else f"error: {meant}", file=sys.stderr)
        _print_notes(meant)
        return meant.exit_code
    cause = first_cause(error)
    if isinstance(cause, OSError) and cause.errno in _OF_THE_DISK:
        where = f" at {cause.filename}" if cause.filename else ""
        print(f"error: {cause.strerror}{where}; TULA_HOME is {_home()!r}. {_DISK_REMEDY}", file=sys.stderr)
        return RUN_FAILED
    text = str(cause).strip().splitlines()
    print(f"error: {type(cause).__name__}: {text[0] if text else 'no message'}", file=sys.stderr)
    print(f"The traceback is in {_keep(error)}", file=sys.stderr)
    return RUN_FAILED


def _print_notes(error: TulaError) -> None:
    """Print what was noted beside the message; a worker's traceback goes to a file and is named."""
    notes = getattr(error, "__notes__", [])
    for note in (note for note in notes if "\n" not in note.strip()):
        print(note, file=sys.stderr)
    if any("\n" in note.strip() for note in notes):
        print(f"The traceback is in {_keep(error)}", file=sys.stderr)


def meant_error(error: BaseException) -> TulaError | None:
    """Return the error that was raised on purpose: ``error`` or the one it was raised from, None where there is none.

    What merely happened while another error was handled is a fault of the program and not taken for its cause.
    """
    here: BaseException | None = error
    while here is not None:
        if isinstance(here, TulaError):
            return here
        number = getattr(here, "signal", None)
        if type(here).__name__ == "TerminationSignal" and isinstance(number, int):  # Prefect's, between two tasks
            return StoppedError(f"stopped by {signal.Signals(number).name}.", number)
        here = here.__cause__
    return None


def first_cause(error: BaseException) -> BaseException:
    """Return the error that all others in the chain of causes followed from."""
    return _chain(error)[-1]


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in chain:
        chain.append(here)
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)
    return chain


def _home() -> str:
    return os.path.abspath(os.environ.get("TULA_HOME") or ".tula")


def _keep(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    try:
        path = state_folder("errors") / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        path.write_text(text, encoding="utf-8")
    except (OSError, TulaError):
        print(text, file=sys.stderr)
        return "the lines above: no file could be written"
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
