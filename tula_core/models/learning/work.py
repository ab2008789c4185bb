"""Work to a target by batch size: the law, and what is known of it before anything is measured.

Work is samples, epochs or tokens until a target is reached, in any one unit. Laws here are of its ln, relative to the
work of a batch so small that noise is no hindrance.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tula_core.models.learning.priors import read_prior

Array = NDArray[np.float64]

PRIORS = Path(__file__).with_name("work_priors.json")
"""What was learnt of the law, by ``python -m tula_core.bench.learn epochs``."""


def log_relative_work(log_batch: Array, log_critical: Array, sharpness: Array, growth: Array) -> Array:
    """Return ln E(B)/E_min = (q/p) ln(1 + (B/B_crit)^p).

    At p = q = 1 it is E(B) = E_min (1 + B/B_crit) (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11). The two
    exponents are empirical: p says how sharply the work begins to rise at B_crit (from a gentle bend to a floor with a
    corner), q how fast it rises far beyond (ln work per ln batch). Rises with B; 0 as B goes to 0.

    Parameters
    ----------
    log_batch
        ln B.
    log_critical
        ln B_crit, in the unit of the batch.
    sharpness, growth
        p and q, positive.
    """
    above = sharpness * (log_batch - log_critical)
    # ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|): as `logaddexp`, twenty times faster.
    return np.asarray(growth / sharpness * (np.maximum(above, 0.0) + np.log1p(np.exp(-np.abs(above)))))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkPrior:
    """What is usual of the law, free of the scale of batch and work.

    Parameters
    ----------
    range_share
        By how much of the ln of the range of batches of interest B_crit lies above its lower end; people choose that
        range with B_crit in mind.
    log_critical, log_critical_sd
        ln(B_crit/(smallest batch of interest)) less that share: mean and standard deviation.
    log_range, log_range_sd
        ln of the range of batches of interest, where it is not told.
    log_sharpness, log_sharpness_sd
        ln p.
    log_growth_sd
        ln q, around 0: far beyond B_crit work is taken to rise in proportion to the batch.
    noise_sd
        Relative error of one measured work: runs that differ, evaluations now and then.
    misfit_sd, misfit_length
        What the law misses, as a random function of ln B: its size, and the ln of batch over which it changes.
    freedom
        Degrees of freedom of the Student-t that says how far the two sizes above hold for another curve.
    """

    range_share: float
    log_critical: float
    log_critical_sd: float
    log_range: float
    log_range_sd: float
    log_sharpness: float
    log_sharpness_sd: float
    log_growth_sd: float
    noise_sd: float
    misfit_sd: float
    misfit_length: float
    freedom: float

    def critical(self, log_smallest: float, log_largest: float | None) -> tuple[float, float]:
        """Return mean and standard deviation of ln B_crit for a range of batches of interest, or an unknown one."""
        if log_largest is not None:
            return self.log_critical + log_smallest + self.range_share * (log_largest - log_smallest), (
                self.log_critical_sd
            )
        return self.log_critical + log_smallest + self.range_share * self.log_range, math.hypot(
            self.log_critical_sd, self.range_share * self.log_range_sd
        )

    def to_dict(self) -> dict[str, float]:
        """Return the plain values."""
        return asdict(self)


@cache
def work_prior() -> WorkPrior:
    """Return the prior that the package carries."""
    return read_prior(PRIORS, WorkPrior)
