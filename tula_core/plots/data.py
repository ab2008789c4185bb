"""What pictures of backtests show, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_Z90 = 1.6448536269514722


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorCurve:
    """Share of predictions, shape (n,), whose absolute error in per cent is at most ``error_pct``, shape (n,)."""

    error_pct: Array
    share: Array
    median_pct: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Share of the measured values, shape (n,), inside the intervals of each stated confidence, shape (n,)."""

    stated: Array
    observed: Array
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """Chances in groups of alike ones: their mean, the share of runs that came true and how many, each (groups,)."""

    chance: Array
    share: Array
    runs: Array


def error_curve(actual: Array, predicted: Array) -> ErrorCurve:
    """Return the empirical distribution of |predicted/actual - 1|.

    Parameters
    ----------
    actual, predicted
        Shape (n,), above zero, at least one.
    """
    error = np.sort(np.abs(predicted / actual - 1.0)) * 100.0
    share = (np.arange(len(error)) + 1.0) / len(error)
    return ErrorCurve(error_pct=error, share=share, median_pct=float(np.median(error)))


def coverage(actual: Array, predicted: Array, low: Array, high: Array) -> Coverage:
    """Return how often intervals of each confidence held the measured value.

    A 90 % interval is taken as log-normal on each side of the prediction; one of confidence c is then narrower or wider
    by z_c/z_90. On the diagonal stated and observed agree.

    Parameters
    ----------
    actual, predicted, low, high
        Shape (n,), above zero, low <= predicted <= high.
    """
    from scipy.special import ndtr

    gap = np.log(actual / predicted)
    side = np.where(gap < 0, np.log(predicted / low), np.log(high / predicted))
    z = _Z90 * np.abs(gap) / np.maximum(side, 1e-12)
    confidence = np.sort(2.0 * ndtr(z) - 1.0)
    stated = np.linspace(0.05, 0.99, 48)
    observed = np.searchsorted(confidence, stated, side="right") / len(confidence)
    return Coverage(stated=stated, observed=observed, count=len(confidence))


def reliability(chance: Array, share: Array, runs: Array, groups: int = 10) -> Reliability:
    """Return how often what was given a chance came true, in groups of equal width that hold anything.

    Parameters
    ----------
    chance, share, runs
        Chance that was given, share of runs that came true and their number, at least one each: shape (n,).
    """
    place = np.minimum((chance * groups).astype(int), groups - 1)
    held = np.unique(place)
    count = np.array([runs[place == group].sum() for group in held])
    mean, true = (np.array([np.sum((x * runs)[place == group]) for group in held]) / count for x in (chance, share))
    return Reliability(chance=mean, share=true, runs=count)
