"""The learning rate at any batch size and any moment of the run, a function of samples seen alone.

Use: always, unless ``mitigation: none``. Cost: none. Hyperparameters: the share of the run that warms up (0.1).
Sources: linear rule and gradual warm-up, Goyal et al. 2017, arXiv 1706.02677; square-root rule, Krizhevsky 2014,
arXiv 1404.5997, for adaptive optimizers.

>>> from tula_core.job import Recipe
>>> rate = LearningRate.plan(Recipe(learning_rate=0.1, batch_size=256), 1024, ("linear-lr", "warmup"), 100_000)
>>> rate.factor, round(rate.peak, 3)
(4.0, 0.4)
>>> rate.at(0) == 0.1
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tula_core.job import Recipe, Schedule
from tula_core.models.learning.schedules import schedule_factor

WARMUP_SHARE = 0.1  # of the run's samples; Goyal et al. use 5 of 90 epochs, short runs need relatively more


def linear_factor(global_batch: int, reference_batch: int) -> float:
    """Return B/B0: as many samples move the weights as far (Goyal et al. 2017, section 2.1)."""
    return global_batch / reference_batch


def sqrt_factor(global_batch: int, reference_batch: int) -> float:
    """Return sqrt(B/B0): the update's variance stays the same (Krizhevsky 2014, section 5)."""
    return float((global_batch / reference_batch) ** 0.5)


_RULES = {"linear-lr": linear_factor, "sqrt-lr": sqrt_factor}


def learning_rate_factor(mitigation: Sequence[str], global_batch: int, reference_batch: int) -> float:
    """Return what the reference rate is multiplied by; 1 where no method of ``mitigation`` sets the rate."""
    rules = [_RULES[name] for name in mitigation if name in _RULES]
    return rules[0](global_batch, reference_batch) if rules else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """A run's learning rate.

    Attributes
    ----------
    reference
        The recipe's rate, at its batch size.
    factor
        The rule's factor; ``reference * factor * reduction`` is the peak.
    reduction
        Product of the reductions after divergence, in (0, 1].
    warmup_samples, total_samples
        Length of the warm-up and of the whole schedule.
    """

    reference: float
    factor: float
    warmup_samples: int
    total_samples: int
    schedule: Schedule
    reduction: float = 1.0

    @classmethod
    def plan(cls, recipe: Recipe, global_batch: int, mitigation: Sequence[str], total_samples: int) -> LearningRate:
        """Return the rate of a run of ``total_samples`` at ``global_batch``."""
        factor = learning_rate_factor(mitigation, global_batch, recipe.batch_size)
        warm = "warmup" in mitigation and factor > 1
        return cls(
            reference=recipe.learning_rate,
            factor=factor,
            warmup_samples=round(WARMUP_SHARE * total_samples) if warm else 0,
            total_samples=total_samples,
            schedule=recipe.schedule,
        )

    @property
    def peak(self) -> float:
        """The rate after the warm-up, before the schedule lowers it."""
        return self.reference * self.factor * self.reduction

    def reduced(self, by: float) -> LearningRate:
        """Return the same schedule, ``by`` times as high."""
        return replace(self, reduction=self.reduction * by)

    def at(self, samples_seen: int) -> float:
        """Return the rate of the step that begins after ``samples_seen`` samples.

        During the warm-up the rate rises linearly from the lower of the reference and the peak to the peak.
        """
        rate = self.peak
        if samples_seen < self.warmup_samples:
            start = min(self.reference * self.reduction, rate)
            rate = start + (rate - start) * samples_seen / self.warmup_samples
        return rate * float(schedule_factor(self.schedule, min(1.0, samples_seen / self.total_samples)))
