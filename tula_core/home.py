"""Where Tula keeps its state: one folder, ``TULA_HOME`` or ``.tula`` in the current folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tula_core.errors import InputError, RunError


def tula_home() -> Path:
    """Return the absolute state folder, created if absent.

    Raises
    ------
    InputError
        The folder cannot be created or is not a folder.
    """
    home = Path(os.environ.get("TULA_HOME") or ".tula").expanduser().resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"TULA_HOME: {str(home)!r} cannot be used as a folder ({error.strerror}). "
            "Set TULA_HOME to a folder you can write to."
        ) from error
    return home


def state_folder(*parts: str) -> Path:
    """Return a subfolder of `tula_home`, created if absent."""
    folder = tula_home().joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_room(size_bytes: int = 500_000) -> None:
    """Write and delete a file in the state folder, before work whose result would have no place to go.

    Raises
    ------
    RunError
        The disk is full or the folder cannot be written to.
    """
    home = tula_home()
    try:
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(bytes(size_bytes))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(
            f"TULA_HOME: {str(home)!r} cannot be written ({error.strerror or error}). "
            "Free disk space, or set TULA_HOME to a folder on a disk with space that you can write to."
        ) from error


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new, never a part.

    A link is followed. What is no plain file, such as ``/dev/stdout`` or a pipe, is written to and not replaced.

    Raises
    ------
    OSError
        The disk is full or the folder is not writable; the old file is untouched and no temporary file is left.
    """
    content = data.encode() if isinstance(data, str) else data
    if (path.exists() and not path.is_file()) or path.absolute().parts[1:2] in (("dev",), ("proc",)):
        with path.open("ab") as file:
            file.write(content)
        return
    with open_atomic(path) as file:
        file.write(content)


@contextlib.contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write to, which takes the place of ``path`` when it is complete; `write_atomic` for large data.

    Raises
    ------
    OSError
        As in `write_atomic`.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
