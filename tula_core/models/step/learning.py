"""Learns the population of step-time laws from many measured jobs, by empirical Bayes.

Expectation-maximisation with Laplace approximations (Gelman et al. 2013, *Bayesian Data Analysis*, sections 5.4 and
13.6): each job is fitted with the population as its prior; the population's mean and covariance are then those of the
jobs' modes, with each mode's own uncertainty added. With few jobs, what is believed before any data (`START`) counts as
a few more, and correlations are shrunk towards none (Ledoit and Wolf 2004, J. Multivariate Analysis 88, eq. 4, with a
weight that is fixed).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.inference import Timings, fit_law
from tula_core.models.step.law import NAMES
from tula_core.models.step.misfit import Amplitudes
from tula_core.models.step.population import Population, prior_of
from tula_core.models.step.scale import Scale

Array = NDArray[np.float64]

START: dict[str, tuple[float, float]] = {
    "floor_s": (-0.4, 0.6),
    "slope_s": (-0.2, 0.5),
    "exponent": (1.0, 0.1),
    "floor_sharpness": (0.4, 0.8),
    "floor_contention": (0.15, 0.25),
    "slope_contention": (0.05, 0.15),
    "saturation": (-1.0, 0.7),
    "alone": (0.05, 0.08),
    "node_contention": (0.0, 0.03),
    "straggling": (-5.0, 1.0),
    "inside_fixed_s": (-4.5, 1.2),
    "inside_size_s": (-2.0, 1.5),
    "inside_growth": (0.0, 0.25),
    "between_fixed_s": (-4.5, 1.2),
    "between_size_s": (-2.0, 2.0),
    "between_sharing": (0.8, 0.5),
    "between_growth": (0.0, 0.3),
    "two_nodes": (0.1, 0.3),
    "fewest_weight": (0.3, 0.3),
    "overlap": (0.3, 0.8),
    "optimizer_s": (-12.0, 0.01),
    "loader_s": (-12.0, 0.01),
    "loader_slope_s": (-12.0, 0.01),
    "loader_overlap": (-12.0, 0.01),
}
"""Means and standard deviations of the relative numbers before any data. The optimizer's and the loader's times are in
the floor where they were not measured apart."""

_APART = ("optimizer_s", "loader_s", "loader_slope_s", "loader_overlap")
_AMPLITUDES = (0.04, 0.04, 0.04, 0.05, 0.03, 0.02)
_AMPLITUDE_SD = 0.7
_MEAN_JOBS = 2.0  # START's means count as so many jobs
_SPREAD_JOBS = 4.0  # and its spreads as so many
_CORRELATION_JOBS = 8.0  # correlations of n jobs are shrunk by n/(n + this)
_LEAST_AMPLITUDE_VARIANCE = 0.1


def start() -> Population:
    """Return the population before any data."""
    mean, sd = np.array([START[name] for name in NAMES]).T
    amplitudes = Amplitudes(mean=np.log(_AMPLITUDES), sd=np.full(len(_AMPLITUDES), _AMPLITUDE_SD))
    return Population(mean=mean, covariance=np.diag(sd**2), amplitudes=amplitudes)


def learn_population(jobs: Sequence[Timings], rounds: int = 3) -> Population:
    """Return the population of measured jobs; each should hold at most a few hundred rows, to stay quick."""
    population = start()
    for _ in range(rounds):
        population = _update(population, jobs)
    return population


def _update(population: Population, jobs: Sequence[Timings]) -> Population:
    modes, covariances, amplitudes = [], [], []
    for timings in jobs:
        offset, matrix = Scale.of(timings.shapes, timings.time_s, timings.parts_s).map()
        inverse = np.linalg.inv(matrix)
        fitted = fit_law(timings, prior_of(population, timings))
        modes.append(inverse @ (fitted.mode - offset))
        covariances.append(inverse @ fitted.covariance @ inverse.T)
        amplitudes.append(fitted.amplitudes.log_sd)
    return _maximum(np.array(modes), np.sum(covariances, axis=0), np.array(amplitudes))


def _maximum(modes: Array, spread: Array, amplitudes: Array) -> Population:
    """Return the population that the modes (jobs, p), their summed covariance and amplitudes (jobs, k) speak for."""
    first, count = start(), len(modes)
    mean = (modes.sum(axis=0) + _MEAN_JOBS * first.mean) / (count + _MEAN_JOBS)
    apart = modes - mean
    covariance = (apart.T @ apart + spread + _SPREAD_JOBS * first.covariance) / (count + _SPREAD_JOBS)
    sd = np.sqrt(np.diag(covariance))
    shrunk = count / (count + _CORRELATION_JOBS) * covariance / np.outer(sd, sd)
    np.fill_diagonal(shrunk, 1.0)
    covariance = shrunk * np.outer(sd, sd)
    for name in _APART:
        place = NAMES.index(name)
        covariance[place], covariance[:, place] = 0.0, 0.0
        covariance[place, place], mean[place] = START[name][1] ** 2, START[name][0]
    log_sd = (amplitudes.sum(axis=0) + _MEAN_JOBS * first.amplitudes.mean) / (count + _MEAN_JOBS)
    scatter = np.sqrt(((amplitudes - log_sd) ** 2).sum(axis=0) / count + _LEAST_AMPLITUDE_VARIANCE)
    return Population(mean=mean, covariance=covariance, amplitudes=Amplitudes(mean=log_sd, sd=scatter))
