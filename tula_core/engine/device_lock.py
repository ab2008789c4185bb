"""A lock on this machine's devices, so that two jobs neither spoil each other's measurements nor share memory.

A job that names its accelerators (``CUDA_VISIBLE_DEVICES``) shares the machine with others that name other ones; any
other job, on processors or on all accelerators, has it alone. The files are where every user and every job finds the
same ones, whatever ``TMPDIR`` and ``TULA_HOME`` say.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tula_core.progress import Event, Listener

try:
    import fcntl
except ImportError:  # Windows: one job of one user at a time is not seen to there
    fcntl = None  # type: ignore[assignment]

FOLDER = "TULA_LOCKS"
"""Variable of the environment: another folder for the locks, for jobs that are known to have devices of their own."""

_POLL_S, _ASK_S = 0.1, 20.0
_SHARED_FOLDERS = ("/run/lock", "/var/lock", "/tmp", "/var/tmp")
_EVERYBODY = stat.S_ISVTX | stat.S_IWOTH
_ACCELERATORS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_MACHINE = "machine"


def lock_path(name: str = _MACHINE) -> Path:
    """Return the file of a lock: the same for every user, job, ``TULA_HOME`` and ``TMPDIR``."""
    return _folder() / f"tula-{name}.lock"


def _folder() -> Path:
    """Return the first folder in which every user may write, so that all users choose the same."""
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    for name in _SHARED_FOLDERS:
        with contextlib.suppress(OSError):
            if os.stat(name).st_mode & _EVERYBODY == _EVERYBODY:
                return Path(name)
    return Path(tempfile.gettempdir())


def named_devices() -> tuple[str, ...]:
    """Return the accelerators that this job sees, in ascending order; none where the machine is needed alone.

    They are named by UUID where the driver's program tells them: numbers count from 0 anew in each container. Else only
    numbers are told apart, and any other name in ``CUDA_VISIBLE_DEVICES``, as of a part of a device, needs all.
    """
    if not any(Path(name).exists() for name in _ACCELERATORS) or _torch_is_for_processors():
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    known = _installed()
    if known:
        found = known if names is None else [_uuid(name, known) for name in names]
        return tuple(sorted({f"device-{one}" for one in found})) if all(found) else ()
    if names is None or not all(re.fullmatch(r"\d+", name) for name in names):
        return ()
    return tuple(f"device-{number}" for number in sorted({int(name) for name in names}))


def _installed() -> list[str]:
    """Return the UUID of each accelerator by its number; none where the numbers' order is not known."""
    command = ["nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",", 1)] for line in told.splitlines() if line.strip()]
    # By default CUDA counts the fastest first, the driver by the bus: one order only where all are alike.
    in_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({row[-1] for row in rows}) == 1
    return [uuid for uuid, *_ in rows] if in_order else []


def _uuid(name: str, known: Sequence[str]) -> str | None:
    if re.fullmatch(r"\d+", name):
        return known[int(name)] if int(name) < len(known) else None
    return next((uuid for uuid in known if name.startswith("GPU-") and uuid.startswith(name)), None)


def _torch_is_for_processors() -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("torch").endswith("+cpu")
    return False


@contextlib.contextmanager
def device_lock(stage: str, listener: Listener) -> Iterator[None]:
    """Hold the devices; while another job measures or trains on them, say so and wait.

    The machine is always taken first and devices in ascending order, so that no two jobs wait for each other.
    """
    devices = named_devices()
    with contextlib.ExitStack() as held:
        for name in (_MACHINE, *devices):
            alone = name != _MACHINE or not devices
            held.callback(os.close, _acquire(name, alone, stage, listener))
        yield


def _acquire(name: str, alone: bool, stage: str, listener: Listener) -> int:
    """Return the open file of a lock once it is held; to close it is to release it, as does the process's end."""
    path = _usable(name, stage, listener)
    said = False
    while True:
        number = _opened(path)
        if _try(number, alone) and _is_at(path, number):
            return number
        os.close(number)
        if not said:
            message = f"waiting for another job on this machine (lock {path})"
            listener(Event(stage=stage, message=message, level="info"))
            said = True
        time.sleep(_POLL_S)


def _try(number: int, alone: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(number, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, number: int) -> bool:
    """Return whether the file is still the one of that name: a cleaner may have removed it, and others made anew."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(number))
    return False


def _usable(name: str, stage: str, listener: Listener) -> Path:
    """Return a lock's file; one of this user alone, which is said, where the common one cannot be opened."""
    path = lock_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(_opened(path))
    except OSError as error:
        message = f"{path} cannot be used ({error.strerror}): other users' jobs on this machine are not waited for"
        listener(Event(stage=stage, message=message, level="warning"))
        return Path(tempfile.gettempdir()) / f"tula-{getpass.getuser()}-{name}.lock"
    return path


def _opened(path: Path) -> int:
    # Without O_CREAT first: a system may refuse that for another user's file in a common folder. No link is followed.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        number = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:  # made by another job meanwhile
        return os.open(path, flags)
    with contextlib.suppress(OSError):
        os.fchmod(number, 0o666)  # whatever the umask: other users have to open it too
    return number
