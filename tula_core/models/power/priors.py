"""What is known of time and power before a device is measured, learnt from measurements of other devices.

The package's values are in ``energy_priors.json`` beside this module; ``python -m tula_core.bench.learn energy`` makes
them. They are means and spreads of scale-free parameters: nothing of a network, a data set or a device is in them.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tula_core.models.power.law import DEVICE_NAMES, WORK_NAMES

Array = NDArray[np.float64]

FILE = "models/power/energy_priors.json"
"""Where the package keeps the learnt values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Gaussian priors of the parameters of `tula_core.models.power.law`, and what its law misses.

    Attributes
    ----------
    device_mean, device_sd
        Of the device's vector, each of shape (5,).
    work_mean, work_sd
        Of a work's vector relative to its anchors, each of shape (7,): ln of small / (time x batch) at the smallest
        batch, of busy, loader and serial seconds / the shortest time; the others as they are.
    time_misfit, power_misfit
        Log standard deviation of an epoch's time and mean power around the law.
    time_widening, power_widening, energy_widening
        Factor on the predictive standard deviation that gives the 90 % interval its coverage on devices left out.
    """

    device_mean: Array
    device_sd: Array
    work_mean: Array
    work_sd: Array
    time_misfit: float
    power_misfit: float
    time_widening: float
    power_widening: float
    energy_widening: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, rounded to four decimals."""
        data: dict[str, Any] = {}
        for field in fields(self):
            value = np.round(getattr(self, field.name), 4)
            data[field.name] = value.tolist()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Priors:
        """Return the priors in plain values; raises ``KeyError`` or ``ValueError`` where they are none."""
        arrays = {
            "device_mean": DEVICE_NAMES,
            "device_sd": DEVICE_NAMES,
            "work_mean": WORK_NAMES,
            "work_sd": WORK_NAMES,
        }
        made = {name: np.array(data[name], dtype=float) for name in arrays}
        for name, of in arrays.items():
            if made[name].shape != (len(of),) or not np.isfinite(made[name]).all():
                raise ValueError(f"{name}: {len(of)} finite numbers are needed")
        rest = {field.name: float(data[field.name]) for field in fields(cls) if field.name not in arrays}
        return cls(**made, **rest)  # type: ignore[arg-type]


BROAD = Priors(
    device_mean=np.array([np.log(0.2), 0.2, 0.0, np.log(2.2), 0.0]),
    device_sd=np.array([0.5, 0.7, 0.05, 0.5, 1.0]),
    work_mean=np.array([0.0, 0.0, -3.0, -3.0, -0.3, 0.0, -1.0]),
    work_sd=np.array([1.0, 1.0, 2.0, 1.5, 0.6, 0.5, 1.5]),
    time_misfit=0.03,
    power_misfit=0.03,
    time_widening=1.0,
    power_widening=1.0,
    energy_widening=1.0,
)
"""What physics alone says; from here the learnt priors start."""


@functools.cache
def learnt() -> Priors:
    """Return the package's priors."""
    path = importlib.resources.files("tula_core.models.power").joinpath("energy_priors.json")
    return Priors.from_dict(json.loads(path.read_text(encoding="utf-8")))
