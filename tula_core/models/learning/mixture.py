"""A mixture of Student-t distributions, as a table of its distribution function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

Array = NDArray[np.float64]

_POINTS = 481
_REACH_SD = 12.0  # the table ends where less than a thousandth lies outside, at four degrees of freedom and more
_NEGLIGIBLE = 1e-6  # of the largest weight
_MOST_SHIFT = 0.6  # of ln; a doubt that asks for more says nothing more about the point


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """Distribution of the ln of a positive quantity.

    ``points`` rise, ``shares`` are the distribution function there, each of shape (points,).
    """

    points: Array
    shares: Array

    def log_quantile(self, share: float) -> float:
        """Return the ln below which ``share`` of the probability lies, 0 < share < 1."""
        return float(np.interp(share, self.shares, self.points))

    def quantile(self, share: float) -> float:
        """Return the quantity below which ``share`` of the probability lies."""
        return float(np.exp(self.log_quantile(share)))

    def share_below(self, value: float) -> float:
        """Return the probability that the quantity is below ``value``, which is positive."""
        return float(np.interp(np.log(value), self.points, self.shares, left=0.0, right=1.0))

    def least_relative_error(self) -> float:
        """Return the number p that makes the expected |p - w|/w least.

        It is the median of the density f(w)/w, always at or below the median of f (Gneiting 2011, J. Amer. Statist.
        Assoc. 106, section 3.2: the mean absolute percentage error asks for the (-1)-median). A Student-t of the ln has
        tails so heavy that f(w)/w has no median without a bound: the shift from f's median is bounded (empirical).
        """
        middle = 0.5 * (self.points[1:] + self.points[:-1])
        weight = np.cumsum(np.diff(self.shares) * np.exp(middle[0] - middle))
        found = float(np.interp(0.5 * weight[-1], weight, self.points[1:]))
        return float(np.exp(max(found, self.log_quantile(0.5) - _MOST_SHIFT)))


def mixture_of(weights: Array, location: Array, scale: Array, freedom: float) -> Mixture:
    """Return the mixture of Student-t distributions of the ln, one a hypothesis.

    Parameters
    ----------
    weights
        Not negative, shape (hypotheses,); need not sum to one.
    location, scale
        Of each hypothesis, shape (hypotheses,).
    freedom
        Degrees of freedom of all, above two.
    """
    keep = weights > _NEGLIGIBLE * weights.max()
    share = weights[keep] / weights[keep].sum()
    middle, width = location[keep], scale[keep]
    mean = float(share @ middle)
    sd = float(np.sqrt(share @ ((middle - mean) ** 2 + width**2 * freedom / (freedom - 2.0))))
    points = mean + sd * np.linspace(-_REACH_SD, _REACH_SD, _POINTS)
    shares = share @ stdtr(freedom, (points[None, :] - middle[:, None]) / width[:, None])
    return Mixture(points=points, shares=np.maximum.accumulate(shares))
