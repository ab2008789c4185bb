"""What is usual of step times at scale, before a family's own measurements say more."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tula_core.errors import InputError

PRIORS_FILE = "models/hardware/priors.json"
"""Where the package keeps what was learnt, from ``tula_core`` down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Standard deviations of one quantity: of a whole benchmark, and of its accelerators and families beside that."""

    benchmark: float
    accelerator: float
    family: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPriors:
    """Prior means and spreads of `tula_core.models.hardware.fleet.fleet_time_s`; all logarithms are natural.

    Parameters
    ----------
    half_batch
        Spread of ln(half batch). Its mean lies between two rules: the floor of a step lasts ``exp(log_floor)`` seconds,
        and the half batch is ``exp(-log_batch_ratio)`` of the largest local batch that families use, for that is chosen
        to be efficient; ``floor_share`` is the first rule's weight.
    growth, crossing
        Spread of ln(growth) and of the crossing, with means ``log_growth`` and ``crossing_mean``.
    level
        Spread of ln(seconds of a sample); a benchmark's own is left free.
    smooth
        What the law misses, smooth over batch and accelerators; ``benchmark`` is not used.
    noise_sd, rough_noise_sd
        Of ln(one measured time), and of one that was taken by wall clock from start to end.
    interval_factor
        Standard deviations from the middle to either end of a 90 % interval.
    """

    level: Spread
    half_batch: Spread
    growth: Spread
    crossing: Spread
    smooth: Spread
    log_floor: float
    log_batch_ratio: float
    floor_share: float
    log_growth: float
    crossing_mean: float
    noise_sd: float
    rough_noise_sd: float
    interval_factor: float

    def to_dict(self) -> dict[str, object]:
        """Return plain values, as the priors file holds them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> FleetPriors:
        """Return the priors in plain values.

        Raises
        ------
        InputError
            A field is missing, unknown or not a finite number.
        """
        try:
            values = {name: _read(name, data[name]) for name in (field.name for field in dataclasses.fields(cls))}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"scaling priors: {error} is missing or not a finite number. Learn them anew.") from None
        return cls(**values)  # type: ignore[arg-type]


def load_fleet_priors() -> FleetPriors:
    """Return the priors that come with the package."""
    text = importlib.resources.files("tula_core").joinpath(PRIORS_FILE).read_text(encoding="utf-8")
    return FleetPriors.from_dict(json.loads(text)["fleet"])


def _read(name: str, value: object) -> Spread | float:
    if isinstance(value, Mapping):
        return Spread(**{key: _number(f"{name}.{key}", number) for key, number in value.items()})
    return _number(name, value)


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(name)
    return float(value)
