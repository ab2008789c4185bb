"""Processes of a family, any of which may end while it is looked at."""

from collections.abc import Iterable

import psutil


def command(process: psutil.Process) -> list[str]:
    """Return its words, none where it is gone."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def rank(process: psutil.Process) -> int | None:
    """Return the rank of a worker of Tula, none where it is something else or gone."""
    if "tula_core.engine.worker" not in command(process):
        return None
    try:
        return int(process.environ()["RANK"])
    except psutil.Error:
        return None


def lives(pid: int) -> bool:
    """Return whether a process of that number runs."""
    try:
        return still_there([psutil.Process(pid)]) != []
    except psutil.NoSuchProcess:
        return False


def still_there(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those that run; one that only waits for its parent to read how it ended does not."""
    found = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
