"""`StepTimeModel`: the step-time equations fitted to a profile, corrected near what was measured.

The equations carry to where nothing was measured. What they miss at the measured configurations is a Gaussian process
over (log batch, processes, nodes, accumulation), so that a dip in throughput at one batch size is kept where it was
seen and forgotten elsewhere (Rasmussen and Williams 2006, section 2.7: explicit basis functions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.inference.fitting import Posterior, Prior, fit_map
from tula_core.models.inference.scatter import machine_scatter
from tula_core.models.step.communication import Links, bucket_count
from tula_core.models.step.time import Shapes, StepParameters, step_parts
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]

DRIFT_SD = 0.05
"""Log standard deviation between measuring and training on the same machine: shared machines drift."""

_TIMING_SD = 0.03  # of a measured mean, beside its own standard error
_MISFIT_SD = 0.12  # what equations with few data miss on real machines, before these data say more
_MISFIT_WEIGHT = 4.0  # worth so many measurements
_FAR_SD = 0.06  # per unit of distance beyond the nearest measured configuration
_LOCAL = 5.0  # the local half of a misfit reaches so many times less far
_LENGTHS = (1.5, 0.7, 0.7, 2.0)  # octaves of local batch, processes per node, nodes, accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimeModel:
    """Step time with its log-normal uncertainty for any configuration."""

    posterior: Posterior
    gradient_bytes: float
    buckets: int
    timed: Shapes
    residual: Array  # ln(measured/modelled), shape (m,)
    slopes: Array  # d ln(time)/d parameter at the measured configurations, shape (m, p)
    gain: Array  # inverse covariance of the residuals, shape (m, m)
    misfit_sd: float
    drift_sd: float
    first_extra_s: Array  # of the first step beyond a steady one, shape (m,)

    def predict(self, shapes: Shapes) -> tuple[Array, Array]:
        """Return mean seconds of a steady step and their log standard deviation, each of shape (n,)."""
        mode, slopes = self._log_time(shapes), self._slopes(shapes)
        octaves = _octaves(shapes, self.timed)
        spread = slopes @ self.posterior.covariance
        cross = spread @ self.slopes.T + self.misfit_sd**2 * _correlation(octaves)
        shift = cross @ (self.gain @ self.residual)
        variance = np.einsum("np,np->n", spread, slopes) + self.misfit_sd**2
        variance -= np.einsum("nm,mk,nk->n", cross, self.gain, cross, optimize=True)
        far = _FAR_SD * np.maximum(_distance(octaves).min(axis=1) - 1.0, 0.0)
        log_sd = np.sqrt(np.maximum(variance, 0.0) + self.drift_sd**2 + far**2)
        return np.exp(mode + shift), log_sd

    def first_step_extra_s(self, shapes: Shapes) -> Array:
        """Return seconds that the first step takes beyond a steady one, from the nearest measured configuration."""
        return np.asarray(self.first_extra_s[_distance(_octaves(shapes, self.timed)).argmin(axis=1)])

    def is_measured(self, shapes: Shapes) -> NDArray[np.bool_]:
        """Return where the very configuration was timed, shape (n,)."""
        return np.asarray((_distance(_octaves(shapes, self.timed)) < 1e-9).any(axis=1))

    def _log_time(self, shapes: Shapes) -> Array:
        return _log_time(shapes, self.posterior.mode, self.gradient_bytes, self.buckets)

    def _slopes(self, shapes: Shapes) -> Array:
        return _log_time_slopes(shapes, self.posterior.mode, self.gradient_bytes, self.buckets)


def fit_step_time(rows: Sequence[StepTiming], links: Links, *, device: str, gradient_bytes: float) -> StepTimeModel:
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
    """
    buckets = bucket_count(gradient_bytes)
    timed = Shapes.of(rows)
    time_s = np.array([row.step_time_s for row in rows])
    error = np.array([row.step_time_error_s for row in rows]) / time_s
    repeat_sd = _repeat_sd(timed, time_s)
    noise = np.sqrt(np.minimum(error, 1.0) ** 2 + _TIMING_SD**2 + repeat_sd**2)
    posterior = fit_map(
        _Residuals(rows=rows, timed=timed, noise=noise, gradient_bytes=gradient_bytes, buckets=buckets),
        _prior(rows, links, device),
    )
    residual = np.log(time_s) - _log_time(timed, posterior.mode, gradient_bytes, buckets)
    weight = _MISFIT_WEIGHT + len(rows)
    misfit_sd = math.sqrt((_MISFIT_WEIGHT * _MISFIT_SD**2 + float(np.sum(np.minimum(residual**2, 0.25)))) / weight)
    slopes = _log_time_slopes(timed, posterior.mode, gradient_bytes, buckets)
    covariance = slopes @ posterior.covariance @ slopes.T + misfit_sd**2 * _correlation(_octaves(timed, timed))
    return StepTimeModel(
        posterior=posterior,
        gradient_bytes=gradient_bytes,
        buckets=buckets,
        timed=timed,
        residual=residual,
        slopes=slopes,
        gain=np.asarray(np.linalg.inv(covariance + np.diag(noise**2)), dtype=np.float64),
        misfit_sd=misfit_sd,
        drift_sd=math.hypot(DRIFT_SD, repeat_sd, machine_scatter(rows)),
        first_extra_s=np.maximum(np.array([row.first_step_s for row in rows]) - time_s, 0.0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Residuals:
    """Standardised residuals of the totals, in log time, and of the parts, as shares of the step."""

    rows: Sequence[StepTiming]
    timed: Shapes
    noise: Array
    gradient_bytes: float
    buckets: int

    def __call__(self, theta: Array) -> Array:
        parts = step_parts(self.timed, parameters(theta), self.gradient_bytes, self.buckets)
        total = self._column("step_time_s")
        found = [(np.log(np.maximum(parts.total, 1e-300)) - np.log(total)) / self.noise]
        for name in ("loader", "compute", "communication", "optimizer"):
            measured = self._column(f"{name}_s")
            # A part says less than the total: its limits are drawn by the clock, and hidden work moves between them.
            found.append((getattr(parts, name) - measured) / (0.05 * total + 0.2 * measured))
        # Where a fit starts far off, a bounded residual keeps the search finite.
        return np.clip(np.concatenate(found), -1e6, 1e6)

    def _column(self, name: str) -> Array:
        return np.array([getattr(row, name) for row in self.rows], dtype=float)


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


def parameters(theta: Array) -> StepParameters:
    """Return the parameters of the equations from those of the fit (logarithms where they are positive)."""
    t = np.clip(theta, -300.0, 300.0)
    e = np.exp(t)
    return StepParameters(
        floor_s=e[0],
        slope_s=e[1],
        exponent=t[2],
        floor_sharpness=1.0 + e[3],
        process_contention=t[4],
        node_contention=t[5],
        optimizer_s=e[6],
        loader_s=e[7],
        loader_slope_s=e[8],
        communication_scale=e[9],
        overlap=1.0 + e[10],
        inside_latency_s=e[11],
        inside_bandwidth=e[12],
        between_latency_s=e[13],
        between_bandwidth=e[14],
    )


def _prior(rows: Sequence[StepTiming], links: Links, device: str) -> Prior:
    """Return priors centred on the data's own scale, so that seconds and microseconds are treated alike."""
    compute = [max(row.compute_s, 0.05 * row.step_time_s) / row.accumulation for row in rows]
    per_sample = [time / row.local_batch for time, row in zip(compute, rows, strict=True)]
    tiny = 1e-4 * float(np.median([row.step_time_s for row in rows]))
    optimizer = float(np.median([row.optimizer_s for row in rows]))
    loader = [row.loader_s / row.accumulation for row in rows]
    loader_slope = [time / row.local_batch for time, row in zip(loader, rows, strict=True)]
    many = any(row.nodes > 1 for row in rows)
    inside, between = links.inside.posterior, links.between.posterior
    return Prior.of(
        log_floor=(math.log(0.4 * min(compute)), 1.2),
        log_slope=(math.log(0.6 * min(per_sample)), 1.2),
        exponent=(1.0, 0.04),
        log_sharpness=(math.log(0.4), 0.8),
        process_contention=(0.2, 0.5) if device == "cpu" else (0.02, 0.05),
        node_contention=(0.0, 0.2 if many else 0.03),
        log_optimizer=(math.log(max(optimizer, tiny)), 0.5),
        log_loader=(math.log(max(0.3 * min(loader), tiny)), 1.0),
        log_loader_slope=(math.log(max(0.7 * min(loader_slope), 1e-2 * tiny)), 1.0),
        log_communication_scale=(math.log(1.3), 0.6),
        log_overlap=(math.log(0.7), 0.8),
        inside_latency=(inside["log_latency"], inside.sd("log_latency")),
        inside_bandwidth=(inside["log_bandwidth"], inside.sd("log_bandwidth")),
        between_latency=(between["log_latency"], between.sd("log_latency")),
        between_bandwidth=(between["log_bandwidth"], between.sd("log_bandwidth")),
    )


def _log_time(shapes: Shapes, theta: Array, gradient_bytes: float, buckets: int) -> Array:
    return np.log(np.maximum(step_parts(shapes, parameters(theta), gradient_bytes, buckets).total, 1e-300))


def _log_time_slopes(shapes: Shapes, theta: Array, gradient_bytes: float, buckets: int) -> Array:
    """Return central differences of ln(time), shape (n, parameters)."""
    width = 1e-4
    moves = width * np.eye(len(theta))
    columns = [
        _log_time(shapes, theta + move, gradient_bytes, buckets)
        - _log_time(shapes, theta - move, gradient_bytes, buckets)
        for move in moves
    ]
    return np.stack(columns, axis=1) / (2 * width)


def _octaves(first: Shapes, second: Shapes) -> tuple[Array, ...]:
    """Return differences in octaves between all pairs: local batch, processes per node, nodes, accumulation."""
    names = ("local_batch", "processes_per_node", "nodes", "accumulation")
    return tuple(np.log2(getattr(first, n))[:, None] - np.log2(getattr(second, n))[None, :] for n in names)


def _correlation(octaves: tuple[Array, ...]) -> Array:
    squares = np.asarray(sum((gap / length) ** 2 for gap, length in zip(octaves, _LENGTHS, strict=True)))
    # Half of a misfit is shared with the neighbours, half belongs to the configuration: a dip is no slope.
    return np.asarray(0.5 * np.exp(-0.5 * squares) + 0.5 * np.exp(-0.5 * squares * _LOCAL**2))


def _distance(octaves: tuple[Array, ...]) -> Array:
    """Return the distance in octaves; a doubling of nodes counts twice, of accumulation half."""
    batch, processes, nodes, accumulation = octaves
    return np.sqrt(batch**2 + processes**2 + (2 * nodes) ** 2 + (0.5 * accumulation) ** 2)
