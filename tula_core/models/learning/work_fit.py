"""Work to a target at a batch size, from the work at others: an average over many laws, each weighed by its fit.

Every combination of B_crit, sharpness and growth on a grid is a hypothesis. Given one, ln work is the law, an unknown
constant, a Gaussian process for what the law misses, and noise; the constant and the common size of the last two are
integrated out in closed form (Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, eq. 2.42, and
section 9.9 for the Student-t). Hypotheses are averaged by their marginal likelihood times the prior (Hoeting et al.
1999, Statistical Science 14, eq. 1 to 3), so that one point, or points that no law fits, give a wide answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError
from tula_core.models.learning.mixture import Mixture, mixture_of
from tula_core.models.learning.work import WorkPrior, log_relative_work, work_prior

Array = NDArray[np.float64]

_CRITICAL_STEP = 0.4
_CRITICAL_BEYOND = 4.0  # ln of how far below the smallest and above the largest batch B_crit is looked for
_INTEREST_BEYOND = math.log(100.0)
_SHARPNESS = np.array([0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0])
_GROWTH = np.array([0.5, 0.7, 1.0, 1.4])
_FALL = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0])
_FALLING_LOG_WEIGHT = math.log(2e-3)  # of all falling laws together, against all others
_FALLING_DOUBT = 0.4  # standard deviation of the slope with which a fall goes on beyond the known batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypotheses:
    """The grid of laws, each array of shape (hypotheses,); the ln of batches counts from ``origin``.

    After them, of shape (falling,), stand laws by which work falls as a power of the batch, E ~ B^-a for each a of
    ``fall``. No theory of large batches has them, but what is measured may (a learning rate that suits small batches
    badly), and nothing says how long a fall goes on. Empirical.
    """

    origin: float
    log_critical: Array
    log_sharpness: Array
    log_growth: Array
    fall: Array

    @classmethod
    def over(cls, low: float, high: float) -> Hypotheses:
        """Return the grid for ln of batches from ``low`` to ``high``."""
        width = high - low
        critical = np.arange(-_CRITICAL_BEYOND, width + _CRITICAL_BEYOND + 0.5 * _CRITICAL_STEP, _CRITICAL_STEP)
        grid = np.meshgrid(critical, np.log(_SHARPNESS), np.log(_GROWTH), indexing="ij")
        c, p, q = (axis.ravel() for axis in grid)
        return cls(origin=low, log_critical=c, log_sharpness=p, log_growth=q, fall=_FALL)

    def log_work(self, log_batch: Array) -> Array:
        """Return ln of the relative work under each, those that fall last, shape (hypotheses + falling, batches)."""
        away = (log_batch - self.origin)[None, :]
        rising = log_relative_work(
            away,
            self.log_critical[:, None],
            np.exp(self.log_sharpness)[:, None],
            np.exp(self.log_growth)[:, None],
        )
        return np.concatenate([rising, -self.fall[:, None] * away])

    def doubt(self, beyond: Array) -> Array:
        """Return the sd of ln work by how far in ln B the asked batches lie beyond the known, as `log_work`."""
        slope = np.append(np.zeros_like(self.log_critical), np.full_like(self.fall, _FALLING_DOUBT))
        return np.asarray(slope[:, None] * beyond[None, :])

    def log_prior(self, prior: WorkPrior, critical: tuple[float, float]) -> Array:
        """Return the ln of their prior weights, up to a constant, for mean and sd of ln B_crit."""
        mean, sd = critical
        away = (self.log_critical + self.origin - mean) / sd
        sharp = (self.log_sharpness - prior.log_sharpness) / prior.log_sharpness_sd
        growth = self.log_growth / prior.log_growth_sd
        # Student-t: where the points say plainly that B_crit is far from usual, they win.
        tail = -0.5 * (prior.freedom + 1.0) * np.log1p(away**2 / prior.freedom)
        rising = tail - 0.5 * (sharp**2 + growth**2)
        falling = np.logaddexp.reduce(rising) + _FALLING_LOG_WEIGHT - math.log(len(self.fall))
        return np.append(rising, np.full(len(self.fall), falling))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkQuestion:
    """Known work and asked batches, with all that does not depend on the prior; made by `work_question`."""

    known: Array  # ln of batch
    work: Array  # ln
    asked: Array  # ln of batch
    hypotheses: Hypotheses
    at_known: Array  # ln of relative work, (hypotheses, known)
    at_asked: Array  # (hypotheses, asked)


def work_question(batches: Sequence[float], work: Sequence[float], asked: Sequence[float]) -> WorkQuestion:
    """Return the question of the work at ``asked`` batches.

    Raises
    ------
    InputError
        There is no known point, the lengths differ, or a number is not finite and positive.
    """
    columns = {
        name: np.asarray(data, dtype=float)
        for name, data in zip(("batches", "work", "asked"), (batches, work, asked), strict=True)
    }
    for name, column in columns.items():
        bad = ~(np.isfinite(column) & (column > 0.0))
        if column.ndim != 1 or not len(column) or bad.any():
            got = column[bad][0] if column.ndim == 1 and bad.any() else column.tolist()
            raise InputError(
                f"{name}: finite numbers above 0 are needed, at least one, got {got}. Mend or leave it out."
            )
    if len(columns["batches"]) != len(columns["work"]):
        raise InputError(
            f"work: one number for each of the {len(columns['batches'])} batches is needed, got "
            f"{len(columns['work'])}. Give as many."
        )
    known, log_work, new = (np.log(column) for column in columns.values())
    hypotheses = Hypotheses.over(float(min(known.min(), new.min())), float(max(known.max(), new.max())))
    return WorkQuestion(
        known=known,
        work=log_work,
        asked=new,
        hypotheses=hypotheses,
        at_known=hypotheses.log_work(known),
        at_asked=hypotheses.log_work(new),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkAnswer:
    """Student-t distributions of ln work: ``weights`` (hypotheses,), ``location`` and ``scale`` (hypotheses, asked)."""

    weights: Array
    location: Array
    scale: Array
    freedom: float

    def mixture(self, index: int) -> Mixture:
        """Return the distribution at one asked batch."""
        return mixture_of(self.weights, self.location[:, index], self.scale[:, index], self.freedom)

    def log_density(self, index: int, log_work: float) -> float:
        """Return the ln of the density of ln work at one asked batch."""
        scale, freedom = self.scale[:, index], self.freedom
        unit = (log_work - self.location[:, index]) / scale
        constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        with np.errstate(divide="ignore"):
            each = np.log(self.weights) - np.log(scale) - (freedom + 1) / 2 * np.log1p(unit**2 / freedom)
        return float(np.logaddexp.reduce(each)) + constant


def answer(question: WorkQuestion, prior: WorkPrior, critical: tuple[float, float]) -> WorkAnswer:
    """Return the average over all laws, for the mean and sd of ln B_crit before the known points are looked at.

    The points asked are single measured works: their noise is part of the answer.
    """
    covariance = _misfit(question.known, question.known, prior) + prior.noise_sd**2 * np.eye(len(question.known))
    inverse = np.linalg.inv(np.linalg.cholesky(covariance))
    one = inverse.sum(axis=1)
    weight = float(one @ one)
    left = (question.work - question.at_known) @ inverse.T
    constant = left @ one / weight
    left = left - constant[:, None] * one
    squares = (left**2).sum(axis=1)
    count = len(question.known)
    freedom = prior.freedom + count - 1
    log_weight = question.hypotheses.log_prior(prior, critical) - 0.5 * freedom * np.log1p(squares / prior.freedom)
    weights = np.exp(log_weight - log_weight.max())
    cross = inverse @ _misfit(question.known, question.asked, prior)  # (known, asked)
    variance = prior.misfit_sd**2 + prior.noise_sd**2 - (cross**2).sum(axis=0) + (1.0 - one @ cross) ** 2 / weight
    size = np.sqrt((prior.freedom + squares) / freedom)
    beyond = np.maximum(question.asked - question.known.max(), question.known.min() - question.asked)
    doubt = question.hypotheses.doubt(np.maximum(beyond, 0.0))
    return WorkAnswer(
        weights=weights / weights.sum(),
        location=question.at_asked + constant[:, None] + left @ cross,
        scale=np.hypot(size[:, None] * np.sqrt(variance)[None, :], doubt),
        freedom=freedom,
    )


def predict_work(
    batches: Sequence[float], work: Sequence[float], asked: float, *, prior: WorkPrior | None = None
) -> Mixture:
    """Return the distribution of the work at one batch size, from the work at others.

    The batches given and asked are taken as the range of interest, see `WorkPrior.range_share`.

    Parameters
    ----------
    batches, work
        What is known, one work for each batch, in any order; equal batches are runs that differ by chance.
    asked
        The batch in question.
    prior
        Instead of the package's own.

    Raises
    ------
    InputError
        There is no known point, or a number is not finite and positive.
    """
    usual = work_prior() if prior is None else prior
    question = work_question(batches, work, [asked])
    return answer(question, usual, critical_of(question, usual)).mixture(0)


def critical_of(question: WorkQuestion, prior: WorkPrior) -> tuple[float, float]:
    """Return mean and sd of ln B_crit where the batches of a question are the range of interest.

    What is asked far outside of what is known was not chosen with B_crit in mind: the range reaches no further than a
    factor beyond the known batches.
    """
    low = float(max(question.hypotheses.origin, question.known.min() - _INTEREST_BEYOND))
    high = float(max(question.known.max(), min(question.asked.max(), question.known.max() + _INTEREST_BEYOND)))
    return prior.critical(low, high)


def _misfit(first: Array, second: Array, prior: WorkPrior) -> Array:
    """Return the covariance of what the law misses: sd^2 exp(-|ln B - ln B'|/length), continuous, without slope."""
    distance = np.abs(first[:, None] - second[None, :])
    return np.asarray(prior.misfit_sd**2 * np.exp(-distance / prior.misfit_length))
