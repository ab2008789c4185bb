"""Step times on another node type, carried over from the measured one by `tula_core.models.hardware.transfer`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tula_core.models.hardware.transfer import TransferPriors
from tula_core.models.step.communication import bucket_count, ring_all_reduce_s
from tula_core.models.step.time import Shapes, soft_maximum

Array = NDArray[np.float64]

_LEAST_SHARE = 0.5
_OVERLAP = 1.7  # sharpness with which communication hides behind the backward pass; 1 hides nothing
_WIRE_SD = 0.6  # of ln(what is not hidden) where only a link's nominal rate is known
_HIDING_SD = 0.4  # of ln(what is not hidden): neither overlap nor the collective's algorithm is known there


@dataclass(frozen=True, kw_only=True, slots=True)
class Wire:
    """A link known by its facts: seconds of a hop, bytes per second that a collective reaches."""

    latency_s: float
    bandwidth: float


class StepTimes(Protocol):
    """What a forecast asks of a model of step time."""

    def predict(self, shapes: Shapes, /) -> tuple[Array, Array]:
        """Return mean seconds of a steady step and their log standard deviation, each of shape (n,)."""
        ...

    def seconds(self, shapes: Shapes, /) -> Array:
        """Return the seconds of `predict` alone, shape (n,)."""
        ...

    def first_step_extra_s(self, shapes: Shapes, /) -> Array:
        """Return seconds that the first step takes beyond a steady one, shape (n,)."""
        ...

    def is_measured(self, shapes: Shapes, /) -> NDArray[np.bool_]:
        """Return where the very configuration was timed, shape (n,)."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ElsewhereSteps:
    """Step time on another node type.

    Parameters
    ----------
    here
        The model fitted to the measured machine.
    log_ratio, log_ratio_sd
        Of the time of a step that keeps the device busy, there over here.
    priors
        How the floor of a step is carried over.
    inside, between
        Links inside a node and between nodes there; None where nothing else is known of one, so that what it adds to a
        step is taken as on the measured machine.
    shared_cores
        Whether processes of a node share its cores: what they add to a step is then computation.
    gradient_bytes
        What one all-reduce of all gradients sends.
    """

    here: StepTimes
    log_ratio: float
    log_ratio_sd: float
    priors: TransferPriors
    inside: Wire | None
    between: Wire | None
    shared_cores: bool
    gradient_bytes: float

    def predict(self, shapes: Shapes, /) -> tuple[Array, Array]:
        """Return mean seconds of a steady step and their log standard deviation, each of shape (n,).

        step = floor r^k + (alone - floor) r + what communication adds; ``alone`` is the step of one process here, its
        floor that with one sample. Empirical but for r, the ratio of `log_time_ratio`.
        """
        one = np.ones_like(shapes.nodes)
        alone = dataclasses.replace(shapes, nodes=one, processes_per_node=one)
        alone_s, alone_sd = self.here.predict(alone)
        smallest_s = self.here.seconds(dataclasses.replace(alone, local_batch=one))
        floor_s = np.minimum(smallest_s, alone_s)
        floor = floor_s * math.exp(self.priors.floor_exponent * self.log_ratio)
        busy = (alone_s - floor_s) * math.exp(self.log_ratio)
        compute = floor + busy
        added, added_sd = self._added(shapes, alone, alone_s, compute)
        # A fit may have more processes be a little faster than one; never faster than most of the computation.
        total = np.maximum(compute + added, _LEAST_SHARE * compute)
        known_sd = alone_sd
        if self.inside is None or self.between is None:
            known_sd = np.maximum(alone_sd, self.here.predict(shapes)[1])
        parts = (floor * self.priors.floor_sd, busy * self.log_ratio_sd, total * known_sd, added_sd)
        return total, np.sqrt(np.sum(np.square(parts), axis=0)) / total

    def seconds(self, shapes: Shapes, /) -> Array:
        """Return mean seconds of a steady step, shape (n,)."""
        return self.predict(shapes)[0]

    def first_step_extra_s(self, shapes: Shapes, /) -> Array:
        """Return seconds that the first step takes beyond a steady one, taken as on the measured machine."""
        return self.here.first_step_extra_s(shapes)

    def is_measured(self, shapes: Shapes, /) -> NDArray[np.bool_]:
        """Return False everywhere: nothing was timed there."""
        return np.zeros(len(shapes.nodes), dtype=np.bool_)

    def _added(self, shapes: Shapes, alone: Shapes, alone_s: Array, compute: Array) -> tuple[Array, Array]:
        """Return seconds that more processes add to a step, and their standard deviation in seconds."""
        node = dataclasses.replace(shapes, nodes=alone.nodes)
        node_s, node_sd = self.here.predict(node)
        all_s, all_sd = self.here.predict(shapes)
        inside = node_s - alone_s
        if self.shared_cores:
            inside = inside * math.exp(self.log_ratio)
        between = all_s - node_s
        inside_sd, between_sd = np.hypot(node_sd, _HIDING_SD), np.hypot(all_sd, _HIDING_SD)
        last = compute / shapes.accumulation
        if self.inside is not None:
            inside, inside_sd = self._exposed(self.inside, shapes.processes_per_node, last)
        if self.between is not None:
            between, between_sd = self._exposed(self.between, shapes.nodes, last + np.maximum(inside, 0.0))
        added = inside + between
        return added, np.hypot(inside * inside_sd, between * between_sd)

    def _exposed(self, wire: Wire, members: Array, behind: Array) -> tuple[Array, Array]:
        """Return seconds of an all-reduce that are not hidden behind a micro-batch, and the sd of their logarithm."""
        latencies = np.full_like(members, wire.latency_s * bucket_count(self.gradient_bytes))
        sent, bandwidth = np.full_like(members, self.gradient_bytes), np.full_like(members, wire.bandwidth)
        whole = ring_all_reduce_s(members, sent, latencies, bandwidth)
        exposed = np.maximum(soft_maximum(behind, whole, _OVERLAP) - behind, 0.0)
        return exposed, np.full_like(members, _WIRE_SD)
