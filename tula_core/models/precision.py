"""Training in another precision than the recipe's: how its computation compares, and what it holds in memory.

Only computation changes: data-parallel training under autocast keeps weights and gradients in fp32, so what is sent is
the same. Step time moves by up to 2.4x with the precision, and a predictor blind to it misses by up to 147 %
(arXiv 2604.16145), so the ratio is measured where it can be and its prior is wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tula_core.models.inference.fitting import Posterior, Prior, fit_map
from tula_core.records.profile import PrecisionTiming, StepTiming

Array = NDArray[np.float64]

# ln(time / time in fp32), mean and standard deviation: where launching kernels rules, and where arithmetic does.
# Autocast adds casts to every launch. Tensor cores multiply 16 bits far faster (Micikevicius et al. 2018,
# arXiv 1710.03740, report 1.3-3x for whole networks); a CPU has them or emulates them. Empirical and wide.
_LAUNCH = {"cpu": (0.25, 0.4), "cuda": (0.1, 0.2)}
_LARGE = {
    ("cpu", "bf16"): (0.3, 0.8),
    ("cpu", "fp16"): (1.0, 0.9),
    ("cuda", "bf16"): (-0.55, 0.45),
    ("cuda", "fp16"): (-0.6, 0.45),
}
_BETWEEN_HALVES_SD = 0.2  # bf16 and fp16 run on the same units
_USUAL_HALF = (math.log(8.0), 1.5)  # ln of the local batch at which arithmetic begins to rule
_KNOWN_HALF_SD = 1.0
_TIMING_SD = 0.03  # of a measured ratio, beside its own standard error
_MISFIT_SD, _MISFIT_WEIGHT = 0.08, 4.0  # of the equation, and so many measurements that it is worth
_HALF_ACTIVATIONS = (0.6, 0.12)  # of fp32's: half, but for what autocast leaves in fp32 (norms, losses, targets)
_PEAK_NOISE = 0.01


def compute_ratio(local_batch: Array, launch: float, large: float, half: float) -> Array:
    """Return the ratio of computation times: (launch h + large b) / (h + b).

    Exact where both times are a floor and a slope, T = F + S b (Pollux, arXiv 2008.12260, eq. 8): ``launch`` is the
    ratio of the floors, ``large`` of the slopes, and h = F/S the local batch at which arithmetic begins to rule. Small
    batches gain nothing, because launching kernels takes as long in any precision.

    Parameters
    ----------
    local_batch
        b, shape (n,).
    launch, large, half
        Positive.
    """
    return np.asarray((launch * half + large * local_batch) / (half + local_batch))


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionModel:
    """One other precision beside the recipe's; made by `fit_precision`."""

    precision: str
    posterior: Posterior  # log_launch, log_large, log_half
    misfit_sd: float
    timed: frozenset[int]  # local batches
    optimizer_extra_s: float
    failure: str | None  # why it cannot be trained in, None where it can or that is not known
    rows: tuple[PrecisionTiming, ...]

    @property
    def measured(self) -> bool:
        """Whether anything was timed in this precision."""
        return bool(self.timed)

    def ratio(self, local_batch: Array) -> tuple[Array, Array]:
        """Return computation time over the recipe's and its log standard deviation, each of shape (n,)."""
        mode = self._log_ratio(local_batch, self.posterior.mode)
        width = 1e-4
        moves = width * np.eye(len(self.posterior.mode))
        slopes = np.stack(
            [
                self._log_ratio(local_batch, self.posterior.mode + move)
                - self._log_ratio(local_batch, self.posterior.mode - move)
                for move in moves
            ],
            axis=1,
        ) / (2 * width)
        variance = np.einsum("np,pq,nq->n", slopes, self.posterior.covariance, slopes) + self.misfit_sd**2
        return np.exp(mode), np.sqrt(variance)

    def activations(self, growth_bytes: Array, casts_bytes: float, reference: str) -> tuple[float, float]:
        """Return the factor on memory that grows with the batch, and its standard deviation.

        Parameters
        ----------
        growth_bytes
            What grows with the batch in the recipe's precision, at the local batches of ``rows``, shape (m,).
        casts_bytes
            By how much autocast's copies of the weights move memory, negative where the recipe itself has them.
        reference
            The recipe's precision.
        """
        mean, sd = _prior_activations(self.precision, reference)
        weight, total = sd**-2, mean * sd**-2
        for row, grown in zip(self.rows, growth_bytes, strict=True):
            if row.peak_bytes is None or row.reference_peak_bytes is None or grown <= 0:
                continue
            factor = 1.0 + (row.peak_bytes - row.reference_peak_bytes - casts_bytes) / float(grown)
            noise = math.hypot(0.05, _PEAK_NOISE * math.sqrt(2.0) * row.reference_peak_bytes / float(grown))
            weight, total = weight + noise**-2, total + factor * noise**-2
        return max(total / weight, 0.1), math.hypot(weight**-0.5, 0.05)

    def _log_ratio(self, local_batch: Array, theta: Array) -> Array:
        launch, large, half = np.exp(np.clip(theta, -50.0, 50.0))
        return np.log(compute_ratio(local_batch, launch, large, half))


def fit_precision(
    precision: str, reference: str, rows: Sequence[PrecisionTiming], steps: Sequence[StepTiming], *, device: str
) -> PrecisionModel:
    """Return the model of one precision; with no rows it is the prior, and wide.

    Parameters
    ----------
    rows
        What was timed in ``precision``, in turns with the recipe's ``reference``.
    steps
        Timed steps in the recipe's precision: they show where arithmetic begins to rule.
    """
    own = tuple(row for row in rows if row.precision == precision)
    good = tuple(row for row in own if row.outcome == "ok" and row.compute_s and row.reference_compute_s)
    batches = np.array([row.local_batch for row in good], dtype=float)
    measured = np.array([math.log((row.compute_s or 1.0) / (row.reference_compute_s or 1.0)) for row in good])
    noise = np.array([math.hypot(min(row.ratio_error or 0.0, 1.0), _TIMING_SD) for row in good])

    def residuals(theta: Array) -> Array:
        launch, large, half = np.exp(np.clip(theta, -50.0, 50.0))
        return np.asarray((np.log(compute_ratio(batches, launch, large, half)) - measured) / noise)

    posterior = fit_map(residuals, _prior(precision, reference, steps, device))
    misfit = residuals(posterior.mode) * noise
    weight = _MISFIT_WEIGHT + len(good)
    squares = _MISFIT_WEIGHT * _MISFIT_SD**2 + float(np.sum(np.minimum(misfit**2, 0.25)))
    failed = [row.failure or "it failed when it was measured" for row in own if row.outcome == "failed"]
    extra = [row.optimizer_s - row.reference_optimizer_s for row in good if _has_optimizer(row)]  # type: ignore[operator]
    return PrecisionModel(
        precision=precision,
        posterior=posterior,
        misfit_sd=math.sqrt(squares / weight),
        timed=frozenset(row.local_batch for row in good),
        optimizer_extra_s=float(np.median(extra)) if extra else 0.0,
        failure=failed[0] if failed and not good else None,
        rows=good,
    )


def _has_optimizer(row: PrecisionTiming) -> bool:
    return row.optimizer_s is not None and row.reference_optimizer_s is not None


def _prior(precision: str, reference: str, steps: Sequence[StepTiming], device: str) -> Prior:
    launch, large = _against_fp32(precision, device), _against_fp32(reference, device)
    both_half = "fp32" not in (precision, reference)

    def between(index: int) -> tuple[float, float]:
        mean, spread = launch[index][0] - large[index][0], math.hypot(launch[index][1], large[index][1])
        return mean, _BETWEEN_HALVES_SD if both_half else spread

    return Prior.of(log_launch=between(0), log_large=between(1), log_half=_half_of(steps))


def _against_fp32(precision: str, device: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the priors of ln launch and ln large against fp32."""
    if precision == "fp32":
        return (0.0, 0.0), (0.0, 0.0)
    return _LAUNCH[device], _LARGE[device, precision]


def _half_of(steps: Sequence[StepTiming]) -> tuple[float, float]:
    """Return the prior of ln h from computation times of one process: floor over slope, fitted relative to each."""
    rows = [row for row in steps if row.nodes * row.processes_per_node == 1 and row.compute_s > 0]
    if len({row.local_batch for row in rows}) < 2:
        return _USUAL_HALF
    batch = np.array([row.local_batch for row in rows], dtype=float)
    time_s = np.array([row.compute_s / row.accumulation for row in rows])
    columns = np.stack([np.ones_like(batch), batch], axis=1) / time_s[:, None]
    (floor_s, slope_s), _ = nnls(columns, np.ones_like(batch))
    if floor_s <= 0 or slope_s <= 0:
        return _USUAL_HALF
    return math.log(float(np.clip(floor_s / slope_s, 0.25, 1e4))), _KNOWN_HALF_SD


def _prior_activations(precision: str, reference: str) -> tuple[float, float]:
    mean, sd = _HALF_ACTIVATIONS
    if (precision == "fp32") == (reference == "fp32"):
        return 1.0, 0.05
    return (mean, sd) if reference == "fp32" else (1.0 / mean, sd / mean**2)
