"""Peak memory of the fullest process: affine in the local batch, or refused where the readings do not grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import Z90, Posterior, Prior, fit_map, theil_sen_slope
from tula_core.records.profile import MemoryUse

Array = NDArray[np.float64]

MARGIN_SD = 0.03
"""Log standard deviation kept for allocators: readings of one run scatter by about 5 % (90 %)."""

_READING_NOISE = 0.01
_FAR_SD = 0.03  # per octave of local batch beyond the largest measured


def affine_bytes(local_batch: Array, fixed_bytes: float, sample_bytes: float) -> Array:
    """Return fixed + per-sample bytes x local batch.

    Saved activations and the temporaries of the early backward pass are both linear in the batch; parameters,
    gradients, optimizer state and buckets are fixed (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).
    """
    return np.asarray(fixed_bytes + sample_bytes * local_batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryModel:
    """Memory by local batch; ``posterior`` is None where readings did not grow and nothing is extrapolated."""

    posterior: Posterior | None
    scale_bytes: float  # the posterior's parameters are in these units
    largest_measured: int
    peak_bytes: float  # highest reading
    bucket_bytes: float  # extra of more than one process
    failed: tuple[MemoryUse, ...]

    def predict(self, local_batch: Array, processes: Array) -> tuple[Array, Array, Array]:
        """Return value, low and high in bytes, each of shape (n,).

        Where readings do not grow with the batch, the highest reading is the value; beyond the largest measured batch
        the upper end then grows in proportion to the batch, the most that could be.
        """
        beyond = local_batch / self.largest_measured
        if self.posterior is None:
            value = np.full_like(local_batch, self.peak_bytes)
            low, high = value * math.exp(-Z90 * 2 * MARGIN_SD), value * math.exp(Z90 * 2 * MARGIN_SD)
            return value, low, high * np.maximum(beyond, 1.0)
        columns = self._columns(local_batch, processes)
        value = np.maximum(columns @ self.posterior.mode * self.scale_bytes, 1.0)
        sd = np.sqrt(np.einsum("ni,ij,nj->n", columns, self.posterior.covariance, columns)) * self.scale_bytes
        far = _FAR_SD * np.maximum(np.log2(beyond), 0.0)
        width = Z90 * np.sqrt(sd**2 + value**2 * (MARGIN_SD**2 + far**2))
        return value, np.maximum(value - width, 0.0), value + width

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
        return self.posterior is not None

    def _columns(self, local_batch: Array, processes: Array) -> Array:
        shared = self.bucket_bytes / self.scale_bytes * (processes > 1)
        return np.stack([np.ones_like(local_batch), local_batch / self.largest_measured, shared], axis=1)


def fit_memory(rows: Sequence[MemoryUse], *, gradient_bytes: float) -> MemoryModel | None:
    """Return the model, or None where no size was measured to fit.

    Parameters
    ----------
    rows
        Readings; ``out_of_memory`` and ``killed`` ones bound the sizes and are not fitted.
    gradient_bytes
        Bytes of one copy of the gradients: what buckets add with more than one process.
    """
    good = [row for row in rows if row.outcome == "ok" and row.peak_bytes is not None]
    if not good:
        return None
    peaks = np.array([row.peak_bytes for row in good], dtype=float)
    model = MemoryModel(
        posterior=None,
        scale_bytes=float(peaks.max()),
        largest_measured=max(row.local_batch for row in good),
        peak_bytes=float(peaks.max()),
        bucket_bytes=float(gradient_bytes),
        failed=tuple(row for row in rows if row.outcome != "ok"),
    )
    batches = np.array([row.local_batch for row in good], dtype=float)
    if len(set(batches)) > 1 and theil_sen_slope(list(batches), list(peaks)) <= 0:
        return model  # readings that fall with the batch say nothing of larger ones
    processes = np.array([row.nodes * row.processes_per_node for row in good], dtype=float)
    columns, target = model._columns(batches, processes), peaks / model.scale_bytes

    def residuals(theta: Array) -> Array:
        return np.asarray((columns @ theta - target) / (_READING_NOISE * target))

    # Shares of the largest reading: one reading alone leaves open how much of it grows with the batch.
    share = float(target.min())
    prior = Prior.of(fixed=(0.6 * share, 0.4), growth=(0.4, 0.4), bucket=(1.0, 0.7))
    posterior = fit_map(residuals, prior)
    if posterior["growth"] <= 0:
        return model
    return MemoryModel(
        posterior=posterior,
        scale_bytes=model.scale_bytes,
        largest_measured=model.largest_measured,
        peak_bytes=model.peak_bytes,
        bucket_bytes=model.bucket_bytes,
        failed=model.failed,
    )
