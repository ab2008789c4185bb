"""What pilots showed, as columns for a fit: gaps, how far each is to be believed, and which rates were too high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.records.profile import Pilot, Profile

Array = NDArray[np.float64]

_POINT_SD = 0.05  # what the curve misses at one evaluation of a pilot
_PEAK_SD = 0.08  # what a rate at its peak adds to that: weights far from their mean are judged by luck
_EARLY_SD = 0.2  # per e-fold of samples before an epoch or the pilot's end: early learning follows a steeper law
_BATCH_SD = 0.05  # per octave from the smallest pilot's batch: the rate differs too
_POINTS_OF_A_PILOT = 3.0  # evaluations of one run share its luck: more of them are not more runs
_NEAR_CHANCE = 0.97
_LOSS_RISE = 1.1  # a stable run does not rise above its first loss
_GAP_RISE = 1.25  # nor does it end so far above its best, chance of the evaluation apart


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

    def evaluation_sd(self, gap: Array, count: Array) -> Array:
        """Return the relative standard error of a gap over ``count`` samples, as of a share of errors: binomial.

        sqrt(g (1 - g)/n)/g, and never less than that of half an error.
        """
        share, number = np.clip(gap, 0.0, 1.0), np.maximum(count, 1.0)
        return np.asarray(np.sqrt(np.maximum(share * (1.0 - share), 0.25 / number) / number) / gap)


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Evaluations as columns of shape (n,); ``noise`` is the relative standard deviation of ``gap``."""

    samples: Array
    batch: Array
    progress: Array
    gap: Array
    noise: Array


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


def is_unstable(pilot: Pilot, scale: MetricScale) -> bool:
    """Return whether the learning rate was too high: the loss rose above its first, or accuracy was lost again.

    Such a run says nothing of the learning curve, and its best moments least of all.
    """
    gap, sd = _gaps(pilot, scale)
    if len(gap) < 2:
        return False
    first, *later = (point.train_loss for point in pilot.points)
    rose = any(loss > first + (_LOSS_RISE - 1.0) * abs(first) for loss in later)
    best = int(np.argmin(gap))
    worst_luck = 3.0 * math.hypot(gap[best] * sd[best], gap[-1] * sd[-1])
    return rose or bool(gap[-1] > _GAP_RISE * gap[best] + worst_luck)


def stable_pilots(pilots: Sequence[Pilot], scale: MetricScale) -> tuple[list[Pilot], float | None]:
    """Return the pilots to fit, and the smallest batch whose pilot was not stable.

    The smallest batch is always fitted: it is the recipe's own or below, and there must be something to go by.
    """
    used = [pilot for pilot in pilots if not pilot.diverged and pilot.points]
    smallest = min((pilot.global_batch for pilot in used), default=0)
    unstable = [p.global_batch for p in used if p.global_batch > smallest and is_unstable(p, scale)]
    if not unstable:
        return used, None
    return [pilot for pilot in used if pilot.global_batch < min(unstable)], float(min(unstable))


def points_of(pilots: Sequence[Pilot], scale: MetricScale, *, train_samples: int) -> Points:
    """Return the evaluations that are better than a guess.

    Forecasts begin at the end of the first epoch. What a pilot saw before is a way to get there, and is believed the
    less the further it is from there, or from the pilot's end where that comes first.
    """
    smallest = min((pilot.global_batch for pilot in pilots), default=1)
    columns = [_points(pilot, scale, smallest, train_samples) for pilot in pilots if pilot.points]
    return Points(
        **{name: np.concatenate([[], *(getattr(c, name) for c in columns)]) for name in Points.__slots__},
    )


def _gaps(pilot: Pilot, scale: MetricScale) -> tuple[Array, Array]:
    """Return the gaps of a pilot's evaluations and their relative standard errors."""
    metric = np.array([point.metric for point in pilot.points], dtype=float)
    count = np.maximum([float(point.eval_samples) for point in pilot.points], 1.0)
    # Half an error is the least that an evaluation of so many samples can tell from none.
    gap = np.maximum(scale.gap(metric), 0.5 / count * min(scale.chance_gap, 1.0))
    return gap, scale.evaluation_sd(gap, count)


def _points(pilot: Pilot, scale: MetricScale, smallest_batch: int, train_samples: int) -> Points:
    gap, sampling = _gaps(pilot, scale)
    samples = np.array([point.samples for point in pilot.points], dtype=float)
    progress = np.array([point.annealing for point in pilot.points], dtype=float)
    seen = np.maximum(samples, 1.0)
    early = np.maximum(np.log(min(seen[-1], train_samples) / seen), 0.0)
    octaves = math.log2(pilot.global_batch / smallest_batch)
    variance = (
        sampling**2
        + _POINT_SD**2
        + (_PEAK_SD * (1.0 - progress)) ** 2
        + (_EARLY_SD * early) ** 2
        + (_BATCH_SD * octaves) ** 2
    )
    weight = max(1.0, len(gap) / _POINTS_OF_A_PILOT)
    clear = np.minimum(_NEAR_CHANCE, np.maximum(1.0 - 2.0 * sampling, 0.5))
    keep = (samples > 0) & (gap < scale.chance_gap * clear)
    return Points(
        samples=samples[keep],
        batch=np.full(len(gap), float(pilot.global_batch))[keep],
        progress=progress[keep],
        gap=gap[keep],
        noise=np.sqrt(variance * weight)[keep],
    )
