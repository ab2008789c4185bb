"""`MitigationEffect`: what a method against lost accuracy is known to do, as data that forecasts take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tula_core.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class MitigationEffect:
    """A method's effect relative to the pilots, which trained without it: ln of a factor with its sd, and a power.

    The default is no effect, known exactly. Evidence that is one paper's is worth a standard deviation of 0.3 or so.

    Parameters
    ----------
    log_critical, log_critical_sd
        On the critical batch: above 0 where a larger batch costs fewer samples than without. Small batches are not
        touched.
    log_work, log_work_sd
        On the samples to any level of the metric, at every batch.
    log_gap, log_gap_sd
        On the gap that is left between metric and its best value, at every batch.
    rate_power
        How fast the rate rises with the batch: the power of B/B0 over that of the pilots' rule, 1 as there, 0 where it
        stays the small batch's. Above B0 runs are lost to a rate that is too high, so that a batch B counts for it as
        the batch B0 (B/B0)^rate_power.
    """

    log_critical: float = 0.0
    log_critical_sd: float = 0.0
    log_work: float = 0.0
    log_work_sd: float = 0.0
    log_gap: float = 0.0
    log_gap_sd: float = 0.0
    rate_power: float = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite and spreads below zero."""
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0.0 if field.name.endswith("_sd") or field.name == "rate_power" else -math.inf
            if not (math.isfinite(value) and value >= low):
                what = "a finite number of at least 0" if low == 0.0 else "a finite number"
                raise InputError(f"effect.{field.name}: {what} is needed, got {value!r}. Mend it.")

    def values(self) -> tuple[float, ...]:
        """Return the numbers in the order of the fields."""
        return tuple(float(getattr(self, field.name)) for field in fields(self))
