"""Node-hours, energy and cost of a run whose worlds of processes differ, each paid while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tula_core.models.cost import cost_usd, electricity_usd, hourly_price, node_hours
from tula_core.models.forecasting import Band, Models
from tula_core.models.inference.fitting import Z90
from tula_core.models.money import expected_attempts
from tula_core.models.power.energy import energy_j
from tula_core.models.spot import Interruptions
from tula_core.models.step.time import Shapes

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldTimes:
    """Paid seconds of each world: shape (worlds,), and their draws, (draws, worlds); how spot nodes stop them."""

    shapes: Shapes
    value_s: Array
    drawn_s: Array
    stops: Interruptions | None


def staged_money(models: Models, times: WorldTimes, limit_w: float | None) -> dict[str, Band]:
    """Return ``node_hours``, and ``energy_j`` and ``cost_usd`` where they are known, each of shape (1,).

    Each world is billed by itself, its nodes for its own seconds rounded up to the billing quantum. As for a run in
    one world, both prices of `tula_core.models.cost.bill_usd` add up.
    """
    nodes, cluster = times.shapes.nodes, models.job.cluster
    bands = {"node_hours": _band(times, node_hours(nodes, times.drawn_s), node_hours(nodes, times.value_s))}
    energy = _energy(models, times, limit_w) if models.power.known else None
    if energy is not None:
        bands["energy_j"] = energy
    price, electricity = hourly_price(cluster), cluster.electricity_usd_per_kwh
    if (price is None and electricity is None) or (electricity is not None and energy is None):
        return bands
    bill = Band(value=np.zeros(1), low=np.zeros(1), high=np.zeros(1))
    if price is not None:
        attempts = expected_attempts(times.value_s, None if times.stops is None else times.stops.paid(nodes))
        quantum = cluster.billing_seconds
        bill = _band(
            times,
            cost_usd(nodes, times.drawn_s, price, quantum, attempts),
            cost_usd(nodes, times.value_s, price, quantum, attempts),
        )
    if electricity is not None and energy is not None:
        bill = _sum(bill, energy.map(lambda joules: electricity_usd(joules, electricity)))
    return {**bands, "cost_usd": bill}


def _energy(models: Models, times: WorldTimes, limit_w: float | None) -> Band:
    """Return joules, the error of the power taken to go together in all worlds."""
    shapes = times.shapes
    limits_w = np.full(len(shapes.nodes), math.nan if limit_w is None else limit_w)
    watts, log_sd = models.power.under_limits(
        limits_w, shapes.processes_per_node, models.power.watts(shapes.processes_per_node, shapes.local_batch)
    )
    value = energy_j(shapes.nodes, times.value_s, watts)
    band = _band(times, energy_j(shapes.nodes, times.drawn_s, watts), value)
    spread = Z90 * float((value * log_sd).sum() / value.sum())
    below, above = (np.hypot(np.log(ratio), spread) for ratio in (band.value / band.low, band.high / band.value))
    return Band(value=band.value, low=band.value / np.exp(below), high=band.value * np.exp(above))


def _band(times: WorldTimes, drawn: Array, value: Array) -> Band:
    """Return the band of the sum over the worlds; where spot nodes stop them the value is a mean."""
    make = Band.of_draws if times.stops is None else Band.of_mean
    return make(drawn.sum(axis=1, keepdims=True), value.sum(keepdims=True))


def _sum(one: Band, other: Band) -> Band:
    return Band(value=one.value + other.value, low=one.low + other.low, high=one.high + other.high)
