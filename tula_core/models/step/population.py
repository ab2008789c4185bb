"""What many clusters and networks have in common: the prior of the step-time law, free of seconds and of batch sizes.

The numbers are those of `tula_core.models.step.law.NAMES` relative to a job's own `Scale`; `learning` learns them from
measured data and `load_population` reads what was learnt from the package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tula_core.models.step.inference import LawPrior, Timings
from tula_core.models.step.law import NAMES
from tula_core.models.step.misfit import AMPLITUDES, Amplitudes
from tula_core.models.step.scale import Scale

Array = NDArray[np.float64]

_FILE = "priors.json"
_JITTER = 1e-10  # keeps the covariance of numbers that are all but known invertible


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Mean (p,) and covariance (p, p) of the law's relative numbers, and the log-normal priors of the amplitudes.

    ``widening`` is the factor by which intervals of what was left out had to grow to hold 90 %.
    """

    mean: Array
    covariance: Array
    amplitudes: Amplitudes
    widening: float = 1.0

    def to_dict(self) -> dict[str, object]:
        """Return plain values, rounded to what they are worth."""
        return {
            "names": list(NAMES),
            "mean": _rounded(self.mean),
            "covariance": [_rounded(row) for row in self.covariance],
            "amplitudes": list(AMPLITUDES),
            "amplitude_log_mean": _rounded(self.amplitudes.mean),
            "amplitude_log_sd": _rounded(self.amplitudes.sd),
            "widening": round(self.widening, 4),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Population:
        """Return the population that `to_dict` wrote."""
        assert values["names"] == list(NAMES) and values["amplitudes"] == list(AMPLITUDES), "priors of another law"
        return cls(
            mean=np.array(values["mean"]),
            covariance=np.array(values["covariance"]),
            amplitudes=Amplitudes(mean=np.array(values["amplitude_log_mean"]), sd=np.array(values["amplitude_log_sd"])),
            widening=float(values["widening"]),
        )


@cache
def load_population() -> Population:
    """Return what the package's priors file holds."""
    text = resources.files(__package__ or "").joinpath(_FILE).read_text(encoding="utf-8")
    return Population.from_dict(json.loads(text))


def prior_of(population: Population, timings: Timings) -> LawPrior:
    """Return the prior for one job's measurements: the population on their own scale."""
    scale = Scale.of(timings.shapes, timings.time_s, timings.parts_s)
    offset, matrix = scale.map()
    covariance = matrix @ (population.covariance + np.diag(scale.unknown_variance)) @ matrix.T
    covariance += _JITTER * np.eye(len(offset))
    return LawPrior(mean=offset + matrix @ population.mean, covariance=covariance, amplitudes=population.amplitudes)


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
