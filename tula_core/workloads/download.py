"""Where data files live, and fetching them within a limit of time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from filelock import FileLock, Timeout

from tula_core.errors import InputError
from tula_core.home import state_folder

STALL_LIMIT_S = 10
DOWNLOAD_LIMIT_S = 120.0

_FETCH = (
    "import json, socket, sys\n"
    f"socket.setdefaulttimeout({STALL_LIMIT_S})\n"
    "import torchvision.datasets as datasets\n"
    "getattr(datasets, sys.argv[1])(sys.argv[2], download=True, **json.loads(sys.argv[3]))\n"
)


def data_root() -> Path:
    """Return the folder of data files: ``TULA_DATA``, else ``data`` in Tula's state folder.

    Raises
    ------
    InputError
        ``TULA_DATA`` names something that is no folder.
    """
    given = os.environ.get("TULA_DATA")
    if not given:
        return state_folder("data")
    root = Path(given).expanduser().resolve()
    if not root.is_dir():
        raise InputError(f"TULA_DATA: {given!r} is not a folder. Create it, or unset TULA_DATA.")
    return root


def torchvision_download(name: str, root: Path, options: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Let torchvision fetch the data set of class ``name`` to ``root``, in a process that is killed at the limit.

    ``options`` are further arguments of the class, such as its split.

    Raises
    ------
    RuntimeError
        It did not succeed; the message is its last line, or says that it was stopped.
    """
    try:
        # Workers of one job may ask at the same time; the later ones find the files.
        with FileLock(root / ".download.lock", timeout=DOWNLOAD_LIMIT_S):
            done = subprocess.run(
                [sys.executable, "-c", _FETCH, name, str(root), json.dumps(dict(options))],
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_LIMIT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
    except (subprocess.TimeoutExpired, Timeout):
        raise RuntimeError(f"the download was stopped after {DOWNLOAD_LIMIT_S:.0f} s") from None
    except OSError as error:
        raise RuntimeError(f"{root} cannot be written ({error.strerror})") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(lines[-1] if lines else f"the download ended with status {done.returncode}")
