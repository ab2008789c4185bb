"""`LearningModel`: one learning curve for all batch sizes, fitted to pilots, asked for epochs and for accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.convergence import (
    Curve,
    effective_steps,
    reducible_log_gap,
    reducible_log_of,
    total_gap,
)
from tula_core.models.fitting import Posterior, Prior, Residuals, fit_map, standard_draws
from tula_core.models.schedules import annealing
from tula_core.records.profile import Pilot, Profile

Array = NDArray[np.float64]

DRAWS = 256
RUN_SD = 0.05
"""Log standard deviation of the gap between two runs that differ only in their seed."""

_POINT_SD = 0.08  # what the curve misses at one evaluation of a pilot
_POINTS_OF_A_PILOT = 3.0  # evaluations of one run share its luck: more of them are not more runs
_FAR_BATCH_SD = 0.05  # per octave of batch beyond the pilots'
_SLOPE_SD = 0.25  # log standard deviation of the power beyond the samples that pilots saw
_MOST_EPOCHS = 2000  # evaluations looked at one by one; longer runs are looked at on a grid of so many
_NEAR_CHANCE = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricScale:
    """How a metric maps to a gap that falls to zero: |ceiling - metric|."""

    ceiling: float
    higher_is_better: bool
    chance_gap: float

    def gap(self, metric: Array) -> Array:
        """Return how far the metric is from its best value; negative beyond it."""
        return np.asarray(self.ceiling - metric if self.higher_is_better else metric - self.ceiling)

    def metric(self, gap: Array) -> Array:
        """Return the metric of a gap."""
        return np.asarray(self.ceiling - gap if self.higher_is_better else self.ceiling + gap)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """Forecast for several batch sizes, each array of shape (draws, n)."""

    epochs: Array  # whole ones, at most the cap
    reached: NDArray[np.bool_]
    metric: Array  # where training stops


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningModel:
    """The fitted curve and what it was fitted to."""

    posterior: Posterior
    scale: MetricScale
    pivot_steps: float
    seen_samples: float  # most samples that a pilot saw
    seen_batches: tuple[float, float]

    @property
    def critical_batch(self) -> float:
        """B_crit in samples, at the mode."""
        return math.exp(self.posterior["log_critical"])

    def curve(self, parameters: Array) -> Curve:
        """Return the curve of fit parameters of shape (..., 5); each entry of it keeps a last axis of one."""
        return _curve(parameters, self.pivot_steps, self.scale.chance_gap)

    def forecast(
        self, batches: Array, *, train_samples: int, cap_epochs: int, schedule: str, target: float | None
    ) -> Learning:
        """Return draws of epochs, success and metric where training stops.

        Training stops at the first evaluation, one at each epoch's end, whose metric reaches ``target``, at the latest
        after ``cap_epochs``; the planned schedule is stretched over ``cap_epochs``.

        Parameters
        ----------
        batches
            Global batches, shape (n,).
        """
        epochs = _evaluations(cap_epochs)
        normal = standard_draws(DRAWS, 7, seed=1)
        curve = self.curve(self.posterior.draws(normal[:, :5]))
        run = normal[:, 5:6] * self._run_sd(batches)
        path = self._path(
            curve, normal[:, 6:7], epochs * float(train_samples), annealing(schedule, epochs / cap_epochs)
        )
        # In ln(reducible gap), time and batch are two terms: path(epoch) falls, handicap(batch) does not depend on it.
        handicap = curve.power * np.log(batches + curve.critical_batch)
        stop = np.full(run.shape, len(epochs) - 1)
        reached = np.zeros(run.shape, dtype=bool)
        if target is not None:
            gap = float(self.scale.gap(np.array(target)))
            # A guess already meets a target at or below chance, however unlucky the run.
            wanted = np.full(run.shape, gap) if gap >= self.scale.chance_gap else gap * np.exp(-run)
            needed = reducible_log_of(wanted, curve.floor, self.scale.chance_gap) - handicap
            first = np.stack([np.searchsorted(-p, -n) for p, n in zip(path, needed, strict=True)])
            reached = first < len(epochs)
            stop = np.minimum(first, len(epochs) - 1)
        reducible = np.take_along_axis(path, stop, axis=1) + handicap
        left = total_gap(reducible, curve.floor, self.scale.chance_gap) * np.exp(run)
        return Learning(
            epochs=epochs[stop], reached=reached, metric=self.scale.metric(np.minimum(left, self.scale.chance_gap))
        )

    def _run_sd(self, batches: Array) -> Array:
        low, high = self.seen_batches
        octaves = np.maximum(np.log2(batches / high), 0.0) + np.maximum(np.log2(low / batches), 0.0)
        return np.sqrt(RUN_SD**2 + (_FAR_BATCH_SD * octaves) ** 2)

    def _path(self, curve: Curve, slope: Array, samples: Array, progress: Array) -> Array:
        """Return the part of ln(reducible gap) that depends on time alone, shape (draws, evaluations), falling."""
        log_seen = math.log(self.seen_samples)
        beyond = np.maximum(np.log(samples) - log_seen, 0.0) * (np.exp(_SLOPE_SD * slope) - 1.0)
        path = reducible_log_gap(curve, np.log(samples) + beyond, progress)
        return np.asarray(np.minimum.accumulate(path, axis=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Points:
    """Evaluations of all pilots as columns of shape (n,)."""

    samples: Array
    batch: Array
    progress: Array
    gap: Array
    noise: Array


def fit_learning(profile: Profile, *, reference_batch: int) -> LearningModel | None:
    """Return the model fitted to all pilots together, None where none of their evaluations is above chance.

    Parameters
    ----------
    profile
        Its pilots that did not diverge, and its gradient noise as the prior of the critical batch.
    reference_batch
        Without gradient noise the critical batch is expected around ten times this, within a factor of 4.5.
    """
    scale = metric_scale(profile)
    columns = [_points(pilot, scale) for pilot in profile.pilots if not pilot.diverged and pilot.points]
    if not columns or not sum(len(points.gap) for points in columns):
        return None
    points = _Points(
        **{name: np.concatenate([getattr(c, name) for c in columns]) for name in _Points.__slots__},
    )
    noise_scale = profile.noise.noise_scale_samples if profile.noise is not None else None
    critical = (math.log(noise_scale), 1.0) if noise_scale else (math.log(10.0 * reference_batch), 1.5)
    pivot = float(np.exp(np.median(np.log(effective_steps(points.samples, points.batch, math.exp(critical[0]))))))
    prior = Prior.of(
        log_scale=(float(np.mean(np.log(points.gap))) + 0.1, 1.0),
        log_power=(math.log(0.45), 0.5),
        log_critical=critical,
        log_anneal=(math.log(0.22), 0.8),  # rho = 0.8
        log_floor=(math.log(0.03 * scale.chance_gap), 1.0),
    )
    return LearningModel(
        posterior=fit_map(_residuals_of(points, pivot, scale.chance_gap), prior),
        scale=scale,
        pivot_steps=pivot,
        seen_samples=float(points.samples.max()),
        seen_batches=(float(points.batch.min()), float(points.batch.max())),
    )


def metric_scale(profile: Profile) -> MetricScale:
    """Return ceiling and chance of the metric, from the facts or, where unknown, from what pilots showed."""
    facts = profile.facts
    seen = [point.metric for pilot in profile.pilots if not pilot.diverged for point in pilot.points] or [0.5]
    ceiling = facts.metric_ceiling
    if ceiling is None:
        spread = max(max(seen) - min(seen), abs(max(seen)), 1e-6)
        if facts.higher_is_better:
            ceiling = 1.0 if min(seen) >= 0 and max(seen) <= 1 else max(seen) + spread
        else:
            ceiling = 0.0 if min(seen) >= 0 else min(seen) - spread
    sign = 1.0 if facts.higher_is_better else -1.0
    gaps = [sign * (ceiling - metric) for metric in seen]
    chance_gap = sign * (ceiling - facts.chance) if facts.chance is not None else 2.0 * max(gaps)
    return MetricScale(
        ceiling=ceiling, higher_is_better=facts.higher_is_better, chance_gap=max(chance_gap, max(gaps), 1e-6)
    )


def _points(pilot: Pilot, scale: MetricScale) -> _Points:
    rows = [point for point in pilot.points if point.samples > 0]
    metric = np.array([row.metric for row in rows], dtype=float)
    count = np.array([row.eval_samples for row in rows], dtype=float)
    # Half an error is the least that an evaluation of so many samples can tell from none.
    gap = np.maximum(scale.gap(metric), 0.5 / np.maximum(count, 1.0) * min(scale.chance_gap, 1.0))
    share = np.clip(gap, 0.0, 1.0)
    binomial = np.sqrt(np.maximum(share * (1.0 - share), 0.25 / count) / count) / gap
    weight = math.sqrt(max(1.0, len(rows) / _POINTS_OF_A_PILOT))
    noise = np.sqrt(binomial**2 + _POINT_SD**2) * weight
    keep = gap < scale.chance_gap * np.minimum(_NEAR_CHANCE, np.maximum(1.0 - 2.0 * binomial, 0.5))
    return _Points(
        samples=np.array([row.samples for row in rows], dtype=float)[keep],
        batch=np.full(len(rows), float(pilot.global_batch))[keep],
        progress=np.array([row.annealing for row in rows], dtype=float)[keep],
        gap=gap[keep],
        noise=noise[keep],
    )


def _residuals_of(points: _Points, pivot: float, chance_gap: float) -> Residuals:
    def residuals(theta: Array) -> Array:
        curve = _curve(theta, pivot, chance_gap)
        steps = np.log(effective_steps(points.samples, points.batch, curve.critical_batch))
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
        pivot_steps=pivot,
        chance_gap=chance_gap,
    )


def _evaluations(cap_epochs: int) -> Array:
    if cap_epochs <= _MOST_EPOCHS:
        return np.arange(1, cap_epochs + 1, dtype=float)
    return np.unique(np.round(np.geomspace(1, cap_epochs, _MOST_EPOCHS)))
