"""The one engine that fits the step-time law: equations with a learnt prior, and a misfit that is a Gaussian process.

ln(time) = ln f(shape; theta) + misfit(shape) + noise, theta ~ N(mean, covariance). The mode is found by Gauss-Newton
steps with the misfit in the noise's covariance, the amplitudes by their marginal likelihood at that mode, and what is
predicted is universal kriging around it (Rasmussen and Williams 2006, section 2.7, eq. 2.41 and 2.42).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import least_squares
from scipy.special import ndtri

from tula_core.models.inference.fitting import pseudo_huber
from tula_core.models.step import law
from tula_core.models.step.fitted import Fitted
from tula_core.models.step.misfit import (
    Amplitudes,
    FoundAmplitudes,
    covariance,
    fit_amplitudes,
    octaves,
    same,
)
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]

_REACH_SD = 6.0  # the mode is looked for within so many prior standard deviations
_PART_SHARE = 0.02
_PART_ERROR = 0.2
_PART_ROWS = 40.0  # all measured parts together weigh no more than those of so many rows
_MOST_ROWS = 300  # amplitudes are learnt from so many rows, evenly taken, where there are more
_OUTLYING_FAST = 3.0  # standardised: what disturbs a machine makes it slower, faster is seldom an accident
_REPEATS_AGREE = 9.0  # times the usual noise variance; repeats at one configuration that scatter more contradict
_HUBER = 3.0  # whitened residuals beyond this pull linearly while a fit begins
_WIDTH = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Measured steps: shapes, seconds, their known relative error (n,), parts in seconds (nan where not measured)."""

    shapes: Shapes
    time_s: Array
    relative_error: Array
    parts_s: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True, slots=True)
class LawPrior:
    """Gaussian prior of the law's numbers: mean (p,) and covariance (p, p), with the misfit's amplitudes."""

    mean: Array
    covariance: Array
    amplitudes: Amplitudes


def fit_law(timings: Timings, prior: LawPrior, rounds: int = 2) -> Fitted:
    """Return the law fitted to measurements, from one upwards."""
    places, y = octaves(timings.shapes), np.log(timings.time_s)
    found = FoundAmplitudes(log_sd=prior.amplitudes.mean, sd=prior.amplitudes.sd)
    mode, outlying, alike = prior.mean, np.zeros_like(y), same(places, places)
    contradicting = _contradiction(y, alike, float(np.exp(2.0 * found.log_sd[-1])))
    known = timings.relative_error**2 + contradicting
    for turn in range(rounds + 1):
        own = alike * np.sqrt(outlying)[:, None] * np.sqrt(outlying)
        noise = known + np.exp(2.0 * found.log_sd[-1])
        total = covariance(places, places, found.log_sd) + own + np.diag(noise)
        factor = np.asarray(np.linalg.cholesky(total), dtype=np.float64)
        mode = _mode(timings, prior, mode, factor, robust=turn == 0)
        slopes = law.log_time_slopes(timings.shapes, mode)
        residual = y - law.log_time(timings.shapes, mode)
        if turn == rounds:
            break
        outlying = outlying + _outlying_variance(factor, residual)
        rows = np.unique(np.linspace(0, len(y) - 1, min(len(y), _MOST_ROWS)).round().astype(int))
        centred = residual + slopes @ (mode - prior.mean)
        explained = slopes[rows] @ prior.covariance @ slopes[rows].T
        # What is outlying is kept as it was found: the amplitudes are those of the other rows.
        extra = known[rows] + outlying[rows]
        found = fit_amplitudes(places[rows], centred[rows], explained, extra, prior.amplitudes, found.log_sd)
    return Fitted(
        mode=mode,
        covariance=_posterior(timings, prior, mode, factor),
        amplitudes=found,
        places=places,
        outlying=outlying,
        contradicting=contradicting,
        residual=residual,
        slopes=slopes,
        factor=factor,
    )


def _contradiction(log_time: Array, alike: NDArray[np.bool_], usual: float) -> Array:
    """Return the variance of each row's repeats at its configuration beyond what noise explains, shape (n,).

    The unbiased variance of ln(time) within a configuration, less a multiple of the usual noise variance; empirical.
    """
    count = alike.sum(axis=1)
    middle = alike @ log_time / count
    squares = np.where(alike, (log_time[None, :] - middle[:, None]) ** 2, 0.0).sum(axis=1)
    return np.asarray(np.maximum(squares / np.maximum(count - 1, 1) - _REPEATS_AGREE * usual, 0.0))


def _outlying_variance(factor: Array, residual: Array) -> Array:
    """Return the variance that each row's own misfit needs beyond the others', from leave-one-out (GPML eq. 5.12).

    A configuration far off its neighbours is off there, and says little of them. Slower is far off where less than half
    a measurement of so many would be so by chance (Chauvenet's criterion; Taylor 1997, *An Introduction to Error
    Analysis*, section 6.2).
    """
    inverse = cho_solve((factor, True), np.eye(len(residual)), check_finite=False)
    variance = 1.0 / np.diag(inverse)
    apart = (inverse @ residual) * variance
    slow = -float(ndtri(0.25 / len(residual)))
    limit = np.where(apart > 0.0, slow, max(slow, _OUTLYING_FAST))
    return np.asarray(np.maximum((apart / limit) ** 2 - variance, 0.0))


class _Answers:
    """What the law says of the measurements: ln(time) beside standardised parts, for one set of numbers or many."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._log_time = np.log(timings.time_s)
        self._rows = len(timings.time_s)

    def __call__(self, theta: Array) -> Array:
        """Return ln(modelled/measured) and the parts' residuals, shape (..., n + parts)."""
        modelled = law.parts(self._timings.shapes, theta)
        found = [np.clip(law.log_total(modelled) - self._log_time, -100.0, 100.0)]
        for name, measured in self._timings.parts_s.items():
            seen = np.isfinite(measured)
            # A part says less than the total: its limits are drawn by the clock, and hidden work moves between them.
            width = _PART_SHARE * self._timings.time_s[seen] + _PART_ERROR * measured[seen]
            gap = np.clip((getattr(modelled, name)[..., seen] - measured[seen]) / width, -1e6, 1e6)
            found.append(pseudo_huber(gap) * np.sqrt(min(1.0, _PART_ROWS / max(int(seen.sum()), 1))))
        return np.concatenate(found, axis=-1)

    def slopes(self, theta: Array) -> Array:
        """Return the slopes of the answers, shape (n + parts, p)."""
        return law.slopes(self, theta)

    def split(self, values: Array) -> tuple[Array, Array]:
        """Return the answers on ln(time), and those on the parts."""
        return values[: self._rows], values[self._rows :]


def _mode(timings: Timings, prior: LawPrior, start: Array, factor: Array, *, robust: bool) -> Array:
    """Return the most likely numbers of the law with the misfit in the covariance."""
    root = np.linalg.cholesky(prior.covariance)
    answers = _Answers(timings)

    def white(values: Array) -> Array:
        return np.asarray(solve_triangular(factor, values, lower=True, check_finite=False))

    def residuals(unit: Array) -> Array:
        time, parts = answers.split(answers(prior.mean + root @ unit))
        gap = white(time)
        return np.concatenate([pseudo_huber(gap, _HUBER) if robust else gap, parts, unit])

    def slopes(unit: Array) -> Array:
        theta = prior.mean + root @ unit
        time, parts = answers.split(answers.slopes(theta))
        rows = white(time)
        if robust:
            rows = rows * _huber_slope(white(answers.split(answers(theta))[0]))[:, None]
        return np.concatenate([rows @ root, parts @ root, np.eye(len(unit))])

    unit = solve_triangular(root, start - prior.mean, lower=True)
    unit = np.clip(unit, -0.99 * _REACH_SD, 0.99 * _REACH_SD)
    found = least_squares(
        residuals, unit, jac=slopes, bounds=(-_REACH_SD, _REACH_SD), method="trf", max_nfev=40, ftol=1e-5, xtol=1e-5
    )
    return np.asarray(prior.mean + root @ found.x)


def _huber_slope(gap: Array) -> Array:
    return np.asarray((pseudo_huber(gap + _WIDTH, _HUBER) - pseudo_huber(gap - _WIDTH, _HUBER)) / (2 * _WIDTH))


def _posterior(timings: Timings, prior: LawPrior, mode: Array, factor: Array) -> Array:
    """Return the Laplace covariance of the law's numbers."""
    root = np.linalg.cholesky(prior.covariance)
    answers = _Answers(timings)
    time, parts = answers.split(answers.slopes(mode))
    seen = np.concatenate([solve_triangular(factor, time, lower=True, check_finite=False), parts]) @ root
    inner = cho_factor(np.eye(len(mode)) + seen.T @ seen)
    return np.asarray(root @ cho_solve(inner, root.T))
