"""Likelihood of a normal number of which an interval and a noisy estimate are known."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tula_core.models.learning.ceilings import Ceilings

Array = NDArray[np.float64]

_ROOT = math.sqrt(2.0 * math.pi)


def log_share(low: Array, high: Array) -> Array:
    """Return ln(Phi(high) - Phi(low)) for low < high, without cancellation far out in either tail."""
    upper_tail = low > 0.0
    first = log_ndtr(np.where(upper_tail, -low, high))
    second = log_ndtr(np.where(upper_tail, -high, low))
    return np.asarray(first + np.log1p(-np.exp(np.minimum(second - first, -1e-12))))


def log_likelihood(mean: Array, seen: Ceilings, spread: Array) -> tuple[Array, Array, Array]:
    """Return ln of the likelihood of means, and its first and second derivative, each of the shape of ``mean``.

    A run's best metric is M ~ N(mean, spread^2). Seen is that M lies in [low, high), and an estimate N(M, sd^2):
    L = N(estimate; mean, spread^2 + sd^2) P(low <= M < high | estimate). Concave in the mean, for both factors are.

    Parameters
    ----------
    mean
        Shape (..., runs).
    seen
        Of the runs.
    spread
        Broadcasts against ``mean``.
    """
    estimated = np.isfinite(seen.sd)
    noise = np.where(estimated, seen.sd, 1.0) ** 2
    precision = np.where(estimated, 1.0 / (spread**2 + noise), 0.0)
    share = np.where(estimated, noise * precision, 1.0)  # how much of the mean is left once the estimate is known
    away = np.where(estimated, seen.estimate, 0.0) - np.where(estimated, mean, 0.0)
    middle, width = mean + (1.0 - share) * away, spread * np.sqrt(share)
    low, high = (seen.low - middle) / width, (seen.high - middle) / width
    log_inside = log_share(low, high)
    at_low, at_high = (_edge(edge, log_inside) for edge in (low, high))
    slope = (at_low - at_high) / width
    bend = (_finite(low) * at_low - _finite(high) * at_high) / width**2 - slope**2
    value = log_inside + np.where(estimated, 0.5 * np.log(np.where(estimated, precision, 1.0)), 0.0)
    return (
        np.asarray(value - 0.5 * away**2 * precision),
        np.asarray(share * slope + away * precision),
        np.asarray(share**2 * bend - precision),
    )


def _edge(edge: Array, log_inside: Array) -> Array:
    """Return the density at an edge relative to the share inside; 0 at infinity."""
    infinite = np.isinf(edge)
    exponent = np.where(infinite, 0.0, -0.5 * _finite(edge) ** 2 - log_inside)
    return np.asarray(np.where(infinite, 0.0, np.exp(exponent) / _ROOT))


def _finite(edge: Array) -> Array:
    return np.asarray(np.where(np.isinf(edge), 0.0, edge))
