"""`FleetModel`: step time on more accelerators and with other local batches than were measured.

One law for all submissions of a benchmark; its four quantities differ from one accelerator to another and from one
family (a submitter's software on one system) to another by random effects with known spreads. So a family with one
measurement takes from the others how its law bends, and keeps its own level. The fit linearises the law around the
present estimate and solves the linear Gaussian problem, again and again (Lindstrom and Bates 1990, Biometrics 46(3),
section 3, linear mixed effects step), in the form of a Gaussian process over measurements (Rasmussen and Williams 2006,
eq. 2.25-2.26). Outlying measurements lose weight as under Student's t (Lange, Little and Taylor 1989, JASA 84, eq. 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from tula_core.errors import InputError
from tula_core.models.hardware.fleet_priors import FleetPriors, Spread

Array = NDArray[np.float64]

_FREE_SD = 3.0  # of a benchmark's ln(seconds of a sample): its data decide
_FREEDOM = 4.0  # of Student's t
_LENGTHS = (0.4, 1.0)  # how far a misfit reaches in ln(local batch) and ln(accelerators)
_STEPS = 12
_WEIGHED_STEPS = 9  # weights stand still in the last steps, so that the fit settles
_REPEATS_AGREE = 9.0  # times the noise variance; repeats at one configuration that scatter more contradict
_CHANGED_ROWS = 10.0  # so many rows without contradiction are taken for granted elsewhere
_FAR = 1.0  # the most that a logarithm moves in a step


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetRuns:
    """Configurations of one benchmark, each field of shape (n,).

    Parameters
    ----------
    accelerator, family
        Labels; only whether two are the same matters.
    nodes, accelerators
        Both over the whole run.
    local_batch
        Samples of one accelerator and step; below 1 where several share a sample.
    rough
        Whether its time was taken by wall clock over all that happened.
    """

    accelerator: NDArray[np.str_]
    family: NDArray[np.str_]
    nodes: Array
    accelerators: Array
    local_batch: Array
    rough: NDArray[np.bool_]


def fleet_time_s(local_batch: Array, nodes: Array, latent: Array) -> Array:
    """Return seconds of a step: s (b + h (1 + g log2 M)) e^(d [M > 1]).

    The floor s h beside the samples' share s b is Pollux, Qiao et al. 2021, arXiv 2008.12260, eq. 8; that a part of it
    grows with the logarithm of the nodes is the latency of tree collectives, Thakur et al. 2005, Int. J. High Perf.
    Comp. 19(1), section 4. The factor for leaving one node is empirical.

    Parameters
    ----------
    local_batch, nodes
        b and M, shape (n,).
    latent
        ln s (seconds of a sample), ln h (samples that take as long as the floor), ln g, and d, shape (4, n).
    """
    level, half, growth, crossing = latent
    floor = np.exp(half) * (1.0 + np.exp(growth) * np.log2(nodes))
    return np.asarray(np.exp(level + crossing * (nodes > 1)) * (local_batch + floor))


def _slopes(runs: FleetRuns, latent: Array) -> Array:
    """Return d ln(time)/d latent, shape (4, n)."""
    octaves = np.log2(runs.nodes)
    floor = np.exp(latent[1]) * (1.0 + np.exp(latent[2]) * octaves)
    total = runs.local_batch + floor
    growing = np.exp(latent[1] + latent[2]) * octaves
    return np.stack([np.ones_like(total), floor / total, growing / total, np.asarray(runs.nodes > 1, dtype=float)])


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetModel:
    """The law with the random effects of everything that was measured."""

    priors: FleetPriors
    runs: FleetRuns
    center: Array  # prior mean of the latent quantities, shape (4, 1)
    slopes: Array  # at the measured configurations, shape (4, m)
    factor: tuple[Array, bool]  # Cholesky factor of the measurements' covariance
    weights: Array  # that covariance's inverse times the residuals, shape (m,)
    contradicting: Array  # variance of ln(time) between repeats beyond noise, shape (m,)

    def predict(self, asked: FleetRuns) -> tuple[Array, Array]:
        """Return the median time in seconds and the standard deviation of its logarithm, each of shape (n,)."""
        effects, smooth = _kernels(self.priors, asked, self.runs)
        latent = self.center + np.einsum("knm,km,m->kn", effects, self.slopes, self.weights)
        slopes = _slopes(asked, latent)
        cross = np.einsum("kn,knm,km->nm", slopes, effects, self.slopes) + smooth
        own_effects, own_smooth = _kernels(self.priors, asked, asked)
        own = np.einsum("kn,knn->n", slopes**2, own_effects) + np.diagonal(own_smooth)
        variance = own - np.einsum("nm,mn->n", cross, cho_solve(self.factor, cross.T))
        log_sd = np.sqrt(np.maximum(variance, 0.0) + self.priors.noise_sd**2 + self._contradiction(asked))
        return fleet_time_s(asked.local_batch, asked.nodes, latent) * np.exp(smooth @ self.weights), log_sd

    def _contradiction(self, asked: FleetRuns) -> Array:
        """Return the variance by which a family's repeats contradict each other, the most of all its rows, (n,)."""
        own = np.where(asked.family[:, None] == self.runs.family[None, :], self.contradicting, 0.0)
        others = self.contradicting.sum() / (len(self.contradicting) + _CHANGED_ROWS)
        return np.asarray(np.maximum(own.max(axis=1), others))


def fit_fleet(runs: FleetRuns, time_s: Array, priors: FleetPriors) -> FleetModel:
    """Return the model of one benchmark, from one measured run upwards.

    Raises
    ------
    InputError
        No run, or a time, batch or number of machines that is not finite and above zero.
    """
    _check(runs, time_s)
    log_time, log_batch = np.log(time_s), np.log(runs.local_batch)
    center = _center(priors, runs, log_time, log_batch)
    effects, smooth = _kernels(priors, runs, runs)
    noise = np.where(runs.rough, priors.rough_noise_sd, priors.noise_sd) ** 2
    contradicting = _contradicting(runs, log_time, noise)
    noise = noise + contradicting
    latent, scale = np.repeat(center, len(time_s), axis=1), np.ones(len(time_s))
    for step in range(_STEPS):
        slopes = _slopes(runs, latent)
        residual = log_time - np.log(fleet_time_s(runs.local_batch, runs.nodes, latent))
        residual += np.sum(slopes * (latent - center), axis=0)
        covariance = np.einsum("kn,knm,km->nm", slopes, effects, slopes) + smooth + np.diag(noise * scale)
        factor = cho_factor(covariance, lower=True)
        weights = np.asarray(cho_solve(factor, residual))
        move = center + np.einsum("knm,km,m->kn", effects, slopes, weights) - latent
        latent = latent + np.clip(move, -_FAR, _FAR)
        if step < _WEIGHED_STEPS:
            error = noise * scale * weights
            scale = (_FREEDOM + error**2 / noise) / (_FREEDOM + 1.0)
    return FleetModel(
        priors=priors,
        runs=runs,
        center=center,
        slopes=slopes,
        factor=factor,
        weights=weights,
        contradicting=contradicting,
    )


def _contradicting(runs: FleetRuns, log_time: Array, noise: Array) -> Array:
    """Return the variance of ln(time) between a row's repeats beyond a multiple of its noise variance; empirical."""
    alike = runs.family[:, None] == runs.family[None, :]
    for column in (runs.nodes, runs.accelerators, runs.local_batch):
        alike &= column[:, None] == column[None, :]
    count = alike.sum(axis=1)
    middle = alike @ log_time / count
    squares = np.where(alike, (log_time[None, :] - middle[:, None]) ** 2, 0.0).sum(axis=1)
    return np.asarray(np.maximum(squares / np.maximum(count - 1, 1) - _REPEATS_AGREE * noise, 0.0))


def _center(priors: FleetPriors, runs: FleetRuns, log_time: Array, log_batch: Array) -> Array:
    """Return the prior means, shape (4, 1), from each family's run with the largest local batch: the most efficient."""
    order = np.lexsort((log_time, -log_batch))
    _, first = np.unique(runs.family[order], return_index=True)
    efficient = order[first]
    log_sample_s = float(np.median((log_time - log_batch)[efficient]))
    by_floor = priors.log_floor - log_sample_s
    by_batch = float(np.median(log_batch[efficient])) - priors.log_batch_ratio
    half = priors.floor_share * by_floor + (1.0 - priors.floor_share) * by_batch
    return np.array([[log_sample_s], [half], [priors.log_growth], [priors.crossing_mean]])


def _kernels(priors: FleetPriors, first: FleetRuns, second: FleetRuns) -> tuple[Array, Array]:
    """Return covariances between configurations: of the latent quantities (4, n, m), and of what the law misses."""
    same_accelerator = np.asarray(first.accelerator[:, None] == second.accelerator[None, :], dtype=float)
    same_family = np.asarray(first.family[:, None] == second.family[None, :], dtype=float)
    level = Spread(benchmark=_FREE_SD, accelerator=priors.level.accelerator, family=priors.level.family)
    effects = np.stack(
        [
            sd.benchmark**2 + sd.accelerator**2 * same_accelerator + sd.family**2 * same_family
            for sd in (level, priors.half_batch, priors.growth, priors.crossing)
        ]
    )
    batch, size = (
        (np.log(getattr(first, name))[:, None] - np.log(getattr(second, name))[None, :]) / length
        for name, length in zip(("local_batch", "accelerators"), _LENGTHS, strict=True)
    )
    amount = priors.smooth.accelerator**2 * same_accelerator + priors.smooth.family**2 * same_family
    return effects, np.asarray(amount * np.exp(-0.5 * (batch**2 + size**2)))


def _check(runs: FleetRuns, time_s: Array) -> None:
    if not len(time_s):
        raise InputError("runs: none is given. Give at least one measured run of the benchmark.")
    for name, values in (
        ("time_s", time_s),
        *((name, getattr(runs, name)) for name in ("nodes", "accelerators", "local_batch")),
    ):
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            raise InputError(
                f"runs.{name}: a finite number above 0 is needed, got {float(values[bad.argmax()])!r}. Leave it out."
            )
