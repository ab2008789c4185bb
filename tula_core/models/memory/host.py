"""Memory of a host: the processes on it, and the batches that their loader workers hold ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.job import Recipe
from tula_core.models.step.time import Shapes
from tula_core.records.candidate import Candidate
from tula_core.records.profile import HostMemory, WorkloadFacts

Array = NDArray[np.float64]

PREFETCH = 2
"""Batches that each loader worker holds ready: torch's default."""

HOST_SHARE = 0.90
"""Share of a host's memory that the processes on it may fill together."""

_WORKER_BYTES = 100 * 2**20  # private to a forked worker before its first batch, where that was not measured
_PROCESS_BYTES = 3 * 2**30  # of a process that trains on an accelerator, where that was not measured
_SPREAD = 0.15  # relative, of a forecast's upper end


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemoryModel:
    """Bytes of one process's share of its host, beside what the process itself holds on a CPU machine."""

    workers: int
    worker_bytes: float
    sample_bytes: float
    process_bytes: float  # of the process itself; 0 on a CPU machine, whose processes are forecast apart

    def loader_bytes(self, local_batch: Array | float) -> Array:
        """Return what one process's loader holds: workers x (own + prefetched batches x batch x sample), shape (n,).

        Every worker keeps up to `PREFETCH` batches ready (torch.utils.data, ``prefetch_factor``).
        """
        return np.asarray(self.workers * (self.worker_bytes + PREFETCH * self.sample_bytes * local_batch))

    def upper_bytes(
        self, local_batch: Array | float, processes: Array | float, process_bytes: Array | float = 0.0
    ) -> Array:
        """Return the most that a host's processes are expected to hold together, shape (n,).

        Parameters
        ----------
        processes
            On the host, of all nodes that it stands for.
        process_bytes
            Upper end of one process's own memory on a CPU machine.
        """
        beside = self.process_bytes + self.loader_bytes(local_batch)
        return np.asarray(processes * (process_bytes + beside * (1.0 + _SPREAD)))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRoom:
    """A host's memory, and what the processes on it need of it."""

    model: HostMemoryModel
    memory_bytes: int
    on_cpu: bool  # the processes' own memory is the host's

    def upper_bytes(self, candidate: Candidate, process_bytes: float | None) -> float:
        """Return the most that one host's processes are expected to hold; ``process_bytes`` is one's upper end."""
        own = (process_bytes or 0.0) if self.on_cpu else 0.0
        return float(self.model.upper_bytes(float(candidate.local_batch), float(candidate.processes_per_node), own))

    def assumptions(self, local_batch: int) -> Iterator[str]:
        """Yield what loader workers are expected to hold at ``local_batch``; nothing without workers."""
        if self.model.workers:
            held = float(self.model.loader_bytes(float(local_batch)))
            yield (
                f"the {self.model.workers} loader workers of each process are expected to hold {held / 2**30:.2g} GiB "
                f"of host memory at a local batch of {local_batch}, in proportion to it"
            )

    def is_full(self, shapes: Shapes, process_bytes: Array) -> NDArray[np.bool_]:
        """Return where loaders do not fit their host, shape (n,); ``process_bytes`` is NaN where it is unknown.

        Without workers the processes alone count, and those are held against their limit elsewhere.
        """
        if self.model.workers == 0:
            return np.zeros(len(shapes.nodes), dtype=np.bool_)
        own = np.nan_to_num(process_bytes) if self.on_cpu else 0.0
        upper = self.model.upper_bytes(shapes.local_batch, shapes.processes_per_node, own)
        return np.asarray(upper > HOST_SHARE * self.memory_bytes)

    def crowded(self, candidate: Candidate, process_bytes: float | None) -> str | None:
        """Return why a candidate's loader does not fit its host, None where it does or there are no loader workers.

        Without workers the processes alone count, and those are held against their limit elsewhere.
        """
        workers = self.model.workers
        if workers == 0 or candidate.local_batch < 1:
            return None
        upper, limit = self.upper_bytes(candidate, process_bytes), HOST_SHARE * self.memory_bytes
        if upper <= limit:
            return None
        held = candidate.processes_per_node * float(self.model.loader_bytes(float(candidate.local_batch)))
        return (
            f"{workers} loader workers of each process, with {PREFETCH} batches ready in each, would hold "
            f"{held / 2**30:.3g} GiB of a host: with the processes up to {upper / 2**30:.3g} GiB, above "
            f"{100 * HOST_SHARE:.0f} % of its {self.memory_bytes / 2**30:.3g} GiB. Lower recipe.loader_workers"
        )


def fit_host_memory(
    measured: HostMemory | None, facts: WorkloadFacts, recipe: Recipe, *, device: str
) -> HostMemoryModel:
    """Return the model of a recipe's loader on a host; what was not measured is taken as usual."""
    worker = measured.worker_bytes if measured is not None and measured.worker_bytes is not None else _WORKER_BYTES
    process = measured.process_bytes if measured is not None and measured.process_bytes is not None else _PROCESS_BYTES
    return HostMemoryModel(
        workers=recipe.loader_workers,
        worker_bytes=float(worker),
        sample_bytes=float(facts.sample_bytes),
        process_bytes=0.0 if device == "cpu" else float(process),
    )
