"""How much longer a step takes on another device, from peak FLOP/s and memory bandwidth of both.

Equation 2 of Habitat (Yu et al. 2021, arXiv 2102.00527, "wave scaling") carries one kernel's time over by a geometric
mean of the ratios of compute and of memory bandwidth, weighted by how memory-bound the kernel is; here it carries the
whole step, with one weight that is only known up to a spread. Habitat measures kernels and still misses whole steps by
11.8 % on average; datasheets know less, so the spread is wider and grows with how far apart the devices are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from tula_core.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Peak rates of one accelerator, or of the cores of one process: FLOP/s at the precision trained with, bytes/s.

    Raises
    ------
    InputError
        A rate is not finite or not above zero.
    """

    flops_per_s: float
    memory_bytes_per_s: float

    def __post_init__(self) -> None:
        """Refuse impossible rates."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InputError(
                    f"device.{field.name}: a finite number above 0 is needed, got {value!r}. "
                    "Give the rate from the device's data sheet."
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferPriors:
    """What is known of carrying times over; all spreads are of ln(time).

    Parameters
    ----------
    memory_share, memory_share_sd
        Weight of memory bandwidth in [0, 1], and how far that of one network may be from it.
    fact_sd
        Between two devices of the same facts: boards, clocks, power limits and software differ.
    distance_sd
        For each e-fold between the devices.
    floor_exponent, floor_sd
        The floor of a step, mostly the host launching kernels, changes as that power of the device's ratio; hosts
        differ, and nothing is known of them.
    """

    memory_share: float
    memory_share_sd: float
    fact_sd: float
    distance_sd: float
    floor_exponent: float
    floor_sd: float

    @classmethod
    def from_dict(cls, data: Mapping[str, float]) -> TransferPriors:
        """Return the priors in plain values; `InputError` where one is missing or impossible."""
        try:
            priors = cls(**{field.name: float(data[field.name]) for field in fields(cls)})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"transfer priors: {error} is missing or no number. Learn them anew.") from None
        values = [getattr(priors, field.name) for field in fields(cls)]
        if not all(math.isfinite(value) and value >= 0 for value in values) or priors.memory_share > 1:
            raise InputError("transfer priors: a value is negative, infinite or a share above 1. Learn them anew.")
        return priors


def log_time_ratio(measured: Device, other: Device, priors: TransferPriors) -> tuple[float, float]:
    """Return ln(time on the other device / time on the measured one) of a step that keeps it busy, and its sd.

    ln r = (1 - w) ln(F/F') + w ln(W/W'): Habitat, arXiv 2102.00527, eq. 2 without its wave terms. The spread is
    empirical: sd^2 = fact_sd^2 + (memory_share_sd (ln F/F' - ln W/W'))^2 + (distance_sd ln r)^2.

    Parameters
    ----------
    measured, other
        F, W and F', W'.
    priors
        Weight w = ``memory_share``, and the spreads.
    """
    compute = math.log(measured.flops_per_s / other.flops_per_s)
    memory = math.log(measured.memory_bytes_per_s / other.memory_bytes_per_s)
    ratio = (1.0 - priors.memory_share) * compute + priors.memory_share * memory
    spread = math.hypot(priors.fact_sd, priors.memory_share_sd * (compute - memory), priors.distance_sd * ratio)
    return ratio, spread
