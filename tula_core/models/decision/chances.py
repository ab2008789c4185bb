"""Chances and expectations from a forecast's value and 90 % interval.

A row of a plan keeps three numbers of each quantity. They are read as the median and the 5 % and 95 % quantiles of a
distribution in two halves: below the value and above it each half is that of a normal distribution with its own
spread. Times and costs are taken so in their logarithm, shares such as an accuracy as they are. Splitting keeps an
interval that is not symmetric true at its three numbers; empirical, no claim is made for the shape between and beyond.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from tula_core.models.inference.fitting import Z90
from tula_core.records.candidate import Interval

_NOTHING = 1e-200  # what is below it has no logarithm to work with, and keeps every limit
_MOST_LOG_SD = 3.0  # of one half; wider says no more, and keeps every number finite


def chance_at_most(forecast: Interval, limit: float) -> float:
    """Return the chance that a positive quantity is at most ``limit``: Phi(ln(limit / value) / s).

    s is ln(value / low) / 1.645 where the limit is below the value, ln(high / value) / 1.645 where it is above. Rises
    with the limit; one half at the value, which itself counts as kept where there is no spread.

    Parameters
    ----------
    forecast
        Known; nothing at all, such as the cost of free electricity, keeps every limit.
    limit
        In the unit of the forecast, above zero.

    >>> chance_at_most(Interval(value=10.0, low=8.0, high=15.0), 15.0)
    0.95
    """
    value = _known(forecast)
    if value < _NOTHING:
        return 1.0
    below, above = _log_spreads(forecast)
    return _phi(math.log(limit / value), below if limit < value else above)


def kept_with(forecast: Interval, chance: float) -> float:
    """Return the limit that a positive quantity keeps with ``chance``, the inverse of `chance_at_most`.

    >>> round(kept_with(Interval(value=10.0, low=8.0, high=15.0), 0.95), 9)
    15.0
    """
    if _known(forecast) < _NOTHING:
        return _known(forecast)
    below, above = _log_spreads(forecast)
    z = float(ndtri(chance))
    return _known(forecast) * math.exp(z * (below if z < 0 else above))


def chance_at_least(forecast: Interval, limit: float) -> float:
    """Return the chance that a share such as an accuracy is at least ``limit``: Phi((value - limit) / s).

    s is (value - low) / 1.645 where the limit is below the value, (high - value) / 1.645 where it is above.

    >>> chance_at_least(Interval(value=0.9, low=0.88, high=0.91), 0.88)
    0.95
    """
    value = _known(forecast)
    below, above = _spreads(forecast)
    return _phi(value - limit, below if limit < value else above)


def reached_with(forecast: Interval, chance: float) -> float:
    """Return what a share such as an accuracy reaches with ``chance``, the inverse of `chance_at_least`."""
    below, above = _spreads(forecast)
    z = float(ndtri(chance))
    return _known(forecast) - z * (above if z < 0 else below)


def expected(forecast: Interval) -> float:
    """Return the mean of a positive quantity: value (exp(a^2/2) Phi(-a) + exp(b^2/2) Phi(b)).

    The mean of the two log-normal halves with spreads a below and b above; value exp(s^2/2) where both are s. It is
    what a choice costs on average: of two forecasts with one value the wider has the larger mean.
    """
    below, above = _log_spreads(forecast)
    return float(_known(forecast) * _mean_of_halves(np.array(below), np.array(above)))


def expected_each(
    value: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return what `expected` does of many forecasts, NaN where the value is unknown or not positive, shape ``(n,)``."""
    value = np.where(value > 0, value, np.nan)
    below = np.log(value / np.where(low > 0, low, np.nan)) / Z90
    above = np.log(high / value) / Z90
    return value * _mean_of_halves(*(np.fmin(spread, _MOST_LOG_SD) for spread in (below, above)))


def _mean_of_halves(below: NDArray[np.float64], above: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.exp(below**2 / 2) * ndtr(-below) + np.exp(above**2 / 2) * ndtr(above))


def _known(forecast: Interval) -> float:
    assert forecast.value is not None, "a chance needs a known forecast"
    return forecast.value


def _log_spreads(forecast: Interval) -> tuple[float, float]:
    value, low, high = forecast.value, forecast.low, forecast.high
    assert value is not None and low is not None and high is not None and value > 0, f"{forecast} is not positive"
    below = math.log(value / low) / Z90 if low > 0 else _MOST_LOG_SD
    return min(below, _MOST_LOG_SD), min(math.log(high / value) / Z90, _MOST_LOG_SD)


def _spreads(forecast: Interval) -> tuple[float, float]:
    value, low, high = forecast.value, forecast.low, forecast.high
    assert value is not None and low is not None and high is not None, "a chance needs a known forecast"
    return (value - low) / Z90, (high - value) / Z90


def _phi(room: float, spread: float) -> float:
    """Return the chance of keeping a limit that is ``room`` away; without spread all or nothing."""
    if spread <= 0:
        return 1.0 if room >= 0 else 0.0
    return float(ndtr(room / spread))
