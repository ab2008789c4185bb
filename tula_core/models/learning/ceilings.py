"""What one run tells of the best metric it would ever reach: which targets it met, and how it slowed down before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError

Array = NDArray[np.float64]

_ROUNDING_SD = 0.3  # of an epoch: a uniform error of one epoch has 0.29
_LEAST_SLOWING = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRun:
    """A run to the end: the epoch at which it first met each level of the metric.

    Parameters
    ----------
    batch
        Global batch.
    levels
        Levels of the metric, each once, shape (levels,).
    epochs
        Epoch at which a level was first met, counted from 1; NaN where it never was. Shape (levels,).
    """

    batch: float
    levels: Array
    epochs: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """The best metric of runs, each array of shape (runs,), in the unit and direction of `Scale`.

    It lies in [low, high); beside that it is estimated as ``estimate`` with standard deviation ``sd``, infinite where
    there is no estimate.
    """

    low: Array
    high: Array
    estimate: Array
    sd: Array

    def above(self, zero: Array) -> Ceilings:
        """Return the same, counted from ``zero``, which broadcasts."""
        return Ceilings(low=self.low - zero, high=self.high - zero, estimate=self.estimate - zero, sd=self.sd)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Maps a metric so that harder is higher and neighbouring levels are about 1 apart: sign x metric/unit."""

    sign: float
    unit: float

    def of(self, metric: Array) -> Array:
        """Return the mapped metric."""
        return np.asarray(self.sign * metric / self.unit)


def check_runs(runs: Sequence[TargetRun]) -> None:
    """Refuse runs that cannot be.

    Raises
    ------
    InputError
        There is no run; a batch, level or epoch is impossible; or the two columns of a run differ in length.
    """
    if not runs:
        raise InputError("runs: at least one is needed, got none. Give runs at some batch size.")
    for number, run in enumerate(runs):
        if not (math.isfinite(run.batch) and run.batch > 0):
            raise InputError(f"runs[{number}].batch: a finite number above 0 is needed, got {run.batch!r}. Mend it.")
        if run.levels.ndim != 1 or run.levels.shape != run.epochs.shape or not len(run.levels):
            raise InputError(f"runs[{number}].epochs: one for each of the levels is needed. Mend the run.")
        if not np.isfinite(run.levels).all() or len(np.unique(run.levels)) < len(run.levels):
            raise InputError(f"runs[{number}].levels: finite levels, each once, are needed. Mend the run.")
        met = run.epochs[~np.isnan(run.epochs)]
        if not (np.isfinite(met) & (met > 0)).all():
            raise InputError(f"runs[{number}].epochs: numbers above 0, or NaN for never, are needed. Mend the run.")


def scale_of(runs: Sequence[TargetRun]) -> Scale:
    """Return unit and direction of a metric: which levels are harder is seen from the runs themselves."""
    levels = np.unique(np.concatenate([run.levels for run in runs]))
    votes = sum(_votes(run) for run in runs)
    unit = float(np.median(np.diff(levels))) if len(levels) > 1 else max(abs(float(levels[0])), 1.0)
    return Scale(sign=-1.0 if votes < 0 else 1.0, unit=unit)


def _votes(run: TargetRun) -> float:
    """Return in how many more neighbouring levels the higher one was met later than the lower one than earlier."""
    never = 2.0 * max(np.nanmax(run.epochs, initial=0.0), 1.0)
    epochs = np.where(np.isnan(run.epochs), never, run.epochs)[np.argsort(run.levels)]
    return float(np.sum(np.sign(np.diff(epochs))))


def ceilings_of(
    runs: Sequence[TargetRun], scale: Scale, *, slowing: float, relative_sd: float, least_sd: float
) -> Ceilings:
    """Return what each run tells of its best metric.

    Where a metric approaches its ceiling M as a power of time, M - m(t) = a t^(-1/b) (Hestness et al. 2017, arXiv
    1712.00409, eq. 1, without its pre-factor's meaning), the epochs at two levels give it: with r = t_2/t_1,
    M = level_2 + (level_2 - level_1)/(r^(1/b) - 1).

    Parameters
    ----------
    slowing
        b, positive.
    relative_sd
        Standard deviation of that estimate relative to M - level_2.
    least_sd
        And what it is at least, in units of the distance of levels.
    """
    rows = np.array([_ceiling(run, scale, slowing, relative_sd, least_sd) for run in runs])
    low, high, estimate, sd = rows.T
    return Ceilings(low=low, high=high, estimate=estimate, sd=sd)


def _ceiling(
    run: TargetRun, scale: Scale, slowing: float, relative_sd: float, least_sd: float
) -> tuple[float, float, float, float]:
    level = scale.of(run.levels)
    order = np.argsort(level)
    level, epochs = level[order], run.epochs[order]
    met = np.flatnonzero(~np.isnan(epochs))
    if not len(met):
        return -math.inf, float(level[0]), 0.0, math.inf
    top = int(met[-1])
    low, high = float(level[top]), float(level[top + 1]) if top + 1 < len(level) else math.inf
    if len(met) < 2:
        return low, high, 0.0, math.inf
    before = int(met[-2])
    rounding = _ROUNDING_SD * math.hypot(1.0 / epochs[top], 1.0 / epochs[before])
    # Rounding hides slowing down, so no less than it is assumed.
    slowed = math.log(max(epochs[top] / epochs[before], 1.0) + rounding)
    gap = (low - float(level[before])) / math.expm1(max(slowed, _LEAST_SLOWING) / slowing)
    sd = relative_sd * gap * math.hypot(1.0, rounding / max(slowed, _LEAST_SLOWING))
    return low, high, low + gap, sd + least_sd * min(high - low, 1.0)
