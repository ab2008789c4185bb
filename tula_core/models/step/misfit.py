"""What the equations miss: a Gaussian process over the configurations, in octaves, as a sum of kernels.

Each kernel answers one way in which machines leave the equations: a batch size that is slow everywhere, a placement
that is slow at every batch size, a slow drift over both, and a configuration on its own. Rasmussen and Williams 2006,
*Gaussian Processes for Machine Learning*: sums of squared exponentials (section 4.2), amplitudes by the marginal
likelihood (eq. 5.8 and its gradient, eq. 5.9) under log-normal priors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]

_NEVER = np.inf
_SAME = 1e-9  # octaves
_MOST_DOUBT = 1.5  # of 2 s^2: a wilder guess says no more
KERNELS: dict[str, tuple[float, float, float, float]] = {
    # Length scales in octaves of local batch, processes per node (fullest and emptiest), nodes, accumulation.
    "batch": (0.12, _NEVER, _NEVER, _NEVER),
    "placement": (_NEVER, 0.8, 0.8, _NEVER),
    "node": (_NEVER, 0.12, 0.12, _NEVER),
    "smooth": (1.3, 0.8, 0.8, 2.0),
    "own": (0.3, 0.12, 0.12, 0.3),
}
"""The kernels of the misfit and how far each reaches."""

NOISE = "noise"
AMPLITUDES = (*KERNELS, NOISE)
"""Log standard deviations of ln(time) that are learnt: one for each kernel, and the noise of one measured mean."""


def octaves(shapes: Shapes) -> Array:
    """Return coordinates in octaves, shape (n, 5): batch, fullest, emptiest node, nodes, accumulation."""
    columns = (shapes.local_batch, shapes.processes_per_node, shapes.fewest, shapes.nodes, shapes.accumulation)
    return np.log2(np.stack(columns, axis=1))


def kernel(name: str, first: Array, second: Array) -> Array:
    """Return the correlation of one kernel between coordinates (n, 5) and (m, 5), shape (n, m)."""
    batch, processes, nodes, accumulation = KERNELS[name]
    lengths = np.array([batch, processes, processes, nodes, accumulation])
    used = np.isfinite(lengths)
    left, right = first[:, used] / lengths[used], second[:, used] / lengths[used]
    # In place, and without sums over a short last axis: this is most of what a forecast of many takes.
    squares = np.add.outer(np.einsum("nd,nd->n", left, left), np.einsum("nd,nd->n", right, right))
    squares -= 2.0 * left @ right.T
    np.maximum(squares, 0.0, out=squares)
    squares *= -0.5
    return np.asarray(np.exp(squares, out=squares))


def same(first: Array, second: Array) -> NDArray[np.bool_]:
    """Return which coordinates (n, 5) and (m, 5) are those of one configuration, shape (n, m)."""
    alike = np.ones((len(first), len(second)), dtype=bool)
    for left, right in zip(first.T, second.T, strict=True):
        alike &= np.abs(left[:, None] - right[None, :]) < _SAME
    return alike


def covariance(first: Array, second: Array, log_sd: Array) -> Array:
    """Return the covariance of the misfit between coordinates, noise left out, shape (n, m)."""
    total = np.zeros((len(first), len(second)))
    for name, amplitude in zip(KERNELS, log_sd, strict=False):
        total += np.exp(2.0 * amplitude) * kernel(name, first, second)
    return total


def cross_covariance(measured: Array, asked: Array, found: FoundAmplitudes) -> tuple[Array, Array]:
    """Return the covariance between measured coordinates (m, 5) and those to predict (n, 5), (m, n), and doubt (n,).

    The doubt is the variance to add because amplitudes are only roughly known: where nothing was measured within a
    kernel's reach its expected variance is a^2 exp(2 s^2), the mean of a log-normal, and not a^2.
    """
    total, doubt = np.zeros((len(measured), len(asked))), np.zeros(len(asked))
    for place, name in enumerate(KERNELS):
        each = kernel(name, measured, asked)
        variance = np.exp(2.0 * found.log_sd[place])
        more = np.expm1(min(2.0 * found.sd[place] ** 2, _MOST_DOUBT))
        doubt += variance * more * (1.0 - each.max(axis=0) ** 2)
        each *= variance
        total += each
    return total, doubt


def joint_covariance(first: Array, second: Array, found: FoundAmplitudes) -> Array:
    """Return the covariance of the misfit among coordinates to predict (n, 5), with the doubt of `cross_covariance`.

    The doubt of a kernel's amplitude is shared by what that kernel ties together: shape (n, n).
    """
    total = np.zeros((len(first), len(first)))
    for place, name in enumerate(KERNELS):
        unseen = np.sqrt(np.maximum(1.0 - kernel(name, first, second).max(axis=1) ** 2, 0.0))
        more = np.expm1(min(2.0 * found.sd[place] ** 2, _MOST_DOUBT))
        total += (
            np.exp(2.0 * found.log_sd[place]) * kernel(name, first, first) * (1.0 + more * np.outer(unseen, unseen))
        )
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Amplitudes:
    """Log-normal priors of the amplitudes: means and standard deviations of their logarithms, shape (kernels + 1,)."""

    mean: Array
    sd: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundAmplitudes:
    """Logarithms of the amplitudes of one job and the standard deviations of these, shape (kernels + 1,)."""

    log_sd: Array
    sd: Array


def fit_amplitudes(
    places: Array, residual: Array, explained: Array, noise_variance: Array, prior: Amplitudes, start: Array
) -> FoundAmplitudes:
    """Return the amplitudes that make the residuals most likely, with their Laplace standard deviations.

    Parameters
    ----------
    places
        Coordinates (`octaves`) of the measurements, shape (n, 5).
    residual
        ln(measured) less what the equations say at their prior mean, shape (n,).
    explained
        Covariance of the equations' answers under the prior, shape (n, n).
    noise_variance
        Known variance of each ln(measured) beside the learnt noise, shape (n,).
    prior, start
        Log-normal priors of the amplitudes, and where the search begins.
    """
    kernels = [kernel(name, places, places) for name in KERNELS]
    fixed = explained + np.diag(noise_variance)
    eye = np.eye(len(residual))

    def loss(log_sd: Array) -> tuple[float, Array]:
        scale = np.exp(2.0 * log_sd)
        total = fixed + scale[-1] * eye
        for weight, each in zip(scale, kernels, strict=False):
            total = total + weight * each
        factor = cho_factor(total, lower=True, check_finite=False)
        inverse = cho_solve(factor, eye, check_finite=False)
        alpha = inverse @ residual
        away = (log_sd - prior.mean) / prior.sd
        value = 0.5 * residual @ alpha + np.log(np.diag(factor[0])).sum() + 0.5 * away @ away
        bracket = inverse - np.outer(alpha, alpha)
        traces = [float(np.sum(bracket * each)) for each in kernels] + [float(np.trace(bracket))]
        return float(value), scale * np.array(traces) + away / prior.sd

    bounds = [(m - 4 * s, m + 4 * s) for m, s in zip(prior.mean, prior.sd, strict=True)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 25, "ftol": 1e-6})
    step = 1e-3
    slopes = [(loss(found.x + step * move)[1] - found.jac) / step for move in np.eye(len(found.x))]
    curvature = np.diag(np.array(slopes))
    sd = np.where(curvature > 0.0, 1.0 / np.sqrt(np.maximum(curvature, 1e-12)), prior.sd)
    return FoundAmplitudes(log_sd=np.asarray(found.x), sd=np.minimum(sd, prior.sd))
