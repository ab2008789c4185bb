"""The learning rate at any batch size and any moment of the run, a function of samples seen alone.

Use: always, unless ``mitigation: none``. Cost: none. Hyperparameters: the share of the run that warms up (0.1); for
``saturating-lr`` the noise scale in samples; for ``legw`` the share at the reference batch (0.01).
Sources: linear rule and gradual warm-up, Goyal et al. 2017, arXiv 1706.02677; square-root rule, Krizhevsky 2014,
arXiv 1404.5997, for adaptive optimizers; LEGW, You et al. 2019, arXiv 1901.08256; the saturating rule, McCandlish et
al. 2018, arXiv 1812.06162, section 2.2.

>>> from tula_core.job import Recipe
>>> rate = LearningRate.plan(Recipe(learning_rate=0.1, batch_size=256), 1024, ("linear-lr", "warmup"), 100_000)
>>> rate.factor, round(rate.peak, 3)
(4.0, 0.4)
>>> rate.at(0) == 0.1
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tula_core.job import Recipe, Schedule
from tula_core.models.learning.schedules import schedule_factor

WARMUP_SHARE = 0.1  # of the run's samples; Goyal et al. use 5 of 90 epochs, short runs need relatively more
LEGW_SHARE = 0.01  # at the reference batch, where no warm-up is asked for; it grows with the batch
LEGW_MOST = 0.15  # beyond that share of the run the warm-up would leave too little

_RULES = ("linear-lr", "sqrt-lr", "legw", "saturating-lr")
Options = Mapping[str, Mapping[str, float]]


def linear_factor(global_batch: int, reference_batch: int) -> float:
    """Return B/B0: as many samples move the weights as far (Goyal et al. 2017, section 2.1)."""
    return global_batch / reference_batch


def sqrt_factor(global_batch: int, reference_batch: int) -> float:
    """Return sqrt(B/B0): the update's variance stays the same (Krizhevsky 2014, section 5)."""
    return float((global_batch / reference_batch) ** 0.5)


def saturating_factor(global_batch: int, reference_batch: int, noise_scale_samples: float) -> float:
    """Return (1 + Bn/B0)/(1 + Bn/B): linear while B is far below the noise scale Bn, constant far above it.

    McCandlish et al. 2018, section 2.2, eta(B) = eta_max/(1 + Bn/B), divided by its value at B0. It is 1 at B0, never
    above B/B0 for B above B0, and at most 1 + Bn/B0.
    """
    return (1.0 + noise_scale_samples / reference_batch) / (1.0 + noise_scale_samples / global_batch)


def legw_warmup_share(share_at_reference: float, scale: float) -> float:
    """Return the share of the run that warms up: that of the reference batch times B/B0, at most 15 %.

    You et al. 2019: warm-up epochs grow as the batch does, so that warm-up steps stay the same.
    """
    return min(share_at_reference * max(scale, 1.0), LEGW_MOST)


def rate_rule(mitigation: Sequence[str]) -> str | None:
    """Return the rule that the rate is scaled by, None where none is.

    >>> rate_rule(("linear-lr", "lars")), rate_rule(("legw",)), rate_rule(("warmup",))
    ('linear', 'legw', None)
    """
    return next((name.removesuffix("-lr") for name in mitigation if name in _RULES), None)


def learning_rate_factor(
    mitigation: Sequence[str], global_batch: int, reference_batch: int, options: Options | None = None
) -> float:
    """Return what the reference rate is multiplied by; 1 where no method of ``mitigation`` sets the rate."""
    if "linear-lr" in mitigation:
        return linear_factor(global_batch, reference_batch)
    if "sqrt-lr" in mitigation or "legw" in mitigation:
        return sqrt_factor(global_batch, reference_batch)
    if "saturating-lr" in mitigation:
        noise_scale = (options or {})["saturating-lr"]["noise_scale_samples"]
        return saturating_factor(global_batch, reference_batch, noise_scale)
    return 1.0


def warmup_share(mitigation: Sequence[str], scale: float, options: Options | None = None) -> float:
    """Return the share of the run that warms up; 0 where the rate is not raised or nothing asks for it."""
    chosen = options or {}
    if scale <= 1:
        return 0.0
    if "legw" in mitigation:
        return legw_warmup_share(chosen.get("legw", {}).get("share", LEGW_SHARE), scale)
    return chosen.get("warmup", {}).get("share", WARMUP_SHARE) if "warmup" in mitigation else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRate:
    """A run's learning rate.

    Attributes
    ----------
    reference
        The recipe's rate, at its batch size.
    factor
        The rule's factor; ``reference * factor`` is the peak.
    warmup_samples, total_samples
        Length of the warm-up and of the whole schedule.
    """

    reference: float
    factor: float
    warmup_samples: int
    total_samples: int
    schedule: Schedule

    @classmethod
    def plan(
        cls,
        recipe: Recipe,
        global_batch: int,
        mitigation: Sequence[str],
        total_samples: int,
        options: Options | None = None,
    ) -> LearningRate:
        """Return the rate of a run of ``total_samples`` at ``global_batch``; ``options`` by method and name."""
        factor = learning_rate_factor(mitigation, global_batch, recipe.batch_size, options)
        share = warmup_share(mitigation, global_batch / recipe.batch_size, options) if factor > 1 else 0.0
        return cls(
            reference=recipe.learning_rate,
            factor=factor,
            warmup_samples=round(share * total_samples),
            total_samples=total_samples,
            schedule=recipe.schedule,
        )

    @property
    def peak(self) -> float:
        """The rate after the warm-up, before the schedule lowers it."""
        return self.reference * self.factor

    def at(self, samples_seen: float) -> float:
        """Return the rate of the step that begins after ``samples_seen`` samples.

        During the warm-up the rate rises linearly from the lower of the reference and the peak to the peak.
        """
        rate = self.peak
        if samples_seen < self.warmup_samples:
            start = min(self.reference, rate)
            rate = start + (rate - start) * samples_seen / self.warmup_samples
        return rate * float(schedule_factor(self.schedule, min(1.0, samples_seen / self.total_samples)))
