"""`LearningModel`: one learning curve for all batch sizes, fitted to pilots, asked for epochs and for accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tula_core.models.inference.fitting import Posterior, Prior, Residuals, fit_map, standard_draws
from tula_core.models.learning.convergence import (
    Curve,
    effective_steps,
    log_handicap,
    reducible_log_gap,
    reducible_log_of,
    total_gap,
)
from tula_core.models.learning.critical import critical_prior
from tula_core.models.learning.effects import Effects
from tula_core.models.learning.points import MetricScale, Points, metric_scale, points_of, stable_pilots
from tula_core.models.learning.schedules import annealing
from tula_core.models.learning.work import work_prior
from tula_core.records.profile import Profile

Array = NDArray[np.float64]

DRAWS = 256
_FITTED = [0, 1, 2, 3, 4, 9, 10]  # columns of the draws that are the fit's
RUN_SD = 0.05
"""Log standard deviation of the gap between two runs that differ only in their seed."""

# What is usual, before pilots say otherwise; medians and log standard deviations.
_POWER = (0.4, 0.45)
_ANNEAL = (0.3, 0.7)  # a quarter of the reducible gap goes as the rate comes down
_FLOOR = (0.08, 0.7)  # of the gap of a guess, or _FLOOR_SEEN of the least gap seen where that is less
_FLOOR_SEEN = 0.5

_SLOPE_SD = 0.25  # log standard deviation of the power beyond the samples that pilots saw
_DIP_SD = 0.05  # from one evaluation of a run to the next, with the rate at its peak
_SHARED = 0.5  # of the sampling variance of an evaluation is its run's, the rest comes anew each time
_SURELY_LOST = 2.0  # times the batch of the unstable pilot: a run warms up more slowly than its pilot
_LOST_POWER = 2.0  # recipes rarely sit near the highest rate that works
# Beyond the largest pilot nobody has seen whether the rate holds: in trials with the linear rule up to 32 times the
# reference batch this share of lost runs gave the best chances and intervals that held.
LOST_PER_OCTAVE = 0.05
_MOST_LOST_UNSEEN = 0.25
_MOST_LOST = 3.0  # ln of how much larger the reducible gap of a lost run is at most
_FEW_EVALUATIONS = 30  # are compared one by one, many times faster than they are searched
_MOST_EPOCHS = 2000  # evaluations looked at one by one; longer runs are looked at on a grid of so many


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """Forecast for several batch sizes, each array of shape (draws, n)."""

    epochs: Array  # whole ones, at most the cap
    reached: NDArray[np.bool_]
    metric: Array  # where training stops


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """Draws of everything that learning depends on, for batches of shape (n,)."""

    epochs: Array  # (evaluations,)
    curve: Curve
    run: Array  # ln of what this run leaves over what is usual, (draws, 1 or n)
    path: Array  # ln of the reducible gap without the handicap of the batch, (draws, evaluations)
    work: Array  # ln of the samples of one effective step, (draws, n)
    lost: Array  # what instability adds to the ln of the reducible gap, (draws, n)


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningModel:
    """The fitted curve and what it was fitted to."""

    posterior: Posterior
    scale: MetricScale
    pivot_steps: float
    seen_samples: float  # most samples that a pilot saw
    seen_batches: tuple[float, float]
    unstable_batch: float | None  # the smallest whose pilot was not stable, beyond ``seen_batches``
    reference_batch: float
    sampling_sd: float  # relative standard error of a late evaluation of a run

    @property
    def critical_batch(self) -> float:
        """B_crit in samples, at the mode."""
        return math.exp(self.posterior["log_critical"])

    def curve(self, parameters: Array) -> Curve:
        """Return the curve of fit parameters of shape (..., 7); each entry of it keeps a last axis of one."""
        return _curve(parameters, self.pivot_steps, self.scale.chance_gap)

    def forecast(
        self,
        batches: Array,
        *,
        train_samples: int,
        cap_epochs: int,
        schedule: str,
        target: float | None,
        effects: Effects | None = None,
    ) -> Learning:
        """Return draws of epochs, success and metric where training stops.

        Training stops at the first evaluation, one at each epoch's end, whose metric reaches ``target``, at the latest
        after ``cap_epochs``; the planned schedule is stretched over ``cap_epochs``.

        Parameters
        ----------
        batches
            Global batches, shape (n,).
        effects
            Of methods that the pilots did not use, one row for each batch; None for none.
        """
        drawn = self._draw(batches, train_samples, cap_epochs, schedule, effects)
        epochs, run, curve, path = drawn.epochs, drawn.run, drawn.curve, drawn.path
        # In ln(reducible gap), time and batch are two terms: path(epoch), and handicap(batch) that is there all along.
        handicap = curve.power * drawn.work + drawn.lost
        first = np.full(handicap.shape, len(epochs))
        if target is not None:
            best = np.minimum.accumulate(path, axis=1)
            first = _first_within(best, self._needed(target, run, curve) - handicap)
        stop = np.minimum(first, len(epochs) - 1)
        return self._learnt(drawn, first, np.take_along_axis(path, stop, axis=1) + handicap)

    def forecast_course(
        self,
        batches: Array,
        samples: Array,
        *,
        schedule: str,
        target: float | None,
        effects: Effects | None = None,
    ) -> Learning:
        """Return the same, each of shape (draws, 1), for one run that goes through several batches.

        Effective steps add up over the stages: x = sum_i E_i/(B_crit r(B_i)), the integral of
        `tula_core.models.learning.convergence.effective_steps` (McCandlish et al. 2018, arXiv 1812.06162, appendix D,
        who integrate the same over a batch that changes). Batch and rate together are taken to lower the noise as the
        recipe's schedule would (Smith et al. 2018, arXiv 1711.00489, section 3). What makes large batches unstable at
        the beginning is that of the first stage.

        Parameters
        ----------
        batches
            Global batch of each stage, shape (stages,).
        samples
            Samples seen in each stage by the end of each epoch, the first row being zero: shape (epochs + 1, stages).
        effects
            Of methods that the pilots did not use, one row; None for none.
        """
        drawn, falling = self._course(batches, samples, schedule, effects)
        first = np.full(drawn.run.shape, len(drawn.epochs))
        if target is not None:
            met = np.minimum.accumulate(falling, axis=1) <= self._needed(target, drawn.run, drawn.curve)
            first = np.where(met.any(axis=1), met.argmax(axis=1), len(drawn.epochs))[:, None]
        stop = np.minimum(first, len(drawn.epochs) - 1)
        return self._learnt(drawn, first, np.take_along_axis(falling, stop, axis=1))

    def evaluations(
        self, batches: Array, samples: Array, *, schedule: str, effects: Effects | None = None
    ) -> tuple[Array, Array]:
        """Return the epochs at whose ends a run is evaluated, and draws of its metric there, (draws, evaluations).

        The same run as that of `forecast_course`, with the same parameters, shown along its way to the last epoch.
        """
        drawn, falling = self._course(batches, samples, schedule, effects)
        return drawn.epochs, self._metric(drawn, falling)

    def _course(self, batches: Array, samples: Array, schedule: str, effects: Effects | None) -> tuple[_Drawn, Array]:
        """Return the draws of a run through several batches, and its ln of the reducible gap, (draws, evaluations)."""
        cap_epochs = len(samples) - 1
        acting = effects or Effects.of([()], {})
        drawn = self._draw(batches, samples[-1].sum() / cap_epochs, cap_epochs, schedule, acting)
        seen = samples[drawn.epochs.astype(int)]
        shares = seen / seen.sum(axis=1, keepdims=True)
        least = drawn.work.min(axis=1, keepdims=True)
        work = least - np.log(np.exp(least - drawn.work) @ shares.T)
        return drawn, drawn.path + drawn.curve.power * work + drawn.lost[:, :1]

    def _draw(
        self, batches: Array, train_samples: float, cap_epochs: int, schedule: str, effects: Effects | None
    ) -> _Drawn:
        epochs = _evaluations(cap_epochs)
        normal = standard_draws(DRAWS, 15, seed=1)
        curve = self.curve(self.posterior.draws(normal[:, _FITTED]))
        acting = effects or Effects.of([()], {})  # one row does for all batches
        raised, more_work, more_gap = acting.drawn(normal[:, 12:15])
        progress = annealing(schedule, epochs / cap_epochs)
        work = log_handicap(batches, curve.critical_batch, curve.sharpness, curve.growth, raised)
        return _Drawn(
            epochs=epochs,
            curve=curve,
            run=normal[:, 5:6] * self._run_sd() + more_gap,
            path=self._path(curve, normal[:, 6:7], epochs * float(train_samples), progress),
            work=work + more_work + normal[:, 11:12] * self._misfit_sd(batches),
            lost=self._lost(acting.as_steep(batches, self.reference_batch), normal[:, 7:9]),
        )

    def _learnt(self, drawn: _Drawn, first: NDArray[np.intp], reducible: Array) -> Learning:
        """Return what was learnt where training stops, at the number ``first`` of the evaluations or at the last."""
        return Learning(
            epochs=drawn.epochs[np.minimum(first, len(drawn.epochs) - 1)],
            reached=first < len(drawn.epochs),
            metric=self._metric(drawn, reducible),
        )

    def _metric(self, drawn: _Drawn, reducible: Array) -> Array:
        """Return the metric of what a run leaves of the gap, shape of ``reducible``."""
        left = total_gap(reducible, drawn.curve.floor, self.scale.chance_gap) * np.exp(drawn.run)
        return self.scale.metric(np.minimum(left, self.scale.chance_gap))

    def _needed(self, target: float, run: Array, curve: Curve) -> Array:
        """Return the ln of the reducible gap at which a run meets the target, shape of ``run``."""
        gap = float(self.scale.gap(np.array(target)))
        # A guess already meets a target at or below chance, however unlucky the run.
        wanted = np.full(run.shape, gap) if gap >= self.scale.chance_gap else gap * np.exp(-run)
        return reducible_log_of(wanted, curve.floor, self.scale.chance_gap)

    def _run_sd(self) -> float:
        return math.sqrt(RUN_SD**2 + _SHARED * self.sampling_sd**2)

    def _misfit_sd(self, batches: Array) -> Array:
        """Return what the law of work misses at batches away from the pilots': `work_fit`'s process, known there."""
        low, high = self.seen_batches
        away = np.maximum(np.log(batches / high), 0.0) + np.maximum(np.log(low / batches), 0.0)
        prior = work_prior()
        return np.asarray(prior.misfit_sd * np.sqrt(1.0 - np.exp(-2.0 * away / prior.misfit_length)))

    def _lost(self, batches: Array, normal: Array) -> Array:
        """Return what instability adds to ln(reducible gap), shape (draws, n), at batches trained by the pilots' rule.

        A run is lost with a chance that rises with the square of ln(batch), from none at the largest stable pilot to
        all at twice the first unstable one; where no pilot was unstable, by a little for each octave. It ends anywhere
        between what it could have learnt and a guess.
        """
        stable = self.seen_batches[1]
        if self.unstable_batch is None:
            octaves = np.log2(np.maximum(batches / stable, 1.0))
            share = np.minimum(LOST_PER_OCTAVE * octaves, _MOST_LOST_UNSEEN)
        else:
            share = np.log(batches / stable) / math.log(_SURELY_LOST * self.unstable_batch / stable)
            share = np.clip(share, 0.0, 1.0) ** _LOST_POWER
        return np.where(ndtr(normal[:, :1]) < share, _MOST_LOST * ndtr(normal[:, 1:2]), 0.0)

    def _path(self, curve: Curve, slope: Array, samples: Array, progress: Array) -> Array:
        """Return the part of ln(reducible gap) that depends on time alone, shape (draws, evaluations)."""
        log_seen = math.log(self.seen_samples)
        beyond = np.maximum(np.log(samples) - log_seen, 0.0) * (np.exp(_SLOPE_SD * slope) - 1.0)
        falling = reducible_log_gap(curve, np.log(samples) + beyond, progress)
        dip_sd = np.sqrt((_DIP_SD * (1.0 - progress)) ** 2 + (1.0 - _SHARED) * self.sampling_sd**2)
        return np.asarray(falling + dip_sd * standard_draws(DRAWS, len(samples), seed=6))


def fit_learning(profile: Profile, *, reference_batch: int) -> LearningModel | None:
    """Return the model fitted to all pilots together, None where none of their evaluations is above chance.

    Parameters
    ----------
    profile
        Its pilots that did not diverge, and its gradient noise as the prior of the critical batch.
    reference_batch
        The critical batch is expected relative to it, see `tula_core.models.learning.critical`.
    """
    scale = metric_scale(profile)
    pilots, unstable_batch = stable_pilots(profile.pilots, scale)
    points = points_of(pilots, scale, train_samples=profile.facts.train_samples)
    if not len(points.gap):
        return None
    noise_scale = profile.noise.noise_scale_samples if profile.noise is not None and unstable_batch is None else None
    critical = critical_prior(noise_scale, reference_batch)
    pivot = float(np.exp(np.median(np.log(effective_steps(points.samples, points.batch, math.exp(critical[0]))))))
    usual = work_prior()
    floor = min(_FLOOR[0] * scale.chance_gap, _FLOOR_SEEN * float(points.gap.min()))
    prior = Prior.of(
        log_scale=(float(np.mean(np.log(points.gap))) + 0.1, 1.0),
        log_power=(math.log(_POWER[0]), _POWER[1]),
        log_critical=critical,
        log_anneal=(math.log(_ANNEAL[0]), _ANNEAL[1]),
        log_floor=(math.log(floor), _FLOOR[1]),
        log_sharpness=(usual.log_sharpness, usual.log_sharpness_sd),
        log_growth=(0.0, usual.log_growth_sd),
    )
    return LearningModel(
        posterior=fit_map(_residuals_of(points, pivot, scale.chance_gap), prior),
        scale=scale,
        pivot_steps=pivot,
        seen_samples=float(points.samples.max()),
        seen_batches=(float(points.batch.min()), float(points.batch.max())),
        unstable_batch=unstable_batch,
        reference_batch=float(reference_batch),
        sampling_sd=float(scale.evaluation_sd(points.gap.min(), np.array(float(profile.facts.eval_samples)))),
    )


def _residuals_of(points: Points, pivot: float, chance_gap: float) -> Residuals:
    def residuals(theta: Array) -> Array:
        curve = _curve(theta, pivot, chance_gap)
        steps = np.log(
            effective_steps(points.samples, points.batch, curve.critical_batch, curve.sharpness, curve.growth)
        )
        gap = total_gap(reducible_log_gap(curve, steps, points.progress), curve.floor, chance_gap)
        return np.asarray((np.log(gap) - np.log(points.gap)) / points.noise)

    return residuals


def _curve(parameters: Array, pivot: float, chance_gap: float) -> Curve:
    columns = np.exp(parameters[..., 1:])
    return Curve(
        log_scale=parameters[..., :1],
        power=columns[..., 0:1],
        critical_batch=columns[..., 1:2],
        anneal=columns[..., 2:3],
        floor=np.minimum(columns[..., 3:4], 0.9 * chance_gap),
        sharpness=columns[..., 4:5],
        growth=columns[..., 5:6],
        pivot_steps=pivot,
        chance_gap=chance_gap,
    )


def _first_within(falling: Array, needed: Array) -> NDArray[np.intp]:
    """Return how many of the values of each row come before the first that is at most ``needed``, shape (draws, n).

    Parameters
    ----------
    falling
        Values that do not rise along a row, shape (draws, evaluations).
    needed
        Shape (draws, n).
    """
    if falling.shape[1] > _FEW_EVALUATIONS:
        return np.stack([np.searchsorted(-row, -wanted) for row, wanted in zip(falling, needed, strict=True)])
    first = np.zeros(needed.shape, dtype=np.intp)
    for values in falling.T:
        first += values[:, None] > needed
    return first


def _evaluations(cap_epochs: int) -> Array:
    if cap_epochs <= _MOST_EPOCHS:
        return np.arange(1, cap_epochs + 1, dtype=float)
    return np.unique(np.round(np.geomspace(1, cap_epochs, _MOST_EPOCHS)))
