"""Node-hours, energy and cost of forecast times, each with its 90 % interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tula_core.job import Cluster
from tula_core.models.cost import bill_usd, node_hours, on_spot
from tula_core.models.inference.fitting import Z90, standard_draws
from tula_core.models.power.energy import energy_j
from tula_core.models.power.node import NodePower
from tula_core.models.spot import Interruptions, drawn_time_s, expected_time_s, interruptions_of
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]
"""Time and what follows from it come as value, low and high: shape (3, n)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spending:
    """What a run's seconds are multiplied with; ``limits_w`` of shape (n,) is NaN where no power limit is set."""

    cluster: Cluster
    power: NodePower
    limits_w: Array


def interruptions(cluster: Cluster, nodes: Array, start_s: Array, segment_s: float) -> Interruptions | None:
    """Return how runs on this cluster are interrupted; None where they are not forecast to be.

    Parameters
    ----------
    start_s
        From the launch of the processes to the first step.
    segment_s
        From one checkpoint to the next.
    """
    per_hour = cluster.spot_interruptions_per_hour
    if not on_spot(cluster) or not per_hour:
        return None
    return Interruptions(
        rate_per_s=nodes * per_hour / 3600.0,
        segment_s=np.full_like(nodes, segment_s),
        restart_s=start_s,
        wait_s=np.full_like(nodes, cluster.spot_restart_seconds or 0.0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Seconds of runs, shape (n,), and draws of them, (draws, n)."""

    value_s: Array
    drawn_s: Array


def interrupted(run: Seconds, stops: Interruptions | None, nodes: Array) -> tuple[Seconds, Seconds]:
    """Return the seconds from launch to end with restarts from checkpoints, and those that each node is paid for.

    The value of the first is a usual run's, by how much restarts lengthen the median: the mean may lie above all but
    a few runs, and a deadline is kept or not by each. That of the second is the mean, which is what runs cost.
    """
    if stops is None:
        return run, run
    count, paid = len(run.drawn_s), stops.paid(nodes)
    chance, within = ndtr(standard_draws(count, 1, seed=7)), standard_draws(count, 1, seed=8)
    drawn_s = drawn_time_s(run.drawn_s, stops, chance, within)
    longer = np.median(drawn_s, axis=0) / np.median(run.drawn_s, axis=0)
    return (
        Seconds(value_s=run.value_s * longer, drawn_s=drawn_s),
        Seconds(value_s=expected_time_s(run.value_s, paid), drawn_s=drawn_time_s(run.drawn_s, paid, chance, within)),
    )


def spend(spending: Spending, shapes: Shapes, time_s: Array, attempts: Array | float = 1.0) -> dict[str, Array]:
    """Return ``node_hours``, and ``energy_j`` and ``cost_usd`` where they are known, each of shape (3, n).

    Parameters
    ----------
    time_s
        Value, low and high of the seconds that a node is paid for, shape (3, n).
    attempts
        How often the nodes are taken, expected.
    """
    found = {"node_hours": node_hours(shapes.nodes, time_s)}
    energy = None
    if spending.power.known:
        watts, log_sd = spending.power.under_limits(
            spending.limits_w,
            shapes.processes_per_node,
            spending.power.watts(shapes.processes_per_node, shapes.local_batch),
        )
        energy = _widened(energy_j(shapes.nodes, time_s, watts), log_sd)
        found["energy_j"] = energy
    cost = bill_usd(spending.cluster, shapes.nodes, time_s, energy, attempts)
    if cost is not None:
        found["cost_usd"] = cost
    return found


def expected_attempts(time_s: Array, with_rate: Interruptions | None) -> Array | float:
    """Return how often nodes are taken: once, and again after each interruption in ``time_s`` seconds with waits."""
    return 1.0 if with_rate is None else 1.0 + interruptions_of(time_s, with_rate)


def _widened(band: Array, log_sd: Array) -> Array:
    """Return value, low and high with an independent log standard deviation added in quadrature."""
    value, low, high = band
    below, above = (np.hypot(np.log(ends), Z90 * log_sd) for ends in (value / low, high / value))
    return np.stack([value, value / np.exp(below), value * np.exp(above)])
