"""Fitting the law of time and power to the measured rows of one accelerator, all its works at once.

A maximum a posteriori fit: the accelerator's parameters are shared by its works, so that each work tells something of
the others. Gauss-Newton with Levenberg's damping on the logarithms of time and power; rows far off count less (Cauchy's
loss). The covariance is that of Laplace's approximation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.power.law import DEVICE_NAMES, WORK_NAMES, device_of, epoch_time_power, work_of
from tula_core.models.power.priors import Priors
from tula_core.models.power.rows import MeasuredRows, PowerRows

Array = NDArray[np.float64]

_DEVICE, _WORK = len(DEVICE_NAMES), len(WORK_NAMES)
_OUTLIER = 3.0  # standard deviations from which a row counts less
_STEP = 1e-3  # of finite differences; the clock is exact to a few millionths
_ITERATIONS = 80
_ENOUGH = 1e-4  # relative fall of the loss at which the fit ends


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerFit:
    """The fitted parameters of one accelerator and its works.

    Attributes
    ----------
    vector, covariance
        Device parameters first, then those of each work; shapes (k,) and (k, k).
    anchors
        What was added to the prior mean of each work's parameters, shape (works, 7).
    """

    vector: Array
    covariance: Array
    anchors: Array
    top_w: float
    largest_batch: Array  # by work

    def law(self, rows: PowerRows, vector: Array | None = None) -> Array:
        """Return ln(seconds) and ln(watts) of rows, shape (..., 2, n), by these parameters or by ``vector``."""
        chosen = self.vector if vector is None else vector
        works = chosen[..., _DEVICE:].reshape((*chosen.shape[:-1], -1, _WORK))[..., rows.work, :]
        device = device_of(chosen[..., :_DEVICE], self.top_w)
        work = work_of(works, rows.batch, self.largest_batch[rows.work], self.top_w)
        return np.log(np.stack(epoch_time_power(device, work, rows.limit_w), axis=-2))

    def slopes(self, rows: PowerRows, vector: Array | None = None) -> Array:
        """Return the derivatives of `law` by every parameter, shape (k, 2, n).

        The rows of different works share no parameter but the device's, so that one difference serves all works.
        """
        chosen = self.vector if vector is None else vector
        works = (len(chosen) - _DEVICE) // _WORK
        moves = np.zeros((_DEVICE + _WORK, len(chosen)))
        moves[:_DEVICE, :_DEVICE] = np.eye(_DEVICE)
        moves[_DEVICE:, _DEVICE:] = np.tile(np.eye(_WORK), works)
        change = (self.law(rows, chosen + _STEP * moves) - self.law(rows, chosen)) / _STEP
        own = np.arange(works)[:, None, None, None] == rows.work
        by_work = np.where(own, change[None, _DEVICE:], 0.0)
        return np.concatenate([change[:_DEVICE], by_work.reshape(-1, *change.shape[1:])])


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Priors of the whole vector, and how far rows may lie from the law, as ln(seconds) and ln(watts)."""

    mean: Array
    sd: Array
    misfit: tuple[float, float]


def fit_power(measured: MeasuredRows, priors: Priors) -> PowerFit:
    """Return the fit to the rows of one accelerator; one row is enough, the priors carry the rest.

    Parameters
    ----------
    measured
        Works numbered from 0 without a gap.
    """
    anchors, largest = _anchors(measured)
    works = len(anchors)
    mean = np.concatenate([priors.device_mean, (anchors + priors.work_mean).ravel()])
    sd = np.concatenate([priors.device_sd, np.tile(priors.work_sd, works)])
    start = PowerFit(
        vector=mean,
        covariance=np.diag(sd**2),
        anchors=anchors,
        top_w=float(measured.asked.limit_w.max()),
        largest_batch=largest,
    )
    return _minimise(start, measured, Target(mean=mean, sd=sd, misfit=(priors.time_misfit, priors.power_misfit)))


def _anchors(measured: MeasuredRows) -> tuple[Array, Array]:
    """Return what makes a work's parameters scale-free, shape (works, 7), and its largest batch."""
    rows, time = measured.asked, np.log(measured.time_s)
    works = int(rows.work.max()) + 1
    anchors, largest = np.zeros((works, _WORK)), np.ones(works)
    for number in range(works):
        mine = rows.work == number
        assert mine.any(), f"work {number} has no row"
        smallest = np.flatnonzero(mine)[rows.batch[mine].argmin()]
        anchors[number, 0] = time[smallest] + np.log(rows.batch[smallest])
        anchors[number, 1:4] = time[mine].min()
        largest[number] = rows.batch[mine].max()
    return anchors, largest


def _minimise(start: PowerFit, measured: MeasuredRows, target: Target) -> PowerFit:
    """Return the parameters of least loss and their covariance."""
    wanted = np.log(np.stack([measured.time_s, measured.power_w]))
    misfit = np.array(target.misfit)[:, None]

    def off(vector: Array) -> tuple[Array, Array, float]:
        rows, parameters = (start.law(measured.asked, vector) - wanted) / misfit, (vector - target.mean) / target.sd
        return rows, parameters, float((_OUTLIER**2 * np.log1p((rows / _OUTLIER) ** 2)).sum() + (parameters**2).sum())

    def curvature(vector: Array, rows: Array, parameters: Array) -> tuple[Array, Array]:
        slopes = (start.slopes(measured.asked, vector) / misfit).reshape(len(vector), -1)
        weighted = slopes / (1 + (rows.ravel() / _OUTLIER) ** 2)
        return weighted @ slopes.T + np.diag(target.sd**-2.0), weighted @ rows.ravel() + parameters / target.sd

    vector, damping = start.vector, 1e-2
    rows, parameters, loss = off(vector)
    for _ in range(_ITERATIONS):
        information, gradient = curvature(vector, rows, parameters)
        for _ in range(10):
            damped = information + damping * np.diag(np.diag(information))
            trial = vector - np.clip(np.linalg.solve(damped, gradient), -1.0, 1.0)
            found = off(trial)
            if found[2] < loss:
                break
            damping *= 4
        else:
            break
        settled = loss - found[2] < _ENOUGH * loss
        vector, (rows, parameters, loss), damping = trial, found, max(damping / 6, 1e-6)
        if settled:
            break
    information, _ = curvature(vector, rows, parameters)
    return dataclasses.replace(
        start, vector=vector, covariance=np.asarray(np.linalg.inv(information), dtype=np.float64)
    )
