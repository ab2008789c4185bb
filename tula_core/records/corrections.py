"""`Corrections`: what history taught the predictor, applied on top of what a profile and the methods' cards say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tula_core.records.mitigation import MitigationEffect

GAP_PER_WORK = 0.3
"""ln of the gap for one ln of work: the usual power of a learning curve, 0.4, of which a floor leaves some 3/4."""
_Z90 = 1.645


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """For one quantity: multiply the forecast by exp(log_bias), and widen its interval by log_sd.

    ``log_sd`` is the spread of ln(actual/predicted) over outcomes after the bias is taken out.
    """

    log_bias: float
    log_sd: float
    outcomes: int


def card_log_gap_sd(card: MitigationEffect) -> float:
    """Return how far the gap of one job may be from what a method's card says: a standard deviation of its ln.

    s = hypot(c hypot(s_critical, s_work), s_gap) with c = `GAP_PER_WORK`. Far above the critical batch the work of a
    batch goes as 1/B_crit (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11), so that both spreads are of ln work
    there; the gap falls as a power of the work (Hestness et al. 2017, arXiv 1712.00409, eq. 1). c is empirical.

    >>> round(card_log_gap_sd(MitigationEffect(log_work_sd=0.5)), 3)
    0.15
    """
    return math.hypot(GAP_PER_WORK * math.hypot(card.log_critical_sd, card.log_work_sd), card.log_gap_sd)


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodCorrection:
    """For one method: its runs left exp(log_gap) times the gap that was forecast, between metric and best value.

    Attributes
    ----------
    log_gap
        Mean of that logarithm, drawn towards the card.
    log_gap_sd
        Standard deviation of it for a workload that is not among ``jobs``: what is unknown of the mean, and how far
        workloads differ.
    outcomes, jobs
        The runs that it rests on, and of how many workloads they are.
    card
        What was known of the method, which all of this is relative to.
    """

    log_gap: float
    log_gap_sd: float
    outcomes: int
    jobs: int
    card: MitigationEffect

    def refine(self) -> MitigationEffect:
        """Return the card with what was learnt.

        The mean is one more factor on the gap. Where runs agree more closely than the card was sure of, its spreads
        shrink in proportion; where they differ by more, the rest is spread of the gap.
        """
        card, before = self.card, card_log_gap_sd(self.card)
        share = min(1.0, self.log_gap_sd / before) if before > 0 else 1.0
        more = math.sqrt(max(0.0, self.log_gap_sd**2 - before**2))
        return replace(
            card,
            log_critical_sd=share * card.log_critical_sd,
            log_work_sd=share * card.log_work_sd,
            log_gap=card.log_gap + self.log_gap,
            log_gap_sd=math.hypot(share * card.log_gap_sd, more),
        )

    def evidence(self) -> str:
        """Return what it rests on in words, for example ``9 runs of 3 workloads here``."""
        runs, workloads = ("" if count == 1 else "s" for count in (self.outcomes, self.jobs))
        return f"{self.outcomes} run{runs} of {self.jobs} workload{workloads} here"

    def words(self) -> str:
        """Return what was learnt in words.

        >>> card = MitigationEffect(log_work_sd=0.5)
        >>> MethodCorrection(log_gap=0.077, log_gap_sd=0.1, outcomes=9, jobs=3, card=card).words()
        'leaves 8 % more of the gap to the best metric than was known before (90 %: 8 % less to 27 % more)'
        """
        low, high = (self.log_gap + side * _Z90 * self.log_gap_sd for side in (-1.0, 1.0))
        return (
            f"leaves {_change(self.log_gap)} of the gap to the best metric than was known before "
            f"(90 %: {_change(low)} to {_change(high)})"
        )


def _change(log_factor: float) -> str:
    per_cent = 100.0 * math.expm1(log_factor)
    return f"{abs(per_cent):.0f} % {'less' if per_cent < 0 else 'more'}"


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
