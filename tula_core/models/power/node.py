"""Mean power of a node that trains: as meters read it while profiling, else as the job states it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.job import Cluster
from tula_core.models.power.limit import LimitEffect, limit_effect
from tula_core.records.power import PowerUse
from tula_core.records.profile import StepTiming

Array = NDArray[np.float64]

_METER_LOG_SD = 0.05  # of a meter's accuracy and of a repeated window
_LOG_SD_PER_OCTAVE = 0.08  # of batch size away from what was measured
_LOG_SD_PER_DOUBLING = 0.25  # of processes away from what was measured
_USUAL_GROWTH = 0.5  # of ln(power) by ln(processes) where one number of them was measured
_LEAST_HOST_SHARE = 0.1  # of a node's power that no accelerator draws


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePower:
    """Forecasts the mean watts of a node, and what a power limit does to it.

    Attributes
    ----------
    measured
        What meters read; empty where the job's figures are used.
    stated_w, idle_w, full_processes
        Of a node with ``full_processes`` at work, and with none; None where not given.
    top_w
        Power limit of one accelerator that holds without another; None where nothing is known of it.
    host_share
        Share of a step in which accelerators wait for the host.
    """

    measured: tuple[PowerUse, ...]
    stated_w: float | None
    idle_w: float | None
    full_processes: int
    top_w: float | None
    host_share: float

    @property
    def known(self) -> bool:
        """Whether any power is known."""
        return bool(self.measured) or self.stated_w is not None

    @property
    def accelerator_w(self) -> float | None:
        """Mean measured watts of one accelerator over the configurations, None where it was not measured."""
        found = [use.accelerator_w for use in self.measured if use.accelerator_w is not None]
        return float(np.mean(found)) if found else None

    def watts(self, processes_per_node: Array, local_batch: Array) -> tuple[Array, Array]:
        """Return mean watts of a node and their log standard deviation, each of shape (n,).

        Measured ones are averaged on a log scale, near ones more: weight exp(-octaves of batch - doublings of
        processes). Stated ones grow linearly with the processes from the idle power, where that is given. Empirical.
        """
        if self.measured:
            return self._as_measured(processes_per_node, local_batch)
        assert self.stated_w is not None, "ask `known` first"
        idle_w = self.stated_w if self.idle_w is None else self.idle_w
        share = np.minimum(processes_per_node / self.full_processes, 1.0)
        watts = idle_w + (self.stated_w - idle_w) * share
        return watts, np.zeros_like(watts)

    def effect(self, limit_w: float) -> LimitEffect:
        """Return what a limit on each accelerator does; needs a known ``top_w``."""
        assert self.top_w is not None, "no limit is searched where nothing is known of the present one"
        return limit_effect(limit_w, self.top_w, self.accelerator_w, self.host_share)

    def under_limits(
        self, limits_w: Array, processes_per_node: Array, watts: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Return a node's watts and their log sd with each accelerator limited; a limit that is NaN changes nothing."""
        value, log_sd = watts[0].copy(), watts[1].copy()
        for limit_w in np.unique(limits_w[np.isfinite(limits_w)]):
            here, effect = limits_w == limit_w, self.effect(float(limit_w))
            most_w = (1 - _LEAST_HOST_SHARE) * value[here]
            accelerators_w = np.minimum(processes_per_node[here] * effect.demand_w, most_w)
            value[here] -= accelerators_w * (1 - effect.power_factor)
            log_sd[here] = np.hypot(log_sd[here], effect.power_log_sd)
        return value, log_sd

    def slowing(self, limits_w: Array) -> tuple[Array, Array]:
        """Return the factor on step time and its log sd for limits of shape (n,), NaN where none is set."""
        factor, log_sd = np.ones_like(limits_w), np.zeros_like(limits_w)
        for limit_w in np.unique(limits_w[np.isfinite(limits_w)]):
            effect = self.effect(float(limit_w))
            factor[limits_w == limit_w], log_sd[limits_w == limit_w] = effect.time_factor, effect.time_log_sd
        return factor, log_sd

    def _as_measured(self, processes_per_node: Array, local_batch: Array) -> tuple[Array, Array]:
        processes = np.log2([use.processes_per_node for use in self.measured])
        batches, watts = np.log2([use.local_batch for use in self.measured]), np.log([u.node_w for u in self.measured])
        growth, growth_sd = _growth(processes, watts)
        away = np.log2(processes_per_node)[:, None] - processes
        octaves = np.abs(np.log2(local_batch)[:, None] - batches)
        weight = np.exp(-octaves - 2 * np.abs(away))
        weight /= weight.sum(axis=1, keepdims=True)
        value = (weight * (watts + growth * np.log(2) * away)).sum(axis=1)
        log_sd = _METER_LOG_SD + (weight * (_LOG_SD_PER_OCTAVE * octaves + growth_sd * np.abs(away))).sum(axis=1)
        return np.exp(value), log_sd


def fit_node_power(power: Sequence[PowerUse], steps: Sequence[StepTiming], cluster: Cluster) -> NodePower:
    """Return the power of a node of the job's cluster."""
    limits = [use.limit_w for use in power if use.limit_w is not None]
    asked = cluster.power_limits_w or ()
    share = [row.loader_s / row.step_time_s for row in steps if row.step_time_s > 0]
    return NodePower(
        measured=tuple(power),
        stated_w=cluster.power_watts,
        idle_w=cluster.idle_power_watts,
        full_processes=cluster.processes_per_node,
        top_w=max(limits or asked, default=None),
        host_share=float(np.clip(np.median(share), 0.0, 1.0)) if share else 0.0,
    )


def _growth(processes: Array, watts: Array) -> tuple[float, float]:
    """Return the exponent of power by processes and its uncertainty per doubling."""
    spread = processes - processes.mean()
    if not (spread**2).sum() > 0:
        return _USUAL_GROWTH, _LOG_SD_PER_DOUBLING
    exponent = float((spread * (watts - watts.mean())).sum() / (spread**2).sum() / np.log(2))
    return float(np.clip(exponent, 0.0, 1.0)), _LOG_SD_PER_DOUBLING / 2
