"""Files that a verb is asked to write, tried before the work that fills them: nothing is measured in vain."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tula_core.errors import InputError, RunError
from tula_core.home import state_folder, write_atomic

if TYPE_CHECKING:
    from tula_core.records import Plan


def check_out(path: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is measured or trained.

    Raises
    ------
    InputError
        It is a folder, or its folder cannot be made or written to.
    """
    if path is None or (path.exists() and not path.is_dir() and os.access(path, os.W_OK)):
        return
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    problem = ""
    if path.is_dir():
        problem = "is a folder"
    elif not folder.is_dir():
        problem = f"cannot be made, {str(folder)!r} is no folder"
    elif path.exists() or not os.access(folder, os.W_OK):
        problem = "cannot be written, permission denied"
    if problem:
        raise InputError(f"--out: {str(path)!r} {problem}. Give the path of a file in a folder you can write to.")


def plan_path(plan: Plan) -> Path:
    """Return where a plan is kept that was not given a file."""
    return state_folder("plans") / f"{plan.job.title}-{plan.digest[:8]}.json"


def write_out(path: Path, text: str) -> None:
    """Write ``text`` to the file of a result.

    Raises
    ------
    RunError
        It cannot be written after all: the disk is full, or it has become unwritable.
    """
    try:
        write_atomic(path, text)
    except OSError as error:
        raise RunError(
            f"{str(path)!r} cannot be written ({error.strerror or error}). "
            "Free disk space, or name a file elsewhere with --out."
        ) from error
