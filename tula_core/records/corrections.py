"""`Corrections`: what history taught the predictor, applied on top of what a profile and the methods' cards say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tula_core.records.mitigation import MitigationEffect

_Z90 = 1.645


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """For one quantity: multiply the forecast by exp(log_bias), and widen its interval by log_sd.

    ``log_sd`` is the spread of ln(actual/predicted) over outcomes after the bias is taken out.
    """

    log_bias: float
    log_sd: float
    outcomes: int


def card_sd(card: MitigationEffect) -> float:
    """Return how unsure a card is: hypot(s_critical, s_work, s_gap), for batches far above the critical one of ln work.

    There the work of a batch goes as 1/B_crit (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11), so that the spreads
    of critical batch and of work are of one kind.
    """
    return math.hypot(card.log_critical_sd, card.log_work_sd, card.log_gap_sd)


def moved(effect: MitigationEffect, card: MitigationEffect, count: float) -> MitigationEffect:
    """Return an effect that is worse by ``count`` of the card's standard deviations.

    Each number takes part by its variance, as the mean of jointly normal numbers does of which a sum is known (Gelman
    et al., Bayesian Data Analysis, 3rd edition, appendix A, eq. A.1): by s_k^2/hypot(s) for one standard deviation of
    all. A smaller critical batch is worse, more work and a larger gap are.

    >>> moved(MitigationEffect(), MitigationEffect(log_critical_sd=0.4, log_work_sd=0.3), 0.5).log_work
    0.09
    """
    step = count / card_sd(card) if card_sd(card) > 0 else 0.0
    return replace(
        effect,
        log_critical=effect.log_critical - step * card.log_critical_sd**2,
        log_work=effect.log_work + step * card.log_work_sd**2,
        log_gap=effect.log_gap + step * card.log_gap_sd**2,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodCorrection:
    """For one method: by how many of its own standard deviations what was known of it is off, above 0 for the worse.

    Attributes
    ----------
    shift
        Mean of that number, drawn to 0.
    spread
        Standard deviation of it for a workload that is not among ``jobs``: what is unknown of the mean, and how far
        workloads differ. 1 before anything was learnt.
    outcomes, jobs
        The runs that it rests on, and of how many workloads they are.
    card
        What was known of the method, which all of this is relative to.
    """

    shift: float
    spread: float
    outcomes: int
    jobs: int
    card: MitigationEffect

    def refine(self) -> MitigationEffect:
        """Return the card with what was learnt: its numbers moved, its spreads narrower or wider."""
        names = ("log_critical_sd", "log_work_sd", "log_gap_sd")
        spreads = {name: self.spread * getattr(self.card, name) for name in names}
        return moved(replace(self.card, **spreads), self.card, self.shift)

    def evidence(self) -> str:
        """Return what it rests on in words, for example ``9 runs of 3 workloads here``."""
        runs, workloads = ("" if count == 1 else "s" for count in (self.outcomes, self.jobs))
        return f"{self.outcomes} run{runs} of {self.jobs} workload{workloads} here"

    def words(self) -> str:
        """Return what was learnt in words.

        >>> card = MitigationEffect(log_work_sd=0.5)
        >>> MethodCorrection(shift=0.2, spread=0.8, outcomes=9, jobs=3, card=card).words()
        'at large batches it takes 11 % more samples than was known before (90 %: 43 % fewer to 113 % more)'
        """
        low, middle, high = (
            _change((self.shift + side * _Z90 * self.spread) * card_sd(self.card)) for side in (-1.0, 0.0, 1.0)
        )
        return f"at large batches it takes {middle} samples than was known before (90 %: {low} to {high})"


def _change(log_factor: float) -> str:
    per_cent = 100.0 * math.expm1(log_factor)
    return f"{abs(per_cent):.0f} % {'fewer' if per_cent < 0 else 'more'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrections:
    """A version of the predictor; version 1 is the built-in one, with no corrections."""

    SCHEMA_VERSION: ClassVar[int] = 1

    schema_version: int
    version: int
    outcomes: int
    jobs: int
    by_quantity: Mapping[str, Correction]
    by_method: Mapping[str, MethodCorrection] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name a plan and a run carry, for example ``tula-predictor v1 (built-in)``."""
        kind = "built-in" if self.version == 1 else f"{self.outcomes} outcomes of {self.jobs} jobs"
        return f"tula-predictor v{self.version} ({kind})"


BUILTIN = Corrections(schema_version=1, version=1, outcomes=0, jobs=0, by_quantity={})
