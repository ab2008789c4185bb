"""Digests of a few items at fixed places of a data set: whether two processes, or two days, see the same data."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tula_core.records import DataSample
from tula_core.workloads.randomness import fixed_randomness
from tula_core.workloads.trial import read_batch
from tula_core.workloads.types import Workload

LEVELS = (4, 16, 64, 256, 1000)
"""How many items are read, the next only where time allows; two samples are compared where both have read as many."""

_BYTES = torch.uint8
_READING_S = 0.5  # of one reading of one data set; each item is read twice

Agreed = Callable[[float], float]


@dataclass(slots=True)
class _Digests:
    """Of all items so far, after each level; None from where two readings differ."""

    read: list[int] = field(default_factory=list)
    found: list[str | None] = field(default_factory=list)
    _all: list[str] = field(default_factory=list)

    def add(self, read: int, first: Sequence[str], second: Sequence[str]) -> None:
        steady = list(first) == list(second) and None not in self.found
        self._all += first
        self.read.append(read)
        self.found.append(hashlib.sha256("".join(self._all).encode()).hexdigest()[:16] if steady else None)


def sample_data(
    workload: Workload, role: str, *, most: int = LEVELS[-1], agreed: Agreed = lambda seconds: seconds
) -> DataSample:
    """Return digests of up to ``most`` items of a data set, spread evenly from the first to the last.

    Each item is read twice, both times with the same seeds. What then differs comes from a generator of the data set's
    own and cannot be compared, so the digest of those items and of all read later is None.

    Parameters
    ----------
    role
        ``train_data`` or ``eval_data``.
    agreed
        Makes of the seconds that one process expects those that all of them count with: all have to stop alike.

    Raises
    ------
    InputError
        An item cannot be read.
    """
    dataset: Any = workload.train_set() if role == "train_data" else workload.eval_set()
    levels = [level for level in LEVELS if level <= most]
    seen: set[int] = set()
    inputs, targets = _Digests(), _Digests()
    seconds: list[float] = []
    for number, level in enumerate(levels):
        new = [place for place in spread(len(dataset), level) if place not in seen]
        # The second reading finds files in the system's cache, so its time is alike from day to day.
        if not new or (seconds and agreed(len(new) * statistics.median(seconds)) > _READING_S):
            break
        (first, _), (second, taken) = (_read(workload, dataset, new, role, number) for _ in range(2))
        seen.update(new)
        seconds += taken
        for digests, part in ((inputs, 0), (targets, 1)):
            digests.add(
                len(seen), [digest_of(item[part]) for item in first], [digest_of(item[part]) for item in second]
            )
    return DataSample(
        items=len(dataset), read=tuple(inputs.read), inputs=tuple(inputs.found), targets=tuple(targets.found)
    )


def spread(length: int, count: int) -> list[int]:
    """Return ``count`` places from the first to the last, all of them where there are no more.

    >>> spread(100, 4), spread(3, 4), spread(1, 4)
    ([0, 33, 66, 99], [0, 1, 2], [0])
    """
    if length <= count:
        return list(range(length))
    return [index * (length - 1) // (count - 1) for index in range(count)]


def digest_of(value: Tensor) -> str:
    """Return a digest of a tensor's shape, type and content."""
    content = value.detach().cpu().contiguous().view(-1)
    text = f"{tuple(value.shape)} {value.dtype} ".encode()
    return hashlib.sha256(text + content.view(_BYTES).numpy().tobytes()).hexdigest()


def _read(
    workload: Workload, dataset: Any, places: Sequence[int], role: str, seed: int
) -> tuple[list[tuple[Tensor, Tensor]], list[float]]:
    items, seconds = [], []
    with fixed_randomness(seed):
        for place in places:
            began = time.perf_counter()
            items.append(read_batch(workload, dataset, [place], role))
            seconds.append(time.perf_counter() - began)
    return items, seconds
