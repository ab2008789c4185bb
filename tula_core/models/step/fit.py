"""`StepTimeModel`: the step-time law fitted to a profile, corrected near what was measured.

The equations carry to where nothing was measured, the priors learnt from many clusters where little was. What the
equations miss at the measured configurations is kept where it was seen and forgotten elsewhere: see
`tula_core.models.step.inference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tula_core.errors import InputError
from tula_core.models.blocks import in_blocks
from tula_core.models.inference.scatter import machine_scatter
from tula_core.models.step.communication import Links
from tula_core.models.step.fitted import Fitted
from tula_core.models.step.inference import Timings, fit_law
from tula_core.models.step.misfit import octaves, same
from tula_core.models.step.population import load_population
from tula_core.models.step.prior import job_prior
from tula_core.models.step.time import Shapes
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]

DRIFT_SD = 0.05
"""Log standard deviation between measuring and training on the same machine: shared machines drift."""

_FAR_SD = 0.06  # per unit of distance beyond the nearest measured configuration
_PARTS = ("loader", "compute", "communication", "optimizer")
_BLOCK = 2048  # configurations at once
_OCTAVE_WEIGHTS = np.array([1.0, 1.0, 0.0, 2.0, 0.5])  # of batch, fullest and emptiest node, nodes, accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimeModel:
    """Step time with its log-normal uncertainty for any configuration."""

    law: Fitted
    widening: float  # of the law's own uncertainty, learnt from what was left out
    drift_sd: float
    first_extra_s: Array  # of the first step beyond a steady one, shape (m,)
    timed: bool = True  # False where what was timed cannot be

    def predict(self, shapes: Shapes) -> tuple[Array, Array]:
        """Return median seconds of a steady step and their log standard deviation, each of shape (n,)."""
        log_mean, variance = self.law.predict(shapes)
        far = self._far(shapes)
        return np.exp(log_mean), np.sqrt(self.widening**2 * variance + self.drift_sd**2 + far**2)

    def seconds(self, shapes: Shapes) -> Array:
        """Return median seconds of a steady step, shape (n,), as `predict` and several times faster."""
        return np.exp(self.law.mean(shapes))

    def joint(self, shapes: Shapes) -> tuple[Array, Array]:
        """Return the mean of ln(seconds) of a step, shape (n,), and the covariance of what measuring tells, (n, n).

        The drift between measuring and training is left out: no measurement takes it away.
        """
        log_mean, covariance = self.law.joint(shapes)
        far = self._far(shapes)
        return log_mean, self.widening**2 * covariance + np.outer(far, far)

    def first_step_extra_s(self, shapes: Shapes) -> Array:
        """Return seconds that the first step takes beyond a steady one, from the nearest measured configuration."""
        nearest = self._in_blocks(shapes, lambda part: self._distance(part).argmin(axis=0))
        return np.asarray(self.first_extra_s[nearest])

    def is_measured(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Return where the very configuration was timed, shape (n,)."""
        found = self._in_blocks(shapes, lambda part: np.asarray(same(self.law.places, octaves(part)).any(axis=0)))
        return np.asarray(found & self.timed, dtype=np.bool_)

    def _far(self, shapes: Shapes) -> Array:
        """Return the log standard deviation of being far from every measured configuration, shape (n,)."""
        nearest = self._in_blocks(shapes, lambda part: self._distance(part).min(axis=0))
        return np.asarray(_FAR_SD * np.maximum(nearest - 1.0, 0.0))

    @staticmethod
    def _in_blocks(shapes: Shapes, found: Callable[[Shapes], NDArray[Any]]) -> NDArray[Any]:
        """Return what is found of all configurations, of a block at a time: there are as many rows as were measured."""
        count = len(shapes.nodes)
        if count <= _BLOCK:
            return found(shapes)
        return np.concatenate(in_blocks(lambda block: found(shapes.part(block)), count, _BLOCK))

    def _distance(self, shapes: Shapes) -> Array:
        """Return distances from the measured configurations in octaves, shape (m, n); a doubling of nodes is two."""
        asked, squares = octaves(shapes), np.zeros((len(self.law.places), len(shapes.nodes)))
        for axis in np.flatnonzero(_OCTAVE_WEIGHTS):
            # Differences are exact where configurations are as far on either side: then the first measured one counts.
            apart = self.law.places[:, axis, None] - asked[:, axis]
            apart *= _OCTAVE_WEIGHTS[axis]
            apart *= apart
            squares += apart
        return np.sqrt(squares)


def fit_step_time(
    rows: Sequence[StepTiming], links: Links, *, device: str, gradient_bytes: float, loader_workers: int = 0
) -> StepTimeModel:
    """Return the model for timed configurations, from one upwards.

    Parameters
    ----------
    rows
        Timed configurations; repeated ones are averaged by the fit, contradictory ones widen it.
    links
        Latency and bandwidth as `tula_core.models.step.communication.fit_links` found them: priors here.
    device
        ``cpu`` or ``cuda``; processes on one CPU are expected to slow each other.
    gradient_bytes
        What one all-reduce of all gradients sends.
    loader_workers
        Of the recipe: they load while a step is computed; without any the two add up.

    Raises
    ------
    InputError
        No row, or a number that is not finite, negative, or zero where it must not be.
    """
    _check(rows)
    timed = Shapes.of(rows)
    time_s = np.array([row.step_time_s for row in rows], dtype=float)
    error = np.minimum(np.array([row.step_time_error_s for row in rows], dtype=float) / time_s, 1.0)
    repeat_sd = _repeat_sd(timed, time_s)
    timings = Timings(
        shapes=timed,
        time_s=time_s,
        relative_error=np.hypot(error, repeat_sd),
        parts_s={name: np.array([getattr(row, f"{name}_s") for row in rows], dtype=float) for name in _PARTS},
    )
    prior = job_prior(timings, links, device=device, gradient_bytes=gradient_bytes, loader_workers=loader_workers)
    return StepTimeModel(
        law=fit_law(timings, prior),
        widening=load_population().widening,
        drift_sd=math.hypot(DRIFT_SD, repeat_sd, machine_scatter(rows)),
        first_extra_s=np.maximum(np.array([row.first_step_s for row in rows]) - time_s, 0.0),
    )


def _check(rows: Sequence[StepTiming]) -> None:
    if not rows:
        raise InputError("steps: no timed configuration is given, at least one is needed. Measure again.")
    for place, row in enumerate(rows):
        above = ("nodes", "processes_per_node", "local_batch", "accumulation", "step_time_s")
        for name in (*above, "step_time_error_s", "first_step_s", *(f"{part}_s" for part in _PARTS)):
            value = getattr(row, name)
            if not math.isfinite(value) or value < 0 or (value == 0 and name in above):
                limit = "above 0" if name in above else "of at least 0"
                raise InputError(
                    f"steps[{place}].{name}: a finite number {limit} is needed, got {value!r}. "
                    "Measure again or remove that entry."
                )


def _repeat_sd(timed: Shapes, time_s: Array) -> float:
    """Return the pooled log standard deviation of repeated timings of one configuration, 0.0 where none repeats."""
    keys = np.stack([timed.nodes, timed.processes_per_node, timed.local_batch, timed.accumulation], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    count = np.bincount(group)
    freedom = len(time_s) - len(count)
    if freedom == 0:
        return 0.0
    log_time = np.log(time_s)
    mean = np.bincount(group, weights=log_time) / count
    return math.sqrt(float(np.sum((log_time - mean[group]) ** 2)) / freedom)
