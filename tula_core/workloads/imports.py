"""User code by import path, ``package.module:function``, with errors that lead to the line at fault."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tula_core.errors import InputError
from tula_core.job import Job


def is_import_path(text: str) -> bool:
    """Return whether text has the form ``package.module:name``.

    >>> is_import_path("jobs.vision:make"), is_import_path("resnet18"), is_import_path("./images")
    (True, False, False)
    """
    module, separator, name = text.partition(":")
    return bool(separator) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def import_object(field: str, path: str, search_path: Sequence[str] = ()) -> Any:
    """Return what ``package.module:name`` names.

    Looked for on ``sys.path`` (``PYTHONPATH`` included), then in ``search_path``, last in the current folder, so that a
    file there never hides an installed package. The folders stay on ``sys.path``: user code may import later.

    Raises
    ------
    InputError
        The import fails or the name is not there.
    """
    module_name, _, attribute = path.partition(":")
    if module_name == "__main__":
        raise InputError(
            f"{field}: {path!r} is in the program that was started, which worker processes cannot import. Move "
            f"{attribute} to a module of its own and write module:{attribute}."
        )
    for folder in (*search_path, os.getcwd()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{field}: importing {module_name!r} failed: {blame(error)}. Searched: "
            f"{', '.join(entry or os.getcwd() for entry in sys.path)}. "
            "Mend the module, or add its folder to PYTHONPATH."
        ) from error
    origin = getattr(found, "__file__", None) or module_name
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]
            raise InputError(
                f"{field}: {origin} has no {part!r}. It has: {', '.join(sorted(names)) or 'no function'}. "
                "Write package.module:function."
            )
        found = getattr(found, part)
    return found


def call(field: str, function: Callable[..., Any], job: Job | None = None) -> Any:
    """Return what a user's function gives; it is handed the job if it takes one.

    It takes one where its only required parameter, or its first one, is called ``job``, or where exactly one parameter
    is required.

    Raises
    ------
    InputError
        It needs more arguments, or it raises.
    """
    arguments = _arguments(field, function, job)
    try:
        return function(*arguments)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise InputError(f"{field}: calling {name} failed: {blame(error)}. Mend that line.") from error


def blame(error: BaseException) -> str:
    """Return the last line of a traceback and the place it comes from, the user's own line where there is one."""
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    if isinstance(error, SyntaxError):
        return f"{last} ({error.filename}:{error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
    own = Path(__file__).parent.parent
    outside = [f for f in frames if own not in Path(f.filename).parents and "importlib" not in Path(f.filename).parts]
    users = [f for f in outside if "site-packages" not in f.filename and "dist-packages" not in f.filename]
    for chosen in (users, outside):
        if chosen:
            return f"{last} ({chosen[-1].filename}:{chosen[-1].lineno})"
    return last


def _arguments(field: str, function: Callable[..., Any], job: Job | None) -> tuple[Any, ...]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    wants_job = bool(positional) and (required == positional[:1] or (not required and positional[0].name == "job"))
    if len(required) > 1 or (required and not (wants_job and job is not None)):
        name = getattr(function, "__qualname__", repr(function))
        raise InputError(
            f"{field}: {name} needs the arguments {', '.join(p.name for p in required)}. "
            "Give a function that takes none, or the job."
        )
    return (job,) if wants_job and job is not None else ()
