"""Peak memory of the fullest process: training and evaluation apart, or refused where the readings do not grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import Z90
from tula_core.models.memory.affine import MARGIN_SD, AffineMemory, Readings, affine_bytes, fit_affine
from tula_core.models.memory.content import ContentMargin
from tula_core.models.memory.state import StateBytes
from tula_core.records.profile import ContentMemory, MemoryUse

__all__ = ["MARGIN_SD", "MemoryModel", "affine_bytes", "fit_memory"]

Array = NDArray[np.float64]

_RETAINED = 0.7  # of what training steps freed, at most: an allocator's fragments on a CPU machine
_MOST_FLOOR = 0.98  # of the lowest reading: what must be there cannot be more than what was seen


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryModel:
    """Memory by local batch; ``training`` is None where readings did not grow and nothing is extrapolated.

    ``growth``, ``growth_sd`` and ``extra_bytes`` are those of a precision: factor on what grows with the batch, and
    what is added; see `in_precision`.
    """

    training: AffineMemory | None
    evaluation: AffineMemory | None  # over evaluation batches; None where it was not read apart or does not grow
    readings: Readings
    largest_measured: int
    fewest_evaluated: int  # an evaluation batch is twice the local batch, and at least this
    spike_bytes: float  # by which a first step exceeded the steady ones
    content: ContentMargin
    failed: tuple[MemoryUse, ...]
    growth: float = 1.0
    growth_sd: float = 0.0
    extra_bytes: float = 0.0

    @property
    def peak_bytes(self) -> float:
        """The highest reading."""
        return self.readings.scale_bytes

    def predict(self, local_batch: Array, processes: Array) -> tuple[Array, Array, Array]:
        """Return value, low and high in bytes, each of shape (n,).

        Where readings do not grow with the batch, the highest reading is the value; beyond the largest measured batch
        the upper end then grows in proportion to the batch, the most that could be. A first step's spike and the worst
        batch's content widen the upper end alone: steady steps do not need them.
        """
        several = (processes > 1).astype(float)
        value, low, high = self._training(local_batch, several)
        evaluated = self._evaluation(local_batch)
        if evaluated is not None:
            value, low, high = (np.maximum(a, b) for a, b in zip((value, low, high), evaluated, strict=True))
        return value + self.extra_bytes, low, high + self.extra_bytes + self.spike_bytes

    def in_precision(self, growth: float, growth_sd: float, extra_bytes: float) -> MemoryModel:
        """Return the model with activations times ``growth`` and ``extra_bytes`` more, whatever the batch."""
        return replace(self, growth=growth, growth_sd=growth_sd, extra_bytes=extra_bytes)

    def failed_at(self, processes_per_node: int, nodes: int) -> int | None:
        """Return the smallest local batch that ran out of memory with as many processes or fewer, None where none."""
        found = [
            use.local_batch
            for use in self.failed
            if use.processes_per_node <= processes_per_node and use.nodes <= nodes
        ]
        return min(found, default=None)

    def extrapolates(self) -> bool:
        """Return whether sizes beyond the largest measured one have a forecast worth trusting."""
        return self.training is not None

    def _training(self, local_batch: Array, several: Array) -> tuple[Array, Array, Array]:
        if self.training is None:
            value = np.full_like(local_batch, self.peak_bytes)
            factor = math.exp(Z90 * 2 * MARGIN_SD)
            above = self.peak_bytes - self.readings.floor_bytes
            worst = np.maximum(local_batch / self.largest_measured, 1.0) * self.content.factor(local_batch)
            return value, value / factor, (value + above * (worst - 1.0)) * factor
        value, sd = self.training.predict(local_batch, several, self.growth, self.growth_sd)
        most = self.training.most_bytes(local_batch, several) * max(self.growth + 2 * self.growth_sd, 1.0)
        low, high = _around(value, sd, self.readings.floor_bytes, most)
        grown = self.growth * self.training.growth_bytes(local_batch)
        return value, low, high + grown * (self.content.factor(local_batch) - 1.0)

    def _evaluation(self, local_batch: Array) -> tuple[Array, Array, Array] | None:
        if self.evaluation is None:
            return None
        batch = np.maximum(2.0 * local_batch, self.fewest_evaluated)
        alone = np.zeros_like(batch)
        value, sd = self.evaluation.predict(batch, alone, self.growth, self.growth_sd)
        most = self.evaluation.most_bytes(batch, alone) * max(self.growth + 2 * self.growth_sd, 1.0)
        low, high = _around(value, sd, self.evaluation.readings.floor_bytes, most)
        return value, low, high + self._retained(local_batch)

    def _retained(self, local_batch: Array) -> Array:
        """Return what an allocator may keep of larger training steps than were read while it evaluates."""
        if self.training is None:
            return np.zeros_like(local_batch)
        beyond = np.maximum(local_batch - self.largest_measured, 0.0)
        return np.asarray(_RETAINED * self.growth * self.training.growth_bytes(beyond))


def fit_memory(
    rows: Sequence[MemoryUse],
    *,
    gradient_bytes: float,
    state: StateBytes | None = None,
    sample_bytes: float = 0.0,
    content: ContentMemory | None = None,
) -> MemoryModel | None:
    """Return the model, or None where no size was measured to fit.

    Parameters
    ----------
    rows
        Readings; ``out_of_memory`` and ``killed`` ones bound the sizes and are not fitted, ``over_limit`` ones bound
        them too.
    gradient_bytes
        Bytes of one copy of the gradients: what buckets add with more than one process.
    state
        What must be there whatever the batch; one reading then bounds every forecast.
    sample_bytes
        Of one input: memory cannot grow by less.
    content
        What single samples need, where it was sampled.
    """
    good = [row for row in rows if row.outcome in ("ok", "over_limit") and row.peak_bytes is not None]
    if not good:
        return None
    peaks = [row.train_peak_bytes or row.peak_bytes or 0 for row in good]
    readings = _readings(good, [row.local_batch for row in good], peaks, _floor(good, state), gradient_bytes)
    evaluated = [row for row in good if row.eval_peak_bytes and row.eval_batch]
    return MemoryModel(
        training=fit_affine(readings, least_slope=sample_bytes),
        evaluation=_fit_evaluation(evaluated, state, sample_bytes),
        readings=readings,
        largest_measured=max(row.local_batch for row in good),
        fewest_evaluated=min((row.eval_batch or 1 for row in evaluated), default=1),
        spike_bytes=max([0.0, *(float(row.first_peak_bytes or 0) - (row.peak_bytes or 0) for row in good)]),
        content=ContentMargin.of(content),
        failed=tuple(row for row in rows if row.outcome != "ok"),
    )


def _fit_evaluation(rows: Sequence[MemoryUse], state: StateBytes | None, sample_bytes: float) -> AffineMemory | None:
    if not rows:
        return None
    peaks = [row.eval_peak_bytes or 0 for row in rows]
    readings = _readings(rows, [row.eval_batch or 1 for row in rows], peaks, _floor(rows, state), 0.0)
    return fit_affine(readings, least_slope=sample_bytes)


def _readings(
    rows: Sequence[MemoryUse], batches: Sequence[int], peaks: Sequence[int], floor: float, shared: float
) -> Readings:
    return Readings(
        batches=np.array(batches, dtype=float),
        peaks=np.array(peaks, dtype=float),
        several=np.array([float(row.nodes * row.processes_per_node > 1) for row in rows]),
        floor_bytes=min(floor, _MOST_FLOOR * min(peaks)),
        shared_bytes=float(shared),
    )


def _floor(rows: Sequence[MemoryUse], state: StateBytes | None) -> float:
    """Return what every reading holds: the process before its first step, gradients and optimizer state."""
    if state is None:
        return 0.0
    before = [row.base_bytes for row in rows if row.base_bytes is not None]
    return min(before) + state.beyond_parameters if before else state.total


def _around(value: Array, sd: Array, floor: float, most: Array) -> tuple[Array, Array]:
    """Return the interval, between what must be there and the most that could be."""
    least_width = 1.0 + Z90 * MARGIN_SD
    low = np.minimum(np.maximum(value - Z90 * sd, floor / least_width), value / least_width)
    high = np.maximum(np.minimum(value + Z90 * sd, most), value * least_width)
    return np.maximum(low, 0.0), high
