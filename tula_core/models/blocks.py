"""Work on many rows in blocks that a core keeps near itself, shared among threads where there are cores for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

_T = TypeVar("_T")

_MOST_THREADS = 8  # what numpy does between two locks of the interpreter keeps no more of them busy


def in_blocks(work: Callable[[slice], _T], count: int, size: int) -> list[_T]:
    """Return what ``work`` makes of each block of ``count`` rows, in the order of the rows.

    Blocks are the same whatever the number of cores, and so are the figures.

    Parameters
    ----------
    work
        Called once for each block, maybe by several threads at a time; numpy lets go of the interpreter meanwhile.
    size
        Rows of a block, of the last one at most.
    """
    blocks = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    threads = min(_cores(), len(blocks), _MOST_THREADS)
    if threads < 2:
        return [work(block) for block in blocks]
    with ThreadPoolExecutor(threads) as pool:
        # What the caller set for itself, such as numpy's handling of overflow, holds in the threads too.
        found = [pool.submit(copy_context().run, work, block) for block in blocks]
        return [future.result() for future in found]


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
