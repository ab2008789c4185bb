"""One phase's memory as a line over its batch, held between what must be there and what at most could be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import Z90, Posterior, Prior, fit_map, theil_sen_slope

Array = NDArray[np.float64]

MARGIN_SD = 0.03
"""Log standard deviation kept for allocators: readings of one run scatter by about 5 % (90 %)."""

_READING_NOISE = 0.01
_FAR_SD = 0.03  # per octave of batch beyond the largest measured


def affine_bytes(local_batch: Array, fixed_bytes: float, sample_bytes: float) -> Array:
    """Return fixed + per-sample bytes x local batch.

    Saved activations and the temporaries of the early backward pass are both linear in the batch; parameters,
    gradients, optimizer state and buckets are fixed (Rajbhandari et al. 2020, arXiv 1910.02054, section 3).
    """
    return np.asarray(fixed_bytes + sample_bytes * local_batch)


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """Peaks of one phase, each of shape (m,), with what must be there at least and how much several processes add."""

    batches: Array
    peaks: Array
    several: Array  # 1 where more than one process was measured, else 0
    floor_bytes: float
    shared_bytes: float

    @property
    def largest(self) -> float:
        """The largest batch."""
        return float(self.batches.max())

    @property
    def scale_bytes(self) -> float:
        """The highest reading: bytes are fitted in shares of it."""
        return float(self.peaks.max())

    def most_bytes(self, batch: Array, several: Array) -> Array:
        """Return what a batch can need at most: above what must be there nothing grows faster than the batch."""
        growth = np.maximum(batch[:, None] / self.batches[None, :], 1.0)
        above = np.maximum(self.peaks - self.floor_bytes, 0.0)
        added = self.shared_bytes * np.maximum(several[:, None] - self.several[None, :], 0.0)
        return np.asarray((self.floor_bytes + above * growth + added).min(axis=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class AffineMemory:
    """Fixed bytes, bytes that grow with the batch, and what several processes add; made by `fit_affine`."""

    posterior: Posterior
    readings: Readings
    least_slope: float  # bytes per sample that are there in any case: the sample itself

    def predict(self, batch: Array, several: Array, growth: float = 1.0, growth_sd: float = 0.0) -> tuple[Array, Array]:
        """Return bytes and their standard deviation, each of shape (n,).

        Parameters
        ----------
        growth, growth_sd
            Factor on the part that grows with the batch, and its standard deviation.
        """
        readings, scale = self.readings, self.readings.scale_bytes
        columns = _columns(readings, batch, several)
        columns[:, 1] *= growth
        value = columns @ self.posterior.mode * scale
        steepness = self.posterior["growth"] * growth * scale / readings.largest
        value += np.maximum(self.least_slope - steepness, 0.0) * np.maximum(batch - readings.largest, 0.0)
        value = np.clip(value, readings.floor_bytes, readings.most_bytes(batch, several) * max(growth, 1.0))
        variance = np.einsum("ni,ij,nj->n", columns, self.posterior.covariance, columns) * scale**2
        grown = self.growth_bytes(batch)
        far = _FAR_SD * np.maximum(np.log2(batch / readings.largest), 0.0)
        return value, np.sqrt(variance + (growth_sd * grown) ** 2 + value**2 * (MARGIN_SD**2 + far**2))

    def growth_bytes(self, batch: Array) -> Array:
        """Return the part that grows with the batch, shape (n,)."""
        return np.asarray(self.posterior["growth"] * self.readings.scale_bytes * batch / self.readings.largest)

    def most_bytes(self, batch: Array, several: Array) -> Array:
        """Return the most that could be, allocators' scatter included, shape (n,)."""
        return self.readings.most_bytes(batch, several) * math.exp(2 * Z90 * MARGIN_SD)


def fit_affine(readings: Readings, *, least_slope: float = 0.0) -> AffineMemory | None:
    """Return the line through readings, None where they do not grow with the batch beyond their scatter.

    One size alone leaves open how much of its reading grows: the prior spreads it over all that is above the floor, so
    that the forecast elsewhere is bounded and wide.
    """
    several_sizes = len(set(readings.batches.tolist())) > 1
    if several_sizes and theil_sen_slope(readings.batches.tolist(), readings.peaks.tolist()) <= 0:
        return None  # readings that fall with the batch say nothing of larger ones
    columns = _columns(readings, readings.batches, readings.several)
    target = readings.peaks / readings.scale_bytes

    def residuals(theta: Array) -> Array:
        return np.asarray((columns @ theta - target) / (_READING_NOISE * target))

    posterior = fit_map(residuals, _prior(readings, float(target.min())))
    growth, sd = posterior["growth"], posterior.sd("growth")
    if growth <= 0 or (several_sizes and growth < Z90 * sd):
        return None
    return AffineMemory(posterior=posterior, readings=readings, least_slope=least_slope)


def _prior(readings: Readings, least: float) -> Prior:
    floor = readings.floor_bytes / readings.scale_bytes
    room = least - floor
    return Prior.of(
        fixed=(floor + 0.5 * room, 0.4 * room + _READING_NOISE),
        growth=(0.4 * (1.0 - floor), 0.4 * (1.0 - floor) + _READING_NOISE),
        # Views of the buckets serve as gradients, so between a part of a copy and a whole one is added.
        shared=(0.8, 0.5),
    )


def _columns(readings: Readings, batch: Array, several: Array) -> Array:
    shared = readings.shared_bytes / readings.scale_bytes * several
    return np.stack([np.ones_like(batch), batch / readings.largest, shared], axis=1)
