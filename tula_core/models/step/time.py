"""Equations of the time of one optimizer step, all pure.

T = overlap(A loader, (A - 1) micro + overlap(waiting micro, communication) + optimizer), per step of A micro-batches:
see `step_parts`. Local batch b is samples per process and micro-batch, g processes on the fullest node, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.records.candidate import Candidate, Stage
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Many configurations as columns of shape (n,).

    ``processes_per_node`` is that of the fullest node, ``fewest_per_node`` of the emptiest; None where all are alike.
    """

    nodes: Array
    processes_per_node: Array
    local_batch: Array
    accumulation: Array
    fewest_per_node: Array | None = None

    @classmethod
    def of(cls, rows: Sequence[Candidate | Stage | StepTiming]) -> Shapes:
        """Return the columns of candidates, of stages or of timed configurations."""
        names = ("nodes", "processes_per_node", "local_batch", "accumulation")
        return cls(**{name: np.array([getattr(row, name) for row in rows], dtype=float) for name in names})

    @classmethod
    def joined(cls, parts: Sequence[Shapes]) -> Shapes:
        """Return configurations one after the other, of nodes that are all alike."""
        names = ("nodes", "processes_per_node", "local_batch", "accumulation")
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @property
    def processes(self) -> Array:
        """Processes on all nodes, shape (n,); an upper bound where nodes are not alike."""
        return self.nodes * self.processes_per_node

    @property
    def fewest(self) -> Array:
        """Processes on the emptiest node, shape (n,)."""
        return self.processes_per_node if self.fewest_per_node is None else self.fewest_per_node

    @property
    def global_batch(self) -> Array:
        """Samples of one optimizer step, shape (n,)."""
        return self.processes * self.local_batch * self.accumulation

    def part(self, block: slice | NDArray[np.intp] | NDArray[np.bool_]) -> Shapes:
        """Return some of the configurations."""
        fewest = self.fewest_per_node
        return Shapes(
            nodes=self.nodes[block],
            processes_per_node=self.processes_per_node[block],
            local_batch=self.local_batch[block],
            accumulation=self.accumulation[block],
            fewest_per_node=None if fewest is None else fewest[block],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepParameters:
    """Parameters of `step_parts`: times in seconds, sharpnesses are p-norms of at least 1, the rest is dimensionless.

    Each is a number, or a column of shape (m, 1) for m sets at once; parts then have the shape (m, n).
    """

    floor_s: Array | float
    slope_s: Array | float
    exponent: Array | float
    floor_sharpness: Array | float
    floor_contention: Array | float
    slope_contention: Array | float
    saturation: Array | float
    alone: Array | float
    node_contention: Array | float
    straggling: Array | float
    inside_fixed_s: Array | float
    inside_size_s: Array | float
    inside_growth: Array | float
    between_fixed_s: Array | float
    between_size_s: Array | float
    between_sharing: Array | float
    between_growth: Array | float
    two_nodes: Array | float
    fewest_weight: Array | float
    overlap: Array | float
    optimizer_s: Array | float
    loader_s: Array | float
    loader_slope_s: Array | float
    loader_overlap: Array | float


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


def soft_maximum(first: Array, second: Array, sharpness: Array | float) -> Array:
    """Return (first^p + second^p)^(1/p): the sum for p = 1, the larger of the two as p grows.

    Qiao et al. 2021 (Pollux), arXiv 2008.12260, eq. 10 uses it for overlap. Domain: not negative, p >= 1.
    """
    large = np.maximum(np.maximum(first, second), 1e-300)
    small = np.minimum(first, second)
    return np.asarray(large * (1.0 + (small / large) ** sharpness) ** (1.0 / sharpness))


def contention(processes_per_node: Array, strength: Array | float, saturation: Array | float) -> Array:
    """Return by how much processes that share a node slow each other: exp(c (1 - g^-q)/q), 1 for one process.

    Empirical: the Box-Cox transform of g is ln g as q falls to 0, a power law then, and ends at 1/q where what is
    shared (cores, memory bandwidth, the host's loader) is used up.
    """
    return np.asarray(np.exp(strength * -np.expm1(-saturation * np.log(processes_per_node)) / saturation))


def waiting_factor(processes: Array, straggling: Array | float) -> Array:
    """Return by how much the slowest of K processes is late: 1 + s sqrt(2 ln K), 1 for one process.

    The mean of the largest of K normal numbers is at most sd sqrt(2 ln K) above theirs (Boucheron, Lugosi and Massart
    2013, Concentration Inequalities, theorem 2.5); s is the coefficient of variation of one process.
    """
    return np.asarray(1.0 + straggling * np.sqrt(2.0 * np.log(np.maximum(processes, 1.0))))


def inside_all_reduce_s(processes_per_node: Array, p: StepParameters) -> Array:
    """Return seconds of the all-reduce inside a node: 2 (g-1)/g (fixed g + size) g^growth.

    Ring all-reduce of Patarasuk and Yuan 2009, section 3, with fixed = messages x latency and size = bytes/bandwidth;
    the growth beyond it (0 in their law) is empirical: links and the host are shared by the ring's members.
    """
    g = processes_per_node
    return np.asarray(2.0 * (g - 1.0) / g * (p.inside_fixed_s * g + p.inside_size_s) * g**p.inside_growth)


def between_all_reduce_s(shapes: Shapes, p: StepParameters) -> Array:
    """Return seconds of the all-reduce between nodes: 2 (N-1)/N (fixed N + size s^sharing) (N/2)^growth, 0 for one.

    The ring of `inside_all_reduce_s` over nodes, the hierarchical scheme of Thakur et al. 2005 and Goyal et al. 2017
    (arXiv 1706.02677, section 4). Empirical: the s processes of a node share its link (s lies between the fullest and
    the emptiest node), two nodes have a factor of their own because libraries choose another algorithm for them.
    """
    n = shapes.nodes
    w = p.fewest_weight
    sharing = (shapes.processes_per_node ** (1.0 - w) * shapes.fewest**w) ** p.between_sharing
    whole = 2.0 * (n - 1.0) / n * (p.between_fixed_s * n + p.between_size_s * sharing) * (0.5 * n) ** p.between_growth
    return np.asarray(np.where(n == 2.0, np.exp(p.two_nodes), 1.0) * whole)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementTerms:
    """What a step owes to where its processes are, whatever the batch, shape (n,).

    ``floor`` and ``network`` are seconds, ``slope`` seconds by sample^e, ``waiting`` is a factor.
    """

    floor: Array
    slope: Array
    waiting: Array
    network: Array


def placement_terms(shapes: Shapes, p: StepParameters) -> PlacementTerms:
    """Return the terms of the equations that depend on nodes and processes alone.

    The floor is what launching kernels costs, whatever the batch. Empirical: a process all alone and further nodes each
    have a factor on floor and slope, beside `contention`.
    """
    single = np.where(shapes.processes <= 1.0, np.exp(p.alone), 1.0) * shapes.nodes**p.node_contention
    processes = shapes.processes_per_node
    return PlacementTerms(
        floor=np.asarray(p.floor_s * contention(processes, p.floor_contention, p.saturation) * single),
        slope=np.asarray(p.slope_s * contention(processes, p.slope_contention, p.saturation) * single),
        waiting=waiting_factor(shapes.processes, p.straggling),
        network=inside_all_reduce_s(processes, p) + between_all_reduce_s(shapes, p),
    )


def micro_batch_s(shapes: Shapes, p: StepParameters) -> Array:
    """Return seconds of forward and backward: soft maximum of a floor and slope b^e (Pollux eq. 8: p = 1, e = 1)."""
    terms = placement_terms(shapes, p)
    return soft_maximum(terms.floor, terms.slope * shapes.local_batch**p.exponent, p.floor_sharpness)


def step_parts(shapes: Shapes, p: StepParameters) -> StepParts:
    """Return the parts of a step: overlap(A loader, (A - 1) micro + overlap(waiting micro, communication) + optimizer).

    Accumulation does A - 1 micro-batches without communication (methods of Li et al. 2020, arXiv 2006.15704, no_sync);
    the last one hides communication behind its backward pass as the soft maximum says (Pollux, 2008.12260, eq. 10-11).
    Loader workers hide loading behind all of it in the same way; without them its sharpness is 1, a sum.
    ``communication`` and ``loader`` are what is not hidden, waiting for the slowest process included.
    """
    terms = placement_terms(shapes, p)
    micro = soft_maximum(terms.floor, terms.slope * shapes.local_batch**p.exponent, p.floor_sharpness)
    last = soft_maximum(micro * terms.waiting, terms.network, p.overlap)
    rest = (shapes.accumulation - 1.0) * micro + last + p.optimizer_s
    loader = np.asarray(shapes.accumulation * (p.loader_s + p.loader_slope_s * shapes.local_batch))
    return StepParts(
        loader=np.maximum(soft_maximum(loader, rest, p.loader_overlap) - rest, 0.0),
        compute=shapes.accumulation * micro,
        communication=np.maximum(last - micro, 0.0),
        optimizer=p.optimizer_s + np.zeros_like(micro),
    )
