"""Robust maximum a posteriori fits with a Laplace approximation, shared by all models.

A model gives standardised residuals as a function of its parameters; independent Gaussian priors carry it where data
are few. Outliers are bounded by the pseudo-Huber loss, and the covariance grows when the data scatter more than they
were said to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import ndtri

Array = NDArray[np.float64]
Residuals = Callable[[Array], Array]

Z90 = 1.6448536269514722
"""Standard normal quantile of a two-sided 90 % interval."""

_REACH_SD = 6.0  # the mode is looked for within so many prior standard deviations


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """Independent Gaussian priors, one parameter each: names, means and standard deviations, shapes (n,)."""

    names: tuple[str, ...]
    mean: Array
    sd: Array

    @classmethod
    def of(cls, **parameters: tuple[float, float]) -> Prior:
        """Return the prior of ``name=(mean, sd)`` pairs.

        >>> Prior.of(slope=(0.0, 1.0)).names
        ('slope',)
        """
        mean, sd = zip(*parameters.values(), strict=True)
        return cls(names=tuple(parameters), mean=np.array(mean, dtype=float), sd=np.array(sd, dtype=float))


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """Gaussian approximation around the mode.

    ``mode`` has shape (n,), ``covariance`` (n, n). ``scatter`` is the factor by which the data spread more than they
    were said to, at least one.
    """

    names: tuple[str, ...]
    mode: Array
    covariance: Array
    scatter: float

    def __getitem__(self, name: str) -> float:
        """Return the mode of one parameter."""
        return float(self.mode[self.names.index(name)])

    def sd(self, name: str) -> float:
        """Return the standard deviation of one parameter."""
        index = self.names.index(name)
        return float(np.sqrt(self.covariance[index, index]))

    def draws(self, standard: Array) -> Array:
        """Return parameters for standard normal draws of shape (draws, n), shape (draws, n)."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.clip(values, 0.0, None))
        return np.asarray(self.mode + standard @ root.T)


def pseudo_huber(residual: Array, width: float = 2.0) -> Array:
    """Return residuals whose square is the pseudo-Huber loss: quadratic below ``width``, linear beyond.

    sign(r) w sqrt(2 (sqrt(1 + (r/w)^2) - 1)); Charbonnier et al. 1997, IEEE Trans. Image Processing 6(2), eq. for the
    "hypersurfaces" potential. Domain: any finite residual.
    """
    scaled = np.clip(residual / width, -1e12, 1e12)
    # x^2/(sqrt(1+x^2)+1) is sqrt(1+x^2)-1 without cancellation near zero.
    loss = scaled**2 / (np.sqrt(1.0 + scaled**2) + 1.0)
    return np.asarray(np.sign(residual) * width * np.sqrt(2.0 * loss))


def fit_map(residuals: Residuals, prior: Prior) -> Posterior:
    """Return mode and Laplace covariance of: robust standardised residuals + Gaussian priors.

    Minimises sum h(r_i(theta))^2 + sum ((theta_j - m_j)/s_j)^2 with h the `pseudo_huber` transform. When the data
    scatter more than said, the data term is divided by that scatter and the fit repeated once.

    Parameters
    ----------
    residuals
        (measured - modelled)/noise as a function of the parameters, shape (m,); must be finite.
    prior
        Prior of every parameter; it also makes the problem well posed for any number of data.
    """
    scatter = 1.0
    mode = prior.mean
    for _ in range(2):
        mode, jacobian, data = _solve(residuals, prior, mode, scatter)
        spread = float(np.sqrt(np.sum(data**2) / len(data))) if len(data) else 0.0
        if spread <= 1.05:
            break
        scatter *= spread
    covariance = _inverse_square(jacobian * prior.sd) * np.outer(prior.sd, prior.sd)
    return Posterior(names=prior.names, mode=mode, covariance=(covariance + covariance.T) / 2, scatter=scatter)


def _inverse_square(jacobian: Array) -> Array:
    """Return (J'J)^-1 of a Jacobian with one row of the identity for each parameter, however contradictory the data.

    In units of the priors no singular value is below 1, whatever rounding makes of readings that differ by a factor of
    10^10.
    """
    _, values, directions = np.linalg.svd(jacobian, full_matrices=False)
    scaled = directions.T / np.maximum(values, 1.0)
    return np.asarray(scaled @ scaled.T)


def _solve(residuals: Residuals, prior: Prior, start: Array, scatter: float) -> tuple[Array, Array, Array]:
    """Return the mode, the Jacobian there and the robust data residuals there."""

    def stacked(unit: Array) -> Array:
        return np.concatenate([pseudo_huber(residuals(prior.mean + prior.sd * unit) / scatter), unit])

    bound = np.full(len(start), _REACH_SD)
    unit = np.clip((start - prior.mean) / prior.sd, -0.99 * bound, 0.99 * bound)
    found = least_squares(stacked, unit, bounds=(-bound, bound), method="trf", max_nfev=200)
    mode = prior.mean + prior.sd * found.x
    return mode, np.asarray(found.jac) / prior.sd, np.asarray(found.fun[: len(found.fun) - len(start)])


@functools.lru_cache(maxsize=64)
def standard_draws(draws: int, columns: int, seed: int = 0) -> Array:
    """Return standard normal numbers of shape (draws, columns), the same for the same arguments; not to be written to.

    Each column is a permutation of the mid-quantiles, so that means and quantiles of one column are exact.
    """
    generator = np.random.default_rng(seed)
    quantiles = ndtri((np.arange(draws) + 0.5) / draws)
    found = np.stack([generator.permutation(quantiles) for _ in range(columns)], axis=1)
    found.setflags(write=False)
    return found


def theil_sen_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the median of the slopes between all pairs with different ``x``; 0.0 where there is none.

    Theil 1950, Indagationes Mathematicae 12; Sen 1968, J. Amer. Statist. Assoc. 63.
    """
    pairs = [(i, j) for i in range(len(x)) for j in range(i + 1, len(x)) if x[i] != x[j]]
    return float(np.median([(y[j] - y[i]) / (x[j] - x[i]) for i, j in pairs])) if pairs else 0.0
