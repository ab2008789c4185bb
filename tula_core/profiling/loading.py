"""How long loader workers take to make a batch, told by themselves.

Workers make batches ahead. A few steps after a pause only use up what lies ready, and their time says nothing of a run
that the loader holds up: there each worker's next batch comes once in a round of as many steps as there are workers.
"""

from __future__ import annotations

import math
import time
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate, get_worker_info

from tula_core.engine.batches import Collate

PREFETCHED = 2  # batches that each worker makes ahead: torch's default, which a run uses too
_FIRST, _REST, _COUNT, _SLOTS = 0, 1, 2, 3


class LoaderClock:
    """Adds up, over all workers of one process, the seconds that batches took to make.

    Parameters
    ----------
    workers
        Loader workers, one or more.
    """

    def __init__(self, workers: int) -> None:
        # Each worker writes to places of its own, so no lock is needed.
        self._shared = RawArray("d", workers * _SLOTS)

    def add(self, worker: int, seconds: float, *, first: bool) -> None:
        """Take one batch; the first of a worker also opens files and fills caches, and is kept apart."""
        place = worker * _SLOTS
        if first:
            self._shared[place + _FIRST] = seconds
        else:
            self._shared[place + _REST] += seconds
            self._shared[place + _COUNT] += 1.0

    @property
    def making_s(self) -> float:
        """Mean seconds of one worker for a batch, of first batches while there are no others, 0 before any."""
        count = math.fsum(self._shared[_COUNT::_SLOTS])
        if count:
            return math.fsum(self._shared[_REST::_SLOTS]) / count
        firsts = [seconds for seconds in self._shared[_FIRST::_SLOTS] if seconds > 0]
        return math.fsum(firsts) / len(firsts) if firsts else 0.0


class ClockedData(Dataset[Any]):
    """A data set that hands out the same batches and tells a clock what they took.

    Parameters
    ----------
    dataset, collate
        As `BatchStream` takes them.
    """

    def __init__(self, dataset: Any, collate: Collate | None, clock: LoaderClock) -> None:
        self._dataset = dataset
        self._collate = collate or default_collate
        self._get_batch = getattr(dataset, "get_batch", None) if collate is None else None
        self.deterministic = bool(getattr(dataset, "deterministic", False)) and self._get_batch is not None
        self._clock = clock
        self._begun = False  # of the copy in each worker

    def get_batch(self, indices: NDArray[np.int64]) -> Any:
        """Return the batch of these samples."""
        began = time.perf_counter()
        if self._get_batch is not None:
            batch = self._get_batch(indices)
        else:
            batch = self._collate([self._dataset[index] for index in indices.tolist()])
        worker = get_worker_info()
        self._clock.add(0 if worker is None else worker.id, time.perf_counter() - began, first=not self._begun)
        self._begun = True
        return batch
