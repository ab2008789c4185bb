"""Ending Prefect's own server when the process that started it was killed and could not do so itself.

A small process waits for the end of a pipe whose other end only this process holds; the system closes it whatever ends
this process. It then ends what carries this process's mark in its environment and is no child of a living owner.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
import types

import psutil

MARK = "TULA_SERVER_OWNER"
GRACE_S = 3.0  # for the server to end by itself, as it does when its owner ends in good order

_guards: list[subprocess.Popen[bytes]] = []


def guard() -> None:
    """Mark what this process starts from now on, and start the process that ends it when this one is gone."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[MARK] = mark
    command = [sys.executable, "-P", "-m", "flows.watchdog", mark]
    # A session of its own: a Ctrl-C in the terminal must not reach it before its work is done.
    guard_process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    _guards.append(guard_process)  # keeps the pipe open


def start_servers_apart() -> None:
    """Let Prefect start its server in a session of its own, where no signal to this process's group reaches it.

    A terminal's Ctrl-C and the end of a batch job go to the whole group. The server would be gone before the run that
    is stopped has told it how it ended, and all that then showed were failed connections.
    """
    from prefect.server.api import server

    apart = functools.partial(subprocess.Popen, start_new_session=True)
    vars(server)["subprocess"] = types.SimpleNamespace(**{**vars(subprocess), "Popen": apart})


def end_marked(mark: str) -> list[int]:
    """End the servers that carry ``mark``; return their numbers."""
    servers = [process for process in psutil.process_iter() if _is_server(process, mark)]
    for process in servers:
        _end(process, kill=False)
    _, alive = psutil.wait_procs(servers, timeout=GRACE_S)
    for process in alive:
        _end(process, kill=True)
    return [process.pid for process in servers]


def _is_server(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and any("uvicorn" in word for word in process.cmdline())
    except (psutil.Error, OSError):
        return False


def _end(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.Error:
        return


def main() -> None:
    """Wait until the owner is gone, give the server time, end it."""
    sys.stdin.buffer.read()
    time.sleep(GRACE_S)
    end_marked(sys.argv[1])


if __name__ == "__main__":
    main()
