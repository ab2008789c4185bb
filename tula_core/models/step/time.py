"""Equations of the time of one optimizer step, all pure.

T = A loader + (A - 1) micro + overlap(micro, communication) + optimizer, per global step of A micro-batches: see
`step_parts`. Local batch b is samples per process and micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.communication import ring_all_reduce_s
from tula_core.records.candidate import Candidate
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Many configurations as columns of shape (n,): nodes, processes per node, local batch, accumulation."""

    nodes: Array
    processes_per_node: Array
    local_batch: Array
    accumulation: Array

    @classmethod
    def of(cls, rows: Sequence[Candidate] | Sequence[StepTiming]) -> Shapes:
        """Return the columns of candidates or of timed configurations."""
        return cls(**{f.name: np.array([getattr(row, f.name) for row in rows], dtype=float) for f in fields(cls)})

    @property
    def processes(self) -> Array:
        """Processes on all nodes, shape (n,)."""
        return self.nodes * self.processes_per_node

    @property
    def global_batch(self) -> Array:
        """Samples of one optimizer step, shape (n,)."""
        return self.processes * self.local_batch * self.accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParameters:
    """Parameters of `step_parts`, times in seconds; ``floor_sharpness`` and ``overlap`` are p-norms of at least 1."""

    floor_s: float
    slope_s: float
    exponent: float
    floor_sharpness: float
    process_contention: float
    node_contention: float
    optimizer_s: float
    loader_s: float
    loader_slope_s: float
    communication_scale: float
    overlap: float
    inside_latency_s: float
    inside_bandwidth: float
    between_latency_s: float
    between_bandwidth: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParts:
    """Seconds of one step's parts, shape (n,); ``total`` is their sum."""

    loader: Array
    compute: Array
    communication: Array
    optimizer: Array

    @property
    def total(self) -> Array:
        """Seconds of the step, shape (n,)."""
        return self.loader + self.compute + self.communication + self.optimizer


def soft_maximum(first: Array, second: Array, sharpness: float) -> Array:
    """Return (first^p + second^p)^(1/p): the sum for p = 1, the larger of the two as p grows.

    Qiao et al. 2021 (Pollux), arXiv 2008.12260, eq. 10 uses it for overlap. Domain: not negative, p >= 1.
    """
    large = np.maximum(np.maximum(first, second), 1e-300)
    small = np.minimum(first, second)
    return np.asarray(large * (1.0 + (small / large) ** sharpness) ** (1.0 / sharpness))


def micro_batch_s(local_batch: Array, floor_s: float, slope_s: float, exponent: float, sharpness: float) -> Array:
    """Return seconds of forward and backward: soft maximum of a floor and slope b^e.

    The floor is what launching kernels costs, whatever the batch (Pollux eq. 8 has the case p = 1, e = 1).
    """
    return soft_maximum(np.full_like(local_batch, floor_s), slope_s * local_batch**exponent, sharpness)


def contention_factor(processes_per_node: Array, nodes: Array, by_process: float, by_node: float) -> Array:
    """Return by how much processes that share a machine slow each other: p^c n^d, 1 for one process on one node.

    Empirical; processes on one CPU share memory bandwidth and cores. ``by_node`` is near 0 on real nodes.
    """
    return np.asarray(processes_per_node**by_process * nodes**by_node)


def communication_s(shapes: Shapes, p: StepParameters, gradient_bytes: float, buckets: int) -> Array:
    """Return seconds of all-reducing the gradients in ``buckets`` messages, before overlap; see `ring_all_reduce_s`."""
    apart = shapes.nodes > 1
    latency = np.where(apart, p.between_latency_s, p.inside_latency_s) * buckets
    bandwidth = np.where(apart, p.between_bandwidth, p.inside_bandwidth)
    message = np.full_like(bandwidth, gradient_bytes)
    return p.communication_scale * ring_all_reduce_s(shapes.processes, message, latency, bandwidth)


def step_parts(shapes: Shapes, p: StepParameters, gradient_bytes: float, buckets: int) -> StepParts:
    """Return the parts of a step: A loader + (A - 1) micro + overlap(micro, communication) + optimizer.

    Accumulation does A - 1 micro-batches without communication (methods of Li et al. 2020, arXiv 2006.15704, no_sync);
    the last one hides communication behind its backward pass as the soft maximum says (Pollux, 2008.12260, eq. 10-11).
    ``communication`` is what is not hidden.
    """
    contention = contention_factor(shapes.processes_per_node, shapes.nodes, p.process_contention, p.node_contention)
    micro = contention * micro_batch_s(shapes.local_batch, p.floor_s, p.slope_s, p.exponent, p.floor_sharpness)
    last = soft_maximum(micro, communication_s(shapes, p, gradient_bytes, buckets), p.overlap)
    return StepParts(
        loader=shapes.accumulation * (p.loader_s + p.loader_slope_s * shapes.local_batch),
        compute=shapes.accumulation * micro,
        communication=np.maximum(last - micro, 0.0),
        optimizer=np.full_like(micro, p.optimizer_s),
    )
