"""The chance that a run ever reaches a target at some batch size, from runs at other batch sizes.

A run's best metric is normal around a smooth function of ln batch. That function is a Gaussian process; what is seen of
a run is between which two targets its best metric lies, and an estimate from how it slowed down. The posterior is taken
as Gaussian around its mode (Laplace; Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, algorithms
3.1 and 3.2), once for each combination of run-to-run spread, swing and length on a grid, weighed by the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tula_core.errors import InputError
from tula_core.models.learning.ceilings import Ceilings, TargetRun, ceilings_of, check_runs, scale_of
from tula_core.models.learning.censored import log_likelihood
from tula_core.models.learning.priors import read_prior

Array = NDArray[np.float64]

PRIORS = Path(__file__).with_name("reach_priors.json")
"""What was learnt, by ``python -m tula_core.bench.learn reach``."""

# Standard deviations from what is usual; far on the side of runs that agree in nothing.
_SPREADS = np.array([-1.6, -0.6, 0.4, 1.5, 2.8])
_SWINGS = np.linspace(-1.2, 1.2, 4)
_LENGTHS = np.array([0.7, 1.4])
# Where all runs lie on one side, a Gaussian around the mode is a poor posterior of their level: three of them are not.
_LEVELS = np.array([-2.0, 0.0, 2.0])
_LENGTH_LOG_SD = 0.5
_MOST_SIZES = 30  # batch sizes farther off say next to nothing beside so many nearer ones
_STEPS = 12
_LONGEST_STEP = 1.5  # of the mode's search, in distances of levels
_LEAST_CURVATURE = 1e-9
_JITTER = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class ReachPrior:
    """What is usual, in units of the distance of neighbouring targets.

    Parameters
    ----------
    slowing, relative_sd, least_sd
        As in `tula_core.models.learning.ceilings.ceilings_of`.
    log_run_sd, log_run_sd_sd
        ln of the standard deviation of the best metric between runs at one batch size.
    log_swing, log_swing_sd
        ln of the standard deviation of its mean over batch sizes.
    length
        ln of batch over which that mean changes.
    slope
        Standard deviation of a straight trend per ln of batch, times the swing.
    level_sd
        Of the mean over all batch sizes, around the middle of what was seen and around two levels below and above it.
    """

    slowing: float
    relative_sd: float
    least_sd: float
    log_run_sd: float
    log_run_sd_sd: float
    log_swing: float
    log_swing_sd: float
    length: float
    slope: float
    level_sd: float

    def to_dict(self) -> dict[str, float]:
        """Return the plain values."""
        return asdict(self)


@cache
def reach_prior() -> ReachPrior:
    """Return the prior that the package carries."""
    return read_prior(PRIORS, ReachPrior)


def reach_chances(runs: Sequence[TargetRun], batch: float, levels: Array, *, prior: ReachPrior | None = None) -> Array:
    """Return the chance that a run at ``batch`` ever reaches each of ``levels``, shape (levels,).

    Parameters
    ----------
    runs
        Runs at any batch sizes, at least one; which direction of the metric is better is seen from them.
    batch
        Global batch asked.
    levels
        Levels of the metric asked, shape (levels,).
    prior
        Instead of the package's own.

    Raises
    ------
    InputError
        There is no run, or a batch, level or epoch is impossible.
    """
    usual = reach_prior() if prior is None else prior
    check_runs(runs)
    if not (math.isfinite(batch) and batch > 0) or not np.isfinite(levels).all():
        raise InputError(f"batch, levels: finite numbers are needed, got {batch!r}, {levels.tolist()}. Mend them.")
    scale = scale_of(runs)
    runs = _nearest(runs, batch)
    seen = ceilings_of(runs, scale, slowing=usual.slowing, relative_sd=usual.relative_sd, least_sd=usual.least_sd)
    log_batches, which = np.unique(np.log([run.batch for run in runs]), return_inverse=True)
    mean, sd, weights = _best_metric(_Data(seen=seen, which=which, log_batches=log_batches), math.log(batch), usual)
    unit = (mean[:, None] - scale.of(levels)[None, :]) / sd[:, None]
    return np.asarray(weights @ ndtr(unit))


def _nearest(runs: Sequence[TargetRun], batch: float) -> list[TargetRun]:
    """Return the runs at the batch sizes nearest in ratio: the time taken grows with the cube of their number."""
    sizes = sorted({run.batch for run in runs}, key=lambda size: (abs(math.log(size / batch)), size))
    return [run for run in runs if run.batch in sizes[:_MOST_SIZES]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Data:
    seen: Ceilings
    which: NDArray[np.intp]  # (runs,), into log_batches
    log_batches: Array  # (batches,), rising


def _best_metric(data: _Data, asked: float, prior: ReachPrior) -> tuple[Array, Array, Array]:
    """Return mean and sd of the best metric of a run at ln batch ``asked``, and weights, each of shape (grid,)."""
    grid = _grid(prior)
    middle = _middle(data.seen) + grid.level
    seen = data.seen.above(middle[:, None])
    every = np.append(data.log_batches, asked)
    covariance = _covariance(every, float(data.log_batches.mean()), grid, prior)
    known, cross, own = covariance[:, :-1, :-1], covariance[:, :-1, -1], covariance[:, -1, -1]
    mode, pull, curvature, fit = _mode(seen, data.which, known, grid.spread)
    root = np.sqrt(curvature)
    inner = np.eye(known.shape[1]) + root[:, :, None] * known * root[:, None, :]
    evidence = grid.log_weight + fit - 0.5 * np.sum(mode * pull, axis=1) - 0.5 * np.linalg.slogdet(inner)[1]
    weights = np.exp(evidence - evidence.max())
    explained = np.sum(cross * root * _solve(inner, root * cross), axis=1)
    variance = np.maximum(own - explained, 0.0) + grid.spread**2
    return middle + np.sum(cross * pull, axis=1), np.sqrt(variance), weights / weights.sum()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """Combinations of what is not known of a network, each of shape (grid,), and the ln of their prior weights."""

    spread: Array
    swing: Array
    length: Array
    level: Array
    log_weight: Array


def _grid(prior: ReachPrior) -> _Grid:
    axes = np.meshgrid(_SPREADS, _SWINGS, _LENGTHS, _LEVELS, indexing="ij")
    spread, swing, length, level = (axis.ravel() for axis in axes)
    return _Grid(
        spread=np.exp(prior.log_run_sd + prior.log_run_sd_sd * spread),
        swing=np.exp(prior.log_swing + prior.log_swing_sd * swing),
        length=prior.length * length,
        level=level,
        log_weight=-0.5 * (spread**2 + swing**2 + (np.log(length) / _LENGTH_LOG_SD) ** 2 + (level / 2.0) ** 2),
    )


def _covariance(log_batches: Array, centre: float, grid: _Grid, prior: ReachPrior) -> Array:
    """Return a constant, a straight trend and a Matern 3/2 process over ln batch, shape (grid, batches, batches).

    Rasmussen and Williams 2006, eq. 4.17 for the last.
    """
    distance = math.sqrt(3.0) * np.abs(log_batches[:, None] - log_batches[None, :]) / grid.length[:, None, None]
    away = log_batches - centre
    smooth = (1.0 + distance) * np.exp(-distance) + prior.slope**2 * np.outer(away, away)
    return np.asarray(grid.swing[:, None, None] ** 2 * smooth + prior.level_sd**2)


def _middle(seen: Ceilings) -> float:
    """Return the middle of the runs' best metrics, as far as known."""
    low = np.where(np.isfinite(seen.low), seen.low, seen.high - 1.0)
    high = np.where(np.isfinite(seen.high), seen.high, low + 1.0)
    return float(np.median(0.5 * (low + high)))


def _mode(seen: Ceilings, which: NDArray[np.intp], known: Array, spread: Array) -> tuple[Array, Array, Array, Array]:
    """Return mode, known^-1 mode, curvature, each (grid, batches), and ln likelihood there, (grid,): Newton steps."""
    count = known.shape[1]
    member = (which[:, None] == np.arange(count)).astype(float)
    identity = np.eye(count)
    mode = np.zeros((len(spread), count))
    for _ in range(_STEPS):
        _, slope, bend = log_likelihood(mode[:, which], seen, spread[:, None])
        curvature = np.maximum(-bend @ member, _LEAST_CURVATURE)
        root = np.sqrt(curvature)
        wanted = curvature * mode + slope @ member
        inner = identity + root[:, :, None] * known * root[:, None, :]
        pull = wanted - root * _solve(inner, root * _times(known, wanted))
        mode = mode + np.clip(_times(known, pull) - mode, -_LONGEST_STEP, _LONGEST_STEP)
    value, _, bend = log_likelihood(mode[:, which], seen, spread[:, None])
    curvature = np.maximum(-bend @ member, _LEAST_CURVATURE)
    return mode, _solve(known + _JITTER * identity, mode), curvature, value.sum(axis=1)


def _times(matrices: Array, vectors: Array) -> Array:
    return np.asarray(np.einsum("gij,gj->gi", matrices, vectors))


def _solve(matrices: Array, vectors: Array) -> Array:
    return np.asarray(np.linalg.solve(matrices, vectors[..., None])[..., 0])
