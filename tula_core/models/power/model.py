"""`PowerModel`: the fitted law, what the rows say beyond it, and how sure both are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import Z90
from tula_core.models.power.fit import PowerFit, fit_power
from tula_core.models.power.priors import Priors, learnt
from tula_core.models.power.rows import MeasuredRows, PowerRows

Array = NDArray[np.float64]

_REACH_OCTAVES = 2.0  # over which what the law misses at one batch size is believed of others; empirical
_MISSED = 0.1  # log standard deviation of what the law misses at one batch size
_REPEAT = 0.02  # log standard deviation of a repeated measurement
_USUAL_ROWS = 10.0  # that the usual scatter counts for against the rows of this accelerator
_OUTLIER = 3.0
_LEAST_SLOWING = 0.02  # log slowing below which a limit is not felt
_MOST_LOG_SD = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerForecast:
    """Seconds, mean watts and joules of an epoch with their log standard deviations, each of shape (n,)."""

    time_s: Array
    power_w: Array
    energy_j: Array
    time_log_sd: Array
    power_log_sd: Array
    energy_log_sd: Array

    def interval(self, quantity: str) -> tuple[Array, Array]:
        """Return the ends of the 90 % interval of ``time_s``, ``power_w`` or ``energy_j``."""
        name = quantity.rpartition("_")[0]
        value, width = getattr(self, quantity), np.exp(Z90 * getattr(self, f"{name}_log_sd"))
        return value / width, value * width


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerModel:
    """Forecasts epochs of the works that were measured on one accelerator."""

    fit: PowerFit
    measured: MeasuredRows
    priors: Priors

    def forecast(self, rows: PowerRows) -> PowerForecast:
        """Return time, power and energy; a lower power limit never makes an epoch faster."""
        known = self.measured.asked
        low_w, high_w = float(known.limit_w.min()), float(known.limit_w.max())
        law, at_high, at_low = (
            self.fit.law(rows),
            self.fit.law(rows.at_limit(high_w)),
            self.fit.law(rows.at_limit(low_w)),
        )
        slowing = np.maximum(at_low[0] - at_high[0], 0.0)
        felt = np.clip((law[0] - at_high[0]) / np.maximum(slowing, _LEAST_SLOWING), 0.0, 1.0)
        more_high, sd_high = self._missed(rows, high_w)
        more_low, sd_low = self._missed(rows, low_w)
        # What the lowest limit shows may not turn a slowing into a gain.
        more_low[0] = np.maximum(more_low[0], more_high[0] - slowing)
        value = law + (1 - felt) * more_high + felt * more_low
        spread = (1 - felt) * sd_high**2 + felt * sd_low**2
        return self._with_spread(rows, value, spread)

    def scatter(self) -> Array:
        """Return by what factor time and power of this accelerator scatter more than is usual, shape (2,).

        The square is a mean of the rows' squared misses, outliers bounded as in the fit, and of 1 for a few rows.
        """
        off = np.log(np.stack([self.measured.time_s, self.measured.power_w])) - self.fit.law(self.measured.asked)
        off /= np.array([[self.priors.time_misfit], [self.priors.power_misfit]])
        bounded = _OUTLIER**2 * np.log1p((off / _OUTLIER) ** 2)
        return np.asarray(np.sqrt((_USUAL_ROWS + bounded.sum(axis=1)) / (_USUAL_ROWS + off.shape[1])))

    def _missed(self, rows: PowerRows, limit_w: float) -> tuple[Array, Array]:
        """Return what is expected beyond the law under one limit, shape (2, n), and its standard deviation, (n,).

        Kriging of the residuals over log2(batch), each work alone; without a measured row the law stands.
        """
        expected, sd = np.zeros((2, len(rows.batch))), np.full(len(rows.batch), _MISSED)
        known = self.measured.asked
        off = np.log(np.stack([self.measured.time_s, self.measured.power_w])) - self.fit.law(known)
        for number in np.unique(rows.work):
            mine, told = rows.work == number, (known.work == number) & (known.limit_w == limit_w)
            if not told.any():
                continue
            among = _alike(known.batch[told], known.batch[told]) + (_REPEAT / _MISSED) ** 2 * np.eye(int(told.sum()))
            across = _alike(rows.batch[mine], known.batch[told])
            weights = np.linalg.solve(among, across.T)  # (known, asked)
            expected[:, mine] = off[:, told] @ weights
            sd[mine] = _MISSED * np.sqrt(np.maximum(1 - np.einsum("ak,ka->a", across, weights), 0.0))
        return expected, sd

    def _with_spread(self, rows: PowerRows, value: Array, missed: Array) -> PowerForecast:
        slopes = self.fit.slopes(rows)
        both = np.concatenate([slopes, slopes.sum(axis=1, keepdims=True)], axis=1)  # time, power, energy
        sure = np.einsum("jqn,jk,kqn->qn", both, self.fit.covariance, both)
        noise = np.array([self.priors.time_misfit**2, self.priors.power_misfit**2])
        noise = np.append(noise, noise.sum())
        scatter = self.scatter()
        scatter = np.append(scatter, np.sqrt(np.mean(scatter**2)))
        widening = np.array([self.priors.time_widening, self.priors.power_widening, self.priors.energy_widening])
        widening *= scatter
        log_sd = np.minimum(widening[:, None] * np.sqrt(sure + noise[:, None] + missed), _MOST_LOG_SD)
        time_s, power_w = np.exp(value)
        return PowerForecast(
            time_s=time_s,
            power_w=power_w,
            energy_j=time_s * power_w,
            time_log_sd=log_sd[0],
            power_log_sd=log_sd[1],
            energy_log_sd=log_sd[2],
        )


def fit_model(measured: MeasuredRows, priors: Priors | None = None) -> PowerModel:
    """Return the model of one accelerator from its measured rows.

    Parameters
    ----------
    measured
        One row or more, works numbered from 0 without a gap.
    priors
        The package's where None.
    """
    chosen = learnt() if priors is None else priors
    return PowerModel(fit=fit_power(measured, chosen), measured=measured, priors=chosen)


def _alike(one: Array, other: Array) -> Array:
    """Return exp(-|log2 b - log2 b'| / reach): how much two batch sizes have in common, shape (one, other)."""
    return np.asarray(np.exp(-np.abs(np.log2(one)[:, None] - np.log2(other)[None, :]) / _REACH_OCTAVES))
